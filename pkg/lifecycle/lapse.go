package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"lapse/pkg/order"
)

// LapseOptions tunes how the owners of adopted items are called.
type LapseOptions struct {
	Timeout  time.Duration // one call; 0 means 3 s
	Interval time.Duration // from one search for what is overdue to the next; 0 means 60 s
	Overdue  time.Duration // how long an item has to be due, so that messages win; 0 means 31 s
}

func (o LapseOptions) withDefaults() LapseOptions {
	o.Timeout = or(o.Timeout, 3*time.Second)
	o.Interval = or(o.Interval, time.Minute)
	o.Overdue = or(o.Overdue, 31*time.Second)
	return o
}

// lease is how long an item belongs to whoever calls its owner: it may wait for a call that is open before its own.
func (o LapseOptions) lease() time.Duration { return 2*o.Timeout + lapseSlack }

const (
	ripeBatch = 32 // items claimed at once
	openCalls = 64 // calls at once, over all kinds
	// kindCalls is how many of them may be about one kind, so that one that hangs leaves room for the others. It is more
	// than a batch: a kind whose calls are fast never waits for its turn.
	kindCalls  = 48
	maxKinds   = 100 // kinds with a circuit breaker of their own; more of them share one
	lapsePoll  = 200 * time.Millisecond
	lapseSlack = 10 * time.Second // what a lease has beyond its calls: to write down what they brought
	// turnedAwayWait is when an item is claimed again whose owner was not called.
	turnedAwayWait = time.Second
	// failedCalls in a row open a kind's breaker, for restOfKind.
	failedCalls = 5
	restOfKind  = 5 * time.Second
	// stuckCalls is how many unanswered calls make an item one that is counted as stuck. It is never given up.
	stuckCalls   = 10
	itemPage     = 200 // items that an owner is asked for at once
	itemPause    = 50 * time.Millisecond
	overdueLease = 30 * time.Second
)

// Lapser calls the owners of adopted items that are due, and applies what they say. An item is forgotten only on its
// owner's explicit word; whatever else comes back, its owner is called again, for ever. What was asked and what is
// known of it stands in the item's row, so a crash repeats a call and never loses one.
type Lapser struct {
	store   ItemStore
	hook    Hook
	relay   *Relay
	owner   string
	options func() LapseOptions
	mu      sync.Mutex
	kinds   map[string]*kindOfItem
	metrics *Metrics
	log     *zap.Logger
}

// kindOfItem is what is known about calls for one kind.
type kindOfItem struct {
	open    int
	breaker *gobreaker.TwoStepCircuitBreaker[order.Answer]
}

// NewLapser makes a lapser that searches for what is overdue as owner; options are read at each round.
func NewLapser(store ItemStore, hook Hook, relay *Relay, owner string, options func() LapseOptions, metrics *Metrics, log *zap.Logger) *Lapser {
	return &Lapser{
		store: store, hook: hook, relay: relay, owner: owner, metrics: metrics, log: log, kinds: map[string]*kindOfItem{},
		options: func() LapseOptions { return options().withDefaults() },
	}
}

// Run calls owners until ctx ends, and then finishes the calls that are open.
func (l *Lapser) Run(ctx context.Context) error {
	var loops errgroup.Group
	loops.Go(func() error { return l.lapse(ctx) })
	loops.Go(func() error { return l.watch(ctx) })
	return loops.Wait()
}

// lapse calls about what is due.
func (l *Lapser) lapse(ctx context.Context) error {
	retry := newBackoff()
	var calls errgroup.Group
	calls.SetLimit(openCalls)
	for ctx.Err() == nil {
		opts := l.options()
		ripe, now, wake, err := l.store.ClaimRipe(ctx, ripeBatch, opts.lease())
		if err != nil {
			l.failed(ctx, "due items could not be claimed, will be tried again", err)
			sleep(ctx, retry.NextBackOff())
			continue
		}
		retry.Reset()
		called := l.call(context.WithoutCancel(ctx), &calls, ripe, opts)
		switch {
		case called < len(ripe):
			sleep(ctx, lapsePoll)
		case len(ripe) < ripeBatch:
			idle(ctx, lapsePoll, now, wake)
		}
	}
	return calls.Wait()
}

