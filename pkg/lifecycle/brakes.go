package lifecycle

import (
	"context"
	"time"

	"go.uber.org/zap"

	"lapse/pkg/order"
)

// BrakeStore keeps the brakes on closing, and what they are judged by.
type BrakeStore interface {
	// Brakes returns the brakes in force.
	Brakes(ctx context.Context) (order.Brakes, error)
	// ChangeBrakes applies change to the brakes in force, in one transaction, and returns them as they are then. No
	// closing transaction commits against them after its return (I15).
	ChangeBrakes(ctx context.Context, act order.Act, change func(order.Brakes) (order.Brakes, error)) (order.Brakes, error)
	// ShadowReport compares what was decided in shadow with what the existing job did close.
	ShadowReport(ctx context.Context, c order.Comparing) (order.ShadowReport, error)
	// Cohorts counts the newest n payment attempts that were started at least settle ago, within a day and not before
	// since, and the baseline ones before those. One that was paid counts as paid if it took no longer than settle.
	Cohorts(ctx context.Context, settle time.Duration, since time.Time, n, baseline int64) (latest, before order.Cohort, err error)
}

// BrakeControl is the hand on the brakes.
type BrakeControl struct{ store BrakeStore }

// NewBrakeControl makes a hand on the brakes.
func NewBrakeControl(store BrakeStore) *BrakeControl { return &BrakeControl{store} }

// Get returns the brakes in force.
func (b *BrakeControl) Get(ctx context.Context) (order.Brakes, error) { return b.store.Brakes(ctx) }

// Set sets the brakes and returns them as they are then: they hold from its return on.
func (b *BrakeControl) Set(ctx context.Context, c order.BrakeChange) (order.Brakes, error) {
	if err := c.Validate(); err != nil {
		return order.Brakes{}, err
	}
	return b.store.ChangeBrakes(ctx, c.Act, c.Apply)
}

// ShadowReport compares what was decided in shadow with what the existing job did close.
func (b *BrakeControl) ShadowReport(ctx context.Context, c order.Comparing) (order.ShadowReport, error) {
	c.Tolerance = or(c.Tolerance, time.Minute)
	return b.store.ShadowReport(ctx, c)
}

// BreakerOptions tunes the mass-cancel breaker.
type BreakerOptions struct {
	Off      bool          // never trips
	Interval time.Duration // between two looks; 0 means 10 s
	// Settle is how long attempts are given to be paid before they count, so that a rush of new ones does not, and after which
	// they count as unpaid, whenever they were made; 0 means 2 min.
	Settle time.Duration
	Rule   order.TripRule
	// Resume: closing goes on by itself when payments are back to normal; else by hand.
	Resume bool
}

func (o BreakerOptions) withDefaults() BreakerOptions {
	o.Interval = or(o.Interval, 10*time.Second)
	o.Settle = or(o.Settle, 2*time.Minute)
	o.Rule.Attempts = or(o.Rule.Attempts, 200)
	o.Rule.Drop = or(o.Rule.Drop, .3)
	o.Rule.Floor = or(o.Rule.Floor, .05)
	return o
}

// baselines is how many times as many attempts the newest ones are compared with.
const baselines = 10

// Breaker stops closing when payments cease to come in while attempts go on, as in an outage of payment notifications:
// what was paid must not be cancelled because nobody was told. Several may run.
type Breaker struct {
	store   BrakeStore
	options func() BreakerOptions
	asked   string // why it wanted closing to stop; "" once it knows whether that came about
	metrics *Metrics
	log     *zap.Logger
}

// NewBreaker makes a breaker; options are read at each look.
func NewBreaker(store BrakeStore, options func() BreakerOptions, metrics *Metrics, log *zap.Logger) *Breaker {
	return &Breaker{store: store, metrics: metrics, log: log, options: func() BreakerOptions { return options().withDefaults() }}
}

// breaker acts under this name.
const breaker = "breaker"

// Run looks every interval until ctx ends.
func (b *Breaker) Run(ctx context.Context) error {
	for {
		if err := guard(func() error { return b.Look(ctx) }); err != nil && ctx.Err() == nil {
			b.metrics.Retries.WithLabelValues(breaker).Inc()
			b.log.Warn("payments could not be looked at, will be tried again", zap.Error(err))
		}
		if !sleep(ctx, b.options().Interval) {
			return nil
		}
	}
}

// Look looks once, and trips or resumes.
func (b *Breaker) Look(ctx context.Context) error {
	opts := b.options()
	brakes, err := b.store.Brakes(ctx)
	if err != nil {
		return err
	}
	b.measure(brakes)
	b.tell(brakes)
	if opts.Off {
		return nil
	}
	latest, before, err := b.store.Cohorts(ctx, opts.Settle, brakes.ResumedAt, opts.Rule.Attempts, baselines*opts.Rule.Attempts)
	if err != nil {
		return err
	}
	b.metrics.PaidRatio.Set(latest.Ratio())
	if brakes.Tripped != "" {
		return b.resume(ctx, opts, brakes, latest)
	}
	if why := opts.Rule.Trips(latest, before); why != "" {
		return b.trip(ctx, why, opts.Rule.Threshold(before))
	}
	return nil
}

// trip stops closing, unless another instance has.
func (b *Breaker) trip(ctx context.Context, why string, normal float64) error {
	after, err := b.store.ChangeBrakes(ctx, order.Act{Actor: breaker, Note: why}, func(at order.Brakes) (order.Brakes, error) {
		if at.Tripped == "" {
			b.asked = why
			at.Tripped, at.Normal = why, normal
		}
		return at, nil
	})
	if err != nil {
		return err // it may have come about all the same: the next look tells
	}
	b.measure(after)
	b.tell(after)
	return nil
}

// tell tells of a trip that this instance asked for, if it came about.
func (b *Breaker) tell(brakes order.Brakes) {
	if b.asked != "" && b.asked == brakes.Tripped {
		b.log.Error("closing is stopped", zap.String("why", b.asked))
		b.metrics.Trips.Inc()
	}
	b.asked = ""
}

// resume lets closing go on when the ratio is back to what was normal before the trip. A trip that came since brakes were
// read stays.
func (b *Breaker) resume(ctx context.Context, opts BreakerOptions, brakes order.Brakes, latest order.Cohort) error {
	if !opts.Resume || latest.Attempts < opts.Rule.Attempts || latest.Ratio() < brakes.Normal {
		return nil
	}
	after, err := b.store.ChangeBrakes(ctx, order.Act{Actor: breaker, Note: "payments are back"}, func(at order.Brakes) (order.Brakes, error) {
		if at.TrippedAt.Equal(brakes.TrippedAt) {
			return at.Resumed(), nil
		}
		return at, nil
	})
	if err != nil {
		return err
	}
	b.measure(after)
	if after.Tripped == "" {
		b.log.Info("payments are back, closing goes on", zap.Float64("ratio", latest.Ratio()))
	}
	return nil
}

func (b *Breaker) measure(brakes order.Brakes) {
	for _, mode := range []order.Mode{order.ModeEnforce, order.ModeShadow, order.ModeOff} {
		b.metrics.BrakeMode.WithLabelValues(string(mode)).Set(flag(brakes.Mode == mode))
	}
	b.metrics.Tripped.Set(flag(brakes.Tripped != ""))
}

func flag(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
