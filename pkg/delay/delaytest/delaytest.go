// Package delaytest is the conformance suite of delayed delivery: what pkg/delay promises, run against every
// driver.
package delaytest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/delay"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

// Channel is one way from a sender to consumers that nobody else uses.
type Channel interface {
	// Sender is the driver's own, ready to send.
	Sender() lifecycle.Sender
	// Post takes a message as the relay does: it is delivered from now on, whatever starts and stops.
	Post(ctx context.Context, e order.Envelope) error
	// Consume delivers to handler until stop is called; stop returns when no handler runs any more. Every
	// call is as good as a new process of the same group.
	Consume(t *testing.T, kind order.MessageKind, handler delay.Handler) (stop func())
}

// patience bounds every wait of the suite. It is far beyond what a loaded machine needs, and says nothing
// about speed.
const patience = 90 * time.Second

// Run runs the suite; open makes a new Channel that is closed by the test's cleanup.
func Run(t *testing.T, open func(t *testing.T) Channel) {
	tests := []struct {
		name string
		test func(t *testing.T, ch Channel)
	}{
		{"no message is handed over before its time", notBeforeItsTime},
		{"a message whose time has passed is handed over at once", pastDue},
		{"order number and body arrive intact", intact},
		{"an event arrives without a delay", eventArrives},
		{"a message that is handed back comes again", handedBack},
		{"a message on which the handler panics comes again", panicked},
		{"a message that is always handed back does not hold up the others", poison},
		{"a message that waits for the first consumer is delivered", waitsForFirst},
		{"stop waits for the handler that is running", stopWaits},
		{"nothing is lost over ten stops and starts under load", stopsAndStarts},
		{"a message that cannot be delivered is refused as Invalid", refused},
		{"a step never goes beyond the due time", steps},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.test(t, open(t))
		})
	}
}

// Timeout makes a time-out message that is due in wait.
func Timeout(orderNo string, wait time.Duration) order.Envelope {
	due := time.Now().Add(wait).Truncate(time.Millisecond)
	body := order.TimeoutBody{
		Version: order.TimeoutVersion, OrderNo: orderNo, MessageID: order.TimeoutKey(orderNo), Hop: 1, ExpireAt: due, DeliverAt: due,
		TraceParent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
	}
	return order.Envelope{
		Kind: order.Timeout, OrderNo: orderNo, MessageID: body.MessageID, Type: "timeout", Hop: body.Hop,
		ExpireAt: due, DeliverAt: due, Delay: wait, Body: body.Encode(),
	}
}

// Event makes an event message.
func Event(orderNo, body string) order.Envelope {
	return order.Envelope{
		Kind: order.Notice, OrderNo: orderNo, MessageID: order.EventID(orderNo, 1, order.TypeCancelled), Type: order.TypeCancelled, Body: []byte(body),
	}
}

// Inbox is a handler that keeps what it gets, with the time it came.
type Inbox struct {
	mu  sync.Mutex
	got []Arrival
}

// Arrival is one delivery and when it came.
type Arrival struct {
	order.Delivery
	At time.Time
}

// Take is the handler.
func (in *Inbox) Take(_ context.Context, deliveries []order.Delivery) error {
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, d := range deliveries {
		in.got = append(in.got, Arrival{d, now})
	}
	return nil
}

// All returns what came until now.
func (in *Inbox) All() []Arrival {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]Arrival(nil), in.got...)
}

// Orders returns the different orders among what came.
func (in *Inbox) Orders() map[string]Arrival {
	orders := map[string]Arrival{}
	for _, a := range in.All() {
		if _, twice := orders[a.OrderNo]; !twice {
			orders[a.OrderNo] = a
		}
	}
	return orders
}

// Await polls until cond holds, and fails the test if it never does.
func Await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still waiting for %s after %v", what, patience)
		}
	}
}

// post posts all, from several goroutines.
func post(t *testing.T, ch Channel, messages ...order.Envelope) {
	t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 16)
	for _, e := range messages {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := ch.Post(t.Context(), e); err != nil {
				t.Errorf("post %s: %v", e.OrderNo, err)
			}
		})
	}
	wg.Wait()
}

