package app

import (
	"context"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

// DevHooks let a program that runs the whole system in its own process look in from the outside, as the
// demo does. The zero value changes nothing.
type DevHooks struct {
	// Serving is called once, when calls are answered, with the addresses listened on (host:port; with
	// port 0 in the settings the ports are free ones).
	Serving func(api, ops string)
	// Event gets the body of every event, as an independent subscriber of the event topic would.
	Event func(body []byte)
	// Lose says for which orders the broker accepts the time-out message and never delivers it.
	Lose func(orderNo string) bool
}

// losing is a broker that accepts some time-out messages and forgets them.
type losing struct {
	lifecycle.Sender
	lose func(orderNo string) bool
}

func (l losing) Send(ctx context.Context, e order.Envelope) (order.Receipt, error) {
	if e.Kind == order.Timeout && l.lose(e.OrderNo) {
		return order.Receipt{MessageID: e.MessageID}, nil
	}
	return l.Sender.Send(ctx, e)
}
