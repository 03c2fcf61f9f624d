package main

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"lapse/pkg/order"
)

// arrivals is a handler of time-out messages that does nothing but look at the clock.
type arrivals struct {
	count atomic.Int64
	early atomic.Int64 // came before their time
	last  atomic.Int64 // unix nanoseconds

	mu    sync.Mutex
	times []time.Duration
	known map[string]bool // a message that comes twice counts once
}

func newArrivals(n int) *arrivals {
	return &arrivals{times: make([]time.Duration, 0, n), known: make(map[string]bool, n)}
}

// handle takes messages and has no effect.
func (a *arrivals) handle(_ context.Context, deliveries []order.Delivery) error {
	a.note(deliveries)
	return nil
}

// note looks at the clock.
func (a *arrivals) note(deliveries []order.Delivery) {
	now := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, d := range deliveries {
		body, err := order.DecodeTimeout(d.Body)
		if err != nil || a.known[body.OrderNo] {
			continue
		}
		a.known[body.OrderNo] = true
		late := now.Sub(body.ExpireAt)
		if late < 0 {
			a.early.Add(1)
		}
		a.times = append(a.times, late)
		a.last.Store(now.UnixNano())
		a.count.Add(1)
	}
}

// late is how late each message came.
func (a *arrivals) late() []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.times
}
