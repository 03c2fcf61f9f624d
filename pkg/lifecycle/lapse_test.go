package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// owner keeps items as a shop does: in a table of its own, which it alone decides about.
type owner struct {
	mu    sync.Mutex
	items map[string]*owned // by ref
	calls map[string]int    // of close, by ref
	// before runs at each call of close, without the lock; what it returns is the answer, unless it is nil.
	before func(ctx context.Context, a order.Adopted) error
	due    func(after string) ([]order.Adopted, string, error) // nil: what the table says
}

type owned struct {
	order.Adopted
	closed time.Time
	paid   bool
}

func newOwner() *owner { return &owner{items: map[string]*owned{}, calls: map[string]int{}} }

// add makes an open item that is due after a while.
func (o *owner) add(kind, ref string, in time.Duration) order.Adopted {
	o.mu.Lock()
	defer o.mu.Unlock()
	a, _ := order.Adopted{Kind: kind, Ref: ref, Deadline: time.Now().Add(in)}.Validate()
	o.items[ref] = &owned{Adopted: a}
	return a
}

func (o *owner) set(change func(*owner)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(o)
}

func (o *owner) closed(ref string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.items[ref].closed.IsZero()
}

func (o *owner) called(ref string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.calls[ref]
}

func (o *owner) Close(ctx context.Context, a order.Adopted) (order.Answer, error) {
	o.mu.Lock()
	o.calls[a.Ref]++
	before := o.before
	o.mu.Unlock()
	if before != nil {
		if err := before(ctx, a); err != nil {
			return order.Answer{}, err
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	it := o.items[a.Ref]
	switch {
	case it == nil || it.paid || !it.closed.IsZero():
		return order.Answer{Word: order.WordFinal}, nil
	case it.Deadline.After(time.Now()):
		return order.Answer{Word: order.WordLater, Deadline: it.Deadline}, nil
	}
	it.closed = time.Now()
	return order.Answer{Word: order.WordClosed}, nil
}

func (o *owner) Due(_ context.Context, before time.Time, after string, limit int) (due []order.Adopted, next string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.due != nil {
		return o.due(after)
	}
	for ref, it := range o.items {
		if ref > after && !it.paid && it.closed.IsZero() && it.Deadline.Before(before) {
			due = append(due, it.Adopted)
		}
	}
	slices.SortFunc(due, func(a, b order.Adopted) int { return strings.Compare(a.Ref, b.Ref) })
	if len(due) > limit {
		due = due[:limit]
		next = due[limit-1].Ref
	}
	return due, next, nil
}

// lapsing starts a lapser beside a world's other parts.
func (w *world) lapsing(t *testing.T, o lifecycle.Hook, options lifecycle.LapseOptions) {
	t.Helper()
	l := lifecycle.NewLapser(w.store, o, w.relay, "test", func() lifecycle.LapseOptions { return options }, w.metrics, zap.NewNop())
	t.Cleanup(start(t, l.Run))
}

// schedule writes items as their owner's transactions do.
func (w *world) schedule(t *testing.T, items ...order.Adopted) {
	t.Helper()
	if n, err := w.store.Backfill(t.Context(), items); err != nil || n != len(items) {
		t.Fatal(n, err)
	}
}

// quiet is a lapser that never searches for what is overdue.
var quiet = lifecycle.LapseOptions{Interval: time.Hour, Overdue: time.Hour}

// forgotten waits until nothing of an owner's that is due is known any more.
func (w *world) forgotten(t *testing.T, o *owner) {
	t.Helper()
	o.mu.Lock()
	var nos []string
	for _, it := range o.items {
		nos = append(nos, it.No())
	}
	o.mu.Unlock()
	eventually(t, "all is forgotten", func() bool {
		r, err := w.store.Ripen(t.Context(), nos)
		return err == nil && len(r.Ripe)+len(r.Locked) == 0
	})
	w.holds(t)
}

func (w *world) answers(word string) float64 {
	return testutil.ToFloat64(w.metrics.Items.WithLabelValues(word))
}

func TestAnItemIsClosedByItsOwnerWhenItIsDueAndNotBefore(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := newOwner()
	w.lapsing(t, o, quiet)
	var items []order.Adopted
	for i := range 50 {
		items = append(items, o.add("booking", fmt.Sprintf("B-%02d", i), time.Duration(i)*20*time.Millisecond))
	}
	w.schedule(t, items...)
	for _, a := range items {
		eventually(t, a.Ref+" is closed", func() bool { return o.closed(a.Ref) })
	}
	w.forgotten(t, o)
	for _, a := range items {
		if n := o.called(a.Ref); n != 1 {
			t.Errorf("%s: its owner was called %d times", a.Ref, n)
		}
	}
	if n := w.answers("closed"); n != 50 {
		t.Errorf("%v closed", n)
	}
}

func TestAnOwnerMaySayThatItHasEndedOrThatItIsDueLater(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := newOwner()
	w.lapsing(t, o, quiet)
	paid, moved := o.add("booking", "paid", 0), o.add("booking", "moved", 0)
	gone := order.Adopted{Kind: "booking", Ref: "gone", Deadline: paid.Deadline}
	o.set(func(o *owner) {
		o.items["paid"].paid = true
		o.items["moved"].Deadline = time.Now().Add(3 * time.Second)
	})
	w.schedule(t, paid, moved, gone)
	eventually(t, "all have answered, and the one that was moved is closed", func() bool { return w.answers("final") == 2 && w.answers("closed") == 1 })
	w.forgotten(t, o)
	if !o.closed("moved") || o.items["moved"].closed.Before(o.items["moved"].Deadline) || w.answers("later") != 1 {
		t.Errorf("%+v, later %v", o.items["moved"], w.answers("later"))
	}
}

func TestWhateverIsNoAnswerIsAskedAgain(t *testing.T) {
	for fault, fail := range map[string]func(context.Context, order.Adopted) error{
		"an error": func(context.Context, order.Adopted) error { return errors.New("502 Bad Gateway") },
		"a panic":  func(context.Context, order.Adopted) error { panic("owner") },
		"a hang": func(ctx context.Context, _ order.Adopted) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(fault, func(t *testing.T) {
			w := newWorld(t, lifecycle.RelayOptions{})
			o := newOwner()
			o.before = fail
			opts := quiet
			opts.Timeout = 50 * time.Millisecond
			w.lapsing(t, o, opts)
			w.schedule(t, o.add("booking", "B-1", 0))
			eventually(t, "its owner was called twice", func() bool { return o.called("B-1") >= 2 })
			if n, err := w.store.Unanswered(t.Context(), 1); err != nil || n != 1 {
				t.Errorf("%d items are known to be unanswered, %v", n, err)
			}
			o.set(func(o *owner) { o.before = nil })
			eventually(t, "it is closed", func() bool { return o.closed("B-1") })
			w.forgotten(t, o)
			if w.answers("unknown") < 2 {
				t.Errorf("%v unknown", w.answers("unknown"))
			}
		})
	}
}

func TestAKindWhoseOwnerHangsLeavesRoomForTheOthersAndIsThenLeftAlone(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := newOwner()
	o.before = func(ctx context.Context, a order.Adopted) error {
		if a.Kind == "coupon" {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	opts := quiet
	opts.Timeout = time.Second
	w.lapsing(t, o, opts)
	var coupons, bookings []order.Adopted
	for i := range 300 {
		coupons = append(coupons, o.add("coupon", fmt.Sprintf("C-%03d", i), 0))
	}
	w.schedule(t, coupons...)
	eventually(t, "owners of coupons hang", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return len(o.calls) >= 48
	})
	for i := range 20 {
		bookings = append(bookings, o.add("booking", fmt.Sprintf("B-%03d", i), 0))
	}
	w.schedule(t, bookings...)
	for _, a := range bookings {
		eventually(t, a.Ref+" is closed", func() bool { return o.closed(a.Ref) })
	}
	unanswered := w.answers("unknown")
	eventually(t, "the calls that hung are over", func() bool { return w.answers("unknown") >= 48 })
	if calls := w.answers("unknown"); calls > 2*48+10 {
		t.Errorf("%v calls of an owner that hangs, %v of them before the others were done", calls, unanswered)
	}
	o.set(func(o *owner) { o.before = nil })
	for _, a := range coupons {
		eventually(t, a.Ref+" is closed", func() bool { return o.closed(a.Ref) })
	}
	w.forgotten(t, o)
}

func TestWhatWasLostOrNeverScheduledIsFoundByTheSecondPath(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.swallow = func(order.Envelope) bool { return true } })
	o := newOwner()
	w.schedule(t, o.add("booking", "lost", 0))
	eventually(t, "its message was sent", func() bool { n, _ := w.counts(order.Adopted{Kind: "booking", Ref: "lost"}.No()); return n == 1 })
	o.add("booking", "unknown", 0)
	o.add("booking", "later", time.Hour)
	w.lapsing(t, o, lifecycle.LapseOptions{Interval: 100 * time.Millisecond, Overdue: time.Millisecond})
	eventually(t, "both are closed", func() bool { return o.closed("lost") && o.closed("unknown") })
	w.forgotten(t, o)
	if n := testutil.ToFloat64(w.metrics.ItemsOverdue); n != 2 {
		t.Errorf("%v counted as overdue", n)
	}
	if o.called("later") != 0 {
		t.Error("an owner was called before the deadline")
	}
}

func TestABackfillSchedulesEachOpenItemOnceAndIsNotStoppedByABadOne(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := newOwner()
	for i := range 450 {
		o.add("booking", fmt.Sprintf("B-%03d", i), time.Hour)
	}
	o.set(func(o *owner) {
		o.items["B-007"].Ref = ""
		o.items["B-008"].paid = true
	})
	for _, want := range []int{448, 0} {
		seen, scheduled, err := lifecycle.Backfill(t.Context(), w.store, o, time.Second)
		if seen != 448 || scheduled != want || err == nil || !strings.Contains(err.Error(), "ref") {
			t.Errorf("%d seen, %d scheduled, want %d, %v", seen, scheduled, want, err)
		}
	}
	w.holds(t)
}

func TestAListThatStandsStillOrFailsEndsItsRoundAndNotTheProcess(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := newOwner()
	a := o.add("booking", "B-1", 0)
	for name, due := range map[string]func(after string) ([]order.Adopted, string, error){
		"stands still": func(string) ([]order.Adopted, string, error) { return []order.Adopted{a}, "B-1", nil },
		"goes round": func(after string) ([]order.Adopted, string, error) {
			return []order.Adopted{a}, map[string]string{"": "1", "1": "2", "2": "3", "3": "4", "4": "2"}[after], nil
		},
		"has more on a page than asked for": func(string) ([]order.Adopted, string, error) { return make([]order.Adopted, 2000), "", nil },
	} {
		o.due = due
		if _, _, err := lifecycle.Backfill(t.Context(), &noBackfill{w.store}, o, time.Second); order.KindOf(err) != order.Unavailable {
			t.Errorf("a list that %s: %v", name, err)
		}
	}
	o.due = func(string) ([]order.Adopted, string, error) { return nil, "", errors.New("down") }
	if _, _, err := lifecycle.Backfill(t.Context(), w.store, o, time.Second); err == nil {
		t.Error("a list that could not be read was taken for an empty one")
	}
	w.lapsing(t, o, lifecycle.LapseOptions{Interval: 50 * time.Millisecond, Overdue: time.Millisecond})
	eventually(t, "rounds fail", func() bool { return testutil.ToFloat64(w.metrics.Retries.WithLabelValues("hook")) >= 2 })
	o.set(func(o *owner) { o.due = nil })
	eventually(t, "it is closed", func() bool { return o.closed("B-1") })
	w.forgotten(t, o)
}

// noBackfill looks at what is backfilled and schedules nothing.
type noBackfill struct{ *store.Store }

func (noBackfill) Backfill(context.Context, []order.Adopted) (int, error) { return 0, nil }

// forgetful is a store that fails to write down answers, as in an outage.
type forgetful struct {
	*store.Store
	mu   sync.Mutex
	left int
}

func (f *forgetful) Answered(ctx context.Context, a order.Asked, first order.Schedule) ([]order.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.left > 0 {
		f.left--
		return nil, order.Errorf(order.Unavailable, "down", "the database is away")
	}
	return f.Store.Answered(ctx, a, first)
}

func (f *forgetful) ClaimRipe(ctx context.Context, limit int, _ time.Duration) ([]order.Ripe, time.Time, time.Time, error) {
	return f.Store.ClaimRipe(ctx, limit, 100*time.Millisecond) // a lease that is over soon
}

func TestAnAnswerThatWasNotWrittenDownIsAskedForAgain(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := newOwner()
	l := lifecycle.NewLapser(&forgetful{Store: w.store, left: 1}, o, w.relay, "test", func() lifecycle.LapseOptions { return quiet }, w.metrics, zap.NewNop())
	t.Cleanup(start(t, l.Run))
	w.schedule(t, o.add("booking", "B-1", 0))
	eventually(t, "its owner was called again", func() bool { return o.called("B-1") >= 2 })
	w.forgotten(t, o)
	if w.answers("final") != 1 {
		t.Errorf("closed %v, final %v", w.answers("closed"), w.answers("final"))
	}
}
