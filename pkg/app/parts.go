package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// part is one long-running piece of a process.
type part struct {
	name string
	run  func(ctx context.Context) error
}

// running is a part that was started.
type running struct {
	part
	stop  context.CancelFunc
	ended chan struct{}
	err   error // why it ended, known once it has
}

// parts runs pieces that depend on each other: each uses only those started before it. They are stopped in
// reverse, one after the other, so that none loses what it still needs.
type parts struct {
	group   errgroup.Group
	started []*running
	over    context.Context // ends when the first part has ended
	end     context.CancelFunc
	log     *zap.Logger
}

func newParts(log *zap.Logger) *parts {
	p := &parts{log: log}
	p.over, p.end = context.WithCancel(context.Background())
	return p
}

// start runs a part. What ends before it is told to ends the whole process.
func (p *parts) start(it part) {
	ctx, stop := context.WithCancel(context.Background())
	r := &running{part: it, stop: stop, ended: make(chan struct{})}
	p.started = append(p.started, r)
	p.group.Go(func() error {
		defer p.end()
		defer close(r.ended)
		if r.err = it.outcome(ctx); r.err != nil {
			p.log.Error("a part has failed", zap.Error(r.err))
		}
		return r.err
	})
}

// outcome runs the part and says what went wrong with it; nil if it ended when ctx did.
func (it part) outcome(ctx context.Context) error {
	err := it.run(ctx)
	switch {
	case ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)):
		return nil
	case err == nil:
		return fmt.Errorf("%s ended unasked", it.name)
	default:
		return fmt.Errorf("%s: %w", it.name, err)
	}
}

// stop stops all parts within bound and returns the first error of any. Parts that have not ended by then
// are named in the error, beside those of the others; the process should end.
func (p *parts) stop(bound time.Duration) error {
	deadline := time.NewTimer(bound)
	defer deadline.Stop()
	for i := len(p.started) - 1; i >= 0; i-- {
		r := p.started[i]
		p.log.Debug("stopping", zap.String("part", r.name))
		r.stop()
		select {
		case <-r.ended:
		case <-deadline.C:
			return p.overdue(bound)
		}
	}
	return p.group.Wait()
}

// overdue tells all parts to stop, and what became of them: why those that have ended failed, and which have not.
func (p *parts) overdue(bound time.Duration) error {
	var errs []error
	var left []string
	for _, r := range p.started {
		r.stop()
		select {
		case <-r.ended:
			errs = append(errs, r.err)
		default:
			left = append(left, r.name)
		}
	}
	return errors.Join(append(errs, fmt.Errorf("not stopped within %s: %s", bound, strings.Join(left, ", ")))...)
}
