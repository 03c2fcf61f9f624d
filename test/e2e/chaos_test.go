package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"lapse/test/process"
	"lapse/test/services"
)

// Storms of faults, with calm between them that lets everything recover.
const (
	stormFaults = 8
	stormPace   = 9 * time.Second // from one fault to the next; one that takes longer delays those after it
	calm        = bound + 10*time.Second
	chaosRate   = 32 // orders a second
)

// ill is a kind of fault with how long it lasts, and how often it is drawn.
type ill struct {
	what        string
	least, most time.Duration
	weight      int
}

var ills = []ill{
	{"kill consumer-1", 0, 4 * time.Second, 2}, {"kill consumer-2", 0, 4 * time.Second, 2},
	{"kill producer-1", 0, 4 * time.Second, 2}, {"kill producer-2", 0, 4 * time.Second, 2}, {"kill compensator-1", 0, 4 * time.Second, 1},
	{"stop consumer-1", 0, 2 * time.Second, 1}, {"stop producer-1", 0, 2 * time.Second, 1}, {"stop compensator-1", 0, 2 * time.Second, 1},
	// Longer than a lease (10 s), so that who wakes up has lost it.
	{"freeze consumer-1", time.Second, 14 * time.Second, 2}, {"freeze producer-1", time.Second, 14 * time.Second, 2},
	{"freeze compensator-1", time.Second, 14 * time.Second, 1},
	{"stop broker", time.Second, 5 * time.Second, 1}, {"kill broker", time.Second, 5 * time.Second, 2}, {"freeze broker", time.Second, 8 * time.Second, 2},
	{"stop database", 0, 3 * time.Second, 2}, {"kill database", 0, 3 * time.Second, 2},
	{"cut database", time.Second, 6 * time.Second, 3}, {"hang database", time.Second, 8 * time.Second, 2},
	{"mute database", time.Second, 8 * time.Second, 3}, {"slow database", 2 * time.Second, 8 * time.Second, 2},
	{"reload settings", time.Second, 3 * time.Second, 1}, {"rewind offsets", 0, time.Second, 1},
}

// storms is a schedule for about so long. Each kind comes once before any comes at random.
func storms(seed uint64, lasting time.Duration) (faults []fault, over time.Duration) {
	d := dice{rand.New(rand.NewPCG(seed, 4))}
	var lots []ill
	for _, it := range ills {
		for range it.weight {
			lots = append(lots, it)
		}
	}
	next := slices.Clone(ills)
	d.Shuffle(len(next), func(i, j int) { next[i], next[j] = next[j], next[i] })
	for at := 20 * time.Second; at < lasting; at += calm {
		for range stormFaults {
			it := lots[d.IntN(len(lots))]
			if len(next) > 0 {
				it, next = next[0], next[1:]
			}
			faults = append(faults, fault{at, it.what, d.between(it.least, it.most)})
			at += stormPace
		}
		over = at
	}
	return faults, over
}

// TestChaos takes as long as LAPSE_CHAOS says, and some minutes more. LAPSE_CHAOS_REPORT names a file for its report as JSON.
func TestChaos(t *testing.T) {
	lasting, err := time.ParseDuration(os.Getenv("LAPSE_CHAOS"))
	if err != nil || lasting <= 0 {
		t.Skip("LAPSE_CHAOS names no duration: make chaos, make soak")
	}
	services.Need(t, "LAPSE_TEST_ROCKETMQ")
	seed := seedOfRun(t)
	faults, over := storms(seed, lasting)
	s := scenario{
		name: "chaos", broker: "5.5.0", delay: "timer", orders: int(over.Seconds() * chaosRate), creating: over,
		minTimeout: 3 * time.Second, maxTimeout: 40 * time.Second, copied: .02, faults: faults, chaos: true,
	}
	r := &run{scenario: s, seed: seed, sys: startSystem(t, process.Build(t), s)}
	r.play(t)
	r.judge(t)
	report := r.chaosReport(t)
	t.Log(report.text())
	if path := os.Getenv("LAPSE_CHAOS_REPORT"); path != "" {
		raw, err := json.MarshalIndent(report, "", "  ")
		if err == nil {
			err = os.WriteFile(path, append(raw, '\n'), 0o644)
		}
		if err != nil {
			t.Error(err)
		}
	}
}

// chaosReport is what a run has shown.
type chaosReport struct {
	Seed         uint64         `json:"seed"`
	Lasted       string         `json:"lasted"`
	Faults       int            `json:"faults"`
	ByKind       map[string]int `json:"faults_by_kind"`
	Orders       int            `json:"orders"`
	Acknowledged int            `json:"acknowledged_creates"`
	Payments     int            `json:"payments"`
	Events       int            `json:"events"`
	CallsAgain   int64          `json:"calls_made_again"`
	Heals        []heal         `json:"heals"`
	Violations   bool           `json:"violations"`
}

// heal is the end of a storm, and how late was what it had delayed.
type heal struct {
	At       string `json:"at"` // from the begin
	Faults   int    `json:"faults"`
	Orders   int    `json:"orders_delayed"`
	Lateness string `json:"worst_lateness_after"`
}

func (r *run) chaosReport(t *testing.T) chaosReport {
	c := chaosReport{
		Seed: r.seed, Lasted: r.creating.Round(time.Second).String(), Faults: len(r.windows), ByKind: map[string]int{},
		Orders: len(r.orders), Payments: len(r.payments), Events: len(r.events), CallsAgain: r.shop.again.Load(), Violations: t.Failed(),
	}
	for _, w := range r.windows {
		c.ByKind[w.what]++
	}
	for _, it := range r.shop.records {
		if it.order != nil {
			c.Acknowledged++
		}
	}
	for _, storm := range stormsOf(r.windows) {
		h := heal{At: storm.end.Sub(r.begin).Round(time.Second).String(), Faults: storm.faults}
		var worst time.Duration
		for _, o := range r.orders {
			if o.lapsed() && o.expireAt.Before(storm.end) && o.cancelledAt.After(storm.end) {
				h.Orders++
				worst = max(worst, o.cancelledAt.Sub(storm.end))
			}
		}
		h.Lateness = worst.Round(time.Millisecond).String()
		c.Heals = append(c.Heals, h)
	}
	return c
}

func (c chaosReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "chaos, seed %d: %d faults of %d kinds in %s, %d orders, %d acknowledged creates, %d payments, %d events, %d calls made again\n",
		c.Seed, c.Faults, len(c.ByKind), c.Lasted, c.Orders, c.Acknowledged, c.Payments, c.Events, c.CallsAgain)
	for _, kind := range slices.Sorted(maps.Keys(c.ByKind)) {
		fmt.Fprintf(&b, "  %3d %s\n", c.ByKind[kind], kind)
	}
	for _, h := range c.Heals {
		fmt.Fprintf(&b, "  healed at %s after %d faults: %d orders were closed afterwards, the last %s later\n", h.At, h.Faults, h.Orders, h.Lateness)
	}
	return b.String()
}

func TestAStormHasEveryKindOfFaultAndLeavesTimeToRecover(t *testing.T) {
	faults, over := storms(1, 12*time.Minute)
	kinds := map[string]bool{}
	rests := 0
	for i, f := range faults {
		kinds[f.what] = true
		if i > 0 && f.at-faults[i-1].at > bound {
			rests++
		}
	}
	if len(faults) < 40 || len(kinds) != len(ills) || rests < 4 || over < 10*time.Minute {
		t.Errorf("%d faults of %d kinds, %d rests, over after %v", len(faults), len(kinds), rests, over)
	}
}