// call starts a call about each item whose kind may be called about now, gives the others back, and returns how many it
// has started.
func (l *Lapser) call(ctx context.Context, calls *errgroup.Group, ripe []order.Ripe, opts LapseOptions) (called int) {
	turnedAway := map[string][]order.Ripe{} // by reason
	for _, r := range ripe {
		leave, err := l.enter(r.Kind)
		if err != nil {
			turnedAway[err.Error()] = append(turnedAway[err.Error()], r)
			continue
		}
		called++
		calls.Go(func() error {
			l.lapseOne(ctx, r, opts, leave)
			return nil
		})
	}
	for why, items := range turnedAway {
		if err := l.store.PutOff(ctx, items, turnedAwayWait, why); err != nil {
			l.failed(ctx, "items could not be given back, their leases will end", err)
		}
	}
	return called
}

var errKindBusy = fmt.Errorf("%d calls about its kind are open already", kindCalls)

// enter takes one of a kind's places, unless they are taken or its owner is left alone for a while, since calls failed.
// The caller gives it back with the outcome of its call.
func (l *Lapser) enter(kind string) (leave func(error), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kind(kind)
	if k.open >= kindCalls {
		return nil, errKindBusy
	}
	done, err := k.breaker.Allow()
	if err != nil {
		return nil, fmt.Errorf("its owner has not answered lately: %w", err)
	}
	k.open++
	return func(err error) {
		done(err)
		l.mu.Lock()
		defer l.mu.Unlock()
		k.open--
	}, nil
}

func (l *Lapser) kind(name string) *kindOfItem {
	if len(l.kinds) >= maxKinds && l.kinds[name] == nil {
		name = ""
	}
	k := l.kinds[name]
	if k == nil {
		k = &kindOfItem{breaker: gobreaker.NewTwoStepCircuitBreaker[order.Answer](gobreaker.Settings{
			Name: name, Timeout: restOfKind, ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= failedCalls },
		})}
		l.kinds[name] = k
	}
	return k
}

// lapseOne calls about one item and writes down what came of it. If that fails, the call is repeated when the lease has
// run out.
func (l *Lapser) lapseOne(ctx context.Context, r order.Ripe, opts LapseOptions, leave func(error)) {
	answer, err := l.ask(ctx, r.Adopted, opts.Timeout)
	leave(err)
	a := order.Asked{Ripe: r, Answer: answer, Wait: askAgainIn(r.Message.Attempts)}
	result := string(answer.Word)
	if err != nil {
		a.Failed, result = err.Error(), "unknown"
		l.log.Warn("the owner of an item gave no explicit answer", zap.String("kind", r.Kind), zap.String("ref", r.Ref),
			zap.Int("calls", r.Message.Attempts+1), zap.Duration("retry_in", a.Wait), zap.Error(err))
	}
	rows, err := l.store.Answered(ctx, a, l.relay.Schedule)
	if err != nil {
		l.failed(ctx, "an owner's answer could not be written down, it will be called again", err)
		return
	}
	l.relay.Offer(rows...)
	l.metrics.Items.WithLabelValues(result).Inc()
	if answer.Word == order.WordClosed {
		l.metrics.Lateness.WithLabelValues("hook").Observe(l.relay.now().Sub(r.Deadline).Seconds())
	}
}

// ask calls an item's owner, for no longer than limit.
func (l *Lapser) ask(ctx context.Context, a order.Adopted, limit time.Duration) (answer order.Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = guard(func() error {
		said, err := l.hook.Close(ctx, a)
		if err != nil {
			return err
		}
		answer, err = said.Validate()
		return err
	})
	return answer, err
}

// failed notes work that will be tried again.
func (l *Lapser) failed(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	l.metrics.Retries.WithLabelValues("hook").Inc()
	l.log.Warn(what, zap.Error(err))
}

