package store

import (
	"context"
	"database/sql"
	"errors"
	"time"

	"lapse/pkg/order"
)

// Pay records a captured payment: it pays a pending order, or becomes one late-payment case. The same payment number
// again repeats the first answer.
func (s *Store) Pay(ctx context.Context, p order.Payment, _ order.Rules, _ order.Schedule) (result order.PaymentResult, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		result, err = t.pay(ctx, p)
		return err
	})
	return result, err
}

func (t tx) pay(ctx context.Context, p order.Payment) (order.PaymentResult, error) {
	o, err := t.lockOrder(ctx, p.OrderNo)
	if err != nil {
		return order.PaymentResult{}, err
	}
	if err := p.Match(o); err != nil {
		return order.PaymentResult{}, err
	}
	outcome, err := t.recorded(ctx, p)
	if err != nil {
		return order.PaymentResult{}, err
	}
	repeated := outcome != ""
	orders := []order.Order{o}
	switch next, refused := order.Next(o.Status, order.EventPaid); {
	case repeated:
		err = t.loadItems(ctx, orders)
	case refused != nil:
		outcome = order.PaymentLate
		err = t.keepLate(ctx, p, orders)
	default:
		outcome = order.PaymentAccepted
		err = t.accept(ctx, p, orders, next)
	}
	return order.PaymentResult{Outcome: outcome, Repeated: repeated, Order: orders[0]}, err
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

// payOrderSQL ends a pending order by payment. Args: new status, now, number. No row: it is not pending.
const payOrderSQL = "UPDATE t_order SET status = ?, paid_at = ?, version = version + 1 WHERE order_no = ? AND status = 0"

// accept pays the one order of orders and brings it up to date.
func (t tx) accept(ctx context.Context, p order.Payment, orders []order.Order, next order.Transition) error {
	o := &orders[0]
	if err := t.execAll(ctx, 1, payOrderSQL, uint8(next.To), t.now, o.OrderNo); err != nil {
		return err
	}
	if err := t.giveUp(ctx, orders, order.OpSell); err != nil {
		return err
	}
	o.Status, o.PaidAt = next.To, t.now
	o.Version++
	entry := order.LogEntry{OrderNo: o.OrderNo, Version: o.Version, Round: o.Round, From: next.From, To: next.To, Event: next.Event, At: t.now, ExpireAt: o.ExpireAt}
	if err := t.log(ctx, []order.LogEntry{entry}); err != nil {
		return err
	}
	if err := t.deleteTimeouts(ctx, numbers(orders)); err != nil {
		return err
	}
	return t.record(ctx, p, order.PaymentAccepted)
}

const insertLateSQL = "INSERT INTO t_late_payment (payment_no, order_no, state_then, policy, status, created_at) VALUES (?, ?, ?, ?, 'open', ?)"

// keepLate makes p a case for a human; the order stays as it is.
func (t tx) keepLate(ctx context.Context, p order.Payment, orders []order.Order) error {
	if err := t.loadItems(ctx, orders); err != nil {
		return err
	}
	if _, err := t.exec(ctx, insertLateSQL, p.PaymentNo, p.OrderNo, uint8(orders[0].Status), string(order.LateManual), t.now); err != nil {
		return err
	}
	return t.record(ctx, p, order.PaymentLate)
}

// insertPaymentSQL: a payment number that another transaction has just used fails it; run again, it finds the number.
const insertPaymentSQL = "INSERT INTO t_payment (payment_no, order_no, amount, currency, paid_at, outcome, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)"

func (t tx) record(ctx context.Context, p order.Payment, outcome order.PaymentOutcome) error {
	_, err := t.exec(ctx, insertPaymentSQL, p.PaymentNo, p.OrderNo, p.Amount, p.Currency, p.PaidAt.UTC().Truncate(time.Millisecond),
		string(outcome), t.now)
	return err
}