func numbers(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return all
}

func notBeforeItsTime(t *testing.T, ch Channel) {
	inbox := &Inbox{}
	defer ch.Consume(t, order.Timeout, inbox.Take)()
	due := map[string]time.Time{}
	var messages []order.Envelope
	for i, no := range numbers("on-time", 60) {
		e := Timeout(no, 500*time.Millisecond+time.Duration(i)*37*time.Millisecond)
		due[no] = e.DeliverAt
		messages = append(messages, e)
	}
	post(t, ch, messages...)
	Await(t, "all messages", func() bool { return len(inbox.Orders()) == len(due) })
	for no, a := range inbox.Orders() {
		if a.At.Before(due[no]) {
			t.Errorf("%s came %v before its time", no, due[no].Sub(a.At))
		}
	}
}

func pastDue(t *testing.T, ch Channel) {
	inbox := &Inbox{}
	defer ch.Consume(t, order.Timeout, inbox.Take)()
	post(t, ch, Timeout("past-due-1", -time.Hour), Timeout("past-due-2", 0))
	Await(t, "both messages", func() bool { return len(inbox.Orders()) == 2 })
}

func intact(t *testing.T, ch Channel) {
	inbox := &Inbox{}
	defer ch.Consume(t, order.Timeout, inbox.Take)()
	plain := Timeout("intact-plain", 0)
	odd := Timeout("intact-odd", 0)
	odd.Body = []byte("{\"text\":\"晚了 \\u0001 é\"}\n\x00\x01\x02\xff")
	large := Timeout("intact-large", 0)
	large.Body = []byte(strings.Repeat("lapse ", delay.MaxBody/6))
	sent := map[string]order.Envelope{plain.OrderNo: plain, odd.OrderNo: odd, large.OrderNo: large}
	post(t, ch, plain, odd, large)
	Await(t, "all messages", func() bool { return len(inbox.Orders()) == len(sent) })
	for no, a := range inbox.Orders() {
		if a.Kind != order.Timeout || string(a.Body) != string(sent[no].Body) {
			t.Errorf("%s arrived as kind %q with %d bytes, sent %d", no, a.Kind, len(a.Body), len(sent[no].Body))
		}
		if a.Attempt != 0 {
			t.Errorf("the first delivery of %s has attempt %d", no, a.Attempt)
		}
	}
}

func eventArrives(t *testing.T, ch Channel) {
	inbox := &Inbox{}
	defer ch.Consume(t, order.Notice, inbox.Take)()
	post(t, ch, Event("event-arrives", `{"specversion":"1.0"}`))
	Await(t, "the event", func() bool { return len(inbox.All()) > 0 })
	if got := inbox.All()[0]; got.Kind != order.Notice || got.OrderNo != "event-arrives" || string(got.Body) != `{"specversion":"1.0"}` {
		t.Errorf("the event arrived as %+v", got.Delivery)
	}
}

func handedBack(t *testing.T, ch Channel) {
	inbox := &Inbox{}
	var calls atomic.Int32
	defer ch.Consume(t, order.Timeout, func(ctx context.Context, ds []order.Delivery) error {
		if calls.Add(1) == 1 {
			return errors.New("not now")
		}
		return inbox.Take(ctx, ds)
	})()
	post(t, ch, Timeout("handed-back", 0))
	Await(t, "the second delivery", func() bool { return len(inbox.All()) > 0 })
}

func panicked(t *testing.T, ch Channel) {
	inbox := &Inbox{}
	var calls atomic.Int32
	defer ch.Consume(t, order.Timeout, func(ctx context.Context, ds []order.Delivery) error {
		if calls.Add(1) == 1 {
			panic("a defect")
		}
		return inbox.Take(ctx, ds)
	})()
	post(t, ch, Timeout("panicked", 0))
	Await(t, "the second delivery", func() bool { return len(inbox.All()) > 0 })
}

