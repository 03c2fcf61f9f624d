package lifecycle

import (
	"context"

	"github.com/oklog/ulid/v2"
	"go.uber.org/zap"

	"lapse/pkg/order"
)

// StartPayment records a payment attempt, only while the order is payable. Without a number the attempt gets one, without
// a lifetime the default.
func (o *Orders) StartPayment(ctx context.Context, a order.Attempting) (order.Attempt, order.Order, error) {
	terms := o.terms()
	if a.AttemptNo == "" {
		a.AttemptNo = ulid.Make().String()
	}
	a.Lifetime = or(a.Lifetime, min(terms.AttemptDefault, terms.AttemptLongest))
	if err := a.Validate(terms.AttemptLongest); err != nil {
		return order.Attempt{}, order.Order{}, err
	}
	return o.OrderStore.StartPayment(ctx, a)
}

// Pay takes a captured payment: it pays its order, or is kept as one late-payment case (I7). One that
// fits no order is refused and kept for a human.
func (o *Orders) Pay(ctx context.Context, p order.Payment) (order.PaymentResult, error) {
	if err := p.Validate(); err != nil {
		o.metrics.Payments.WithLabelValues("refused").Inc()
		return order.PaymentResult{}, err
	}
	result, err := o.OrderStore.Pay(ctx, p, o.terms().Rules, o.relay.Schedule)
	if err != nil {
		o.metrics.Payments.WithLabelValues(outcomeOf(err)).Inc()
		return order.PaymentResult{}, o.keepRefused(ctx, p, err)
	}
	o.relay.Offer(result.Messages...)
	if result.Case != nil {
		o.metrics.late(*result.Case)
	}
	if result.Stray {
		o.log.Warn("payment of an attempt that nobody has started", zap.String("order_no", p.OrderNo), zap.String("payment_no", p.PaymentNo),
			zap.String("attempt_no", p.AttemptNo))
	}
	label := string(result.Outcome)
	if result.Repeated {
		label = "repeated"
	}
	o.metrics.Payments.WithLabelValues(label).Inc()
	return result, nil
}

// keepRefused keeps a payment that was refused for good, and one that met damaged data: reporting it again
// may not help, either.
func (o *Orders) keepRefused(ctx context.Context, p order.Payment, refusal error) error {
	switch order.KindOf(refusal) {
	case order.Unavailable, order.Exhausted:
		return refusal
	}
	return kept(o.aside.payment(ctx, p, refusal), refusal)
}

// KeepUnread keeps a payment notification that cannot be read. It returns the cause, or Unavailable if the
// notification could not be kept.
func (o *Orders) KeepUnread(ctx context.Context, body []byte, cause error) error {
	o.metrics.Payments.WithLabelValues("refused").Inc()
	return kept(o.aside.put(ctx, "payment", "", cause, body), cause)
}

// kept is what whoever reports a refused payment is told: why, or that it has to be reported again.
func kept(err, refusal error) error {
	if err != nil {
		return order.Errorf(order.Unavailable, "not_recorded", "the payment was refused but could not be recorded").Wrap(err)
	}
	return refusal
}

// Adjust changes what is available of a resource from outside, once per adjustment id.
func (o *Orders) Adjust(ctx context.Context, a order.Adjustment) (order.Resource, error) {
	if err := a.Validate(); err != nil {
		return order.Resource{}, err
	}
	return o.OrderStore.Adjust(ctx, a)
}
