package store

import (
	"context"
	"fmt"
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
		found, rows, err := s.mend(ctx, m, order.LateCaseOpen, l.PaymentNo, func(ctx context.Context, t tx) ([]order.Finding, []order.Message, error) {
			return t.mendCase(ctx, l.PaymentNo, m, first)
		})
		if err != nil {
			return w, err
		}
		w.Findings, w.Messages = append(w.Findings, found...), append(w.Messages, rows...)
	}
	return w, nil
}

// touchLateSQL notes that somebody was reminded of a case. Args: now, payment, status.
const touchLateSQL = "UPDATE t_late_payment SET changed_at = ? WHERE payment_no = ? AND status = ?"

// dropMessageSQL makes room for a message that is written again. Args: key.
const dropMessageSQL = "DELETE FROM t_local_message WHERE dedup_key = ?"

// mendCase lets a case go on: a rule that was not followed is, a refund that takes long is asked for again, and what waits
// for a person is told once.
func (t tx) mendCase(ctx context.Context, paymentNo string, m order.Mending, first order.Schedule) ([]order.Finding, []order.Message, error) {
	l, o, err := t.lateAndOrder(ctx, paymentNo)
	if err != nil || !l.Stuck(t.now, m.Patience) {
		return nil, nil, err
	}
	f := order.Finding{Kind: order.LateCaseOpen, Subject: paymentNo, Mended: true,
		Detail: fmt.Sprintf("order %s, policy %s, %s since %s", l.OrderNo, l.Policy, l.Status, l.CreatedAt.Format(time.RFC3339))}
	if l.Status == order.LateOpen && l.Policy == order.LateManual {
		f.Action = "a person is told, once"
		return []order.Finding{f}, nil, t.execAll(ctx, 1, touchLateSQL, t.now, paymentNo, string(l.Status))
	}
	f.Action = "its refund was requested again"
	if _, err := t.exec(ctx, dropMessageSQL, order.RefundEventID(l.OrderNo, l.PaymentNo)); err != nil {
		return nil, nil, err
	}
	rows, err := t.requestRefund(ctx, l, o, first)
	if err != nil {
		return nil, nil, err
	}
	if l.Status == order.LateAsked {
		return []order.Finding{f}, rows, t.execAll(ctx, 1, touchLateSQL, t.now, paymentNo, string(l.Status))
	}
	f.Action = "its refund was requested"
	return []order.Finding{f}, rows, t.settleLate(ctx, &l, order.LateAsked, order.Act{Actor: m.Actor, Note: "the policy had not been followed"})
}

// messagePageSQL reads a page of messages by key, with the state of their orders.
const messagePageSQL = "SELECT m.dedup_key, m.kind, m.order_no, m.state, m.next_at, o.status, i.item_no FROM t_local_message m " + `
LEFT JOIN t_order o ON o.order_no = m.order_no LEFT JOIN t_item i ON i.item_no = m.order_no WHERE m.dedup_key > ? ORDER BY m.dedup_key LIMIT ?`

// heldMessage is a message as the reconciler sees it.
type heldMessage struct {
	key, orderNo string
	kind         order.MessageKind
	state        order.MessageState
	nextAt       time.Time
	status       *order.Status // of its order; nil if there is none
	item         *string
}

// wrong says what is wrong with a message; "" if nothing is.
func (h heldMessage) wrong(now time.Time, p order.Patience) string {
	alive := h.item != nil || h.status != nil && !h.status.Final()
	waits := h.kind == order.Timeout && h.status != nil && *h.status == order.Confirming // for a person, if it is set aside
	switch {
	case h.kind == order.Timeout && !alive:
		return "a time-out row of what has ended"
	case h.state == order.SetAside && !waits:
		return "set aside: the broker refused it"
	case (h.state == order.ToSend || h.state == order.ToAsk || h.state == order.ToCall) && h.nextAt.Before(now.Add(-p.Overdue)):
		return "due since " + h.nextAt.Format(time.RFC3339) + " and in nobody's hands"
	}
	return ""
}

func (t tx) heldMessages(ctx context.Context, text string, args ...any) (found []heldMessage, err error) {
	err = t.query(ctx, func(scan func(...any) error) error {
		var h heldMessage
		err := scan(&h.key, &h.kind, &h.orderNo, &h.state, at(&h.nextAt), &h.status, &h.item)
		found = append(found, h)
		return err
	}, text, args...)
	return found, err
}

func (s *Store) walkMessages(ctx context.Context, after string, limit int, m order.Mending, _ order.Schedule) (w order.Walked, err error) {
	var page []heldMessage
	var now time.Time
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		page, err = q.heldMessages(ctx, messagePageSQL, after, limit)
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
		if h.wrong(now, m.Patience) == "" {
			continue
		}
		found, _, err := s.mend(ctx, m, order.MessageStuck, h.key, func(ctx context.Context, t tx) ([]order.Finding, []order.Message, error) {
			return t.mendMessage(ctx, h, m)
		})
		if err != nil {
			return w, err
		}
		w.Findings = append(w.Findings, found...)
	}
	return w, nil
}

