package store

import (
	"context"
	"slices"

	"lapse/pkg/order"
)

// lockToRemindSQL locks those of the named orders that may still be reminded, passing over what others have locked. Args:
// numbers, now.
const lockToRemindSQL = "SELECT " + orderColumns + ` FROM t_order
WHERE order_no IN (?*) AND status = 0 AND remind_ms > 0 AND expire_at > ? ORDER BY order_no {skip}`

// remindedSQL notes that locked orders were reminded. Args: numbers, now.
const remindedSQL = "UPDATE t_order SET remind_ms = 0 WHERE order_no IN (?*) AND status = 0 AND remind_ms > 0 AND expire_at > ?"

// Remind writes the event order.TypeExpiringSoon for those of the orders whose reminder is due and that are still payable,
// once each, takes their time-out rows to the next hop, and returns all rows to be sent. What is not among them was
// reminded, has ended, or is locked by others.
func (s *Store) Remind(ctx context.Context, orderNos []string, next order.Schedule) (rows []order.Message, err error) {
	if len(orderNos) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		rows, err = t.remind(ctx, orderNos, next)
		return err
	})
	return rows, err
}

func (t tx) remind(ctx context.Context, orderNos []string, next order.Schedule) ([]order.Message, error) {
	orders, err := t.orders(ctx, lockToRemindSQL, orderNos, t.now)
	if err != nil {
		return nil, err
	}
	orders = slices.DeleteFunc(orders, func(o order.Order) bool { return o.RemindAt().After(t.now) })
	if len(orders) == 0 {
		return nil, nil
	}
	if err := t.loadItems(ctx, orders); err != nil {
		return nil, err
	}
	if err := t.execAll(ctx, len(orders), remindedSQL, numbers(orders), t.now); err != nil {
		return nil, err
	}
	events := make([]order.Message, len(orders))
	for i := range orders {
		o := &orders[i]
		o.RemindLead = 0
		events[i] = order.NoticeOf(order.OrderEvent(order.TypeExpiringSoon, *o, t.now), o.Round)
		events[i].NextAt = next(events[i], t.now)
	}
	timeouts, err := t.reschedule(ctx, orders, next)
	if err != nil {
		return nil, err
	}
	written, err := t.insertMessages(ctx, events)
	return append(timeouts, written...), err
}
