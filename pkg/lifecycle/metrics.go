package lifecycle

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"lapse/pkg/order"
)

// closeBound is how late a close may be and still count as kept: the compensator's bound B of three
// minutes and the grace.
const closeBound = 3*time.Minute + time.Second

// Metrics are the figures of the story; docs/operations.md says what to make of each.
type Metrics struct {
	Creates        *prometheus.CounterVec   // outcome: created, repeated, refused, failed
	CreateGroup    prometheus.Histogram     // creates in one transaction
	Payments       *prometheus.CounterVec   // outcome: paid, late, repeated, refused, failed
	LatePayments   *prometheus.CounterVec   // policy; status: open, requested, consumed
	Closes         *prometheus.CounterVec   // path: message, sweep, cancel, confirm; reason
	Lateness       *prometheus.HistogramVec // path
	CloseDue       prometheus.Counter
	CloseInBound   prometheus.Counter
	EarlyCloses    prometheus.Counter
	CloseBatch     prometheus.Histogram
	CloseSeconds   *prometheus.HistogramVec // per: batch, order
	Timeouts       *prometheus.CounterVec   // result: closed, confirming, reminded, braked, final, ripe, nearing, early, undelayed, unknown, malformed, locked
	MessagesLost   prometheus.Counter
	Confirms       *prometheus.CounterVec // result: paid, closed, expired, held, braked, unpaid, unknown, gone
	GatewayAnswers *prometheus.CounterVec // state: paid, unpaid, closed, unknown
	Items          *prometheus.CounterVec // answer: closed, final, later, unknown
	ItemsOverdue   prometheus.Counter
	ItemsStuck     prometheus.Gauge
	Sends          *prometheus.CounterVec // kind; outcome: sent, refused, failed, dropped
	Retries        *prometheus.CounterVec // what
	Quarantined    *prometheus.CounterVec // source
	SweepRuns      *prometheus.CounterVec // outcome: ok, failed
	SweepSeconds   prometheus.Histogram
	SweepRows      prometheus.Counter
	SweepClosed    prometheus.Counter
	BrakeMode      *prometheus.GaugeVec // mode: enforce, shadow, off
	Tripped        prometheus.Gauge
	Trips          prometheus.Counter
	PaidRatio      prometheus.Gauge
	Kept           *prometheus.CounterVec // what: archived, orders, records
	Findings       *prometheus.CounterVec // kind
	ReconcileRuns  *prometheus.CounterVec // outcome: ok, failed, unfinished
	ReconcileBegan prometheus.Gauge
	ReconcileEvery prometheus.Gauge
}