// oneMessageSQL reads one message as messagePageSQL does.
const oneMessageSQL = `SELECT m.dedup_key, m.kind, m.order_no, m.state, m.next_at, o.status, i.item_no FROM t_local_message m
LEFT JOIN t_order o ON o.order_no = m.order_no LEFT JOIN t_item i ON i.item_no = m.order_no WHERE m.dedup_key = ?`

// readyAgainSQL gives a message back to those who send or ask. Args: now, key.
const readyAgainSQL = `UPDATE t_local_message SET state = CASE WHEN state = 2 THEN 0 ELSE state END, attempts = 0, failing_since = NULL, next_at = ?
WHERE dedup_key = ?`

// mendMessage removes a message that nobody needs and gives the others back to the relay. Their order guards them.
func (t tx) mendMessage(ctx context.Context, h heldMessage, m order.Mending) ([]order.Finding, []order.Message, error) {
	if h.status != nil {
		if _, err := t.lockOrder(ctx, h.orderNo); err != nil {
			return nil, nil, err
		}
	}
	again, err := t.heldMessages(ctx, oneMessageSQL, h.key)
	if err != nil || len(again) == 0 {
		return nil, nil, err
	}
	h = again[0]
	wrong := h.wrong(t.now, m.Patience)
	if wrong == "" {
		return nil, nil, nil
	}
	f := order.Finding{Kind: order.MessageStuck, Subject: h.key, Detail: wrong, Action: "ready again", Mended: true}
	if h.kind == order.Timeout && h.item == nil && (h.status == nil || h.status.Final()) {
		f.Action = "removed"
		return []order.Finding{f}, nil, t.execAll(ctx, 1, dropMessageSQL, h.key)
	}
	return []order.Finding{f}, nil, t.execAll(ctx, 1, readyAgainSQL, t.now, h.key)
}

// differenceSQL is by how much the counters lack what the ledger says. One statement, so one consistent view: while orders
// come and go counters and ledger move together, and their difference stays.
const differenceSQL = `SELECT r.kind, r.ref, COALESCE(l.available, 0) - r.available AS available, COALESCE(l.held, 0) - r.held AS held,
	COALESCE(l.sold, 0) - r.sold AS sold FROM t_resource r LEFT JOIN (SELECT kind, ref,
	SUM(CASE WHEN op IN ('adjust', 'release', 'restock') THEN quantity WHEN op IN ('reserve', 'forfeit') THEN -quantity ELSE 0 END) AS available,
	SUM(CASE WHEN op = 'reserve' THEN quantity WHEN op IN ('release', 'sell') THEN -quantity ELSE 0 END) AS held,
	SUM(CASE op WHEN 'sell' THEN quantity WHEN 'restock' THEN -quantity ELSE 0 END) AS sold
	FROM t_resource_log WHERE remote = 0 GROUP BY kind, ref) l ON l.kind = r.kind AND l.ref = r.ref
WHERE r.available <> COALESCE(l.available, 0) OR r.held <> COALESCE(l.held, 0) OR r.sold <> COALESCE(l.sold, 0) ORDER BY r.kind, r.ref LIMIT 1000`

const countResourcesSQL = "SELECT COUNT(*) FROM t_resource"

// adjustCountersSQL adds what counters lack. Args: available, held, sold, kind, ref.
const adjustCountersSQL = "UPDATE t_resource SET available = available + ?, held = held + ?, sold = sold + ? WHERE kind = ? AND ref = ?"

// walkResources compares all counters with the ledger, which is read as a whole, by a connection that may take its time.
func (s *Store) walkResources(ctx context.Context, m order.Mending) (w order.Walked, err error) {
	db, err := s.slow()
	if err != nil {
		return w, badDSN(err)
	}
	defer db.Close()
	q := runner{db, s.dialect}
	var lacking []order.Resource
	err = q.query(ctx, func(scan func(...any) error) error {
		var r order.Resource
		err := scan(&r.Kind, &r.Ref, &r.Available, &r.Held, &r.Sold)
		lacking = append(lacking, r)
		return err
	}, differenceSQL)
	if err == nil {
		err = q.QueryRowContext(ctx, countResourcesSQL).Scan(&w.Looked)
	}
	if err != nil {
		return w, s.answer(err)
	}
	for _, r := range lacking {
		subject := r.Kind + "/" + r.Ref
		found, _, err := s.mend(ctx, m, order.CountersDiffer, subject, func(ctx context.Context, t tx) ([]order.Finding, []order.Message, error) {
			change := fmt.Sprintf("available %+d, held %+d, sold %+d", r.Available, r.Held, r.Sold)
			f := order.Finding{Kind: order.CountersDiffer, Subject: subject, Detail: "to what the ledger says the counters lack " + change, Action: change, Mended: true}
			return []order.Finding{f}, nil, t.execAll(ctx, 1, adjustCountersSQL, r.Available, r.Held, r.Sold, r.Kind, r.Ref)
		})
		if err != nil {
			return w, err
		}
		w.Findings = append(w.Findings, found...)
	}
	return w, nil
}
