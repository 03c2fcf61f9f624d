package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

const (
	sweepRounds = 5 // the two tables take turns
	sweepLimit  = 200
	sweepPages  = 2 // pages of each shard that are due in a round
)

// sweepFigures are those of part e.
type sweepFigures struct {
	GrowthRatio float64      `json:"growth_ratio"` // large ÷ small
	Small       sweptFigures `json:"small"`
	Large       sweptFigures `json:"large"`
}

// sweptFigures are those of one table.
type sweptFigures struct {
	Orders int       `json:"orders"`          // in the table before the first round
	Per200 float64   `json:"ms_per_200"`      // median of the rounds
	Rounds []float64 `json:"ms_per_200_each"` // by round
}

// sweeps measures part e: the same due orders in a small and in a large table, in turn.
func (l *lab) sweeps(ctx context.Context) (*sweepFigures, error) {
	f := &sweepFigures{}
	f.Small.Orders, f.Large.Orders = l.scaled(100_000), l.scaled(3_000_000)
	small, err := l.history(ctx, "sweep_small", f.Small.Orders)
	if err != nil {
		return nil, err
	}
	defer l.close(small)
	large, err := l.history(ctx, "sweep_large", f.Large.Orders)
	if err != nil {
		return nil, err
	}
	defer l.close(large)
	for round := 1; round <= sweepRounds; round++ {
		say("sweep, round %d of %d", round, sweepRounds)
		for _, in := range []struct {
			*shop
			*sweptFigures
		}{{small, &f.Small}, {large, &f.Large}} {
			took, err := l.sweepOnce(ctx, in.shop, round)
			if err != nil {
				return nil, fmt.Errorf("%d orders: %w", in.Orders, err)
			}
			in.Rounds = append(in.Rounds, took)
			in.Per200 = median(in.Rounds)
		}
	}
	f.GrowthRatio = ratio(f.Large.Per200, f.Small.Per200)
	return f, nil
}

// history makes a shop of so many orders of the last month: one in ten still waits to be paid.
func (l *lab) history(ctx context.Context, name string, orders int) (*shop, error) {
	s, err := l.open(ctx, name)
	if err != nil {
		return nil, err
	}
	say("sweep: loading %d orders", orders)
	now := time.Now()
	const month = 30 * 24 * time.Hour
	return s, s.load(ctx, batch{name: "past", orders: orders, shape: func(i int, r *row) {
		r.created = now.Add(-month + month*time.Duration(i)/time.Duration(orders))
		r.expire, r.sent = r.created.Add(payTimeout), true
		switch i % 10 {
		case 0:
			r.created, r.expire = now, now.Add(24*time.Hour)
		case 1, 2, 3:
			r.status = order.Cancelled
		default:
			r.status = order.Paid
		}
	}})
}

// sweepOnce adds due orders and returns the milliseconds that sweeping 200 of them takes.
func (l *lab) sweepOnce(ctx context.Context, s *shop, round int) (float64, error) {
	now := time.Now()
	n := sweepPages * sweepLimit * order.Shards
	b := batch{name: fmt.Sprintf("due%d", round), orders: n, shape: pending(now.Add(-time.Hour), now.Add(-time.Minute))}
	if err := s.load(ctx, b); err != nil {
		return 0, err
	}
	m := metrics()
	relay := lifecycle.NewRelay(s.Store, nowhere{}, defaults[lifecycle.RelayOptions], m, l.log) // never run: events stay
	sweeper := lifecycle.NewSweeper(s.Store, relay, caller, func() lifecycle.SweepOptions { return lifecycle.SweepOptions{Limit: sweepLimit} }, m, l.log)
	var swept order.SweepRun
	c, err := l.measure(ctx, func() (err error) {
		swept, err = sweeper.Now(ctx)
		return err
	})
	if err == nil && swept.Closed != n {
		err = fmt.Errorf("the sweep closed %d orders, and not %d", swept.Closed, n)
	}
	return c.wall.Seconds() * 1000 * sweepLimit / float64(n), err
}

func (f *sweepFigures) goals() []goal {
	return []goal{atMost("sweep.growth_ratio", "(e) sweep: time per 200 orders in the large table ÷ in the small one", f.GrowthRatio, 1.3)}
}

func (f *sweepFigures) print(w io.Writer) {
	t := newTable("(e) sweep", "orders in the table", "ms per 200 due orders", "by round")
	for _, s := range []sweptFigures{f.Small, f.Large} {
		t.AppendRow(table.Row{s.Orders, fmt.Sprintf("%.1f", s.Per200), fmt.Sprintf("%.1f", s.Rounds)})
	}
	t.render(w)
}
