// Package delay is delayed delivery: a driver takes one message now and hands it to a handler when it is
// due. It has two drivers, rocketmq and local, and one conformance suite for both, delaytest.
//
// What every driver promises:
//
//   - A message that was taken is handed over at least once, never before its DeliverAt by the driver's own
//     clock, with key, tag and body intact.
//   - A handler that answers an error, or panics, never loses a message.
//   - I12. A message that a handler never manages to take does not stall the others.
//
// It promises no order, does not de-duplicate, and decides nothing about orders: a message is a hint, the
// row decides.
package delay

import (
	"context"

	"lapse/pkg/order"
)

// Handler takes a batch of messages. Nil acknowledges all of them; an error hands all of them back, to be
// delivered again. A handler that can judge its messages one by one should do so, and answer an error only
// when it could not work at all. Its context outlives the consumer's by the time it may take to finish.
type Handler func(ctx context.Context, deliveries []order.Delivery) error

// MaxBody is the largest body in bytes that a driver takes.
const MaxBody = 64 << 10

// Check refuses an envelope that no driver could deliver.
func Check(e order.Envelope) error {
	switch {
	case e.Kind != order.Timeout && e.Kind != order.Notice:
		return order.Errorf(order.Invalid, "message_refused", "unknown kind of message %q", e.Kind)
	case len(e.Body) == 0:
		return order.Errorf(order.Invalid, "message_refused", "the message has no body")
	case len(e.Body) > MaxBody:
		return order.Errorf(order.Invalid, "message_too_large", "the body has %d bytes, %d are the most", len(e.Body), MaxBody)
	}
	return nil
}
