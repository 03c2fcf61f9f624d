package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// figures are what a run has shown, beside its verdict.
func (s *system) figures(ctx context.Context, run *run) ([]string, error) {
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) }
	consumers, err := s.counted(ctx, "consumer")
	if err != nil {
		return nil, err
	}
	all, err := s.counted(ctx, "")
	if err != nil {
		return nil, err
	}
	say("database %s, broker RocketMQ %s, delay mode %s, seed %d", s.db.Version, s.broker.Version, run.delay, run.seed)
	say("%d orders by %d clients in %v, %d calls made again; %d time-out messages copied", len(run.shop.records), clients,
		run.creating, run.shop.again.Load(), run.forger.copies.Load())
	say("orders: %s", tally(run.orders))
	say("payments: %s", outcomes(run))
	say("closes by path: message %.0f, sweep %.0f, cancel %.0f (as counted by the processes; what they counted last before a kill may lack)",
		all.sum("lapse_closes_total", `path="message"`), all.sum("lapse_closes_total", `path="sweep"`), all.sum("lapse_closes_total", `path="cancel"`))
	say("time-out messages by result: %s", byLabel(consumers, "lapse_timeout_messages_total", "result"))
	perOrder := perKey(run.timeouts)
	maps.DeleteFunc(perOrder, func(no string, _ int) bool { return run.orders[no] == nil }) // nonsense and markers
	say("time-out messages for each order: mean %.2f, most %d; handled by the consumers: %.0f, that is %.2f for each order",
		float64(len(run.timeouts))/float64(len(run.orders)), most(perOrder), run.handled, run.handled/float64(len(run.orders)))
	say("time-out messages that the relays sent: %.0f; of which the topic has, with copies and nonsense: %d",
		all.sum("lapse_relay_sends_total", `kind="timeout"`, `outcome="sent"`), len(run.timeouts))
	say("messages overdue when a sweep closed their order: %.0f; sweeps: %.0f; events at the subscriber: %d for %d cancelled orders", all.sum("lapse_timeout_messages_lost_total"),
		all.sum("lapse_sweep_runs_total"), len(run.events), countStatus(run.orders, 20))
	calm, troubled := lateness(run.orders, run.windows)
	say("lateness in calm times:   %s", calm.spread(run.begin))
	if len(calm) > 0 {
		say("messages of the latest one in calm times: %s", run.story(calm[0]))
	}
	say("lateness in faulty times: %s", troubled.spread(run.begin))
	for _, n := range s.nodes {
		m, err := n.scrape(ctx)
		if err != nil {
			return nil, err
		}
		say("%-13s %3.0f MB, %3.0f goroutines, %5.1f s of CPU", n.name, (m.sum("process_resident_memory_bytes")-n.before.sum("process_resident_memory_bytes"))/1e6,
			m.sum("go_goroutines")-n.before.sum("go_goroutines"), m.sum("process_cpu_seconds_total"))
	}
	return lines, nil
}

// tally counts orders by what became of them.
func tally(orders map[string]*row) string {
	counts := map[string]int{}
	for _, o := range orders {
		what := map[int]string{0: "pending", 10: "paid", 20: "cancelled "}[o.status] + o.reason
		counts[what]++
	}
	return list(counts)
}

func outcomes(run *run) string {
	counts := map[string]int{}
	for _, p := range run.payments {
		counts[p.outcome]++
	}
	return list(counts)
}

func list(counts map[string]int) string {
	var parts []string
	for what, n := range counts {
		parts = append(parts, fmt.Sprintf("%d %s", n, what))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

func countStatus(orders map[string]*row, status int) (n int) {
	for _, o := range orders {
		if o.status == status {
			n++
		}
	}
	return n
}

func byLabel(m metrics, name, label string) string {
	counts := map[string]int{}
	for series, value := range m {
		if base, rest, _ := strings.Cut(series, "{"); base == name {
			_, rest, _ = strings.Cut(rest, label+`="`)
			what, _, _ := strings.Cut(rest, `"`)
			counts[what] += int(value)
		}
	}
	return list(counts)
}

// closes are orders that were closed for their deadline, the latest first.
type closes []*row

func (c closes) lateness(i int) time.Duration { return c[i].cancelledAt.Sub(c[i].expireAt) }

// lateness splits the closes: troubled are those that were due, or closed, while something was broken or had just been
// mended.
func lateness(orders map[string]*row, windows []window) (calm, troubled closes) {
	for _, o := range orders {
		switch {
		case !o.lapsed():
		case slices.ContainsFunc(windows, func(w window) bool { return o.cancelledAt.After(w.begin) && o.expireAt.Before(w.end.Add(recovery)) }):
			troubled = append(troubled, o)
		default:
			calm = append(calm, o)
		}
	}
	return calm.sorted(), troubled.sorted()
}

func (c closes) sorted() closes {
	slices.SortFunc(c, func(a, b *row) int {
		return cmp.Compare(b.cancelledAt.Sub(b.expireAt), a.cancelledAt.Sub(a.expireAt))
	})
	return c
}

// spread says how late they were, and which was the latest.
func (c closes) spread(begin time.Time) string {
	if len(c) == 0 {
		return "no order"
	}
	at := func(p float64) time.Duration { return c.lateness(int((1 - p) * float64(len(c)-1))) }
	return fmt.Sprintf("p50 %v, p99 %v, max %v (%s, due %v after the begin, %s), least %v, of %d orders", at(.5), at(.99), at(1),
		c[0].orderNo, c[0].expireAt.Sub(begin).Round(time.Millisecond), c[0].reason, at(0), len(c))
}

// story is when an order's time-out messages were heard, from its deadline.
func (r *run) story(o *row) string {
	var parts []string
	for _, m := range r.timeouts {
		var b timeoutBody
		if orderOf(m) != o.orderNo || json.Unmarshal([]byte(m.body), &b) != nil {
			continue
		}
		parts = append(parts, fmt.Sprintf("%+.3fs hop %d for %+.3fs", m.heard.Sub(o.expireAt).Seconds(), b.Hop, b.DeliverAt.Sub(o.expireAt).Seconds()))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}
