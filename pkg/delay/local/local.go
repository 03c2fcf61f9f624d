// Package local delivers within one process, for the embedded default: no broker at all.
//
// It keeps nothing. A time-out message never waits here (see Sender.Step), so its row waits in the table,
// durable, until the relay finds it due and sends it; Send calls the subscribers and returns when they are
// done. What a handler could not take is therefore a message that was not sent, and the relay tries again.
package local

import (
	"context"
	"fmt"
	"sync"
	"time"

	"lapse/pkg/delay"
	"lapse/pkg/order"
)

// Sender hands messages to the handlers subscribed to it. It is safe for concurrent use.
type Sender struct {
	mu       sync.RWMutex
	handlers map[order.MessageKind][]delay.Handler
}

// New returns a Sender without subscribers.
func New() *Sender { return &Sender{handlers: make(map[order.MessageKind][]delay.Handler)} }

// Subscribe adds a handler for one kind of message. Every handler of a kind gets every message.
func (s *Sender) Subscribe(kind order.MessageKind, handler delay.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handlers[kind] = append(s.handlers[kind], handler)
}

// Step is now: nothing can wait here, the message stays in the table until it is due.
func (s *Sender) Step(now, _ time.Time) time.Time { return now }

// Send calls every handler of the message's kind, one after the other, and returns when all have taken it.
// Unavailable: a handler handed it back, or nobody waits for time-outs yet; the message is to be sent again,
// to all of them. Invalid: it cannot be delivered, or a handler panicked on it. An event that nobody has
// subscribed to is taken.
func (s *Sender) Send(ctx context.Context, e order.Envelope) (order.Receipt, error) {
	if err := delay.Check(e); err != nil {
		return order.Receipt{}, err
	}
	handlers := s.subscribers(e.Kind)
	if len(handlers) == 0 && e.Kind == order.Timeout {
		return order.Receipt{}, order.Errorf(order.Unavailable, "no_subscriber", "nobody takes time-out messages yet")
	}
	for _, handler := range handlers {
		if err := call(ctx, handler, e); err != nil {
			return order.Receipt{}, err
		}
	}
	return order.Receipt{MessageID: e.MessageID}, nil
}

func (s *Sender) subscribers(kind order.MessageKind) []delay.Handler {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.handlers[kind] // Subscribe only appends, so what is seen here never changes
}

// call runs one handler and turns its failure into a refusal that the relay understands.
func call(ctx context.Context, handler delay.Handler, e order.Envelope) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = order.Errorf(order.Invalid, "handler_panicked", "the handler of %s messages panicked", e.Kind).Wrap(fmt.Errorf("%v", p))
		}
	}()
	// A copy of the body: the caller keeps the envelope and may send it again.
	d := order.Delivery{Kind: e.Kind, OrderNo: e.OrderNo, Body: append([]byte(nil), e.Body...)}
	if err := handler(ctx, []order.Delivery{d}); err != nil {
		return order.Errorf(order.Unavailable, "handed_back", "the handler of %s messages handed %s back", e.Kind, e.MessageID).Wrap(err)
	}
	return nil
}
