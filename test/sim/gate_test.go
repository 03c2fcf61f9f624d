package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lapse/pkg/order"
)

// border is where one part of a process calls the world: a database, a broker, a bank. Every call waits here until the
// world lets it through, so that the world decides what happens next, to whom, and what goes wrong.
type border struct {
	p    *process
	role string
}

// call is one call that waits: to have its effect or, if that is done, to be answered.
type call struct {
	border
	name, key string
	done      bool
	step      int // when it has arrived; 0 for polls, whose moment is not the world's
	sleeps    int // how often timers had fired then
	let       chan *fate
}

// fate is what becomes of a call that is let through. nil is the end of its process.
type fate struct {
	disk disturbance
	hold bool // its answer has to wait
}

func (c *call) String() string {
	done := ""
	if c.done {
		done = " (done)"
	}
	return fmt.Sprintf("%s %s.%s %s%s", c.p, c.role, c.name, c.key, done)
}

// errGone is what the parts of a process hear that is no more: nothing of it reaches anybody.
var errGone = order.Errorf(order.Unavailable, "gone", "the process is gone")

// pass waits for the world and then does what the call is for.
func (b border) pass(name, key string, do func() error) error {
	w := b.p.world
	c := &call{border: b, name: name, key: key, let: make(chan *fate, 1)}
	f := w.wait(c)
	if f == nil {
		return errGone
	}
	w.disk.disturb(f.disk)
	err := do()
	if f.disk.kind != "" {
		w.disk.disturb(disturbance{})
		time.Sleep(time.Until(time.Unix(0, w.aligned.Load()).Add(retried)))
	}
	w.did(c, err)
	if f.hold {
		c.done = true
		if w.wait(c) == nil {
			return errGone
		}
	}
	return err
}

// wait stands in line until the world decides.
func (w *world) wait(c *call) *fate {
	w.mu.Lock()
	if c.p.gone {
		w.mu.Unlock()
		return nil
	}
	c.step, c.sleeps = w.arrivals, w.sleeps
	if c.polls() {
		c.step = 0
	}
	w.waiting = append(w.waiting, c)
	w.mu.Unlock()
	return <-c.let
}

// line are the calls that wait, in an order that does not depend on the scheduler of goroutines. A relay that is woken twice may
// poll once or twice at that moment, so that polls count only once timers have fired.
func (w *world) line() []*call {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.SortStableFunc(w.waiting, func(a, b *call) int {
		return cmp.Or(cmp.Compare(a.step, b.step), cmp.Compare(a.p.name, b.p.name), cmp.Compare(a.role, b.role),
			cmp.Compare(a.name, b.name), cmp.Compare(a.key, b.key))
	})
	return slices.DeleteFunc(slices.Clone(w.waiting), func(c *call) bool { return c.polls() && c.sleeps == w.sleeps })
}

// let lets a call through, and waits until nothing moves any more.
func (w *world) let(c *call, f *fate) {
	w.mu.Lock()
	w.waiting = slices.DeleteFunc(w.waiting, func(x *call) bool { return x == c })
	w.mu.Unlock()
	c.let <- f
	w.settle()
	if f != nil && f.disk.kind != "" {
		w.letTimersFire() // the store waits before it tries again
	}
}

// retried is more than the store's own retries take: their jitter is not to be seen.
const retried = 2 * time.Second

// polls begin a round of a part of a process: they wait all the time.
var polls = map[string]int{"Claim": 4, "ClaimDoubtful": 8, "StartRun": 2, "BeginReconcile": 1, "LastReconcile": 20}

// polls reports whether c begins a round.
func (c *call) polls() bool { return polls[c.name] > 0 && !c.done }

// choose picks a call: rather one that goes on with something than one that begins a round.
func (w *world) choose(line []*call) *call {
	weight := func(c *call) int {
		if c.polls() {
			return polls[c.name]
		}
		return 12
	}
	all := 0
	for _, c := range line {
		all += weight(c)
	}
	at := w.rng.IntN(all)
	for _, c := range line {
		if at -= weight(c); at < 0 {
			return c
		}
	}
	panic("weights do not add up")
}

// letOne lets one of those that wait through, with a fate.
func (w *world) letOne() {
	line := w.line()
	if len(line) == 0 {
		return
	}
	c := w.choose(line)
	w.tick()
	switch {
	case w.chance(w.wild, 300):
		w.crash(c.p, "before "+c.String())
	case c.done:
		w.let(c, &fate{})
	case w.chance(w.wild, 250):
		w.let(c, &fate{hold: true})
		w.crash(c.p, "after "+c.String())
	default:
		f := &fate{hold: w.chance(w.wild, 40)}
		if f.hold {
			w.count("answer delayed")
		}
		if c.disturbable() && w.chance(w.wild, 30) {
			f.disk = disturbances[w.rng.IntN(len(disturbances))](w.rng)
			w.count("database: " + f.disk.kind)
		}
		w.let(c, f)
	}
}

// disturbable: it is a call of the database. What follows the last look of a reconciler is a wait that would cross the grid of
// letTimersFire.
func (c *call) disturbable() bool {
	return c.role != "sender" && c.role != "gateway" && c.name != "LastReconcile"
}

// chance is true in n of m cases.
func (w *world) chance(n, m int) bool { return n > 0 && w.rng.IntN(m) < n }

// stepRand is the source of all choices of one step. It depends on nothing else, so that a step can be left out.
func stepRand(seed uint64, step int) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(step))) }