func poison(t *testing.T, ch Channel) {
	inbox := &Inbox{}
	defer ch.Consume(t, order.Timeout, func(ctx context.Context, ds []order.Delivery) error {
		for _, d := range ds {
			if d.OrderNo == "poison" {
				return errors.New("nobody can take this")
			}
		}
		return inbox.Take(ctx, ds)
	})()
	post(t, ch, Timeout("poison", 0))
	var messages []order.Envelope
	for i, no := range numbers("healthy", 40) {
		messages = append(messages, Timeout(no, time.Duration(i)*50*time.Millisecond))
	}
	post(t, ch, messages...)
	Await(t, "the healthy messages", func() bool { return len(inbox.Orders()) == len(messages) })
}

func waitsForFirst(t *testing.T, ch Channel) {
	post(t, ch, Timeout("waits-for-first", 0))
	inbox := &Inbox{}
	defer ch.Consume(t, order.Timeout, inbox.Take)()
	Await(t, "the message", func() bool { return len(inbox.All()) > 0 })
}

func stopWaits(t *testing.T, ch Channel) {
	running, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	var done atomic.Bool
	stop := ch.Consume(t, order.Timeout, func(context.Context, []order.Delivery) error {
		once.Do(func() { close(running) })
		<-release
		done.Store(true)
		return nil
	})
	post(t, ch, Timeout("stop-waits", 0))
	Await(t, "the handler", func() bool {
		select {
		case <-running:
			return true
		default:
			return false
		}
	})
	stopped := make(chan struct{})
	go func() {
		stop()
		close(stopped)
	}()
	// Not a race with the clock: if stop did not wait, done would be false below whenever it returned.
	time.AfterFunc(300*time.Millisecond, func() { close(release) })
	<-stopped
	if !done.Load() {
		t.Error("stop returned while the handler was running")
	}
}

func stopsAndStarts(t *testing.T, ch Channel) {
	inbox := &Inbox{}
	const cycles, each = 10, 50
	var sending sync.WaitGroup
	sending.Go(func() {
		for cycle := range cycles {
			for _, no := range numbers(fmt.Sprintf("cycle-%d", cycle), each) {
				if err := ch.Post(t.Context(), Timeout(no, 100*time.Millisecond)); err != nil {
					t.Errorf("post %s: %v", no, err)
				}
				time.Sleep(5 * time.Millisecond) // spread over the cycles, so that each stop meets a delivery
			}
		}
	})
	for cycle := range cycles {
		var stopped atomic.Bool
		stop := ch.Consume(t, order.Timeout, func(ctx context.Context, ds []order.Delivery) error {
			if stopped.Load() {
				t.Error("the handler was called after stop had returned")
			}
			return inbox.Take(ctx, ds)
		})
		Await(t, "some messages", func() bool { return len(inbox.Orders()) > cycle*each/2 })
		stop()
		stopped.Store(true)
	}
	sending.Wait()
	defer ch.Consume(t, order.Timeout, inbox.Take)()
	Await(t, "every message", func() bool { return len(inbox.Orders()) == cycles*each })
	t.Logf("%d deliveries of %d messages", len(inbox.All()), cycles*each)
}

func refused(t *testing.T, ch Channel) {
	for name, body := range map[string]int{"without a body": 0, "with a body that is too large": delay.MaxBody + 1} {
		e := Timeout("refused-1", 0)
		e.Body = make([]byte, body)
		if _, err := ch.Sender().Send(t.Context(), e); order.KindOf(err) != order.Invalid {
			t.Errorf("a message %s: %v, want Invalid", name, err)
		}
	}
	e := Timeout("refused-2", 0)
	e.Kind = "other"
	if _, err := ch.Sender().Send(t.Context(), e); order.KindOf(err) != order.Invalid {
		t.Errorf("a message of an unknown kind: %v, want Invalid", err)
	}
}

func steps(t *testing.T, ch Channel) {
	now := time.UnixMilli(1_700_000_000_123)
	for _, rest := range []time.Duration{-time.Hour, -1, 0, 1, time.Millisecond, 999 * time.Millisecond, time.Second, 31 * time.Second,
		time.Hour, 24 * time.Hour, 73 * time.Hour, 90 * 24 * time.Hour} {
		step := ch.Sender().Step(now, now.Add(rest))
		if step.After(now.Add(max(rest, 0))) {
			t.Errorf("due in %v: a step of %v goes beyond", rest, step.Sub(now))
		}
	}
}
