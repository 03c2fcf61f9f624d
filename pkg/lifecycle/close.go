package lifecycle

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"

	"lapse/pkg/order"
)

// CloseOptions tunes how time-out messages share transactions.
type CloseOptions struct {
	BatchSize int           // orders closed in one transaction at most; 0 means 500
	Linger    time.Duration // how long a batch waits for company once there is some; 0 means 20 ms, less none
	Confirm   time.Duration // how long a payment in flight is waited for; 0: there is nobody to ask
}

func (o CloseOptions) withDefaults() CloseOptions {
	o.BatchSize = or(o.BatchSize, 500)
	o.Linger = or(o.Linger, 20*time.Millisecond)
	return o
}

const (
	closeWorkers = 2    // batches in the database at the same time
	closeQueue   = 4096 // messages in memory
	// undelayed is how much earlier than asked a message may come before it proves that the broker does
	// not delay; less is a matter of clocks.
	undelayed = time.Second
	// lockedWait is the pause before an order that another transaction has locked is looked at again; it
	// grows, so that a row that is held for long costs the others little.
	lockedWait = 50 * time.Millisecond
)

// Closer handles time-out messages. A message is a hint: what happens is decided by the order's row.
type Closer struct {
	store   CloseStore
	relay   *Relay
	options func() CloseOptions
	batches *group[order.TimeoutBody]
	aside   aside
	metrics *Metrics
	log     *zap.Logger
}

// NewCloser makes a closer; options are read before every batch.
func NewCloser(store CloseStore, relay *Relay, options func() CloseOptions, metrics *Metrics, log *zap.Logger) *Closer {
	c := &Closer{
		store: store, relay: relay, options: func() CloseOptions { return options().withDefaults() },
		aside: aside{store, metrics, log}, metrics: metrics, log: log,
	}
	c.batches = newGroup(closeWorkers, closeQueue, func() groupOptions {
		opts := c.options()
		return groupOptions{Size: opts.BatchSize, Linger: opts.Linger}
	}, c.closeAll)
	return c
}

// Run closes until ctx ends and what was taken is answered.
func (c *Closer) Run(ctx context.Context) error { return c.batches.Run(ctx) }

// Flush closes what was handed over by now, and returns: for whoever decides himself when there is work, instead of Run.
func (c *Closer) Flush(ctx context.Context) { c.batches.flushQueued(ctx) }

// Handle returns nil once every delivery has had its effect, is known to have none, or was set aside: the broker may
// forget them. What the infrastructure prevents is tried again right here, so that an outage uses up no redelivery; an
// error is returned only when ctx ends, the closer stops, or something can neither be handled nor be set aside.
func (c *Closer) Handle(ctx context.Context, deliveries []order.Delivery) error {
	retry, locked := newBackoff(), newBackoffFrom(lockedWait)
	var open []order.TimeoutBody
	for _, d := range deliveries {
		body, err := order.DecodeTimeout(d.Body)
		if err != nil {
			if err := c.setAside(ctx, d, err, retry); err != nil {
				return err
			}
			continue
		}
		open = append(open, body)
	}
	for len(open) > 0 {
		left, err := c.undecided(open, c.batches.Do(ctx, open...))
		if len(left) == 0 {
			return nil
		}
		if order.KindOf(err) == order.Internal {
			return err
		}
		var wait time.Duration
		if errors.Is(err, errLocked) {
			wait = locked.NextBackOff()
		} else {
			wait = retry.NextBackOff()
			c.metrics.Retries.WithLabelValues("close").Inc()
			c.log.Warn("closing failed, will be tried again", zap.Int("orders", len(left)), zap.Duration("retry_in", wait), zap.Error(err))
		}
		if errors.Is(err, errStopping) || !sleep(ctx, wait) {
			return err
		}
		open = left
	}
	return nil
}

// undecided returns the messages that have no outcome yet, and one of the reasons: an outage first, a defect last.
func (c *Closer) undecided(bodies []order.TimeoutBody, errs []error) (left []order.TimeoutBody, reason error) {
	for i, err := range errs {
		if err == nil {
			continue
		}
		left = append(left, bodies[i])
		if reason == nil || urgency(err) > urgency(reason) {
			reason = err
		}
	}
	return left, reason
}

func urgency(err error) int {
	switch {
	case order.KindOf(err) == order.Internal:
		return 0
	case errors.Is(err, errLocked):
		return 1
	}
	return 2
}

