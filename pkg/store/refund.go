package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"lapse/pkg/order"
)

// Refund records that a refund was completed: of a case whose refund was requested, or of a paid order, which is closed.
// The same again returns the same.
func (s *Store) Refund(ctx context.Context, r order.Refunding, rules order.Rules) (o order.Order, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		o, err = t.refund(ctx, r, rules)
		return err
	})
	return o, err
}

const paymentSQL = "SELECT order_no, outcome, refund_no FROM t_payment WHERE payment_no = ?"

func (t tx) refund(ctx context.Context, r order.Refunding, rules order.Rules) (o order.Order, err error) {
	var orderNo, refundNo string
	var outcome order.PaymentOutcome
	for range 2 { // once to know the order, and once under its lock
		err := t.QueryRowContext(ctx, paymentSQL, r.PaymentNo).Scan(&orderNo, &outcome, &refundNo)
		if errors.Is(err, sql.ErrNoRows) {
			return o, order.Errorf(order.NotFound, "payment_not_found", "there is no payment %q", r.PaymentNo)
		}
		if err == nil && o.OrderNo == "" {
			o, err = t.lockOrder(ctx, orderNo)
		}
		if err != nil {
			return o, err
		}
	}
	orders := []order.Order{o}
	if err := t.loadItems(ctx, orders); err != nil {
		return o, err
	}
	switch {
	case refundNo == r.RefundNo:
		return orders[0], nil
	case refundNo != "":
		return o, order.Errorf(order.Conflict, "already_refunded", "payment %q was refunded by %q", r.PaymentNo, refundNo)
	}
	if err := t.claimRefund(ctx, r); err != nil {
		return o, err
	}
	if outcome == order.PaymentLate {
		return orders[0], t.refundCase(ctx, r)
	}
	err = t.refundOrder(ctx, &orders[0], r, rules)
	return orders[0], err
}

const (
	// countRefundSQL locks the row of all refunds until the transaction ends, so that one at a time looks whether its number
	// is taken. Orders are locked before it.
	countRefundSQL = "INSERT INTO t_counter (name, value) VALUES "
	refundedBySQL  = "SELECT payment_no FROM t_payment WHERE refund_no = ? AND refund_no <> '' LIMIT 1"
)

// claimRefund refuses a refund whose number belongs to another payment.
func (t tx) claimRefund(ctx context.Context, r order.Refunding) error {
	if err := t.insert(ctx, countRefundSQL, [][]any{{"refunds", 1}}, t.dialect.addUp("value")); err != nil {
		return err
	}
	var paymentNo string
	err := t.QueryRowContext(ctx, refundedBySQL, r.RefundNo).Scan(&paymentNo)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err == nil {
		err = order.Errorf(order.Conflict, "refund_no_taken", "refund %q belongs to another payment", r.RefundNo).
			WithHint("Report each refund with the number that the channel gave it.")
	}
	return err
}

// refundCase ends a case whose refund was requested.
func (t tx) refundCase(ctx context.Context, r order.Refunding) error {
	l, _, err := t.lateAndOrder(ctx, r.PaymentNo)
	if err != nil {
		return err
	}
	if l.Status != order.LateAsked {
		return order.Errorf(order.Conflict, "refund_not_requested", "the case of payment %q is %s: its refund was not requested", r.PaymentNo, l.Status).
			WithHint("Decide the case first.")
	}
	if err := t.settleLate(ctx, &l, order.LateRefunded, r.Act); err != nil {
		return err
	}
	return t.execAll(ctx, 1, outcomeSQL, string(order.PaymentLate), r.RefundNo, r.PaymentNo, string(order.PaymentLate))
}

// closePaidSQL closes an order whose payment was refunded. Args: new status, now, number. No row: it is not paid.
const closePaidSQL = "UPDATE t_order SET status = ?, closed_at = ?, version = version + 1 WHERE order_no = ? AND status = 10"

// refundOrder closes a locked paid order, and gives back what is ours of its things if the rule says so: what other services
// sold is theirs to take back.
func (t tx) refundOrder(ctx context.Context, o *order.Order, r order.Refunding, rules order.Rules) error {
	next, err := order.Next(o.Status, order.EventRefunded)
	if err != nil {
		return err
	}
	if rules.For(o.BizType).Restock {
		ours := slices.DeleteFunc(slices.Clone(o.Items), func(it order.Item) bool { return it.Remote })
		if _, err := t.apply(ctx, ops(*o, ours, order.OpRestock)); err != nil {
			return err
		}
	}
	if err := t.execAll(ctx, 1, closePaidSQL, uint8(next.To), t.now, o.OrderNo); err != nil {
		return err
	}
	o.Status, o.ClosedAt = next.To, t.now
	o.Version++
	if err := t.log(ctx, []order.LogEntry{t.step(*o, next, "", r.Act)}); err != nil {
		return err
	}
	return t.execAll(ctx, 1, outcomeSQL, string(order.PaymentRefunded), r.RefundNo, r.PaymentNo, string(order.PaymentAccepted))
}

// acknowledgeSQL notes that a remote service has given back. Args: now, order, round, kind. No row: it had said so, or there
// was nothing to be given back.
const acknowledgeSQL = `UPDATE t_resource_log SET acked_at = ?
WHERE order_no = ? AND round = ? AND op = 'release' AND kind = ? AND remote = 1 AND acked_at IS NULL`

const remoteReleasesSQL = "SELECT COUNT(*) FROM t_resource_log WHERE order_no = ? AND round = ? AND op = 'release' AND kind = ? AND remote = 1"

// Acknowledge notes that a remote service has given back what a cancelled round held of a kind. The same again changes
// nothing.
func (s *Store) Acknowledge(ctx context.Context, orderNo string, round int, kind string) error {
	return s.write(ctx, func(ctx context.Context, t tx) error {
		n, err := t.exec(ctx, acknowledgeSQL, t.now, orderNo, round, kind)
		if err != nil || n > 0 {
			return err
		}
		if err := t.QueryRowContext(ctx, remoteReleasesSQL, orderNo, round, kind).Scan(&n); err != nil || n > 0 {
			return err
		}
		return order.Errorf(order.NotFound, "release_not_found", "round %d of order %s released nothing remote of kind %q", round, orderNo, kind)
	})
}
