package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options say how to run the demo.
type Options struct {
	Out  io.Writer // what the demo is asked for: the report
	Err  io.Writer // where it talks while it runs, if Out is for JSON only
	JSON bool      // print the report as JSON, and nothing else on Out
	Keep bool      // leave the directory with the database and the log, and say where it is
}

var (
	// ErrFailed: the demo ran, and something did not hold.
	ErrFailed = errors.New("not everything holds")
	// ErrInterrupted: the demo was told to stop before its end.
	ErrInterrupted = errors.New("the demo was interrupted")
)

// Run runs the demo. Its error is ErrFailed, ErrInterrupted, or why the demo could not run.
func Run(ctx context.Context, opts Options) error {
	err := run(ctx, opts, standard, 1)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return ErrInterrupted
	}
	return err
}

// run plays a scenario; pace multiplies all its time-outs.
func run(ctx context.Context, opts Options, sc scenario, pace float64) (err error) {
	dir, err := os.MkdirTemp("", "lapse-demo-")
	if err != nil {
		return err
	}
	s := newScreen(opts.Out)
	if opts.JSON {
		s = newScreen(opts.Err)
	}
	if opts.Keep {
		defer s.say("\nThe database and the log are kept in %s", dir)
	} else {
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	r, err := perform(ctx, dir, s, sc, pace)
	if err != nil {
		return err
	}
	if opts.JSON {
		err = r.writeJSON(opts.Out)
	} else {
		r.tell(s)
	}
	return errors.Join(err, r.verdict(s))
}

// perform runs the system for as long as the scenario takes.
func perform(ctx context.Context, dir string, s *screen, sc scenario, pace float64) (report, error) {
	log, err := os.Create(filepath.Join(dir, "lapse.log"))
	if err != nil {
		return report{}, err
	}
	defer log.Close()
	start := time.Now()
	p := newPlay(sc, pace)
	if p.bank, err = openBank(); err != nil {
		return report{}, err
	}
	defer p.bank.shut()
	sys, err := newSystem(dir, p.bank.url, log, p.inbox.take, p.loses)
	if err != nil {
		return report{}, err
	}
	group, ctx := errgroup.WithContext(ctx)
	serving, stop := context.WithCancel(ctx)
	group.Go(func() error { return sys.app.Run(serving) })
	group.Go(func() error {
		defer stop()
		if err := sys.await(ctx); err != nil {
			return err
		}
		s.say("Lapse runs in this process on SQLite: API %s, operations %s.", sys.api, sys.ops)
		p.client, p.screen, p.audit = newClient(sys.api, sys.ops, sys.keys), s, sys.audit
		defer p.client.leave()
		return p.run(ctx)
	})
	if err := group.Wait(); err != nil {
		return report{}, err
	}
	return p.report(sys.live.Config().Delay.Grace, time.Since(start)), nil
}

// verdict says how it went, and what to do next.
func (r report) verdict(s *screen) error {
	if failing := r.failing(); len(failing) > 0 {
		s.say("\n%s", s.paint(red, fmt.Sprintf("%d of %d statements do not hold:", len(failing), len(r.Checks))))
		for _, line := range failing {
			s.say("  %s", line)
		}
		s.say("Run it with --keep to look at the database and the log.")
		return ErrFailed
	}
	idle := ""
	if n := len(r.Checks) - r.shown(); n > 0 {
		idle = fmt.Sprintf(" (%d more had no case)", n)
	}
	s.say("\n%s", s.paint(green, fmt.Sprintf("All %d statements hold%s. %d orders, %.0f seconds.", r.shown(), idle, len(r.Orders), r.Seconds)))
	s.say(next)
	return nil
}
