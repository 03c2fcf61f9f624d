package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"lapse/pkg/order"
)

// Pay records a captured payment: it pays a pending or confirming order, or becomes one late-payment case, decided at once
// where the rule of the order's business type says so. The same payment number again repeats the first answer.
func (s *Store) Pay(ctx context.Context, p order.Payment, rules order.Rules, first order.Schedule) (result order.PaymentResult, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		o, err := t.lockOrder(ctx, p.OrderNo)
		if err == nil {
			result, err = t.takeOnce(ctx, p, o, rules, first)
		}
		return err
	})
	return result, err
}

// takeOnce takes a captured payment of a locked order, unless it was taken before.
func (t tx) takeOnce(ctx context.Context, p order.Payment, o order.Order, rules order.Rules, first order.Schedule) (order.PaymentResult, error) {
	if err := p.Match(o); err != nil {
		return order.PaymentResult{Order: o}, err
	}
	outcome, err := t.recorded(ctx, p)
	switch {
	case err != nil:
		return order.PaymentResult{Order: o}, err
	case outcome == order.PaymentRefunded:
		outcome = order.PaymentAccepted // as it was answered first
	}
	if outcome != "" {
		orders := []order.Order{o}
		err = t.loadItems(ctx, orders)
		return order.PaymentResult{Outcome: outcome, Repeated: true, Order: orders[0]}, err
	}
	result, err := t.take(ctx, p, o, rules, first)
	if err == nil {
		result.Stray, err = t.stray(ctx, p)
	}
	return result, err
}

const knownAttemptSQL = "SELECT COUNT(*) FROM t_payment_attempt WHERE attempt_no = ? AND order_no = ?"

// stray reports whether a payment names an attempt that its order does not have.
func (t tx) stray(ctx context.Context, p order.Payment) (bool, error) {
	if p.AttemptNo == "" {
		return false, nil
	}
	n := 0
	err := t.QueryRowContext(ctx, knownAttemptSQL, p.AttemptNo, p.OrderNo).Scan(&n)
	return n == 0, err
}

// take takes a new payment.
func (t tx) take(ctx context.Context, p order.Payment, o order.Order, rules order.Rules, first order.Schedule) (order.PaymentResult, error) {
	why := ""
	next, refused := order.Next(o.Status, order.EventPaid)
	if refused == nil {
		err := t.accept(ctx, p, &o, next)
		if err == nil || order.KindOf(err) != order.Conflict {
			return order.PaymentResult{Outcome: order.PaymentAccepted, Order: o}, err
		}
		why = err.Error() // what it was to get at its payment is gone
	}
	late, rows, err := t.takeLate(ctx, p, &o, why, rules, first)
	if err == nil && (o.Status == order.Pending || o.Status == order.Confirming) {
		err = t.waitForAttempts(ctx, &o)
	}
	return order.PaymentResult{Outcome: late.Outcome(), Order: o, Case: &late, Messages: rows}, err
}

const recordedSQL = "SELECT order_no, outcome FROM t_payment WHERE payment_no = ?"

// recorded returns what p became before; "" if it is new.
func (t tx) recorded(ctx context.Context, p order.Payment) (outcome order.PaymentOutcome, err error) {
	var orderNo string
	err = t.QueryRowContext(ctx, recordedSQL, p.PaymentNo).Scan(&orderNo, &outcome)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err == nil && orderNo != p.OrderNo {
		err = order.Errorf(order.Conflict, "payment_no_taken", "payment %s belongs to another order", p.PaymentNo)
	}
	return outcome, err
}

// payOrderSQL ends an order by payment. Args: new status, now, number, old status. No row: it is not as it was locked.
const payOrderSQL = `UPDATE t_order SET status = ?, paid_at = ?, cancel_reason = '', confirm_until = NULL, paying_until = NULL, version = version + 1
WHERE order_no = ? AND status = ? AND status IN (0, 5)`

// accept pays a locked order and brings it up to date. Conflict, with nothing written, when what it is to get at its
// payment is gone.
func (t tx) accept(ctx context.Context, p order.Payment, o *order.Order, next order.Transition) error {
	if err := t.sell(ctx, o); err != nil {
		return err
	}
	if err := t.execAll(ctx, 1, payOrderSQL, uint8(next.To), t.now, o.OrderNo, uint8(next.From)); err != nil {
		return err
	}
	o.Status, o.PaidAt, o.CancelReason, o.ConfirmUntil, o.PayingUntil = next.To, t.now, "", time.Time{}, time.Time{}
	o.Version++
	if err := t.log(ctx, []order.LogEntry{t.step(*o, next, "", order.Act{Actor: "payment"})}); err != nil {
		return err
	}
	if err := t.deleteTimeouts(ctx, []string{o.OrderNo}); err != nil {
		return err
	}
	return t.record(ctx, p, order.PaymentAccepted)
}

// insertPaymentSQL: a payment number that another transaction has just used fails it; run again, it finds the number.
const insertPaymentSQL = "INSERT INTO t_payment (payment_no, order_no, attempt_no, amount, currency, paid_at, outcome, created_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"

func (t tx) record(ctx context.Context, p order.Payment, outcome order.PaymentOutcome) error {
	if err := t.attemptPaid(ctx, p); err != nil {
		return err
	}
	_, err := t.exec(ctx, insertPaymentSQL, p.PaymentNo, p.OrderNo, p.AttemptNo, p.Amount, p.Currency, p.PaidAt.UTC().Truncate(time.Millisecond),
		string(outcome), t.now)
	return err
}

// paymentsOfSQL and casesOfSQL read what an order was paid, the oldest first. Args: order.
const (
	paymentsOfSQL = `SELECT payment_no, order_no, attempt_no, amount, currency, paid_at, outcome, refund_no, created_at FROM t_payment
WHERE order_no = ? ORDER BY created_at, payment_no`
	casesOfSQL = "SELECT " + lateColumns + ` FROM t_late_payment l JOIN t_payment p ON p.payment_no = l.payment_no
WHERE l.order_no = ? ORDER BY l.created_at, l.payment_no`
)

// Payments returns an order's captured payments, and the cases of those that it could not take, each oldest first.
func (s *Store) Payments(ctx context.Context, orderNo string) (payments []order.KeptPayment, cases []order.LatePayment, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		payments = nil
		err := q.query(ctx, func(scan func(...any) error) error {
			var p order.KeptPayment
			err := scan(&p.PaymentNo, &p.OrderNo, &p.AttemptNo, &p.Amount, &p.Currency, at(&p.PaidAt), &p.Outcome, &p.RefundNo, at(&p.CreatedAt))
			payments = append(payments, p)
			return err
		}, paymentsOfSQL, orderNo)
		if err == nil {
			cases, err = q.latePayments(ctx, casesOfSQL, orderNo)
		}
		return err
	})
	return payments, cases, err
}
