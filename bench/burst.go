package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"lapse/pkg/delay/rocketmq"
	"lapse/pkg/order"
)

const (
	burstRounds = 3                // the two take turns
	burstLead   = 20 * time.Second // from the start of a round to the due time: long enough to send everything
)

// burstFigures are those of part d: orders that are all due at one instant.
type burstFigures struct {
	Ratio float64   `json:"ratio"` // median of Lapse ÷ median of bare
	Each  int       `json:"orders"`
	Lapse []float64 `json:"last_close_s"`   // seconds from the instant to the commit of the last close, by round
	Bare  []float64 `json:"last_arrival_s"` // to the arrival of the last message at a handler that does nothing
	// Until is the CPU time until the last close, of all rounds: who used the machine meanwhile.
	Until work `json:"until_last_close"`
}

// bursts measures part d, the two in turn.
func (l *lab) bursts(ctx context.Context) (*burstFigures, error) {
	f := &burstFigures{Each: l.scaled(20_000)}
	for round := 1; round <= burstRounds; round++ {
		say("burst, round %d of %d", round, burstRounds)
		bare, err := l.burstBare(ctx, round, f.Each)
		if err != nil {
			return nil, fmt.Errorf("bare: %w", err)
		}
		lapse, err := l.burstOrders(ctx, round, f)
		if err != nil {
			return nil, fmt.Errorf("orders: %w", err)
		}
		f.Bare, f.Lapse = append(f.Bare, bare), append(f.Lapse, lapse)
	}
	f.Ratio = ratio(median(f.Lapse), median(f.Bare))
	return f, nil
}

func median(figures []float64) float64 {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[len(sorted)/2]
}

// burstBare sends messages that are due at one instant, and returns when the last one came.
func (l *lab) burstBare(ctx context.Context, round, n int) (float64, error) {
	team := &crew{ctx: ctx}
	defer team.stop()
	seen := newArrivals(n)
	opts := l.bare(fmt.Sprintf("burst-bare-%d", round))
	if err := l.consume(team, opts, seen.handle); err != nil {
		return 0, err
	}
	due := time.Now().Add(burstLead).Truncate(time.Second)
	b := batch{name: "burst", orders: n}
	if err := l.sendBefore(ctx, team, opts, b, due); err != nil {
		return 0, err
	}
	err := until(ctx, "arrivals", seen.count.Load, int64(n))
	return time.Duration(seen.last.Load() - due.UnixNano()).Seconds(), err
}

// burstOrders loads orders that are due at one instant, with their messages in the broker, and returns when
// the last one was closed.
func (l *lab) burstOrders(ctx context.Context, round int, f *burstFigures) (float64, error) {
	n := f.Each
	s, err := l.open(ctx, fmt.Sprintf("burst_%d", round))
	if err != nil {
		return 0, err
	}
	defer l.close(s)
	team := &crew{ctx: ctx}
	defer team.stop()
	seen := newWitness(s.Store, 0)
	opts := l.topics(fmt.Sprintf("burst-%d", round))
	if err := l.closers(ctx, team, seen, opts, func([]order.Delivery) {}); err != nil {
		return 0, err
	}
	due := time.Now().Add(burstLead).Truncate(time.Second)
	b := batch{name: "burst", orders: n, shape: pending(time.Now(), due)}
	if err := s.load(ctx, b); err != nil {
		return 0, err
	}
	if err := l.sendBefore(ctx, team, opts, b, due); err != nil {
		return 0, err
	}
	c, err := l.span(func() error {
		return l.profiled(fmt.Sprintf("burst-%d", round), func() error {
			return until(ctx, "closes", seen.closed.Load, int64(n))
		})
	})
	if err != nil {
		return 0, err
	}
	f.Until = f.Until.add(n, c.wall, c)
	if err := s.drained(ctx); err != nil {
		return 0, err
	}
	return time.Duration(seen.last.Load() - due.UnixNano()).Seconds(), s.audited(ctx, order.Cancelled, n)
}

// sendBefore sends the messages of a batch and waits for their due time.
func (l *lab) sendBefore(ctx context.Context, team *crew, opts rocketmq.Options, b batch, due time.Time) error {
	opts.Trace = false // these sends are not what is measured
	sender, err := l.sender(ctx, opts)
	if err != nil {
		return err
	}
	team.then(sender.Close)
	if err := sendAll(ctx, sender, b.orders, func(i int) order.Envelope { return timeout(b.number(i), due) }); err != nil {
		return err
	}
	if time.Until(due) < time.Second {
		return errors.New("this machine is too slow: the messages were not all sent before they were due")
	}
	l.quiet(ctx)
	if !sleep(ctx, time.Until(due)) {
		return ctx.Err()
	}
	return nil
}

func (f *burstFigures) goals() []goal {
	return []goal{atMost("burst.ratio", "(d) burst: time to the last close ÷ to the last bare arrival", f.Ratio, 4)}
}

func (f *burstFigures) print(w io.Writer) {
	t := newTable(fmt.Sprintf("(d) %d orders due at one instant", f.Each), "", "seconds to the last one, by round", "median")
	t.AppendRow(table.Row{"closed by Lapse", fmt.Sprintf("%.2f", f.Lapse), fmt.Sprintf("%.2f", median(f.Lapse))})
	t.AppendRow(table.Row{"bare message arrived", fmt.Sprintf("%.2f", f.Bare), fmt.Sprintf("%.2f", median(f.Bare))})
	t.render(w)
	busy := newTable("(d) CPU until the last close", workColumns...)
	busy.AppendRow(workRow("closes and their events, so far", f.Until))
	busy.render(w)
}
