package local_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lapse/pkg/delay"
	"lapse/pkg/delay/delaytest"
	"lapse/pkg/delay/local"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	delaytest.Run(t, func(*testing.T) delaytest.Channel { return &table{sender: local.New()} })
}

// table plays the part of the local messages and the relay: rows wait until they are due, and a row that was
// not taken stays.
type table struct {
	mu     sync.Mutex
	rows   []order.Envelope
	sender *local.Sender
}

func (tb *table) Sender() lifecycle.Sender { return tb.sender }

func (tb *table) Post(_ context.Context, e order.Envelope) error {
	tb.put(e)
	return nil
}

func (tb *table) put(e order.Envelope) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.rows = append(tb.rows, e)
}

// due takes out the rows that may be sent by now.
func (tb *table) due(now time.Time) []order.Envelope {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	var due, rest []order.Envelope
	for _, e := range tb.rows {
		if tb.sender.Step(now, e.DeliverAt).Before(e.DeliverAt) {
			rest = append(rest, e)
		} else {
			due = append(due, e)
		}
	}
	tb.rows = rest
	return due
}

// Consume is one process: its relay ends before it does.
func (tb *table) Consume(_ *testing.T, kind order.MessageKind, handler delay.Handler) func() {
	sender := local.New()
	sender.Subscribe(kind, handler)
	stopping, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			for _, e := range tb.due(time.Now()) {
				if _, err := sender.Send(context.Background(), e); err != nil {
					tb.put(e)
				}
			}
			select {
			case <-stopping:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return func() {
		close(stopping)
		<-done
	}
}

func TestSend(t *testing.T) {
	take := func(context.Context, []order.Delivery) error { return nil }
	handBack := func(context.Context, []order.Delivery) error { return errors.New("not now") }
	explode := func(context.Context, []order.Delivery) error { panic("a defect") }
	timeout, event := delaytest.Timeout("local-send", 0), delaytest.Event("local-send", "{}")
	tests := []struct {
		name     string
		message  order.Envelope
		handlers []delay.Handler
		want     order.Kind
		ok       bool
	}{
		{"a time-out before anyone has subscribed is Unavailable", timeout, nil, order.Unavailable, false},
		{"an event without a subscriber is taken", event, nil, 0, true},
		{"a time-out that the handler takes is sent", timeout, []delay.Handler{take}, 0, true},
		{"a time-out that is handed back is Unavailable", timeout, []delay.Handler{handBack}, order.Unavailable, false},
		{"a time-out on which the handler panics is Invalid", timeout, []delay.Handler{explode}, order.Invalid, false},
		{"an event that one of two subscribers hands back is Unavailable", event, []delay.Handler{take, handBack}, order.Unavailable, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := local.New()
			for _, h := range tt.handlers {
				s.Subscribe(tt.message.Kind, h)
			}
			receipt, err := s.Send(t.Context(), tt.message)
			switch {
			case tt.ok && (err != nil || receipt.MessageID != tt.message.MessageID):
				t.Errorf("got receipt %+v and error %v", receipt, err)
			case !tt.ok && (err == nil || order.KindOf(err) != tt.want):
				t.Errorf("got error %v, want kind %v", err, tt.want)
			}
		})
	}
}

func TestSubscribe(t *testing.T) {
	t.Run("every subscriber gets its own kind and nothing else", func(t *testing.T) {
		s := local.New()
		var first, second, other delaytest.Inbox
		s.Subscribe(order.Notice, first.Take)
		s.Subscribe(order.Notice, second.Take)
		s.Subscribe(order.Timeout, other.Take)
		if _, err := s.Send(t.Context(), delaytest.Event("subscribers", "{}")); err != nil {
			t.Fatal(err)
		}
		if len(first.All()) != 1 || len(second.All()) != 1 || len(other.All()) != 0 {
			t.Errorf("got %d, %d and %d deliveries", len(first.All()), len(second.All()), len(other.All()))
		}
	})
	t.Run("a handler that changes the body changes nobody else's", func(t *testing.T) {
		s := local.New()
		s.Subscribe(order.Notice, func(_ context.Context, ds []order.Delivery) error {
			ds[0].Body[0] = 'X'
			return nil
		})
		var second delaytest.Inbox
		s.Subscribe(order.Notice, second.Take)
		e := delaytest.Event("own-body", "{}")
		if _, err := s.Send(t.Context(), e); err != nil {
			t.Fatal(err)
		}
		if got := string(second.All()[0].Body); got != "{}" || string(e.Body) != "{}" {
			t.Errorf("the second subscriber got %q, the sender has %q", got, e.Body)
		}
	})
}

func TestStepNeverWaits(t *testing.T) {
	now := time.Now()
	if got := local.New().Step(now, now.Add(time.Minute)); !got.Equal(now) {
		t.Errorf("step %v from now, want none", got.Sub(now))
	}
}