// NewMetrics registers the figures.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "lapse_" + name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "lapse_" + name, Help: help}, labels)
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "lapse_" + name, Help: help})
	}
	sizes := prometheus.ExponentialBuckets(1, 2, 10)
	m := &Metrics{
		Creates:      counters("creates_total", "Create calls by outcome.", "outcome"),
		CreateGroup:  f.NewHistogram(prometheus.HistogramOpts{Name: "lapse_create_group_size", Help: "Creates that shared one transaction.", Buckets: sizes}),
		Payments:     counters("payments_total", "Payment notifications by outcome.", "outcome"),
		LatePayments: counters("late_payments_total", "Late-payment cases by policy and status, counted when they are made and when they are decided.", "policy", "status"),
		Closes:       counters("closes_total", "Orders cancelled, by path and reason.", "path", "reason"),
		Lateness: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_close_lateness_seconds", Help: "Time from an order's deadline to its time-out close.",
			Buckets: []float64{.05, .1, .25, .5, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60, 120, 181, 300, 600, 3600},
		}, []string{"path"}),
		CloseDue:     counter("close_due_total", "Orders that fell due and were closed."),
		CloseInBound: counter("close_in_bound_total", "Orders closed within the bound of three minutes after their deadline."),
		EarlyCloses:  counter("early_closes_total", "Orders closed before their deadline. Must stay 0."),
		CloseBatch:   f.NewHistogram(prometheus.HistogramOpts{Name: "lapse_close_batch_size", Help: "Time-out messages handled together.", Buckets: sizes}),
		CloseSeconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lapse_close_duration_seconds", Help: "Time to handle a batch of time-out messages, and its share per order.",
			Buckets: prometheus.ExponentialBuckets(.0001, 4, 10),
		}, []string{"per"}),
		Timeouts:       counters("timeout_messages_total", "Time-out messages by what they led to.", "result"),
		MessagesLost:   counter("timeout_messages_lost_total", "Time-out messages that the broker took and never delivered."),
		Confirms:       counters("confirms_total", "Orders in doubt that were asked about, by what that led to.", "result"),
		GatewayAnswers: counters("gateway_answers_total", "Answers of the payment gateway; unknown is whatever was not explicit.", "state"),
		Items:          counters("items_total", "Calls of the owners of adopted items, by answer; unknown is whatever was not explicit.", "answer"),
		ItemsOverdue:   counter("items_overdue_total", "Adopted items that were due and had no message, or lost it."),
		ItemsStuck:     f.NewGauge(prometheus.GaugeOpts{Name: "lapse_items_stuck", Help: "Adopted items whose owner was called ten times or more without an explicit answer."}),
		Sends:          counters("relay_sends_total", "Local messages handed to the broker.", "kind", "outcome"),
		Retries:        counters("retries_total", "Work that had to be tried again.", "what"),
		Quarantined:    counters("quarantined_total", "Inputs set aside for a human.", "source"),
		SweepRuns:      counters("sweep_runs_total", "Runs of the compensator.", "outcome"),
		SweepSeconds:   f.NewHistogram(prometheus.HistogramOpts{Name: "lapse_sweep_duration_seconds", Help: "Duration of a run of the compensator.", Buckets: prometheus.ExponentialBuckets(.01, 4, 8)}),
		SweepRows:      counter("sweep_rows_total", "Rows that the compensator looked at."),
		SweepClosed:    counter("sweep_closed_total", "Orders that the compensator closed."),
		BrakeMode:      f.NewGaugeVec(prometheus.GaugeOpts{Name: "lapse_brakes_mode", Help: "1 for the mode of closing that is in force."}, []string{"mode"}),
		Tripped:        gauge("breaker_tripped", "1 while the mass-cancel breaker has stopped closing."),
		Trips:          counter("breaker_trips_total", "How often the mass-cancel breaker has stopped closing."),
		PaidRatio:      gauge("breaker_paid_ratio", "Share of the settled payment attempts that were paid, as the breaker saw last."),
		Kept:           counters("housekeeping_total", "Orders closed for good, and orders and records deleted, by what.", "what"),
		Findings:       counters("reconcile_findings_total", "Damage that the reconciler has found, dry runs included.", "kind"),
		ReconcileRuns:  counters("reconcile_runs_total", "Runs of the reconciler.", "outcome"),
		ReconcileBegan: gauge("reconcile_began_timestamp_seconds", "When the last reconciliation that mended was begun, as this process saw last (Unix time); 0: never."),
		ReconcileEvery: gauge("reconcile_interval_seconds", "Time that is configured from one reconciliation to the next; 0 in processes that do not reconcile."),
	}
	m.begin()
	return m
}

// begin lets what alerts wait for start at 0: a series that first appears with a higher value has not increased, to Prometheus.
func (m *Metrics) begin() {
	m.Payments.WithLabelValues("late")
	for _, kind := range order.FindingKinds {
		m.Findings.WithLabelValues(kind)
	}
}

// closed counts orders that a path has closed.
func (m *Metrics) closed(path string, closed []order.Lapsed) {
	for _, c := range closed {
		late := c.CancelledAt.Sub(c.ExpireAt)
		m.Closes.WithLabelValues(path, string(c.CancelReason)).Inc()
		m.Lateness.WithLabelValues(path).Observe(late.Seconds())
		m.CloseDue.Inc()
		if late <= closeBound {
			m.CloseInBound.Inc()
		}
		if late < 0 {
			m.EarlyCloses.Inc()
		}
		if c.MessageLost {
			m.MessagesLost.Inc()
		}
	}
}

// late counts late-payment cases that were made or decided.
func (m *Metrics) late(cases ...order.LatePayment) {
	for _, l := range cases {
		m.LatePayments.WithLabelValues(string(l.Policy), string(l.Status)).Inc()
	}
}
