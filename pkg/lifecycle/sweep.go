package lifecycle

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"lapse/pkg/order"
)

// SweepOptions tunes the compensator.
type SweepOptions struct {
	Interval time.Duration // from one pass over a shard to the next; 0 means 60 s
	Overdue  time.Duration // how long an order has to be due, so that messages win; 0 means 31 s
	Limit    int           // orders of one scan and one transaction; 0 means 200
	Pause    time.Duration // between two scans of a round; 0 means 50 ms
	Cap      int           // orders that one round looks at; 0 means 100,000
	Rate     int           // orders a second that rounds close at most, as after closing was off for a while; 0 means 500
	Lease    time.Duration // how long a shard belongs to an instance, renewed as it goes on; 0 means 30 s
	Confirm  time.Duration // how long a payment in flight is waited for; 0: there is nobody to ask
}

func (o SweepOptions) withDefaults() SweepOptions {
	o.Interval = or(o.Interval, time.Minute)
	o.Overdue = or(o.Overdue, 31*time.Second)
	o.Limit = or(o.Limit, 200)
	o.Pause = or(o.Pause, 50*time.Millisecond)
	o.Cap = or(o.Cap, 100_000)
	o.Rate = or(o.Rate, 500)
	o.Lease = or(o.Lease, 30*time.Second)
	return o
}

// paced cuts pages so that one is closed at the rate well within the lease.
func (o SweepOptions) paced() SweepOptions {
	o.Limit = min(o.Limit, max(1, int(float64(o.Rate)*o.Lease.Seconds()/4)))
	return o
}

// unlimited is more than there can be.
const unlimited = int(^uint(0) >> 1)

const (
	// passSlack lets a pass start a little before its interval is over, since rounds take time themselves.
	passSlack = 5 // a fifth
	// An order that could not be closed is left out for this long, doubling up to sickMost.
	sickFirst = time.Minute
	sickMost  = 5 * time.Minute
	// heldWait is the pause before a burst asks again for shards that another instance held.
	heldWait = 100 * time.Millisecond
	// sickOrders bounds the memory of orders that could not be closed.
	sickOrders = 10_000
)

// Sweeper is the compensator: it closes due orders whose message was lost, and counts them. Several may
// run: each shard belongs to one at a time (I10).
type Sweeper struct {
	store   SweepStore
	relay   *Relay
	owner   string
	options func() SweepOptions
	sick    map[string]sickness // used by one run at a time
	running chan struct{}
	metrics *Metrics
	log     *zap.Logger
}

// sickness is the back-off of an order that could not be closed.
type sickness struct {
	until time.Time
	wait  time.Duration
}

// NewSweeper makes a compensator that leases shards as owner; options are read at each round.
func NewSweeper(store SweepStore, relay *Relay, owner string, options func() SweepOptions, metrics *Metrics, log *zap.Logger) *Sweeper {
	return &Sweeper{
		store: store, relay: relay, owner: owner, metrics: metrics, log: log,
		options: func() SweepOptions { return options().withDefaults() },
		sick:    map[string]sickness{}, running: make(chan struct{}, 1),
	}
}

// Run makes a round every interval until ctx ends. The period lives in the database: neither a restart nor
// new settings put a round off.
func (s *Sweeper) Run(ctx context.Context) error {
	for {
		opts := s.options().paced()
		if _, err := s.run(ctx, "round", opts, opts.Interval-opts.Interval/passSlack); err != nil && ctx.Err() == nil {
			s.log.Error("sweep failed, the next one is due as usual", zap.Error(err))
		}
		if !sleep(ctx, jitter(opts.Interval)) {
			return nil
		}
	}
}

// jitter keeps instances from marching in step: d less up to a tenth.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/10+1) }

// Now closes everything that is due at once: no grace, no pauses, no cap.
func (s *Sweeper) Now(ctx context.Context) (order.SweepRun, error) {
	opts := s.options()
	opts.Overdue, opts.Pause, opts.Cap, opts.Rate = 0, 0, unlimited, unlimited
	return s.run(ctx, "now", opts, 0)
}

// run is one run over all shards that this instance can lease. It is recorded, whatever happens in it.
func (s *Sweeper) run(ctx context.Context, kind string, opts SweepOptions, minGap time.Duration) (run order.SweepRun, err error) {
	select {
	case s.running <- struct{}{}:
		defer func() { <-s.running }()
	case <-ctx.Done():
		return run, unanswered(ctx)
	}
	run, err = s.store.StartRun(ctx, s.owner, kind)
	if err != nil {
		s.metrics.SweepRuns.WithLabelValues("failed").Inc()
		return run, err
	}
	err = guard(func() error { return s.shards(ctx, opts, minGap, &run) })
	if err != nil {
		run.Error = err.Error()
	}
	err = errors.Join(err, s.store.FinishRun(context.WithoutCancel(ctx), &run))
	s.measure(run, err)
	return run, err
}

