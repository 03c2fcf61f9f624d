package lifecycle

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"lapse/pkg/order"
)

// groupOptions bounds a group; it is asked for them before every batch, so they may change at run time.
type groupOptions struct {
	Size    int           // items in a batch at most
	Linger  time.Duration // how long a batch waits for company, once company has been seen
	Patient bool          // always linger for a full batch: for items whose outcome nobody waits for
}

// group gathers items from many callers and hands them on together. A lone caller never waits: a batch
// lingers only if the one before it had company, and only until it is as large.
type group[T any] struct {
	options func() groupOptions
	workers int
	// flush handles a batch and returns one error per item, in order.
	flush   func(ctx context.Context, items []T) []error
	calls   chan call[T]
	stopped chan struct{}
}

type call[T any] struct {
	item T
	done chan<- outcome // nil if nobody waits
	at   int
}

type outcome struct {
	at  int
	err error
}

// newGroup makes a group; workers batches are flushed at the same time, queue items wait without a caller.
func newGroup[T any](workers, queue int, options func() groupOptions, flush func(context.Context, []T) []error) *group[T] {
	return &group[T]{options: options, workers: workers, flush: flush, calls: make(chan call[T], queue), stopped: make(chan struct{})}
}

// errStopping answers callers that come while the process stops.
var errStopping = order.Errorf(order.Unavailable, "stopping", "this instance is stopping").WithHint("Try again; another instance will answer.")

// Do hands in items and waits for their outcomes, one error per item. An item whose outcome is not known
// when ctx ends may or may not have been handled.
func (g *group[T]) Do(ctx context.Context, items ...T) []error {
	errs := make([]error, len(items))
	done := make(chan outcome, len(items))
	waiting := make([]bool, len(items))
	handed := 0
	for i, item := range items {
		select {
		case <-g.stopped:
			errs[i] = errStopping
			continue
		default:
		}
		select {
		case g.calls <- call[T]{item, done, i}:
			waiting[i] = true
			handed++
		case <-g.stopped:
			errs[i] = errStopping
		case <-ctx.Done():
			errs[i] = unanswered(ctx)
		}
	}
	give := func(err error) []error {
		for i, w := range waiting {
			if w {
				errs[i] = err
			}
		}
		return errs
	}
	for ; handed > 0; handed-- {
		select {
		case o := <-done:
			errs[o.at], waiting[o.at] = o.err, false
		case <-ctx.Done():
			return give(unanswered(ctx))
		case <-g.stopped:
			if len(done) == 0 {
				return give(errStopping)
			}
			o := <-done
			errs[o.at], waiting[o.at] = o.err, false
		}
	}
	return errs
}

func unanswered(ctx context.Context) error {
	return order.Errorf(order.Unavailable, "no_answer_in_time", "no answer in time").
		WithHint("The outcome is unknown; repeat the call with the same key.").Wrap(context.Cause(ctx))
}

// Put hands in an item and does not wait for its outcome. It reports false if the item was not taken.
func (g *group[T]) Put(ctx context.Context, item T) bool {
	select {
	case g.calls <- call[T]{item: item}:
		return true
	case <-g.stopped:
	case <-ctx.Done():
	}
	return false
}

// Run flushes batches until ctx ends, then what is still queued, and returns.
func (g *group[T]) Run(ctx context.Context) error {
	defer close(g.stopped)
	var workers errgroup.Group
	for range g.workers {
		workers.Go(func() error {
			g.work(ctx)
			return nil
		})
	}
	return workers.Wait()
}

// flushQueued flushes what is queued, as Run does in its end.
func (g *group[T]) flushQueued(ctx context.Context) {
	over, end := context.WithCancel(ctx)
	end()
	g.work(over)
}

// work is one worker. After the end of ctx it flushes what is queued.
func (g *group[T]) work(ctx context.Context) {
	var last int
	for {
		first, ok := next(ctx, g.calls)
		if !ok {
			return
		}
		batch := g.gather(first, last)
		last = len(batch)
		g.run(context.WithoutCancel(ctx), batch)
	}
}

// next waits for an item; after the end of ctx it takes only what is queued.
func next[T any](ctx context.Context, queue <-chan T) (item T, ok bool) {
	select {
	case item = <-queue:
		return item, true
	case <-ctx.Done():
	}
	select {
	case item = <-queue:
		return item, true
	default:
		return item, false
	}
}

// gather takes what is there, and if last says that there is company, waits a little for as much again.
func (g *group[T]) gather(first call[T], last int) []call[T] {
	opts := g.options()
	batch := append(make([]call[T], 0, max(last, 1)), first)
	var linger <-chan time.Time
	for len(batch) < opts.Size {
		select {
		case c := <-g.calls:
			batch = append(batch, c)
			continue
		default:
		}
		alone := last < 2 || len(batch) >= last
		if opts.Linger <= 0 || alone && !opts.Patient {
			return batch
		}
		if linger == nil {
			timer := time.NewTimer(opts.Linger)
			defer timer.Stop()
			linger = timer.C
		}
		select {
		case c := <-g.calls:
			batch = append(batch, c)
		case <-linger:
			return batch
		}
	}
	return batch
}

func (g *group[T]) run(ctx context.Context, batch []call[T]) {
	items := make([]T, len(batch))
	for i, c := range batch {
		items[i] = c.item
	}
	var errs []error
	if err := guard(func() error {
		errs = g.flush(ctx, items)
		return nil
	}); err != nil {
		errs = repeat(err, len(items))
	}
	for i, c := range batch {
		if c.done != nil {
			c.done <- outcome{c.at, errs[i]}
		}
	}
}

// repeat is the outcome of a batch that failed as a whole.
func repeat(err error, n int) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// guard turns a panic into an error, so that one bad input never ends a loop.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = order.Errorf(order.Internal, "panic", "panic: %v", fmt.Sprint(p))
		}
	}()
	return f()
}

// sleep waits for d or until ctx ends; false if it ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