// setAside quarantines a message that cannot be read (I12).
func (c *Closer) setAside(ctx context.Context, d order.Delivery, cause error, retry *backoff.ExponentialBackOff) error {
	c.metrics.Timeouts.WithLabelValues("malformed").Inc()
	for {
		err := c.aside.put(ctx, "timeout", d.OrderNo, cause, d.Body)
		if err == nil || order.KindOf(err) == order.Internal || !sleep(ctx, retry.NextBackOff()) {
			return err
		}
	}
}

// errLocked: another transaction has the order's row; its end decides.
var errLocked = order.Errorf(order.Unavailable, "order_locked", "another transaction is changing the order")

// closeAll decides one batch of messages and returns an error for each that is still open.
func (c *Closer) closeAll(ctx context.Context, bodies []order.TimeoutBody) []error {
	start := time.Now()
	verdicts := c.closeDue(ctx, numbers(bodies))
	c.look(ctx, bodies, verdicts)
	errs := make([]error, len(bodies))
	for i, b := range bodies {
		errs[i] = verdicts[b.OrderNo].err
	}
	took := time.Since(start).Seconds()
	c.metrics.CloseBatch.Observe(float64(len(bodies)))
	c.metrics.CloseSeconds.WithLabelValues("batch").Observe(took)
	c.metrics.CloseSeconds.WithLabelValues("order").Observe(took / float64(len(bodies)))
	return errs
}

// verdict is what became of an order in this batch.
type verdict struct {
	decided bool
	err     error
}

// numbers are the distinct order numbers of bodies.
func numbers(bodies []order.TimeoutBody) []string {
	seen := make(map[string]bool, len(bodies))
	nos := make([]string, 0, len(bodies))
	for _, b := range bodies {
		if !seen[b.OrderNo] {
			seen[b.OrderNo] = true
			nos = append(nos, b.OrderNo)
		}
	}
	return nos
}

// closeDue closes what is due.
func (c *Closer) closeDue(ctx context.Context, nos []string) map[string]verdict {
	verdicts := make(map[string]verdict, len(nos))
	opts := c.options()
	closing := order.Closing{Reason: order.ReasonTimeout, Actor: "consumer", Confirm: opts.Confirm}
	first, hand := c.relay.Schedule, c.relay.Offer
	if len(nos) > opts.BatchSize/2 {
		first, hand = c.relay.Later, c.relay.Await // many are due at once: giving back comes before telling
	}
	bisect(nos, func(part []string) error {
		closing.OrderNos = part
		batch, err := c.store.CloseDue(ctx, closing, first)
		if err != nil {
			return err
		}
		hand(batch.Messages...)
		c.metrics.closed("message", batch.Closed)
		for _, closed := range batch.Closed {
			verdicts[closed.OrderNo] = verdict{decided: true}
		}
		for _, no := range batch.Braked {
			verdicts[no] = verdict{decided: true}
		}
		c.metrics.Timeouts.WithLabelValues("closed").Add(float64(len(batch.Closed)))
		c.metrics.Timeouts.WithLabelValues("confirming").Add(float64(batch.Doubtful))
		c.metrics.Timeouts.WithLabelValues("reminded").Add(float64(batch.Reminded))
		c.metrics.Timeouts.WithLabelValues("braked").Add(float64(len(batch.Braked)))
		return nil
	}, func(part []string, err error) {
		for _, no := range part {
			verdicts[no] = verdict{decided: true, err: c.poisoned(ctx, no, err)}
		}
	})
	return verdicts
}

// poisoned sets aside an order whose message alone cannot be handled; an outage is passed on.
func (c *Closer) poisoned(ctx context.Context, no string, err error) error {
	if order.KindOf(err) == order.Unavailable {
		return err
	}
	return c.aside.put(ctx, "close", no, err, nil)
}

// bisect runs work over items; work that fails for a reason of its own, not an outage, is cut in halves until the item at
// fault stands alone.
func bisect[T any](items []T, run func([]T) error, fail func([]T, error)) {
	err := guard(func() error { return run(items) })
	switch half := len(items) / 2; {
	case err == nil:
	case half == 0 || order.KindOf(err) != order.Internal:
		fail(items, err)
	default:
		bisect(items[:half], run, fail)
		bisect(items[half:], run, fail)
	}
}