// watch searches for what is overdue at each interval: the second path, for items whose message was lost, or that
// nobody has scheduled.
func (l *Lapser) watch(ctx context.Context) error {
	for {
		opts := l.options()
		err := guard(func() error { return errors.Join(l.measure(ctx), l.findOverdue(ctx, opts)) })
		if err != nil {
			l.failed(ctx, "the search for overdue items failed, the next one is due as usual", err)
		}
		if !sleep(ctx, jitter(opts.Interval)) {
			return nil
		}
	}
}

func (l *Lapser) measure(ctx context.Context) error {
	stuck, err := l.store.Unanswered(ctx, stuckCalls)
	if err == nil {
		l.metrics.ItemsStuck.Set(float64(stuck))
	}
	return err
}

// findOverdue makes what owners have open and overdue ready to be called about. One instance does it at a time.
func (l *Lapser) findOverdue(ctx context.Context, opts LapseOptions) error {
	lease, mine, err := l.store.AcquireShard(ctx, order.AdoptedShard, l.owner, overdueLease, opts.Interval-opts.Interval/passSlack)
	if err != nil || !mine {
		return err
	}
	now, err := l.store.Now(ctx)
	if err != nil {
		return err
	}
	err = pages(ctx, l.hook, now.Add(-opts.Overdue), opts.Timeout, func(items []order.Adopted) error {
		found, err := l.store.Overdue(ctx, items)
		if err != nil {
			return err
		}
		l.metrics.ItemsOverdue.Add(float64(found))
		if lease, mine, err = l.store.RenewLease(ctx, lease, overdueLease); err == nil && !mine {
			err = errors.New("another instance goes on with it")
		}
		return err
	})
	return errors.Join(err, l.store.ReleaseShard(context.WithoutCancel(ctx), lease))
}

// pages hands what owners have open and due before a time to take, page by page. Items that are not valid are left out
// and told of in the end: they are no reason to leave the others.
func pages(ctx context.Context, hook Hook, before time.Time, limit time.Duration, take func([]order.Adopted) error) error {
	after, mark := "", "" // a list that goes round comes by a mark again, as it is set anew after 1, 2, 4, 8 … pages (R. P. Brent)
	var refused error
	for n := 1; ; n++ {
		said, next, err := page(ctx, hook, before, after, limit)
		if err != nil {
			return err
		}
		var items []order.Adopted
		for _, a := range said {
			valid, err := a.Validate()
			if err != nil {
				refused = fmt.Errorf("item %q %q cannot be kept: %w", a.Kind, a.Ref, err)
				continue
			}
			items = append(items, valid)
		}
		if err := take(items); err != nil {
			return err
		}
		if next == "" {
			return refused
		}
		if n&(n-1) == 0 {
			mark = after
		}
		if next == after || next == mark {
			return order.Errorf(order.Unavailable, "list_stands_still", "the list of what is due does not go on after %q", after)
		}
		after = next
		if !sleep(ctx, itemPause) {
			return context.Cause(ctx)
		}
	}
}

// page asks for one page, for no longer than limit.
func page(ctx context.Context, hook Hook, before time.Time, after string, limit time.Duration) (items []order.Adopted, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	items, next, err = hook.Due(ctx, before, after, itemPage)
	if err == nil && len(items) > itemPage {
		err = order.Errorf(order.Unavailable, "page_too_long", "the list of what is due has %d items a page, and %d were asked for", len(items), itemPage)
	}
	return items, next, err
}

// Backfill schedules every item that its owner has open and that is not scheduled yet, and returns how many it has seen
// and scheduled. limit bounds each call. It may be repeated, also beside a live system.
func Backfill(ctx context.Context, store BackfillStore, hook Hook, limit time.Duration) (seen, scheduled int, err error) {
	err = pages(ctx, hook, order.Never, limit, func(items []order.Adopted) error {
		added, err := store.Backfill(ctx, items)
		seen, scheduled = seen+len(items), scheduled+added
		return err
	})
	return seen, scheduled, err
}
