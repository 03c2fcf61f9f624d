package store

import (
	"context"
	"slices"
	"time"

	"lapse/pkg/order"
)

// Restore opens a cancelled order again in a new round: paid by its oldest open case, else pending. Asked again for the
// same round it returns the order.
func (s *Store) Restore(ctx context.Context, r order.Restoring, first order.Schedule) (done order.Restored, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		done, err = t.restore(ctx, r, first)
		return err
	})
	return done, err
}

// oldestCaseSQL finds the money that a restore takes. Its order is locked, so it stays as it is.
const oldestCaseSQL = "SELECT " + lateColumns + ` FROM t_late_payment l JOIN t_payment p ON p.payment_no = l.payment_no
WHERE l.order_no = ? AND l.status = 'open' ORDER BY l.created_at, l.payment_no LIMIT 1`

func (t tx) restore(ctx context.Context, r order.Restoring, first order.Schedule) (done order.Restored, err error) {
	if done.Order, err = t.lockOrder(ctx, r.OrderNo); err != nil {
		return done, err
	}
	switch {
	case r.Round == 0:
	case r.Round < done.Round: // it was opened again before
		orders := []order.Order{done.Order}
		err := t.loadItems(ctx, orders)
		return order.Restored{Order: orders[0]}, err
	case r.Round > done.Round:
		return done, order.Errorf(order.Conflict, "unknown_round", "the order is in round %d", done.Round)
	}
	open, err := t.latePayments(ctx, oldestCaseSQL, r.OrderNo)
	if err != nil {
		return done, err
	}
	if len(open) == 0 {
		done.Messages, err = t.reviveUnpaid(ctx, &done.Order, r, first)
		return done, err
	}
	if done.Messages, err = t.reopen(ctx, &done.Order, r.Act, first); err != nil {
		return done, err
	}
	done.Case = &open[0]
	return done, t.consume(ctx, done.Case, r.Act)
}

// reviveSQL opens a cancelled order again. Args: new status, new deadline, reminder, paid at, number, round before. No row: it
// is not cancelled in that round.
const reviveSQL = `UPDATE t_order SET status = ?, expire_at = ?, remind_ms = ?, paid_at = ?, cancelled_at = NULL, cancel_reason = '', paying_until = NULL,
round = round + 1, version = version + 1 WHERE order_no = ? AND status = 20 AND round = ?`

// reopen opens a locked order again, paid by money that its caller has. It brings the order up to date.
func (t tx) reopen(ctx context.Context, o *order.Order, act order.Act, first order.Schedule) ([]order.Message, error) {
	next, err := order.Next(o.Status, order.EventReopened)
	if err != nil {
		return nil, err
	}
	return t.revive(ctx, o, next, o.ExpireAt, t.now, act, first)
}

// reviveUnpaid opens a locked order again, with a new deadline.
func (t tx) reviveUnpaid(ctx context.Context, o *order.Order, r order.Restoring, first order.Schedule) ([]order.Message, error) {
	next, err := order.Next(o.Status, order.EventRestored)
	if err != nil {
		return nil, err
	}
	if o.RemindLead >= r.Timeout {
		o.RemindLead = 0 // its customer has just been here
	}
	rows, err := t.revive(ctx, o, next, t.now.Add(r.Timeout).Truncate(time.Millisecond), time.Time{}, r.Act, first)
	if err != nil {
		return nil, err
	}
	m := order.Message{Key: order.TimeoutKey(o.OrderNo), Kind: order.Timeout, OrderNo: o.OrderNo, Round: o.Round, Type: string(order.Timeout), DueAt: o.WakeAt()}
	m.NextAt = first(m, t.now)
	timeout, err := t.insertMessages(ctx, []order.Message{m})
	return append(rows, timeout...), err
}

// revive starts a new round: it takes again what the order had, and tells it. A refusal of a resource is a Conflict, with
// nothing written.
func (t tx) revive(ctx context.Context, o *order.Order, next order.Transition, expireAt, paidAt time.Time, act order.Act, first order.Schedule) ([]order.Message, error) {
	orders := []order.Order{*o}
	if err := t.loadItems(ctx, orders); err != nil {
		return nil, err
	}
	revived := orders[0]
	before := revived.Round
	revived.Status, revived.ExpireAt, revived.PaidAt, revived.CancelledAt, revived.CancelReason = next.To, expireAt, paidAt, time.Time{}, ""
	revived.Round++
	revived.Version++
	taken := revived.Items
	if next.Effect == order.Reserve {
		taken = slices.DeleteFunc(slices.Clone(taken), func(it order.Item) bool { return it.AtPayment })
	}
	entries := ops(revived, taken, order.OpReserve)
	if next.Effect == order.Resell {
		entries = append(entries, ops(revived, taken, order.OpSell)...)
	}
	if _, err := t.apply(ctx, entries); err != nil {
		return nil, err
	}
	if err := t.execAll(ctx, 1, reviveSQL, uint8(next.To), expireAt, inMs(revived.RemindLead), orNull(paidAt), o.OrderNo, before); err != nil {
		return nil, err
	}
	*o = revived
	if err := t.log(ctx, []order.LogEntry{t.step(revived, next, "", act)}); err != nil {
		return nil, err
	}
	m := order.NoticeOf(order.OrderEvent(order.TypeRestored, revived, t.now), revived.Round)
	m.NextAt = first(m, t.now)
	return t.insertMessages(ctx, []order.Message{m})
}
