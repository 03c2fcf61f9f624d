package app

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"

	"lapse/pkg/order"
)

// Version is the release, set by the build (-ldflags "-X lapse/pkg/app.Version=v1.2.3").
var Version = "devel"

// Build says what this binary was made of.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
}

// String is what --version prints behind the program's name.
func (b Build) String() string {
	return fmt.Sprintf("version %s (%s, %s)", b.Version, b.Revision, b.Go)
}

// BuildInfo reads it from the binary.
func BuildInfo() Build {
	b := Build{Version: Version, Revision: "unknown", Go: runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Revision = s.Value
			}
		}
	}
	return b
}

// newRegistry makes the registry of a process with what every one of them tells.
func newRegistry(role Role) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	b := BuildInfo()
	promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Name: "lapse_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": b.Version, "revision": b.Revision, "go": b.Go, "role": string(role)},
	}).Set(1)
	return reg
}

// probes are the questions that the monitor asks; nil ones are left out.
type probes struct {
	now     func(ctx context.Context) (time.Time, error) // the database's clock
	backlog func(ctx context.Context) (order.Backlog, error)
	broker  func(ctx context.Context) (skew time.Duration, err error)
}

const (
	probeEvery = 5 * time.Second
	probeBound = 3 * time.Second // of one question
)

// monitor asks the database and the broker how they are, for /readyz and the gauges.
type monitor struct {
	probes
	health      *health
	log         *zap.Logger
	up          *prometheus.GaugeVec
	skew        *prometheus.GaugeVec
	rows        prometheus.Gauge
	age         prometheus.Gauge
	quarantined prometheus.Gauge
	confirming  *prometheus.GaugeVec // waits_for: gateway, person
	lateOpen    prometheus.Gauge
	uncounted   atomic.Bool // the last backlog query failed
}

func newMonitor(p probes, h *health, reg prometheus.Registerer, log *zap.Logger) *monitor {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "lapse_" + name, Help: help})
	}
	return &monitor{
		probes: p, health: h, log: log,
		up:          f.NewGaugeVec(prometheus.GaugeOpts{Name: "lapse_up", Help: "1 if what the process needs answers: database, broker."}, []string{"component"}),
		skew:        f.NewGaugeVec(prometheus.GaugeOpts{Name: "lapse_clock_skew_seconds", Help: "Clock of the database or the broker minus that of this process."}, []string{"component"}),
		rows:        gauge("relay_backlog", "Local messages that are due and not sent."),
		age:         gauge("relay_backlog_age_seconds", "How long the oldest of them has been due."),
		quarantined: gauge("quarantine_rows", "Inputs and messages that wait for a human."),
		confirming:  f.NewGaugeVec(prometheus.GaugeOpts{Name: "lapse_confirming", Help: "Orders whose payment is in doubt, by what they wait for."}, []string{"waits_for"}),
		lateOpen:    gauge("late_open", "Late-payment cases that wait for a decision."),
	}
}

// Run asks until ctx ends.
func (m *monitor) Run(ctx context.Context) error {
	for {
		m.ask(ctx)
		if !pauseFor(ctx, probeEvery) {
			return nil
		}
	}
}

func (m *monitor) ask(ctx context.Context) {
	m.component(ctx, databaseCheck, m.askDatabase)
	if m.broker != nil {
		m.component(ctx, brokerCheck, m.askBroker)
	}
	m.count(ctx)
}

func (m *monitor) askBroker(ctx context.Context) error {
	skew, err := m.broker(ctx)
	if err == nil {
		m.skew.WithLabelValues(brokerCheck).Set(skew.Seconds())
	}
	return err
}

func (m *monitor) askDatabase(ctx context.Context) error {
	start := time.Now()
	now, err := m.now(ctx)
	if err != nil {
		return err
	}
	// The answer was made somewhere between the question and now: the middle is off by half of that at most.
	m.skew.WithLabelValues(databaseCheck).Set(now.Sub(start.Add(time.Since(start) / 2)).Seconds())
	return nil
}

// count sets the gauges of what waits. Counting millions of rows may take longer than it may, which is no
// sign that the database is away: the gauges then stay as they are, and the log says so once.
func (m *monitor) count(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	b, err := m.backlog(bounded)
	if ctx.Err() != nil {
		return
	}
	failed := err != nil
	switch news := m.uncounted.Swap(failed) != failed; {
	case news && failed:
		m.log.Warn("the backlog cannot be counted, its gauges stay as they are", zap.Error(err))
	case news:
		m.log.Info("the backlog is counted again")
	}
	if failed {
		return
	}
	m.rows.Set(float64(b.Rows))
	m.age.Set(b.Age.Seconds())
	m.quarantined.Set(float64(b.Quarantined))
	m.confirming.WithLabelValues("gateway").Set(float64(b.Doubtful))
	m.confirming.WithLabelValues("person").Set(float64(b.Held))
	m.lateOpen.Set(float64(b.LateOpen))
}

// component asks one component and says so in the log when its answer is another than before.
func (m *monitor) component(ctx context.Context, name string, ask func(ctx context.Context) error) {
	bounded, cancel := context.WithTimeout(ctx, probeBound)
	defer cancel()
	err := ask(bounded)
	if ctx.Err() != nil {
		return
	}
	up := 1.0
	if err != nil {
		up = 0
	}
	m.up.WithLabelValues(name).Set(up)
	switch news := m.health.note(name, err); {
	case news && err != nil:
		m.log.Error(name+" does not answer", zap.Error(err))
	case news:
		m.log.Info(name + " answers")
	}
}
