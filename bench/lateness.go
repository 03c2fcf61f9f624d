package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sync/errgroup"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

const (
	steadyRate    = 300 // orders a second
	steadySeconds = 60
	dueAfter      = 3 * time.Second // orders are due so long after their creation,
	dueSpread     = 5 * time.Second // and up to so much longer
)

// latenessFigures are those of part c: from an order's deadline to the commit of its close, and from a bare
// message's due time to its arrival at a handler that does nothing.
type latenessFigures struct {
	P99Ratio        float64 `json:"p99_ratio"`        // Lapse ÷ bare
	Early           int64   `json:"early"`            // orders closed before their deadline
	EarlyDeliveries int64   `json:"early_deliveries"` // time-out messages that came before it
	EarlyBare       int64   `json:"early_bare"`       // bare messages that came before their time
	Rate            int     `json:"orders_per_second"`
	Lapse           spread  `json:"lapse"`
	Bare            spread  `json:"bare"`
}

// latenesses measures part c, the two in turn.
func (l *lab) latenesses(ctx context.Context) (*latenessFigures, error) {
	n := steadyRate * l.scaled(steadySeconds)
	f := &latenessFigures{Rate: steadyRate}
	say("lateness, bare messages")
	bare := newArrivals(n)
	if err := l.steadyBare(ctx, n, bare); err != nil {
		return nil, fmt.Errorf("bare: %w", err)
	}
	f.Bare, f.EarlyBare = spreadOf(bare.late()), bare.early.Load()
	say("lateness, orders")
	if err := l.profiled("lateness", func() error { return l.steadyOrders(ctx, n, f) }); err != nil {
		return nil, fmt.Errorf("orders: %w", err)
	}
	f.P99Ratio = ratio(f.Lapse.P99, f.Bare.P99)
	return f, nil
}

// dueIn is the time until the i-th order or message is due.
func dueIn(i int) time.Duration {
	return dueAfter + time.Duration(rand.New(rand.NewPCG(uint64(i), 2)).Int64N(int64(dueSpread/time.Millisecond)))*time.Millisecond
}

// steadily calls do n times at the steady rate, whether or not earlier calls have returned.
func steadily(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	start := time.Now()
	for i := range n {
		if !sleep(ctx, time.Until(start.Add(time.Duration(i)*time.Second/steadyRate))) {
			break
		}
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

// steadyOrders creates orders through Lapse's order side and lets its consumer close them.
func (l *lab) steadyOrders(ctx context.Context, n int, f *latenessFigures) error {
	s, err := l.open(ctx, "lateness")
	if err != nil {
		return err
	}
	defer l.close(s)
	team := &crew{ctx: ctx}
	defer team.stop()
	opts := l.topics("lateness")
	seen := newWitness(s.Store, n)
	deliveries := newArrivals(n)
	if err := l.closers(ctx, team, seen, opts, deliveries.note); err != nil {
		return err
	}
	sender, err := l.sender(ctx, opts)
	if err != nil {
		return err
	}
	team.then(sender.Close)
	m := metrics()
	relay := lifecycle.NewRelay(s.Store, sender, defaults[lifecycle.RelayOptions], m, l.log)
	team.start(relay.Run)
	orders := lifecycle.NewOrders(s.Store, relay, order.Limits{}, defaults[lifecycle.Terms], defaults[lifecycle.CreateOptions], m, l.log)
	team.start(orders.Run)
	err = steadily(ctx, n, func(ctx context.Context, i int) error {
		_, err := orders.Create(ctx, draft(rand.New(rand.NewPCG(uint64(i), 3)), newNumber(), dueIn(i)))
		return err
	})
	if err != nil {
		return err
	}
	if err := until(ctx, "closes", seen.closed.Load, int64(n)); err != nil {
		return err
	}
	if err := s.drained(ctx); err != nil {
		return err
	}
	f.Lapse, f.Early, f.EarlyDeliveries = spreadOf(seen.samples()), seen.early.Load(), deliveries.early.Load()
	return s.audited(ctx, order.Cancelled, n)
}

// steadyBare sends messages that are due as the orders are, to a handler that does nothing.
func (l *lab) steadyBare(ctx context.Context, n int, seen *arrivals) error {
	opts := l.bare("bare")
	team := &crew{ctx: ctx}
	defer team.stop()
	sender, err := l.sender(ctx, opts)
	if err != nil {
		return err
	}
	team.then(sender.Close)
	if err := l.consume(team, opts, seen.handle); err != nil {
		return err
	}
	err = steadily(ctx, n, func(ctx context.Context, i int) error {
		_, err := sender.Send(ctx, timeout(newNumber(), time.Now().Add(dueIn(i)).Truncate(time.Millisecond)))
		return err
	})
	if err != nil {
		return err
	}
	return until(ctx, "arrivals", seen.count.Load, int64(n))
}

func (f *latenessFigures) goals() []goal {
	return []goal{
		atMost("lateness.p99_ratio", "(c) lateness p99: of closes ÷ of bare arrivals", f.P99Ratio, 2),
		atMost("lateness.early", "(c) orders closed before their deadline", float64(f.Early), 0),
	}
}

func (f *latenessFigures) print(w io.Writer) {
	t := newTable(fmt.Sprintf("(c) lateness at a steady %d orders/s", f.Rate), "", "orders", "p50 ms", "p99 ms", "max ms", "early closes", "early deliveries")
	t.AppendRow(table.Row{"closed by Lapse, grace 0", f.Lapse.Count, ms(f.Lapse.P50), ms(f.Lapse.P99), ms(f.Lapse.Max), f.Early, f.EarlyDeliveries})
	t.AppendRow(table.Row{"bare message arrived", f.Bare.Count, ms(f.Bare.P50), ms(f.Bare.P99), ms(f.Bare.Max), "–", f.EarlyBare})
	t.render(w)
}
