package lifecycle_test

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// shop is a shop in simulated time: customers start payments, and most of them pay some time later.
type shop struct {
	t         *testing.T
	db        *store.Store
	now       time.Time
	breaker   *lifecycle.Breaker
	options   lifecycle.BreakerOptions
	n         int
	unpaid    []due // captured payments whose notification is under way
	pending   []due // time-outs
	closed    int
	attempts  int
	notifying bool
	pays      func(customer int) time.Duration // how long a customer takes to pay; 0 is for ever
}

type due struct {
	no string
	at time.Time
}

func newShop(t *testing.T) *shop {
	s := &shop{t: t, now: time.Date(2026, 11, 11, 20, 0, 0, 0, time.UTC), notifying: true, pays: promptly}
	db, err := store.Open(t.Context(), store.Options{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "shop.db"), Now: func() time.Time { return s.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.db = db
	s.breaker = lifecycle.NewBreaker(db, func() lifecycle.BreakerOptions { return s.options }, lifecycle.NewMetrics(prometheus.NewRegistry()), zap.NewNop())
	return s
}

const (
	shopStep    = 10 * time.Second // between two looks of the breaker
	shopTimeout = 10 * time.Minute // to pay
	usual       = 4                // customers each step
)

// promptly: of five customers three pay, half a minute later.
func promptly(customer int) time.Duration {
	if customer%5 < 3 {
		return 30 * time.Second
	}
	return 0
}

// slowly: of twenty customers three pay half a minute later, and twelve shortly before the time-out.
func slowly(customer int) time.Duration {
	switch customer %= 20; {
	case customer < 3:
		return 30 * time.Second
	case customer < 15:
		return shopTimeout - shopStep
	}
	return 0
}

// trade lets the shop run for a while, with so many customers each step.
func (s *shop) trade(d time.Duration, customers int) {
	s.t.Helper()
	ctx, later := s.t.Context(), func(order.Message, time.Time) time.Time { return s.now.Add(time.Hour) }
	for end := s.now.Add(d); s.now.Before(end); s.now = s.now.Add(shopStep) {
		drafts := make([]order.Draft, customers)
		for i := range drafts {
			drafts[i] = order.Draft{OrderNo: fmt.Sprintf("ORDER-%06d", s.n+i), UserID: "u1", BizType: "retail", Amount: 100, Currency: "CNY", Timeout: shopTimeout}
		}
		if _, err := s.db.Create(ctx, drafts, later); err != nil {
			s.t.Fatal(err)
		}
		for i, draft := range drafts {
			a := order.Attempting{AttemptNo: fmt.Sprintf("TRY-%06d", s.n+i), OrderNo: draft.OrderNo, Channel: "card", Lifetime: time.Minute}
			if _, _, err := s.db.StartPayment(ctx, a); err != nil {
				s.t.Fatal(err)
			}
			s.attempts++
			s.pending = append(s.pending, due{draft.OrderNo, s.now.Add(shopTimeout)})
			if wait := s.pays(s.n + i); wait > 0 {
				s.unpaid = append(s.unpaid, due{draft.OrderNo, s.now.Add(wait)})
			}
		}
		s.n += customers
		s.notify(ctx)
		s.close(ctx)
		if err := s.breaker.Look(ctx); err != nil {
			s.t.Fatal(err)
		}
	}
}

// notify tells of the payments that were captured by now, unless notifications are out.
func (s *shop) notify(ctx context.Context) {
	if !s.notifying {
		return
	}
	s.unpaid = slices.DeleteFunc(s.unpaid, func(d due) bool {
		if d.at.After(s.now) {
			return false
		}
		p := order.Payment{PaymentNo: "P-" + d.no, OrderNo: d.no, Amount: 100, Currency: "CNY", PaidAt: s.now}
		if _, err := s.db.Pay(ctx, p, order.Rules{}, func(order.Message, time.Time) time.Time { return s.now }); err != nil {
			s.t.Fatal(err)
		}
		return true
	})
}

// close closes what is due, as the messages do.
func (s *shop) close(ctx context.Context) {
	var nos []string
	for len(s.pending) > 0 && !s.pending[0].at.After(s.now) {
		nos = append(nos, s.pending[0].no)
		s.pending = s.pending[1:]
	}
	batch, err := s.db.CloseDue(ctx, order.Closing{OrderNos: nos, Reason: order.ReasonTimeout}, func(order.Message, time.Time) time.Time { return s.now })
	if err != nil {
		s.t.Fatal(err)
	}
	s.closed += len(batch.Closed)
}

// resume lets closing go on by hand.
func (s *shop) resume() {
	s.t.Helper()
	c := order.BrakeChange{Mode: order.ModeEnforce, Percent: new(100), Resume: true, Act: order.Act{Actor: "staff", Note: "we know"}}
	if b, err := lifecycle.NewBrakeControl(s.db).Set(s.t.Context(), c); err != nil || b.Tripped != "" || !b.ResumedAt.Equal(s.now) {
		s.t.Fatalf("%+v, %v", b, err)
	}
}

// trippedAfter lets the shop run until the breaker trips, and says how many attempts that took.
func (s *shop) trippedAfter(customers int) int {
	s.t.Helper()
	before, began := s.attempts, s.now
	for s.tripped() == "" {
		if s.now.Sub(began) > time.Hour {
			s.t.Fatal("has not tripped within an hour")
		}
		s.trade(shopStep, customers)
	}
	return s.attempts - before
}

func (s *shop) tripped() string {
	s.t.Helper()
	b, err := s.db.Brakes(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return b.Tripped
}

func TestTheBreakerTripsInAnOutageOfNotificationsWithinTheStatedNumberOfAttempts(t *testing.T) {
	s := newShop(t)
	s.trade(20*time.Minute, usual)
	if why := s.tripped(); why != "" {
		t.Fatalf("before the outage: %s", why)
	}
	s.notifying = false
	began, wrong := s.now, s.closed
	// The newest 200 settled attempts, and those that were made while they had their two minutes to settle.
	const most = 200 + 12*usual + usual
	n := s.trippedAfter(usual)
	if n > most {
		t.Errorf("tripped after %d attempts, %d is the most", n, most)
	}
	t.Logf("tripped %d attempts and %v after the outage began: %s", n, s.now.Sub(began), s.tripped())
	s.trade(10*time.Minute, usual)
	// Those that fell due before the trip were older than the outage, and truly unpaid: two of five.
	if n, truly := s.closed-wrong, int(shopTimeout/shopStep)*usual*2/5; n > truly {
		t.Errorf("%d orders were closed, of which %d were truly unpaid", n, truly)
	}

	s.notifying = true
	s.trade(20*time.Minute, usual)
	if s.tripped() == "" {
		t.Fatal("closing goes on by itself, and should not")
	}
	s.options.Resume = true
	s.trade(shopStep, usual)
	if why := s.tripped(); why != "" {
		t.Errorf("payments are back, but: %s", why)
	}
}

func TestClosingThatIsResumedByHandGoesOnUntilAsManyNewAttemptsAreNotPaid(t *testing.T) {
	s := newShop(t)
	s.trade(20*time.Minute, usual)
	s.notifying = false
	s.trippedAfter(usual)
	s.resume()
	if n := s.trippedAfter(usual); n < 200 {
		t.Errorf("tripped again after %d attempts", n)
	}
	s.notifying = true
	s.trade(3*time.Minute, usual) // what was captured in the meantime is told, too
	s.resume()
	s.trade(20*time.Minute, usual)
	if why := s.tripped(); why != "" {
		t.Errorf("payments are back, but: %s", why)
	}
}

func TestTheBreakerDoesNotTripInARushNorAtNight(t *testing.T) {
	for how, pays := range map[string]func(int) time.Duration{"promptly": promptly, "slowly": slowly} {
		t.Run("customers who pay "+how, func(t *testing.T) {
			s := newShop(t)
			s.pays = pays
			for _, part := range []struct {
				d         time.Duration
				customers int
			}{{10 * time.Minute, usual}, {3 * time.Minute, 20 * usual}, {5 * time.Minute, usual}, {5 * time.Minute, 0}, {5 * time.Minute, 1}} {
				s.trade(part.d, part.customers)
				if why := s.tripped(); why != "" {
					t.Fatalf("with %d customers each %v: %s", part.customers, shopStep, why)
				}
			}
			if s.closed == 0 {
				t.Error("nothing was closed")
			}
		})
	}
}

func TestTwoBreakersTripOnce(t *testing.T) {
	s := newShop(t)
	s.notifying = false
	s.trade(150*time.Second, 80)
	first, err := s.db.Brakes(t.Context())
	if err != nil || first.Tripped == "" || !first.TrippedAt.Before(s.now) {
		t.Fatalf("%+v, %v", first, err)
	}
	metrics := lifecycle.NewMetrics(prometheus.NewRegistry())
	stale := staleBrakes{s.db} // as one sees them that read them before the other tripped
	second := lifecycle.NewBreaker(stale, func() lifecycle.BreakerOptions { return s.options }, metrics, zap.NewNop())
	if err := second.Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	now, err := s.db.Brakes(t.Context())
	if err != nil || fmt.Sprint(now) != fmt.Sprint(first) || testutil.ToFloat64(metrics.Trips) != 0 || testutil.ToFloat64(metrics.Tripped) != 1 {
		t.Errorf("%+v became %+v, %v, counted %v", first, now, err, testutil.ToFloat64(metrics.Trips))
	}
}

// staleBrakes shows the brakes as they are in a new installation.
type staleBrakes struct{ *store.Store }

func (staleBrakes) Brakes(context.Context) (order.Brakes, error) {
	return order.Brakes{Mode: order.ModeEnforce, Percent: 100, Version: 1}, nil
}

// unsureBrakes is a database whose next answer to a change is lost: the change is written.
type unsureBrakes struct {
	*store.Store
	again bool // the store tries again by itself, as it does when a connection breaks
	lost  bool
}

func (u *unsureBrakes) ChangeBrakes(ctx context.Context, act order.Act, change func(order.Brakes) (order.Brakes, error)) (order.Brakes, error) {
	b, err := u.Store.ChangeBrakes(ctx, act, change)
	switch {
	case err != nil || u.lost:
		return b, err
	case u.again:
		u.lost = true
		return u.Store.ChangeBrakes(ctx, act, change)
	}
	u.lost = true
	return order.Brakes{}, order.Errorf(order.Unavailable, "database_unavailable", "the answer is lost")
}

func TestATripIsToldOnceAlthoughTheAnswerOfTheDatabaseIsLost(t *testing.T) {
	for _, again := range []bool{true, false} {
		t.Run(fmt.Sprintf("the store tries again by itself: %v", again), func(t *testing.T) {
			s := newShop(t)
			s.notifying = false
			s.trade(150*time.Second, 80)
			s.resume()
			s.options.Off = true
			s.trade(150*time.Second, 80)
			core, logs := observer.New(zap.ErrorLevel)
			metrics := lifecycle.NewMetrics(prometheus.NewRegistry())
			b := lifecycle.NewBreaker(&unsureBrakes{Store: s.db, again: again}, func() lifecycle.BreakerOptions { return lifecycle.BreakerOptions{} }, metrics, zap.New(core))
			for range 3 {
				if err := b.Look(t.Context()); err != nil && order.KindOf(err) != order.Unavailable {
					t.Fatal(err)
				}
			}
			if s.tripped() == "" || testutil.ToFloat64(metrics.Trips) != 1 || logs.FilterMessage("closing is stopped").Len() != 1 {
				t.Errorf("%q, counted %v, logged %v", s.tripped(), testutil.ToFloat64(metrics.Trips), logs.All())
			}
		})
	}
}

// overtakenBrakes is a database in which closing is resumed and trips anew after the brakes were read.
type overtakenBrakes struct {
	*store.Store
	meanwhile func()
}

func (o overtakenBrakes) ChangeBrakes(ctx context.Context, act order.Act, change func(order.Brakes) (order.Brakes, error)) (order.Brakes, error) {
	o.meanwhile()
	return o.Store.ChangeBrakes(ctx, act, change)
}

func TestABreakerThatResumesLeavesAYoungerTripAlone(t *testing.T) {
	s := newShop(t)
	s.trade(20*time.Minute, usual)
	s.notifying = false
	s.trippedAfter(usual)
	s.notifying = true
	s.trade(20*time.Minute, usual) // payments are back
	const younger = "a younger outage"
	db := overtakenBrakes{s.db, func() {
		s.resume()
		_, err := s.db.ChangeBrakes(t.Context(), order.Act{Actor: "breaker"}, func(at order.Brakes) (order.Brakes, error) {
			at.Tripped = younger
			return at, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}}
	options := func() lifecycle.BreakerOptions { return lifecycle.BreakerOptions{Resume: true} }
	if err := lifecycle.NewBreaker(db, options, lifecycle.NewMetrics(prometheus.NewRegistry()), zap.NewNop()).Look(t.Context()); err != nil {
		t.Fatal(err)
	}
	if why := s.tripped(); why != younger {
		t.Errorf("closing is stopped by %q", why)
	}
}

func TestABreakerOutlivesAnOutageOfTheDatabaseAndLeavesClosingAlone(t *testing.T) {
	s := newShop(t)
	s.notifying = false
	s.trade(150*time.Second, 80)
	s.resume()
	metrics := lifecycle.NewMetrics(prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	options := func() lifecycle.BreakerOptions { return lifecycle.BreakerOptions{Interval: time.Millisecond} }
	go func() { done <- lifecycle.NewBreaker(awayBrakes{s.db}, options, metrics, zap.NewNop()).Run(ctx) }()
	eventually(t, "it has failed twice", func() bool { return testutil.ToFloat64(metrics.Retries.WithLabelValues("breaker")) >= 2 })
	cancel()
	if err := <-done; err != nil || s.tripped() != "" {
		t.Errorf("%v, %q", err, s.tripped())
	}
}

// awayBrakes is a database that does not answer.
type awayBrakes struct{ *store.Store }

func (awayBrakes) Brakes(context.Context) (order.Brakes, error) {
	return order.Brakes{}, order.Errorf(order.Unavailable, "database_unavailable", "away")
}

// setMode sets the mode of closing.
func (w *world) setMode(t *testing.T, mode order.Mode) {
	t.Helper()
	c := order.BrakeChange{Mode: mode, Percent: new(100), Act: order.Act{Actor: "staff", Note: "a pause"}}
	if _, err := lifecycle.NewBrakeControl(w.store).Set(t.Context(), c); err != nil {
		t.Fatal(err)
	}
}

// overdue makes n orders that no message closes, and waits until they are due.
func (w *world) overdue(t *testing.T, n int) (nos []string) {
	t.Helper()
	w.set(func(w *wire) { w.swallow = func(order.Envelope) bool { return true } })
	var last order.Order
	for i := range n {
		last = w.create(t, fmt.Sprintf("ORDER-%04d", i), time.Second)
		nos = append(nos, last.OrderNo)
	}
	time.Sleep(time.Until(last.ExpireAt))
	return nos
}

func TestWhileClosingIsOffARunOfTheCompensatorLooksAtOnePageOfEachShard(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.setMode(t, order.ModeOff)
	const orders = 100
	w.overdue(t, orders)
	sweeper := lifecycle.NewSweeper(w.store, w.relay, "test", func() lifecycle.SweepOptions { return lifecycle.SweepOptions{Limit: 1} }, w.metrics, zap.NewNop())
	run, err := sweeper.Now(t.Context())
	if err != nil || run.Closed != 0 || run.Failed != 0 || run.Shards != order.Shards {
		t.Errorf("%+v, %v", run, err)
	}
	if run.Looked == 0 || run.Looked > order.Shards || run.Braked != run.Looked {
		t.Errorf("looked at %d of %d orders in %d shards, %d are kept", run.Looked, orders, order.Shards, run.Braked)
	}
	w.setMode(t, order.ModeShadow) // here each order is looked at: it is to be noted
	if run, err := sweeper.Now(t.Context()); err != nil || run.Closed != 0 || run.Looked != orders || run.Braked != orders {
		t.Errorf("in shadow: %+v, %v", run, err)
	}
	w.holds(t)
}

func TestOnceClosingIsOnAgainAllThatIsDueIsClosedAtTheStatedRateAndNothingBefore(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.setMode(t, order.ModeOff)
	const orders, rate = 60, 25
	nos := w.overdue(t, orders)
	sweeper := lifecycle.NewSweeper(w.store, w.relay, "test", func() lifecycle.SweepOptions {
		return lifecycle.SweepOptions{Interval: 20 * time.Millisecond, Overdue: time.Millisecond, Pause: time.Nanosecond, Rate: rate}
	}, w.metrics, zap.NewNop())
	defer start(t, sweeper.Run)()
	rounds := func() float64 { return testutil.ToFloat64(w.metrics.SweepRuns.WithLabelValues("ok")) }
	eventually(t, "three rounds have passed while closing was off", func() bool { return rounds() >= 3 })
	if n := testutil.ToFloat64(w.metrics.SweepClosed); n != 0 {
		t.Errorf("%v orders were closed while closing was off", n)
	}
	on, err := w.store.Now(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	w.setMode(t, order.ModeEnforce)
	var first, last time.Time
	for _, no := range nos {
		o := w.waitClosed(t, no, order.ReasonCompensate)
		if o.CancelledAt.Before(on) {
			t.Errorf("%s was closed %v before closing was on", no, on.Sub(o.CancelledAt))
		}
		if first.IsZero() || o.CancelledAt.Before(first) {
			first = o.CancelledAt
		}
		if o.CancelledAt.After(last) {
			last = o.CancelledAt
		}
	}
	// Its last page is closed before it takes its time; no shard has more than a few of so few orders.
	const least = (orders - 10) * time.Second / rate
	if took := last.Sub(first); took < least {
		t.Errorf("%d orders were closed within %v, at %d a second it is at least %v", orders, took, rate, least)
	}
	w.holds(t)
}

// pageSizes notes how many orders a sweep asks for at a time.
type pageSizes struct {
	*store.Store
	seen map[int]bool
}

func (p pageSizes) ScanDue(ctx context.Context, shard int, overdue time.Duration, after order.Cursor, limit int) ([]order.DueOrder, error) {
	p.seen[limit] = true
	return p.Store.ScanDue(ctx, shard, overdue, after, limit)
}

func TestASweepByHandKnowsNoRate(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	const orders, page = 60, 100
	w.overdue(t, orders)
	db := pageSizes{w.store, map[int]bool{}}
	sweeper := lifecycle.NewSweeper(db, w.relay, "test", func() lifecycle.SweepOptions { return lifecycle.SweepOptions{Rate: 1, Limit: page} }, w.metrics, zap.NewNop())
	ctx, cancel := context.WithTimeout(t.Context(), orders*time.Second/2)
	defer cancel()
	if run, err := sweeper.Now(ctx); err != nil || run.Closed != orders {
		t.Errorf("%+v, %v", run, err)
	}
	if !db.seen[page] || len(db.seen) != 1 {
		t.Errorf("pages of %v orders, want %d", slices.Collect(maps.Keys(db.seen)), page)
	}
}

// takenOver is a store that loses its leases of one shard at once.
type takenOver struct {
	*store.Store
	shard int
	tries int
}

func (o *takenOver) CloseDue(ctx context.Context, c order.Closing, first order.Schedule) (order.ClosedBatch, error) {
	if c.Lease.Shard == o.shard {
		o.tries++
		return order.ClosedBatch{}, order.Errorf(order.Conflict, "lease_lost", "another has it")
	}
	return o.Store.CloseDue(ctx, c, first)
}

func TestALostLeaseEndsThePassOverItsShardAndOfNoOther(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	const orders = 100
	var due [order.Shards]int
	lost := 0
	for _, no := range w.overdue(t, orders) {
		shard := order.ShardOf(no)
		if due[shard]++; due[shard] > due[lost] {
			lost = shard
		}
	}
	db := &takenOver{Store: w.store, shard: lost}
	sweeper := lifecycle.NewSweeper(db, w.relay, "test", func() lifecycle.SweepOptions { return lifecycle.SweepOptions{Limit: 1} }, w.metrics, zap.NewNop())
	if run, err := sweeper.Now(t.Context()); err != nil || run.Closed != orders-due[lost] || run.Failed != 0 {
		t.Errorf("%+v, %v; %d of %d orders are in the lost shard", run, err, due[lost], orders)
	}
	if db.tries != 1 {
		t.Errorf("%d tries in the lost shard, where %d orders are due", db.tries, due[lost])
	}
}
