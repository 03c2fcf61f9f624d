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
	burstLead   = 15 * time.Second // from the start of a round to the due time: long enough to send everything
)

// burstFigures are those of part d: orders that are all due in one second, and, which is harder, at one instant.
type burstFigures struct {
	Ratio        float64    `json:"ratio"`         // in one second: median of Lapse ÷ median of bare
	InstantRatio float64    `json:"instant_ratio"` // the same at one instant
	Each         int        `json:"orders"`
	Second       burstTimes `json:"in_one_second"`
	Instant      burstTimes `json:"at_one_instant"`
	// Until is the CPU time from the due time until the last close, of all rounds: who used the machine.
	Until work `json:"until_last_close"`
}

// burstTimes are seconds from the beginning of the due second, or from the instant, by round.
type burstTimes struct {
	Lapse []float64 `json:"last_close_s"`   // until the commit of the last close
	Bare  []float64 `json:"last_arrival_s"` // until the last message came to a handler that does nothing
}

func (t burstTimes) ratio() float64 { return ratio(median(t.Lapse), median(t.Bare)) }

// burst is one round: n orders, due evenly over width from at on.
type burst struct {
	name  string
	n     int
	width time.Duration
	at    time.Time
}

// due is when the i-th is due.
func (b burst) due(i int) time.Time {
	return b.at.Add(b.width * time.Duration(i) / time.Duration(b.n)).Truncate(time.Millisecond)
}

// after is the seconds from the due time to an instant in unix nanoseconds.
func (b burst) after(nanos int64) float64 { return time.Unix(0, nanos).Sub(b.at).Seconds() }

// bursts measures part d, the two in turn.
func (l *lab) bursts(ctx context.Context) (*burstFigures, error) {
	f := &burstFigures{Each: l.scaled(20_000)}
	for round := 1; round <= burstRounds; round++ {
		for _, shape := range []struct {
			name  string
			width time.Duration
			times *burstTimes
		}{{"second", time.Second, &f.Second}, {"instant", 0, &f.Instant}} {
			say("burst in one %s, round %d of %d", shape.name, round, burstRounds)
			b := burst{name: fmt.Sprintf("%s-%d", shape.name, round), n: f.Each, width: shape.width}
			bare, err := l.burstBare(ctx, b)
			if err != nil {
				return nil, fmt.Errorf("bare: %w", err)
			}
			lapse, err := l.burstOrders(ctx, b, f)
			if err != nil {
				return nil, fmt.Errorf("orders: %w", err)
			}
			shape.times.Bare, shape.times.Lapse = append(shape.times.Bare, bare), append(shape.times.Lapse, lapse)
		}
	}
	f.Ratio, f.InstantRatio = f.Second.ratio(), f.Instant.ratio()
	return f, nil
}

func median(figures []float64) float64 {
	sorted := slices.Sorted(slices.Values(figures))
	return sorted[len(sorted)/2]
}

// burstBare sends the messages alone, and returns when the last one came.
func (l *lab) burstBare(ctx context.Context, b burst) (float64, error) {
	team := &crew{ctx: ctx}
	defer team.stop()
	seen := newArrivals(b.n)
	opts := l.bare("bare-" + b.name)
	if err := l.consume(team, opts, seen.handle); err != nil {
		return 0, err
	}
	b.at = time.Now().Add(burstLead).Truncate(time.Second)
	if err := l.sendBefore(ctx, team, opts, b, func(int) string { return newNumber() }); err != nil {
		return 0, err
	}
	err := until(ctx, "arrivals", seen.count.Load, int64(b.n))
	return b.after(seen.last.Load()), err
}

// burstOrders loads the orders, with their messages in the broker, and returns when the last one was closed.
func (l *lab) burstOrders(ctx context.Context, b burst, f *burstFigures) (float64, error) {
	s, err := l.open(ctx, "burst")
	if err != nil {
		return 0, err
	}
	defer l.close(s)
	team := &crew{ctx: ctx}
	defer team.stop()
	seen := newWitness(s.Store, 0)
	opts := l.topics(b.name)
	if err := l.closers(ctx, team, seen, opts, func([]order.Delivery) {}); err != nil {
		return 0, err
	}
	now := time.Now()
	b.at = now.Add(burstLead).Truncate(time.Second)
	orders := batch{name: "burst", orders: b.n, shape: func(i int, r *row) { r.created, r.expire, r.sent = now, b.due(i), true }}
	if err := s.load(ctx, orders); err != nil {
		return 0, err
	}
	if err := l.sendBefore(ctx, team, opts, b, orders.number); err != nil {
		return 0, err
	}
	c, err := l.span(func() error {
		return l.profiled("burst-"+b.name, func() error { return until(ctx, "closes", seen.closed.Load, int64(b.n)) })
	})
	if err != nil {
		return 0, err
	}
	f.Until = f.Until.add(b.n, c.wall, c)
	if err := s.drained(ctx); err != nil {
		return 0, err
	}
	return b.after(seen.last.Load()), s.audited(ctx, order.Cancelled, b.n)
}

// sendBefore sends the messages of a burst and waits for their due time.
func (l *lab) sendBefore(ctx context.Context, team *crew, opts rocketmq.Options, b burst, number func(i int) string) error {
	opts.Trace = false // these sends are not what is measured
	sender, err := l.sender(ctx, opts)
	if err != nil {
		return err
	}
	team.then(sender.Close)
	if err := sendAll(ctx, sender, b.n, func(i int) order.Envelope { return timeout(number(i), b.due(i)) }); err != nil {
		return err
	}
	if time.Until(b.at) < time.Second {
		return errors.New("this machine is too slow: the messages were not all sent before they were due")
	}
	l.quiet(ctx)
	if !sleep(ctx, time.Until(b.at)) {
		return ctx.Err()
	}
	return nil
}

func (f *burstFigures) goals() []goal {
	return []goal{
		atMost("burst.ratio", "(d) burst in one second: time to the last close ÷ to the last bare arrival", f.Ratio, 4),
	}
}

func (f *burstFigures) print(w io.Writer) {
	t := newTable(fmt.Sprintf("(d) %d orders due in one second, and at one instant", f.Each), "", "seconds to the last one, by round", "median")
	for _, line := range []struct {
		name  string
		times []float64
	}{
		{"in one second: closed by Lapse", f.Second.Lapse}, {"in one second: bare message arrived", f.Second.Bare},
		{"at one instant: closed by Lapse", f.Instant.Lapse}, {"at one instant: bare message arrived", f.Instant.Bare},
	} {
		t.AppendRow(table.Row{line.name, fmt.Sprintf("%.2f", line.times), fmt.Sprintf("%.2f", median(line.times))})
	}
	t.AppendFooter(table.Row{"at one instant: Lapse ÷ bare", "", fmt.Sprintf("%.1f", f.InstantRatio)})
	t.render(w)
	busy := newTable("(d) CPU until the last close", workColumns...)
	busy.AppendRow(workRow("closes and their events, so far", f.Until))
	busy.render(w)
}
