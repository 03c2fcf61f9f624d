package store

import (
	"context"

	"lapse/pkg/order"
)

// ending says how a transaction ends pending orders.
type ending struct {
	event  order.Event
	reason order.Reason
	actor  string
}

const lockOrderSQL = "SELECT " + orderColumns + " FROM t_order WHERE order_no = ? {update}"

// lockOrder locks one order; NotFound if there is none.
func (t tx) lockOrder(ctx context.Context, orderNo string) (order.Order, error) {
	found, err := t.orders(ctx, lockOrderSQL, orderNo)
	if err == nil && len(found) == 0 {
		err = notFound(orderNo)
	}
	if err != nil {
		return order.Order{}, err
	}
	return found[0], nil
}

// Cancel cancels a pending order of userID; of one that is cancelled already it returns the order and no message.
func (s *Store) Cancel(ctx context.Context, c order.Cancelling, first order.Schedule) (o order.Order, rows []order.Message, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		o, rows, err = t.cancel(ctx, c, first)
		return err
	})
	return o, rows, err
}

// cancelOrderSQL ends a pending order, due or not. Args: new status, now, reason, number. No row: it is not pending.
const cancelOrderSQL = `UPDATE t_order SET status = ?, cancelled_at = ?, cancel_reason = ?, version = version + 1
WHERE order_no = ? AND status = 0`

func (t tx) cancel(ctx context.Context, c order.Cancelling, first order.Schedule) (order.Order, []order.Message, error) {
	o, err := t.lockOrder(ctx, c.OrderNo)
	if err != nil {
		return o, nil, err
	}
	if c.UserID != "" && o.UserID != c.UserID {
		return order.Order{}, nil, notFound(c.OrderNo)
	}
	orders := []order.Order{o}
	if o.Status == order.Cancelled {
		err := t.loadItems(ctx, orders)
		return orders[0], nil, err
	}
	how := ending{order.EventCancelled, c.Reason, c.Actor}
	next, err := order.Next(o.Status, how.event)
	if err != nil {
		return o, nil, err
	}
	if err := t.execAll(ctx, 1, cancelOrderSQL, uint8(next.To), t.now, string(how.reason), c.OrderNo); err != nil {
		return o, nil, err
	}
	messages, err := t.dissolve(ctx, orders, how, next, first)
	if err != nil {
		return o, nil, err
	}
	return orders[0], messages, nil
}

// dissolve does all that belongs to the cancellation of orders whose rows have just been set: it gives back what they
// hold, logs, deletes their time-out rows and writes their events, which it returns. It brings orders up to date.
func (t tx) dissolve(ctx context.Context, orders []order.Order, how ending, next order.Transition, first order.Schedule) ([]order.Message, error) {
	if err := t.giveUp(ctx, orders, order.OpRelease); err != nil {
		return nil, err
	}
	log := make([]order.LogEntry, len(orders))
	events := make([]order.Message, len(orders))
	for i := range orders {
		o := &orders[i]
		o.Status, o.CancelledAt, o.CancelReason = next.To, t.now, how.reason
		o.Version++
		log[i] = order.LogEntry{OrderNo: o.OrderNo, Version: o.Version, Round: o.Round, From: next.From, To: next.To,
			Event: next.Event, Reason: string(how.reason), Actor: how.actor, At: t.now, ExpireAt: o.ExpireAt}
		events[i] = order.CancelledMessage(*o)
		events[i].NextAt = first(events[i], t.now)
	}
	if err := t.log(ctx, log); err != nil {
		return nil, err
	}
	if err := t.deleteTimeouts(ctx, numbers(orders)); err != nil {
		return nil, err
	}
	return t.insertMessages(ctx, events)
}