func (s *Sweeper) measure(run order.SweepRun, err error) {
	took := max(0, run.Finished.Sub(run.Started)) // a run whose end could not be recorded has none
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	s.metrics.SweepRuns.WithLabelValues(outcome).Inc()
	s.metrics.SweepSeconds.Observe(took.Seconds())
	s.metrics.SweepRows.Add(float64(run.Looked))
	s.metrics.SweepClosed.Add(float64(run.Closed))
	s.log.Info("sweep", zap.String("kind", run.Kind), zap.Int("shards", run.Shards), zap.Int("looked", run.Looked), zap.Int("braked", run.Braked),
		zap.Int("closed", run.Closed), zap.Int("failed", run.Failed), zap.Duration("took", took))
}

// shards passes over all shards, in an order of its own. A burst (without a gap) comes back to those that
// another instance held, for as long as a lease lasts.
func (s *Sweeper) shards(ctx context.Context, opts SweepOptions, minGap time.Duration, run *order.SweepRun) error {
	var errs []error
	left, patience := rand.Perm(order.Shards), s.relay.local().Add(opts.Lease)
	for {
		var held []int
		for _, shard := range left {
			mine, err := s.shard(ctx, shard, opts, minGap, run)
			if err != nil {
				errs = append(errs, err)
			} else if !mine {
				held = append(held, shard)
			}
			if ctx.Err() != nil {
				return errors.Join(errs...)
			}
		}
		if len(held) == 0 || minGap > 0 || s.relay.local().After(patience) || !sleep(ctx, heldWait) {
			return errors.Join(errs...)
		}
		left = held
	}
}

// shard is one pass over a shard. Without anything due there is nothing to lease it for.
func (s *Sweeper) shard(ctx context.Context, shard int, opts SweepOptions, minGap time.Duration, run *order.SweepRun) (passed bool, err error) {
	due, err := s.store.ScanDue(ctx, shard, opts.Overdue, order.Cursor{}, opts.Limit)
	if err != nil {
		return false, err
	}
	if len(due) == 0 {
		run.Shards++
		return true, nil
	}
	lease, mine, err := s.store.AcquireShard(ctx, shard, s.owner, opts.Lease, minGap)
	if err != nil || !mine {
		return false, err
	}
	run.Shards++
	err = s.pages(ctx, &lease, due, opts, run)
	return true, errors.Join(err, s.store.ReleaseShard(context.WithoutCancel(ctx), lease))
}

// pages closes a shard's due orders from the oldest on, page by page. The cursor moves past orders that
// cannot be closed, so they never hide the rest.
func (s *Sweeper) pages(ctx context.Context, lease *order.Lease, due []order.DueOrder, opts SweepOptions, run *order.SweepRun) error {
	leased := s.relay.local()
	for {
		run.Looked += len(due)
		over, err := s.page(ctx, *lease, due, opts, run)
		if err != nil || over {
			return err
		}
		if len(due) < opts.Limit || run.Looked >= opts.Cap || !sleep(ctx, opts.Pause) {
			return nil
		}
		if s.relay.local().Sub(leased) > opts.Lease/3 {
			leased = s.relay.local()
			renewed, still, err := s.store.RenewLease(ctx, *lease, opts.Lease)
			if err != nil || !still {
				return err
			}
			*lease = renewed
		}
		if due, err = s.store.ScanDue(ctx, lease.Shard, opts.Overdue, due[len(due)-1].Cursor, opts.Limit); err != nil {
			return err
		}
	}
}

// page closes one page of due orders, and takes its time for it. An outage ends the pass, as do a lost lease and closing
// that is off; an order at fault is left out for a while.
func (s *Sweeper) page(ctx context.Context, lease order.Lease, due []order.DueOrder, opts SweepOptions, run *order.SweepRun) (over bool, outage error) {
	before := run.Closed
	closing := order.Closing{Reason: order.ReasonCompensate, Actor: s.owner, Lease: &lease, Confirm: opts.Confirm}
	var nos []string
	for _, d := range due {
		if s.relay.local().After(s.sick[d.OrderNo].until) {
			nos = append(nos, d.OrderNo)
		}
	}
	if len(nos) == 0 {
		return false, nil
	}
	bisect(nos, func(part []string) error {
		closing.OrderNos = part
		batch, err := s.store.CloseDue(ctx, closing, s.relay.Schedule)
		if err != nil {
			return err
		}
		s.relay.Offer(batch.Messages...)
		s.metrics.closed("sweep", batch.Closed)
		run.Closed += len(batch.Closed)
		run.Braked += len(batch.Braked)
		over = batch.Off
		for _, c := range batch.Closed {
			delete(s.sick, c.OrderNo)
		}
		return nil
	}, func(part []string, err error) {
		switch order.KindOf(err) {
		case order.Conflict: // the lease is lost: another instance has the shard now
			over = true
			return
		case order.Internal:
		default:
			outage = err
			return
		}
		run.Failed += len(part)
		s.fellSick(part, err)
	})
	sleep(ctx, time.Duration(run.Closed-before)*time.Second/time.Duration(opts.Rate))
	return over, outage
}

// fellSick leaves orders out for a while, longer each time.
func (s *Sweeper) fellSick(nos []string, err error) {
	if len(s.sick) >= sickOrders {
		clear(s.sick)
	}
	for _, no := range nos {
		wait := min(max(s.sick[no].wait*2, sickFirst), sickMost)
		s.sick[no] = sickness{s.relay.local().Add(wait), wait}
		s.log.Error("order cannot be closed", zap.String("order_no", no), zap.Duration("retry_in", wait), zap.Error(err))
	}
}
