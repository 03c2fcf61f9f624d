package sim

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// world is all there is in one run: a database, a broker, a bank, customers, staff, and some processes of Lapse.
// One goroutine moves it, a step at a time; whatever else runs, runs until it waits at a border or for a timer.
type world struct {
	seed    uint64
	terms   terms
	rng     *rand.Rand   // of the step that is made
	events  []event      // that may happen, with their weights
	weights int          // sum of them
	wild    int          // how often things go wrong: 0 is never
	now     atomic.Int64 // the database's clock, unix milliseconds
	aligned atomic.Int64 // when the world moved last, by the bubble's clock
	serial  int

	disk  *disk
	store *store.Store
	db    *sql.DB // the judge's

	mu       sync.Mutex
	waiting  []*call // guarded by mu
	arrivals int     // guarded by mu: counts the times at which everything has come to rest
	sleeps   int     // guarded by mu: counts the times at which timers have fired

	procs  []*process
	lives  map[string]int
	jobs   []*job
	broker broker
	bank   bank
	shop   shop
	judge  judge

	trace  []string
	counts map[string]int
	broken *violation
}

// terms are what a run is about.
type terms struct {
	names      []string // of its processes
	shard      int      // of all its orders
	orders     int      // at most
	rules      order.Rules
	confirm    time.Duration
	end        order.ConfirmEnd
	relay      lifecycle.RelayOptions
	delay      string // how its broker delays
	closeBatch int
	sweepLimit int
	overdue    time.Duration
}

// violation is an invariant that does not hold, and where it was seen.
type violation struct{ invariant, what string }

func (v *violation) String() string { return v.invariant + " does not hold: " + v.what }

var noon = time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC)

func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

const second, minute = time.Second, time.Minute

// draw makes up the terms of a run.
func draw(r *rand.Rand) terms {
	rule := func() order.Rule {
		return order.Rule{
			Late:           one(r, "", order.LateManual, order.LateRefund, order.LateReopen),
			RemindLead:     one(r, 0, 0, 5*second, minute),
			SecondChance:   one(r, 0, 0, 0, minute, 10*minute, order.Forever),
			StockAtPayment: r.IntN(4) == 0,
			Restock:        r.IntN(2) == 0,
		}
	}
	return terms{
		names:  []string{"a", "b", "c"}[:2+r.IntN(2)],
		shard:  r.IntN(order.Shards),
		orders: 4 + r.IntN(9),
		rules: order.Rules{Default: order.Rule{}, Remote: []string{"cart"},
			ByType: map[string]order.Rule{"flash": rule(), "hotel": rule()}},
		confirm: one(r, 0, 2*minute, 10*minute, 10*minute),
		end:     one(r, order.ConfirmCancel, order.ConfirmCancel, order.ConfirmHold),
		relay: lifecycle.RelayOptions{Grace: one(r, 0, second), Horizon: one(r, 0, 30*second, 10*minute), Lease: one(r, 0, 3*second, 30*second),
			MaxAttempts: one(r, 0, 2, 3)}, // all that is given back together is one batch, in whatever order it came
		delay:      one(r, "timer", "timer", "levels", "none"),
		closeBatch: one(r, 0, 0, 4),
		sweepLimit: one(r, 0, 0, 2),
		overdue:    one(r, 0, 0, second),
	}
}

// result is what a run has come to.
type result struct {
	steps  int
	counts map[string]int
	trace  []string
	hash   uint64
	broken *violation
}

// run lets a world live for some steps with faults, but for those that are left out, and then come to rest without.
func run(t *testing.T, seed uint64, steps int, without map[int]bool) (r result) {
	d := newDisk(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, seed, d)
		defer w.close(t)
		for i := range steps {
			if w.broken != nil {
				break
			}
			if !without[i] {
				w.rng = stepRand(seed, i)
				w.step()
				r.steps++
			}
		}
		w.rest()
		w.judge.everything()
		r.counts, r.trace, r.broken = w.counts, w.trace, w.broken
		w.judge.tally()
		h := fnv.New64a()
		for _, line := range w.trace {
			fmt.Fprintln(h, line)
		}
		fmt.Fprintln(h, w.judge.dump(allTables...))
		r.hash = h.Sum64()
	})
	return r
}

