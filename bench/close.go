package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

// closeFigures are those of part b. Ratios say how many times better Lapse is.
type closeFigures struct {
	RocketMQ closePath `json:"rocketmq"`
	Sweep    closePath `json:"sweep"`
	Plain    work      `json:"plain"`
	// Events is what sending the events of the closed orders takes afterwards; the closing paths all write
	// the same event rows, and none of them sends.
	Events work `json:"events"`
}

// closePath is one of Lapse's ways to close.
type closePath struct {
	DBCPURatio      float64 `json:"db_cpu_ratio,omitempty"`
	ThroughputRatio float64 `json:"throughput_ratio"`
	work
}

func (w work) against(plain work) closePath {
	return closePath{ratio(plain.Database, w.Database), ratio(w.PerSecond, plain.PerSecond), w}
}

// closes measures part b: each path closes as many due orders of a database of its own.
func (l *lab) closes(ctx context.Context) (*closeFigures, error) {
	n := l.scaled(100_000)
	f := &closeFigures{}
	plain, err := l.closeAll(ctx, "one", n, l.closeOneByOne)
	if err != nil {
		return nil, fmt.Errorf("one by one: %w", err)
	}
	messages, err := l.closeAll(ctx, "message", n, func(ctx context.Context, s *shop, b batch) (work, error) {
		w, err := l.closeByMessage(ctx, s, b)
		if err != nil {
			return w, err
		}
		f.Events, err = l.sendEvents(ctx, s, n)
		return w, err
	})
	if err != nil {
		return nil, fmt.Errorf("by message: %w", err)
	}
	sweep, err := l.closeAll(ctx, "sweep", n, l.closeBySweep)
	if err != nil {
		return nil, fmt.Errorf("by sweep: %w", err)
	}
	f.Plain, f.RocketMQ, f.Sweep = plain, messages.against(plain), sweep.against(plain)
	return f, nil
}

// closeAll loads n due orders, lets path close them, and checks that they are.
func (l *lab) closeAll(ctx context.Context, name string, n int, path func(context.Context, *shop, batch) (work, error)) (work, error) {
	s, err := l.open(ctx, "close_"+name)
	if err != nil {
		return work{}, err
	}
	defer l.close(s)
	now := time.Now()
	b := batch{name: "due", orders: n, shape: pending(now.Add(-time.Hour), now.Add(-time.Minute))}
	say("closes, %s: loading %d due orders", name, n)
	if err := s.load(ctx, b); err != nil {
		return work{}, err
	}
	say("closes, %s", name)
	w, err := path(ctx, s, b)
	if err != nil {
		return w, err
	}
	return w, s.audited(ctx, order.Cancelled, n)
}

// closeOneByOne is the plain closer: as many workers as connections, one order a transaction.
func (l *lab) closeOneByOne(ctx context.Context, s *shop, b batch) (work, error) {
	ref, err := newReference(ctx, s.dsn)
	if err != nil {
		return work{}, err
	}
	defer ref.Close()
	c, err := l.measure(ctx, func() error {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(connections)
		for i := range b.orders {
			if ctx.Err() != nil {
				break
			}
			g.Go(func() error { return ref.CloseDue(ctx, b.number(i)) })
		}
		return g.Wait()
	})
	return work{}.add(b.orders, c.wall, c), err
}

// closeByMessage starts the consumer role when all time-out messages wait in the broker.
func (l *lab) closeByMessage(ctx context.Context, s *shop, b batch) (w work, err error) {
	opts := l.topics("close")
	sender, err := l.sender(ctx, l.bare("close"))
	if err != nil {
		return w, err
	}
	defer sender.Close()
	due := b.row(0).expire
	if err := sendAll(ctx, sender, b.orders, func(i int) order.Envelope { return timeout(b.number(i), due) }); err != nil {
		return w, err
	}
	seen := newWitness(s.Store, 0)
	m := metrics()
	relay := lifecycle.NewRelay(s.Store, nowhere{}, defaults[lifecycle.RelayOptions], m, l.log) // never run: events stay
	closer := lifecycle.NewCloser(seen, relay, defaults[lifecycle.CloseOptions], m, l.log)
	team := &crew{ctx: ctx}
	defer team.stop()
	c, err := l.measure(ctx, func() error {
		return l.profiled("close-message", func() error {
			team.start(closer.Run)
			if err := l.consume(team, opts, closer.Handle); err != nil {
				return err
			}
			return until(ctx, "closes by message", seen.closed.Load, int64(b.orders))
		})
	})
	return w.add(b.orders, c.wall, c), err
}

// sendEvents runs a relay on what the closers left.
func (l *lab) sendEvents(ctx context.Context, s *shop, n int) (w work, err error) {
	sender, err := l.sender(ctx, l.topics("close"))
	if err != nil {
		return w, err
	}
	team := &crew{ctx: ctx}
	defer team.stop()
	team.then(sender.Close)
	// The rows are leased to the closer's relay, which never ran.
	if !sleep(ctx, lease) {
		return w, ctx.Err()
	}
	say("events of the closed orders")
	relay := lifecycle.NewRelay(s.Store, sender, defaults[lifecycle.RelayOptions], metrics(), l.log)
	c, err := l.measure(ctx, func() error {
		return l.profiled("events", func() error {
			team.start(relay.Run)
			return s.drained(ctx)
		})
	})
	return w.add(n, c.wall, c), err
}

// closeBySweep sweeps once.
func (l *lab) closeBySweep(ctx context.Context, s *shop, b batch) (w work, err error) {
	m := metrics()
	relay := lifecycle.NewRelay(s.Store, nowhere{}, defaults[lifecycle.RelayOptions], m, l.log) // never run: events stay
	sweeper := lifecycle.NewSweeper(s.Store, relay, caller, defaults[lifecycle.SweepOptions], m, l.log)
	c, err := l.measure(ctx, func() error {
		return l.profiled("close-sweep", func() error {
			_, err := sweeper.Now(ctx)
			return err
		})
	})
	return w.add(b.orders, c.wall, c), err
}

func (f *closeFigures) goals() []goal {
	return []goal{
		atLeast("close.rocketmq.db_cpu_ratio", "(b) closes by message: times less database CPU (6 at the least)", f.RocketMQ.DBCPURatio, 8),
		atLeast("close.sweep.db_cpu_ratio", "(b) closes by sweep: times less database CPU (6 at the least)", f.Sweep.DBCPURatio, 8),
	}
}

func (f *closeFigures) print(w io.Writer) {
	t := newTable("(b) closes of due orders", workColumns...)
	t.AppendRow(workRow("RocketMQ, all messages waiting", f.RocketMQ.work))
	t.AppendRow(workRow("sweep, one at a time", f.Sweep.work))
	t.AppendRow(workRow(fmt.Sprintf("one order a transaction, %d connections", connections), f.Plain))
	t.AppendRow(workRow("then, of the first: sending the events", f.Events))
	t.render(w)
}
