package store

import (
	"context"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
	"time"

	"lapse/pkg/order"
)

const insertLateSQL = `INSERT INTO t_late_payment (payment_no, order_no, state_then, round_then, why, policy, status, created_at, changed_at, actor)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

// takeLate makes a payment that its locked order cannot take a case, and decides it as the rule says. An order that it
// opens again is brought up to date.
func (t tx) takeLate(ctx context.Context, p order.Payment, o *order.Order, why string, rules order.Rules, first order.Schedule) (order.LatePayment, []order.Message, error) {
	l := order.LatePayment{Payment: p, StateThen: o.Status, RoundThen: o.Round, Why: why, Policy: rules.For(o.BizType).Late, Status: order.LateOpen, CreatedAt: t.now}
	if l.Policy == "" {
		l.Policy = order.LateManual
	}
	rows, err := t.decideLate(ctx, &l, o, first)
	if err != nil {
		return l, nil, err
	}
	if _, err := t.exec(ctx, insertLateSQL, l.PaymentNo, l.OrderNo, uint8(l.StateThen), l.RoundThen, clip(l.Why, maxNote), string(l.Policy), string(l.Status),
		l.CreatedAt, orNull(l.ChangedAt), l.Actor); err != nil {
		return l, nil, err
	}
	return l, rows, t.record(ctx, p, l.Outcome())
}

// maxNote is the width of columns with a text of a person, in characters.
const maxNote = 255

// decideLate applies the policy of a new case: an order that cannot be opened again has its money refunded.
func (t tx) decideLate(ctx context.Context, l *order.LatePayment, o *order.Order, first order.Schedule) ([]order.Message, error) {
	orders := []order.Order{*o}
	if err := t.loadItems(ctx, orders); err != nil {
		return nil, err
	}
	*o = orders[0]
	if l.Policy == order.LateManual {
		return nil, nil
	}
	l.ChangedAt, l.Actor = t.now, "rule"
	if l.Policy == order.LateReopen {
		rows, err := t.reopen(ctx, o, order.Act{Actor: l.Actor, Note: "late payment " + l.PaymentNo}, first)
		if err == nil {
			l.Status = order.LateConsumed
			return rows, nil
		}
		if order.KindOf(err) != order.Conflict {
			return nil, err
		}
		if l.Why == "" {
			l.Why = "not reopened: " + err.Error()
		}
	}
	l.Status = order.LateAsked
	return t.requestRefund(ctx, *l, *o, first)
}

// requestRefund writes the event that asks for a case's money to be given back.
func (t tx) requestRefund(ctx context.Context, l order.LatePayment, o order.Order, first order.Schedule) ([]order.Message, error) {
	m := order.NoticeOf(order.RefundEvent(l, o, l.CreatedAt), l.RoundThen)
	m.NextAt = first(m, t.now)
	return t.insertMessages(ctx, []order.Message{m})
}

const lateColumns = "l.payment_no, l.order_no, p.attempt_no, p.amount, p.currency, p.paid_at, l.state_then, l.round_then, l.why, l.policy, l.status, " +
	"l.created_at, l.changed_at, l.actor, l.note"

// latePayments runs a query of lateColumns.
func (t tx) latePayments(ctx context.Context, text string, args ...any) (found []order.LatePayment, err error) {
	err = t.query(ctx, func(scan func(...any) error) error {
		var l order.LatePayment
		err := scan(&l.PaymentNo, &l.OrderNo, &l.AttemptNo, &l.Amount, &l.Currency, at(&l.PaidAt), &l.StateThen, &l.RoundThen, &l.Why, &l.Policy, &l.Status,
			at(&l.CreatedAt), at(&l.ChangedAt), &l.Actor, &l.Note)
		found = append(found, l)
		return err
	}, text, args...)
	return found, err
}

const lateSQL = "SELECT " + lateColumns + " FROM t_late_payment l JOIN t_payment p ON p.payment_no = l.payment_no WHERE l.payment_no = ?"

// lateAndOrder finds a case and locks its order, which guards it: every change of a case holds its order.
func (t tx) lateAndOrder(ctx context.Context, paymentNo string) (l order.LatePayment, o order.Order, err error) {
	for range 2 { // once to know the order, and once under its lock
		found, err := t.latePayments(ctx, lateSQL, paymentNo)
		if err != nil {
			return l, o, err
		}
		if len(found) == 0 {
			return l, o, order.Errorf(order.NotFound, "late_payment_not_found", "there is no late-payment case of payment %q", paymentNo)
		}
		l = found[0]
		if o.OrderNo == "" {
			if o, err = t.lockOrder(ctx, l.OrderNo); err != nil {
				return l, o, err
			}
		}
	}
	return l, o, nil
}

// settleLateSQL decides a case. Args: policy, status, now, actor, note, payment, status before. No row: it is not as it was.
const settleLateSQL = `UPDATE t_late_payment SET policy = ?, status = ?, changed_at = ?, actor = ?, note = ?
WHERE payment_no = ? AND status = ?`

func (t tx) settleLate(ctx context.Context, l *order.LatePayment, to order.LateStatus, act order.Act) error {
	from := l.Status
	l.Status, l.ChangedAt, l.Actor, l.Note = to, t.now, act.Actor, act.Note
	return t.execAll(ctx, 1, settleLateSQL, string(l.Policy), string(to), t.now, act.Actor, clip(act.Note, maxNote), l.PaymentNo, string(from))
}

// outcomeSQL changes what a payment became. Args: outcome, refund, payment, outcome before. No row: it is not as it was.
const outcomeSQL = "UPDATE t_payment SET outcome = ?, refund_no = ? WHERE payment_no = ? AND outcome = ?"

// consume lets a late payment pay its order, which has just been opened again.
func (t tx) consume(ctx context.Context, l *order.LatePayment, act order.Act) error {
	if err := t.settleLate(ctx, l, order.LateConsumed, act); err != nil {
		return err
	}
	return t.execAll(ctx, 1, outcomeSQL, string(order.PaymentAccepted), "", l.PaymentNo, string(order.PaymentLate))
}

// Decide settles an open late-payment case. Conflict when it is not open, or cannot be reopened.
func (s *Store) Decide(ctx context.Context, d order.Deciding, first order.Schedule) (l order.LatePayment, rows []order.Message, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		l, rows, err = t.decide(ctx, d, first)
		return err
	})
	return l, rows, err
}

func (t tx) decide(ctx context.Context, d order.Deciding, first order.Schedule) (order.LatePayment, []order.Message, error) {
	l, o, err := t.lateAndOrder(ctx, d.PaymentNo)
	if err != nil {
		return l, nil, err
	}
	if l.Status != order.LateOpen {
		return l, nil, order.Errorf(order.Conflict, "late_payment_settled", "the case of payment %q is %s", l.PaymentNo, l.Status)
	}
	l.Policy = d.Policy
	if d.Policy == order.LateRefund {
		rows, err := t.requestRefund(ctx, l, o, first)
		if err != nil {
			return l, nil, err
		}
		return l, rows, t.settleLate(ctx, &l, order.LateAsked, d.Act)
	}
	rows, err := t.reopen(ctx, &o, d.Act, first)
	if err != nil {
		return l, nil, err
	}
	return l, rows, t.consume(ctx, &l, d.Act)
}

// listLateSQL reads a page by index k_status. Args: status, position (time twice, payment), size.
const listLateSQL = "SELECT " + lateColumns + ` FROM t_late_payment l JOIN t_payment p ON p.payment_no = l.payment_no
WHERE l.status = ? AND l.created_at >= ? AND (l.created_at > ? OR l.payment_no > ?) ORDER BY l.created_at, l.payment_no LIMIT ?`

// listAllLateSQL is listLateSQL for cases of every status.
const listAllLateSQL = "SELECT " + lateColumns + ` FROM t_late_payment l JOIN t_payment p ON p.payment_no = l.payment_no
WHERE l.created_at >= ? AND (l.created_at > ? OR l.payment_no > ?) ORDER BY l.created_at, l.payment_no LIMIT ?`

// LatePayments returns cases of a status ("" for all), oldest first, and the cursor of the next page.
func (s *Store) LatePayments(ctx context.Context, status order.LateStatus, size int, cursor string) (cases []order.LatePayment, next string, err error) {
	created, paymentNo, err := decodeLateCursor(cursor)
	if err != nil {
		return nil, "", err
	}
	text, args := listAllLateSQL, []any{created, created, paymentNo, size + 1}
	if status != "" {
		text, args = listLateSQL, append([]any{string(status)}, args...)
	}
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		cases, err = q.latePayments(ctx, text, args...)
		return err
	})
	if len(cases) > size {
		cases = cases[:size]
		last := cases[size-1]
		next = base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%s", last.CreatedAt.UnixMilli(), last.PaymentNo))
	}
	return cases, next, err
}

// decodeLateCursor returns the position of a cursor; of "" one that is before all cases.
func decodeLateCursor(cursor string) (created time.Time, paymentNo string, err error) {
	if cursor == "" {
		return beginning, "", nil
	}
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	text, paymentNo, found := strings.Cut(string(raw), ".")
	ms, numErr := strconv.ParseInt(text, 10, 64)
	created = time.UnixMilli(ms).UTC()
	if err != nil || numErr != nil || !found || created.Year() < 1971 || created.Year() > 9999 {
		return created, "", badPageToken()
	}
	return created, paymentNo, nil
}