// look decides what closeDue has left.
func (c *Closer) look(ctx context.Context, bodies []order.TimeoutBody, verdicts map[string]verdict) {
	var rest []order.TimeoutBody
	for _, b := range bodies {
		if !verdicts[b.OrderNo].decided {
			rest = append(rest, b)
		}
	}
	if len(rest) == 0 {
		return
	}
	bisect(rest, func(part []order.TimeoutBody) error { return c.lookAt(ctx, part, verdicts) }, func(part []order.TimeoutBody, err error) {
		for _, b := range part {
			verdicts[b.OrderNo] = verdict{err: c.poisoned(ctx, b.OrderNo, err)}
		}
	})
}

// lookAt looks at the rows of orders that were not closed: final and unknown orders need nothing, early ones are scheduled
// again, locked ones stay open, and adopted items are the lapser's. Whoever fails half-way may look again.
func (c *Closer) lookAt(ctx context.Context, bodies []order.TimeoutBody, verdicts map[string]verdict) error {
	found, now, err := c.store.Look(ctx, numbers(bodies))
	if err != nil {
		return err
	}
	rows := make(map[string]order.Order, len(found))
	for _, o := range found {
		rows[o.OrderNo] = o
	}
	items, err := c.ripen(ctx, bodies, rows)
	if err != nil {
		return err
	}
	sorted := make(map[string][]order.TimeoutBody)
	for _, b := range bodies {
		result := "unknown"
		if o, known := rows[b.OrderNo]; known {
			result = standing(o, now)
		} else if item, known := items[b.OrderNo]; known {
			result = item
		}
		if result == "early" && b.DeliverAt.Sub(now) > undelayed {
			result = "undelayed"
		}
		sorted[result] = append(sorted[result], b)
	}
	for _, b := range sorted["locked"] {
		verdicts[b.OrderNo] = verdict{err: errLocked}
	}
	if err := errors.Join(
		c.remind(ctx, sorted["nearing"], verdicts),
		c.postpone(ctx, sorted["early"], c.relay.Schedule, c.relay.Offer),
		c.postpone(ctx, sorted["undelayed"], c.relay.UntilDue, c.relay.Await),
	); err != nil {
		return err
	}
	for result, part := range sorted {
		c.metrics.Timeouts.WithLabelValues(result).Add(float64(len(part)))
	}
	return nil
}

// standing is what a message about an order that was not closed leads to.
func standing(o order.Order, now time.Time) string {
	switch {
	case o.Status.Final(), o.Status == order.Confirming: // the confirmer's
		return "final"
	case o.Due(now):
		return "locked"
	case !o.RemindAt().IsZero() && !o.RemindAt().After(now):
		return "nearing"
	}
	return "early"
}

// ripen hands those of bodies that are adopted items, and due, to the lapser. It says how the items among them stand.
func (c *Closer) ripen(ctx context.Context, bodies []order.TimeoutBody, orders map[string]order.Order) (map[string]string, error) {
	unknown := slices.DeleteFunc(numbers(bodies), func(no string) bool { _, known := orders[no]; return known })
	if len(unknown) == 0 {
		return nil, nil
	}
	items, err := c.store.Ripen(ctx, unknown)
	stand := make(map[string]string, len(unknown))
	for result, nos := range map[string][]string{"ripe": items.Ripe, "early": items.Early, "locked": items.Locked} {
		for _, no := range nos {
			stand[no] = result
		}
	}
	return stand, err
}

// postpone schedules the rest of the time of early messages (I13): through the broker, or, if it does not
// delay, by waiting in the table. An old or forged message fits no row's hop and has no effect.
func (c *Closer) postpone(ctx context.Context, bodies []order.TimeoutBody, next order.Schedule, hand func(...order.Message)) error {
	if len(bodies) == 0 {
		return nil
	}
	early := make([]order.Early, len(bodies))
	for i, b := range bodies {
		early[i] = order.Early{OrderNo: b.OrderNo, Hop: b.Hop}
	}
	rows, err := c.store.Postpone(ctx, early, next)
	hand(rows...)
	return err
}

// remind tells that the deadlines of bodies are near. An order that is locked stays open, to be looked at again.
func (c *Closer) remind(ctx context.Context, bodies []order.TimeoutBody, verdicts map[string]verdict) error {
	if len(bodies) == 0 {
		return nil
	}
	rows, err := c.store.Remind(ctx, numbers(bodies), c.relay.Schedule)
	if err != nil {
		return err
	}
	for _, b := range bodies {
		verdicts[b.OrderNo] = verdict{err: errLocked}
	}
	for _, m := range rows {
		verdicts[m.OrderNo] = verdict{decided: true}
	}
	c.relay.Offer(rows...)
	return nil
}
