package lifecycle

import (
	"context"

	"lapse/pkg/order"
)

// extendPage is how many orders are extended in one transaction.
const extendPage = 200

// Cancel cancels an order that is not paid, for its user or for staff. With a payment in flight it is confirming first.
func (o *Orders) Cancel(ctx context.Context, c order.Cancelling) (order.Order, error) {
	if err := c.Validate(); err != nil {
		return order.Order{}, err
	}
	c.Confirm = o.terms().Confirm
	cancelled, messages, err := o.OrderStore.Cancel(ctx, c, o.relay.Schedule)
	if err != nil {
		return order.Order{}, err
	}
	o.relay.Offer(messages...)
	if len(messages) > 0 {
		o.metrics.Closes.WithLabelValues("cancel", string(c.Reason)).Inc()
	}
	return cancelled, nil
}

// Restore opens a cancelled order again, in a new round: paid by money that had come late, else pending.
func (o *Orders) Restore(ctx context.Context, r order.Restoring) (order.Order, error) {
	r, err := o.limits.ValidateRestoring(r)
	if err != nil {
		return order.Order{}, err
	}
	restored, err := o.OrderStore.Restore(ctx, r, o.relay.Schedule)
	if err != nil {
		return order.Order{}, err
	}
	o.relay.Offer(restored.Messages...)
	if restored.Case != nil {
		o.metrics.late(*restored.Case)
	}
	return restored.Order, nil
}

// Extend moves the deadlines of the orders that e names. Of many, those before an error are moved, and counted.
func (o *Orders) Extend(ctx context.Context, e order.Extending) (order.Extended, error) {
	if err := e.Validate(); err != nil {
		return order.Extended{}, err
	}
	if e.OrderNo != "" {
		done, err := o.OrderStore.Extend(ctx, e, o.relay.Schedule)
		o.relay.Offer(done.Messages...)
		return done, err
	}
	all := order.Extended{}
	for from := order.Foremost(); ; {
		done, err := o.ExtendPage(ctx, e, from, extendPage, o.relay.Schedule)
		o.relay.Offer(done.Messages...)
		all.Extended += done.Extended
		if err != nil || done.Next == nil {
			return all, err
		}
		from = *done.Next
	}
}

// Archive closes a cancelled order whose time for a restore is over.
func (o *Orders) Archive(ctx context.Context, orderNo string, act order.Act) (order.Order, error) {
	if err := act.Validate(); err != nil {
		return order.Order{}, err
	}
	return o.OrderStore.Archive(ctx, orderNo, o.terms().ArchiveAfter, act)
}

// Decide settles an open late-payment case: its money is refunded, or opens its order again.
func (o *Orders) Decide(ctx context.Context, d order.Deciding) (order.LatePayment, error) {
	if err := d.Validate(); err != nil {
		return order.LatePayment{}, err
	}
	decided, messages, err := o.OrderStore.Decide(ctx, d, o.relay.Schedule)
	if err != nil {
		return order.LatePayment{}, err
	}
	o.relay.Offer(messages...)
	o.metrics.late(decided)
	return decided, nil
}

// Refund records that a refund was completed.
func (o *Orders) Refund(ctx context.Context, r order.Refunding) (order.Order, error) {
	if err := r.Validate(); err != nil {
		return order.Order{}, err
	}
	return o.OrderStore.Refund(ctx, r, o.terms().Rules)
}
