package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"lapse/pkg/order"
)

// casePageSQL reads a page of late-payment cases by payment.
const casePageSQL = "SELECT " + lateColumns + ` FROM t_late_payment l JOIN t_payment p ON p.payment_no = l.payment_no
WHERE l.payment_no > ? ORDER BY l.payment_no LIMIT ?`

func (s *Store) walkCases(ctx context.Context, after string, limit int, m order.Mending, first order.Schedule) (w order.Walked, err error) {
	var page []order.LatePayment
	var now time.Time
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		page, err = q.latePayments(ctx, casePageSQL, after, limit)
		return err
	})
	if err != nil {
		return w, err
	}
	w.Looked = len(page)
	if len(page) == limit {
		w.Last = page[limit-1].PaymentNo
	}
	for _, l := range page {
		if !l.Stuck(now, m.Patience) {
			continue
		}
		suspect := order.Finding{Kind: order.LateCaseOpen, Subject: l.PaymentNo, Detail: describe(l)}
		err := s.mend(ctx, m, &w, suspect, func(ctx context.Context, t tx, f *order.Finding) ([]order.Message, error) {
			return t.mendCase(ctx, f, m, first)
		})
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

func describe(l order.LatePayment) string {
	return fmt.Sprintf("order %s, policy %s, %s since %s", l.OrderNo, l.Policy, l.Status, l.CreatedAt.Format(time.RFC3339))
}

// touchLateSQL notes that somebody was reminded of a case. Args: now, payment, status.
const touchLateSQL = "UPDATE t_late_payment SET changed_at = ? WHERE payment_no = ? AND status = ?"

// dropMessageSQL removes a message that nobody needs, or that is written again. Args: key.
const dropMessageSQL = "DELETE FROM t_local_message WHERE dedup_key = ?"

// mendCase lets a case go on: a policy that was not followed is, a refund that takes long is asked for again, and what waits
// for a person is told once.
func (t tx) mendCase(ctx context.Context, f *order.Finding, m order.Mending, first order.Schedule) ([]order.Message, error) {
	l, o, err := t.lateAndOrder(ctx, f.Subject)
	if err != nil || !l.Stuck(t.now, m.Patience) {
		return nil, err
	}
	f.Detail = describe(l)
	if l.Status == order.LateOpen && l.Policy == order.LateManual {
		f.Action = "a person is told, once"
		return nil, t.execAll(ctx, 1, touchLateSQL, t.now, l.PaymentNo, string(l.Status))
	}
	if _, err := t.exec(ctx, dropMessageSQL, order.RefundEventID(l.OrderNo, l.PaymentNo)); err != nil {
		return nil, err
	}
	if l.Status == order.LateOpen {
		return t.followPolicy(ctx, l, f, m, first)
	}
	f.Action = "its refund was requested again"
	rows, err := t.requestRefund(ctx, l, o, first)
	if err != nil {
		return nil, err
	}
	return rows, t.execAll(ctx, 1, touchLateSQL, t.now, l.PaymentNo, string(l.Status))
}

// followPolicy decides an open case as its policy says: what cannot be opened again has its money refunded.
func (t tx) followPolicy(ctx context.Context, l order.LatePayment, f *order.Finding, m order.Mending, first order.Schedule) ([]order.Message, error) {
	decision := order.Deciding{PaymentNo: l.PaymentNo, Policy: l.Policy, Act: order.Act{Actor: m.Actor, Note: "the policy had not been followed"}}
	if l.Policy == order.LateReopen {
		_, rows, err := t.decide(ctx, decision, first)
		if order.KindOf(err) != order.Conflict {
			f.Action = "its order was opened again"
			return rows, err
		}
		decision.Policy = order.LateRefund
	}
	f.Action = "its refund was requested"
	_, rows, err := t.decide(ctx, decision, first)
	return rows, err
}

// heldSQL reads messages, with the state of their orders and the items that they belong to.
const heldSQL = `SELECT m.dedup_key, m.kind, m.order_no, m.state, m.due_at, m.next_at, o.status, i.item_no FROM t_local_message m
LEFT JOIN t_order o ON o.order_no = m.order_no LEFT JOIN t_item i ON i.item_no = m.order_no `

const (
	heldPageSQL = heldSQL + "WHERE m.dedup_key > ? ORDER BY m.dedup_key LIMIT ?"
	oneHeldSQL  = heldSQL + "WHERE m.dedup_key = ?"
)

// heldMessage is a message as the reconciler sees it.
type heldMessage struct {
	key, orderNo  string
	kind          order.MessageKind
	state         order.MessageState
	dueAt, nextAt time.Time
	status        *order.Status // of its order; nil if there is none
	item          *string
}

// over reports whether it is a time-out of what has ended.
func (h heldMessage) over() bool {
	return h.kind == order.Timeout && h.item == nil && (h.status == nil || h.status.Final())
}

// wrong says what is wrong with a message; "" if nothing is.
func (h heldMessage) wrong(now time.Time, p order.Patience) string {
	forAPerson := h.kind == order.Timeout && h.status != nil && *h.status == order.Confirming
	latest := now
	if h.dueAt.After(now) {
		latest = h.dueAt
	}
	switch {
	case h.over():
		return "a time-out row of what has ended"
	case h.state == order.SetAside && !forAPerson:
		return "set aside: the broker refused it"
	case h.state == order.AlreadySent && h.kind == order.Notice:
		return "an event that was sent is deleted, but this one is marked as sent"
	case h.state == order.AlreadySent || h.state == order.SetAside:
		return ""
	case h.nextAt.Before(now.Add(-p.Overdue)):
		return "due since " + h.nextAt.Format(time.RFC3339) + ", and nobody has looked at it"
	case h.nextAt.After(latest.Add(p.Overdue)):
		return "due since " + h.dueAt.Format(time.RFC3339) + ", but nobody will look at it before " + h.nextAt.Format(time.RFC3339)
	}
	return ""
}

func (t tx) heldMessages(ctx context.Context, text string, args ...any) (found []heldMessage, err error) {
	err = t.query(ctx, func(scan func(...any) error) error {
		var h heldMessage
		err := scan(&h.key, &h.kind, &h.orderNo, &h.state, at(&h.dueAt), at(&h.nextAt), &h.status, &h.item)
		found = append(found, h)
		return err
	}, text, args...)
	return found, err
}

func (s *Store) walkMessages(ctx context.Context, after string, limit int, m order.Mending, first order.Schedule) (w order.Walked, err error) {
	var page []heldMessage
	var now time.Time
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		page, err = q.heldMessages(ctx, heldPageSQL, after, limit)
		return err
	})
	if err != nil {
		return w, err
	}
	w.Looked = len(page)
	if len(page) == limit {
		w.Last = page[limit-1].key
	}
	for _, h := range page {
		wrong := h.wrong(now, m.Patience)
		if wrong == "" {
			continue
		}
		suspect := order.Finding{Kind: order.MessageStuck, Subject: h.key, Detail: wrong}
		err := s.mend(ctx, m, &w, suspect, func(ctx context.Context, t tx, f *order.Finding) ([]order.Message, error) {
			return t.mendMessage(ctx, h.orderNo, f, m, first)
		})
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

// readyAgainSQL gives a locked message back to those who send it, or who ask about it. Args: next time, key.
const readyAgainSQL = `UPDATE t_local_message SET state = CASE WHEN state IN (1, 2) THEN 0 ELSE state END, attempts = 0, failing_since = NULL, next_at = ?
WHERE dedup_key = ?`

// mendMessage removes a message that nobody needs, and gives any other back to those who send or ask. What is to be sent is
// leased, and offered to the relay at once. Its order guards a time-out.
func (t tx) mendMessage(ctx context.Context, orderNo string, f *order.Finding, m order.Mending, first order.Schedule) ([]order.Message, error) {
	if _, err := t.orders(ctx, lockOrderSQL, orderNo); err != nil {
		return nil, err
	}
	rows, err := t.messages(ctx, lockTimeoutsSQL, []string{f.Subject})
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	again, err := t.heldMessages(ctx, oneHeldSQL, f.Subject)
	if err != nil {
		return nil, err
	}
	h := again[0]
	if f.Detail = h.wrong(t.now, m.Patience); f.Detail == "" {
		return nil, nil
	}
	if h.over() {
		f.Action = "removed"
		return nil, t.execAll(ctx, 1, dropMessageSQL, h.key)
	}
	f.Action = "ready again"
	if h.state > order.SetAside { // to be asked about
		return nil, t.execAll(ctx, 1, readyAgainSQL, t.now, h.key)
	}
	rows[0].Attempts, rows[0].NextAt = 0, first(rows[0], t.now).Truncate(time.Millisecond)
	return rows, t.execAll(ctx, 1, readyAgainSQL, rows[0].NextAt, h.key)
}

// differenceSQL is by how much the counters lack what the ledger says, after a resource. One statement, so one consistent
// view: while orders come and go counters and ledger move together, and their difference stays. Args: kind, kind, ref, limit.
const differenceSQL = `SELECT r.kind, r.ref, COALESCE(l.available, 0) - r.available AS available, COALESCE(l.held, 0) - r.held AS held,
	COALESCE(l.sold, 0) - r.sold AS sold FROM t_resource r LEFT JOIN (SELECT kind, ref,
	SUM(CASE WHEN op IN ('adjust', 'release', 'restock') THEN quantity WHEN op IN ('reserve', 'forfeit') THEN -quantity ELSE 0 END) AS available,
	SUM(CASE WHEN op = 'reserve' THEN quantity WHEN op IN ('release', 'sell') THEN -quantity ELSE 0 END) AS held,
	SUM(CASE op WHEN 'sell' THEN quantity WHEN 'restock' THEN -quantity ELSE 0 END) AS sold
	FROM t_resource_log WHERE remote = 0 GROUP BY kind, ref) l ON l.kind = r.kind AND l.ref = r.ref
WHERE (r.kind > ? OR r.kind = ? AND r.ref > ?)
AND (r.available <> COALESCE(l.available, 0) OR r.held <> COALESCE(l.held, 0) OR r.sold <> COALESCE(l.sold, 0)) ORDER BY r.kind, r.ref LIMIT ?`

const countResourcesSQL = "SELECT COUNT(*) FROM t_resource"

// adjustCountersSQL adds what counters lack. Args: available, held, sold, kind, ref.
const adjustCountersSQL = "UPDATE t_resource SET available = available + ?, held = held + ?, sold = sold + ? WHERE kind = ? AND ref = ?"

// differences is how many resources one look at the ledger brings.
const differences = 1000

// walkResources compares all counters with the ledger, which is read as a whole, by a connection that may take its time.
func (s *Store) walkResources(ctx context.Context, after string, m order.Mending) (w order.Walked, err error) {
	lacking, err := s.lacking(ctx, after, &w)
	if err != nil {
		return w, err
	}
	if len(lacking) == differences {
		w.Last = lacking[differences-1].Kind + "\t" + lacking[differences-1].Ref
	}
	for _, r := range lacking {
		change := fmt.Sprintf("available %+d, held %+d, sold %+d", r.Available, r.Held, r.Sold)
		suspect := order.Finding{Kind: order.CountersDiffer, Subject: r.Kind + "/" + r.Ref, Detail: "to what the ledger says the counters lack " + change}
		err := s.mend(ctx, m, &w, suspect, func(ctx context.Context, t tx, f *order.Finding) ([]order.Message, error) {
			f.Action = "added " + change
			return nil, t.execAll(ctx, 1, adjustCountersSQL, r.Available, r.Held, r.Sold, r.Kind, r.Ref)
		})
		if err != nil {
			return w, err
		}
	}
	return w, nil
}

// lacking are resources whose counters are not what the ledger says, with what they lack.
func (s *Store) lacking(ctx context.Context, after string, w *order.Walked) (lacking []order.Resource, err error) {
	db, err := s.slow()
	if err != nil {
		return nil, badDSN(err)
	}
	defer db.Close()
	q := runner{db, s.dialect}
	kind, ref, _ := strings.Cut(after, "\t") // neither has control characters
	err = q.query(ctx, func(scan func(...any) error) error {
		var r order.Resource
		err := scan(&r.Kind, &r.Ref, &r.Available, &r.Held, &r.Sold)
		lacking = append(lacking, r)
		return err
	}, differenceSQL, kind, kind, ref, differences)
	if err == nil && after == "" {
		err = q.QueryRowContext(ctx, countResourcesSQL).Scan(&w.Looked)
	}
	return lacking, s.answer(err)
}
