package sim

import (
	"context"
	"fmt"
	"time"

	"lapse/pkg/order"
)

// broker is one that breaks every promise a broker can break: it drops, doubles and reorders messages, delivers them early
// and late by a clock of its own, takes some without saying so, and is away at times.
type broker struct {
	parcels []*parcel         // in its hands
	past    []order.Delivery  // time-outs that it ever took
	told    map[string]string // bodies of events that it took, by id
	skew    time.Duration     // its clock minus the database's
	down    map[order.MessageKind]time.Time
	poison  string // an order whose time-outs it refuses
}

// parcel is one time-out message in the broker's hands.
type parcel struct {
	order.Delivery
	no   string
	due  time.Time // by its clock
	held bool      // a process has it
}

// sender is the way of one process to the broker.
type sender struct{ border }

// Step is the way of a broker that waits as long as it is told, of one with levels, or of none that waits.
func (s sender) Step(now, due time.Time) time.Time {
	switch s.p.world.terms.delay {
	case "levels":
		step := time.Second
		for _, level := range []time.Duration{5 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 10 * time.Minute, time.Hour} {
			if level <= due.Sub(now) {
				step = level
			}
		}
		return now.Add(step)
	case "none":
		return now
	}
	return due
}

// Send takes a message, or does not, and says so, or does not.
func (s sender) Send(_ context.Context, e order.Envelope) (receipt order.Receipt, err error) {
	w := s.p.world
	err = s.pass("Send", fmt.Sprintf("%s#%d", e.MessageID, e.Hop), func() error {
		if w.clock().Before(w.broker.down[e.Kind]) {
			w.count("broker: away")
			return order.Errorf(order.Unavailable, "broker_unreachable", "nobody is there")
		}
		if e.Kind == order.Timeout && e.OrderNo == w.broker.poison {
			w.count("broker: refused")
			return order.Errorf(order.Invalid, "message_refused", "this one not")
		}
		w.judge.sent(e)
		w.broker.take(w, e)
		if w.chance(w.wild, 40) {
			w.count("broker: taken without saying so")
			return order.Errorf(order.Unavailable, "broker_unreachable", "no answer in time")
		}
		return nil
	})
	return order.Receipt{MessageID: e.MessageID}, err
}

// take takes a message into the broker's hands, once, twice or not at all.
func (b *broker) take(w *world, e order.Envelope) {
	if e.Kind == order.Notice {
		b.told[e.MessageID] = string(e.Body)
		return
	}
	d := order.Delivery{Kind: e.Kind, OrderNo: e.OrderNo, Body: e.Body}
	b.past = append(b.past, d)
	copies := 1
	switch {
	case w.chance(w.wild, 20):
		copies = 0
		w.count("broker: dropped")
	case w.chance(w.wild, 20):
		copies = 2
		w.count("broker: doubled")
	}
	for range copies {
		w.broker.hand(w, d, w.clock().Add(b.skew).Add(e.Delay))
	}
}

func (b *broker) hand(w *world, d order.Delivery, due time.Time) {
	w.serial++
	b.parcels = append(b.parcels, &parcel{Delivery: d, no: fmt.Sprintf("%s/%d", d.OrderNo, w.serial), due: due})
}

// drop forgets a parcel.
func (b *broker) drop(p *parcel) {
	for i, q := range b.parcels {
		if q == p {
			b.parcels = append(b.parcels[:i:i], b.parcels[i+1:]...)
			return
		}
	}
}

// waiting are the parcels that nobody has, only those that are due or all.
func (b *broker) waiting(now time.Time, all bool) (found []*parcel) {
	for _, p := range b.parcels {
		if !p.held && (all || !p.due.After(now.Add(b.skew))) {
			found = append(found, p)
		}
	}
	return found
}

// deliver hands parcels over to a process, and forgets them once it has acknowledged them.
func (w *world) deliver(p *process, parcels []*parcel) {
	deliveries, names := make([]order.Delivery, len(parcels)), ""
	for i, q := range parcels {
		q.held = true
		deliveries[i] = q.Delivery
		names += " " + q.no
	}
	w.ask(p, "close", "deliver"+names, func(ctx context.Context) error { return p.closer.Handle(ctx, deliveries) }, func(err error) {
		for _, q := range parcels {
			q.held = false
		}
		if err != nil {
			return
		}
		if len(parcels) == 1 {
			w.judge.acknowledged(p, parcels[0].Delivery)
		}
		if w.chance(w.wild, 20) {
			w.count("acknowledgement lost")
			return
		}
		for _, q := range parcels {
			w.broker.drop(q)
		}
	})
}
