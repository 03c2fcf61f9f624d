package sim

import (
	"fmt"
	"strings"
	"time"

	"lapse/pkg/order"
)

const (
	bound    = 180 * time.Second // B: from a deadline, or the end of the faults, to its effect
	restTurn = 10 * time.Second  // while something is to be done
	maxTurns = 400
)

// rest lets the world live without faults until it has nothing to do any more, and looks whether everything that was due
// has come about within its bound (I3, I6, I9). Then all messages that ever were come once more, and change nothing (I11).
func (w *world) rest() {
	if w.broken != nil {
		return
	}
	w.say("from now on nothing fails")
	w.wild = 0
	w.broker.skew, w.broker.poison = 0, ""
	clear(w.broker.down)
	for _, p := range w.procs {
		p.skew = 0
	}
	w.rng = stepRand(w.seed, 1<<40)
	w.processStarts()
	w.setBrakes(w.procs[0], order.ModeEnforce, 100)
	w.work()
	ceased := w.clock()
	for turn := 1; w.broken == nil; turn++ {
		if turn > maxTurns {
			w.fail("I3", "the world does not come to rest")
			return
		}
		w.rng = stepRand(w.seed, 1<<40+turn)
		w.turn()
		w.judge.inBound(ceased)
		next, over := w.judge.next()
		if over && len(w.untold()) == 0 {
			break
		}
		d := restTurn
		if next.After(w.clock().Add(d)) && !w.judge.overdue() {
			d = next.Sub(w.clock())
		}
		w.sleep(d)
	}
	if w.broken == nil {
		w.replay()
	}
}

// untold is captured money that Lapse has not heard of.
func (w *world) untold() (found []*capture) {
	for _, c := range w.bank.captured {
		if !c.told && !c.telling {
			found = append(found, c)
		}
	}
	return found
}

// turn lets every part of every process do what it has to do now.
func (w *world) turn() {
	for _, c := range w.untold() {
		w.tell(w.procs[0], c)
	}
	for i, q := range w.broker.waiting(w.clock(), false) {
		w.deliver(w.procs[i%len(w.procs)], []*parcel{q})
	}
	w.work()
}

// work goes on until only rounds are left to begin, each of which has begun once.
func (w *world) work() {
	begun := map[string]bool{}
	for quiet := 0; quiet < 2 && w.broken == nil; {
		worked := false
		for _, p := range w.procs {
			w.flush(p)
		}
		for _, c := range w.line() {
			poll := fmt.Sprint(c.p, c.name, c.key)
			if c.polls() {
				if begun[poll] {
					continue
				}
				begun[poll] = true
			}
			w.tick()
			w.let(c, &fate{})
			worked = true
		}
		if !worked {
			quiet++
			w.letTimersFire()
		}
	}
}

// replay hands over all messages that ever were, in any order, all at once.
func (w *world) replay() {
	var parcels []*parcel
	for i, d := range w.broker.past {
		parcels = append(parcels, &parcel{Delivery: d, no: fmt.Sprintf("again-%d", i)})
	}
	if len(parcels) == 0 {
		return
	}
	w.rng.Shuffle(len(parcels), func(i, j int) { parcels[i], parcels[j] = parcels[j], parcels[i] })
	// The rows of a later round count their hops from 0 again, so that a message of an earlier one may be taken for theirs: it
	// moves the hop, and has no other effect.
	kept := append([]string{"t_local_message WHERE round = 1"}, businessTables...)
	before := w.judge.dump(kept...)
	w.deliver(w.procs[0], parcels)
	w.work()
	if after := w.judge.dump(kept...); after != before {
		w.fail("I11", "messages that came again changed\n%s\nto\n%s", before, after)
	}
	for _, j := range w.jobs {
		if strings.HasPrefix(j.what, "deliver") {
			w.fail("I11", "messages that came again were not acknowledged: %s", j.what)
		}
	}
}

// grace is how long after its deadline an order's time-out is due.
func (t terms) grace() time.Duration { return t.relay.Grace }
