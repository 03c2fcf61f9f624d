package store

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// ending says how a transaction ends orders.
type ending struct {
	event  order.Event
	reason order.Reason
	order.Act
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

// lockOwned locks one order of a user, or of anybody if userID is "", and returns it as a set of one.
func (t tx) lockOwned(ctx context.Context, orderNo, userID string) ([]order.Order, error) {
	o, err := t.lockOrder(ctx, orderNo)
	if err != nil {
		return nil, err
	}
	if userID != "" && o.UserID != userID {
		return nil, notFound(orderNo)
	}
	return []order.Order{o}, nil
}

// step is the log entry of a transition that has just brought o up to date.
func (t tx) step(o order.Order, next order.Transition, reason order.Reason, act order.Act) order.LogEntry {
	return order.LogEntry{OrderNo: o.OrderNo, Version: o.Version, Round: o.Round, From: next.From, To: next.To, Event: next.Event,
		Reason: string(reason), Note: act.Note, Actor: act.Actor, At: t.now, ExpireAt: o.ExpireAt}
}

// Cancel cancels a pending or confirming order; with a payment in flight it goes to confirming first. Of one that is
// cancelled already it returns the order and no message.
func (s *Store) Cancel(ctx context.Context, c order.Cancelling, first order.Schedule) (o order.Order, rows []order.Message, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		o, rows, err = t.cancel(ctx, c, first)
		return err
	})
	return o, rows, err
}

func (t tx) cancel(ctx context.Context, c order.Cancelling, first order.Schedule) (o order.Order, rows []order.Message, err error) {
	orders, err := t.lockOwned(ctx, c.OrderNo, c.UserID)
	if err != nil {
		return o, nil, err
	}
	how := ending{order.EventCancelled, c.Reason, c.Act}
	switch o := orders[0]; {
	case o.Status == order.Cancelled:
		err = t.loadItems(ctx, orders)
	case o.Status == order.Pending && c.Confirm > 0 && o.InFlight(t.now):
		if err = t.doubt(ctx, orders, how, order.Never, c.Confirm); err == nil {
			err = t.loadItems(ctx, orders)
		}
	case o.Status == order.Confirming && o.InFlight(t.now) && (!c.Force || o.ConfirmUntil.After(t.now)):
		err = t.askCancel(ctx, orders, how)
	default:
		rows, err = t.cancelNow(ctx, orders, how, first)
	}
	return orders[0], rows, err
}

// askCancelSQL remembers why a confirming order is going to be cancelled. Args: reason, number. No row: it is not confirming.
const askCancelSQL = "UPDATE t_order SET cancel_reason = ?, version = version + 1 WHERE order_no = ? AND status = 5"

// askCancel notes the wish to cancel an order whose gateway has not spoken yet; the same wish again changes nothing.
func (t tx) askCancel(ctx context.Context, orders []order.Order, how ending) error {
	if err := t.loadItems(ctx, orders); err != nil {
		return err
	}
	o := &orders[0]
	if o.CancelReason == how.reason {
		return nil
	}
	next, err := order.Next(o.Status, order.EventCancelAsked)
	if err != nil {
		return err
	}
	if err := t.execAll(ctx, 1, askCancelSQL, string(how.reason), o.OrderNo); err != nil {
		return err
	}
	o.CancelReason = how.reason
	o.Version++
	return t.log(ctx, []order.LogEntry{t.step(*o, next, how.reason, how.Act)})
}

// cancelOrderSQL ends an order that is not paid, due or not. Args: new status, now, reason, number. No row: it has ended.
const cancelOrderSQL = `UPDATE t_order SET status = ?, cancelled_at = ?, cancel_reason = ?, confirm_until = NULL, paying_until = NULL,
version = version + 1 WHERE order_no = ? AND status IN (0, 5)`

func (t tx) cancelNow(ctx context.Context, orders []order.Order, how ending, first order.Schedule) ([]order.Message, error) {
	next, err := order.Next(orders[0].Status, how.event)
	if err != nil {
		return nil, err
	}
	if err := t.execAll(ctx, 1, cancelOrderSQL, uint8(next.To), t.now, string(how.reason), orders[0].OrderNo); err != nil {
		return nil, err
	}
	return t.dissolve(ctx, orders, how, next, first)
}

// dissolve does all that belongs to the cancellation of orders whose rows have just been set: it gives back what they
// hold, logs, deletes their time-out rows and writes their events, which it returns. It brings orders up to date.
func (t tx) dissolve(ctx context.Context, orders []order.Order, how ending, next order.Transition, first order.Schedule) ([]order.Message, error) {
	if err := t.release(ctx, orders); err != nil {
		return nil, err
	}
	log := make([]order.LogEntry, len(orders))
	events := make([]order.Message, len(orders))
	for i := range orders {
		o := &orders[i]
		o.Status, o.CancelledAt, o.CancelReason = next.To, t.now, how.reason
		o.ConfirmUntil, o.PayingUntil = time.Time{}, time.Time{}
		o.Version++
		log[i] = t.step(*o, next, how.reason, how.Act)
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