func newWorld(t *testing.T, seed uint64, d *disk) *world {
	w := &world{
		seed: seed, rng: rand.New(rand.NewPCG(seed, 1<<63)), disk: d, lives: map[string]int{}, counts: map[string]int{},
		broker: broker{told: map[string]string{}, down: map[order.MessageKind]time.Time{}},
		bank:   bank{bills: map[string]*bill{}},
	}
	w.now.Store(noon.UnixMilli())
	w.terms = draw(w.rng)
	w.events, w.weights = mix(w.rng)
	w.wild = one(w.rng, 0, 1, 1, 2, 4)
	wrap := store.Options{Driver: "sqlite", DSN: ":memory:", MaxConns: 1, Now: w.clock}
	wrap.Wrap = func(c driver.Connector) driver.Connector {
		d.Connector = c
		return d
	}
	var err error
	if w.store, err = store.Open(context.Background(), wrap); err != nil {
		t.Fatal(err)
	}
	w.db = d.quiet()
	w.judge = newJudge(w)
	w.open()
	for _, name := range w.terms.names {
		w.start(name)
	}
	return w
}

// close ends everything that runs.
func (w *world) close(t *testing.T) {
	for len(w.procs) > 0 {
		w.end(w.procs[0])
	}
	for range 20 {
		w.letTimersFire()
	}
	w.judge.close()
	if err := w.store.Close(); err != nil {
		t.Error(err)
	}
	if err := w.db.Close(); err != nil {
		t.Error(err)
	}
	if w.disk.conn != nil {
		if err := w.disk.conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// clock is the database's clock.
func (w *world) clock() time.Time { return time.UnixMilli(w.now.Load()).UTC() }

// sleep lets time pass.
func (w *world) sleep(d time.Duration) {
	w.now.Add(d.Milliseconds())
	w.letTimersFire()
}

// tick is the time that a call takes.
func (w *world) tick() { w.now.Add(int64(1 + w.rng.IntN(20))) }

// settle waits until nothing moves any more.
func (w *world) settle() {
	synctest.Wait()
	w.mu.Lock()
	w.arrivals++
	w.mu.Unlock()
	w.aligned.Store(time.Now().UnixNano())
	w.collect()
}

// letTimersFire lets everybody's waits end. Production adds jitter to them; the grid of ten seconds is one that no jittered
// wait crosses by chance: a back-off takes less than 7.5 s, a sweep's interval is up to 7 s, a look for a reconciliation 54 to
// 60 s, each of them at most after 2 s (retried). So what has happened by its end does not depend on the jitter.
func (w *world) letTimersFire() {
	time.Sleep(10 * time.Second)
	synctest.Wait()
	w.mu.Lock()
	w.sleeps++
	w.mu.Unlock()
	w.settle()
}

// say adds a line to the trace.
func (w *world) say(format string, args ...any) {
	w.trace = append(w.trace, fmt.Sprintf("%9.3f ", w.clock().Sub(noon).Seconds())+fmt.Sprintf(format, args...))
}

func (w *world) count(what string) { w.counts[what]++ }

// fail notes that an invariant does not hold; only the first counts.
func (w *world) fail(invariant, format string, args ...any) {
	if w.broken == nil {
		w.broken = &violation{invariant, fmt.Sprintf(format, args...)}
		w.say("%s", w.broken)
	}
}

// did notes that a call has had its effect.
func (w *world) did(c *call, err error) {
	w.say("%s: %s", c, short(err))
	w.count("calls")
	w.judge.saw(c, err)
}
