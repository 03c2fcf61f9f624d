package lifecycle

import (
	"context"
	"time"

	"go.uber.org/zap"

	"lapse/pkg/order"
)

// CreateOptions tunes how creates share transactions.
type CreateOptions struct {
	GroupSize int           // creates in one transaction at most; 0 means 256
	Linger    time.Duration // how long a group waits for company once there is some; 0 means 2 ms, less none
}

// Terms are what orders are subject to, read at each use.
type Terms struct {
	Rules          order.Rules
	Confirm        time.Duration // how long a payment in flight is waited for; 0: there is nobody to ask
	AttemptDefault time.Duration // deadline of attempts that name none, from their start; 0 means 15 min
	AttemptLongest time.Duration // longest that may be asked for; 0 means 1 h
	ArchiveAfter   time.Duration // how long a cancelled order may be restored; 0 means 180 days
}

func (t Terms) withDefaults() Terms {
	t.AttemptDefault = or(t.AttemptDefault, 15*time.Minute)
	t.AttemptLongest = or(t.AttemptLongest, time.Hour)
	t.ArchiveAfter = or(t.ArchiveAfter, 180*24*time.Hour)
	return t
}

// createWorkers is how many groups are written at the same time: one is in the database while the next
// one gathers. More would make groups smaller and let them queue for the same resources.
const createWorkers = 2

// Orders creates, pays, cancels and reads orders.
type Orders struct {
	OrderStore
	aside   aside
	relay   *Relay
	limits  order.Limits
	terms   func() Terms
	creates *group[*create]
	metrics *Metrics
	log     *zap.Logger
}

type create struct {
	draft  order.Draft
	answer order.Created
}

// NewOrders makes the order side. Its creates are written while Run runs.
func NewOrders(store interface {
	OrderStore
	QuarantineStore
}, relay *Relay, limits order.Limits, terms func() Terms, options func() CreateOptions, metrics *Metrics, log *zap.Logger) *Orders {
	o := &Orders{OrderStore: store, aside: aside{store, metrics, log}, relay: relay, limits: limits, terms: func() Terms { return terms().withDefaults() }, metrics: metrics, log: log}
	o.creates = newGroup(createWorkers, 0, func() groupOptions {
		opts := options()
		return groupOptions{Size: or(opts.GroupSize, 256), Linger: or(opts.Linger, 2*time.Millisecond)}
	}, o.createAll)
	return o
}

// Run writes creates until ctx ends and those taken are answered.
func (o *Orders) Run(ctx context.Context) error { return o.creates.Run(ctx) }

// Flush writes the creates that wait by now, and returns; as Closer.Flush.
func (o *Orders) Flush(ctx context.Context) { o.creates.flushQueued(ctx) }

// Create validates a draft and writes the order (I8). The answer is the caller's own, whatever happens to
// the others of its transaction.
func (o *Orders) Create(ctx context.Context, d order.Draft) (order.Created, error) {
	d, err := o.limits.Validate(d)
	if err != nil {
		o.metrics.Creates.WithLabelValues("refused").Inc()
		return order.Created{}, err
	}
	c := &create{draft: o.terms().Rules.Apply(d)}
	if err := o.creates.Do(ctx, c)[0]; err != nil {
		o.metrics.Creates.WithLabelValues(outcomeOf(err)).Inc()
		return order.Created{}, err
	}
	if c.answer.Repeated {
		o.metrics.Creates.WithLabelValues("repeated").Inc()
	} else {
		o.metrics.Creates.WithLabelValues("created").Inc()
	}
	return c.answer, nil
}

// createAll writes one group. If the database refuses it, each half is tried alone, down to the create at
// fault.
func (o *Orders) createAll(ctx context.Context, creates []*create) []error {
	drafts := make([]order.Draft, len(creates))
	for i, c := range creates {
		drafts[i] = c.draft
	}
	answers, err := o.OrderStore.Create(ctx, drafts, o.relay.Schedule)
	if n := len(creates); err != nil && n > 1 && order.KindOf(err) == order.Internal {
		return append(o.createAll(ctx, creates[:n/2]), o.createAll(ctx, creates[n/2:])...)
	}
	if err != nil {
		return repeat(err, len(creates))
	}
	errs := make([]error, len(creates))
	for i, a := range answers {
		creates[i].answer, errs[i] = a, a.Err
		if a.Message != nil {
			o.relay.Offer(*a.Message)
		}
	}
	o.metrics.CreateGroup.Observe(float64(len(creates)))
	return errs
}

// outcomeOf is the metric label of a failed call.
func outcomeOf(err error) string {
	switch order.KindOf(err) {
	case order.Unavailable, order.Internal, order.Exhausted:
		return "failed"
	}
	return "refused"
}

// or returns v, or def if v is zero.
func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}
