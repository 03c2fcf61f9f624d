package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// fault is something that breaks during a run and is mended.
type fault struct {
	at   time.Duration // from the start of the run
	what string        // see breakages, or a verb and the node that it befalls
	down time.Duration
}

// window is a time of trouble by the database's clock.
type window struct {
	what       string
	begin, end time.Time
}

// recovery is how long after a fault is mended its effects may last: the broker's client finds a broker again after
// up to 45 s, and a group shares out its queues anew every 20 s.
const recovery = 45 * time.Second

// trouble makes the faults, one after the other.
func (s *system) trouble(ctx context.Context, faults []fault) ([]window, error) {
	begin := time.Now()
	var windows []window
	for _, f := range faults {
		if !pause(ctx, time.Until(begin.Add(f.at))) {
			return windows, ctx.Err()
		}
		w := window{what: f.what}
		var err error
		if w.begin, err = s.now(ctx); err != nil {
			return windows, err
		}
		if err := s.suffer(ctx, f); err != nil {
			return windows, fmt.Errorf("fault %q: %w", f.what, err)
		}
		if w.end, err = s.now(ctx); err != nil {
			return windows, err
		}
		s.t.Logf("%s: %v", f.what, w.end.Sub(w.begin).Round(100*time.Millisecond))
		windows = append(windows, w)
	}
	return windows, nil
}

// breakage breaks something, leaves it broken for a while, and returns when it is whole again.
type breakage func(ctx context.Context, down time.Duration) error

// suffer makes one fault.
func (s *system) suffer(ctx context.Context, f fault) error {
	if breaks := s.breakages()[f.what]; breaks != nil {
		return breaks(ctx, f.down)
	}
	verb, name, _ := strings.Cut(f.what, " ")
	n := s.node(name)
	switch verb {
	case "kill":
		return s.without(ctx, n, f.down, func() error {
			n.running.Kill()
			return nil
		})
	case "stop", "upgrade":
		return s.without(ctx, n, f.down, func() error { return n.running.Stop(stopBound) })
	case "freeze":
		return between(ctx, f.down, n.running.Freeze, n.running.Thaw)
	}
	return fmt.Errorf("nobody knows how to %s", verb)
}

// breakages are the faults that are not a node's.
func (s *system) breakages() map[string]breakage {
	broker := func(end, begin func(context.Context) error) breakage {
		return func(ctx context.Context, down time.Duration) error {
			return between(ctx, down, func() error { return end(ctx) }, func() error { return begin(ctx) })
		}
	}
	all := map[string]breakage{
		"stop broker":   broker(s.broker.Stop, s.broker.Start),
		"kill broker":   broker(s.broker.Kill, s.broker.Start),
		"freeze broker": broker(s.broker.Freeze, s.broker.Thaw),
		"migrate": func(ctx context.Context, _ time.Duration) error {
			s.programs = s.next
			return s.migrate(ctx)
		},
		"reload settings": func(ctx context.Context, down time.Duration) error {
			return between(ctx, down, func() error { return s.settings(50) }, func() error { return s.settings(200) })
		},
		"rewind offsets": func(ctx context.Context, _ time.Duration) error {
			return s.broker.Admin(ctx, "resetOffsetByTime", "-n", s.broker.Addr, "-g", "lapse-closer", "-t", timeoutTopic, "-s", "0")
		},
	}
	if s.server != nil {
		all["stop database"] = broker(s.server.Stop, s.server.Start)
		all["kill database"] = broker(s.server.Kill, s.server.Start)
		for verb, toxic := range toxics {
			all[verb+" database"] = func(ctx context.Context, down time.Duration) error { return s.link.poison(ctx, toxic, down) }
		}
	}
	return all
}

// settings writes the file that all nodes read, and that they notice when it changes.
func (s *system) settings(sweepLimit int) error {
	return os.WriteFile(s.config, fmt.Appendf(nil, "sweep: {limit: %d}\n", sweepLimit), 0o600)
}

// between breaks something, waits, and mends it.
func between(ctx context.Context, down time.Duration, breaks, mends func() error) error {
	if err := breaks(); err != nil {
		return err
	}
	pause(ctx, down)
	return mends()
}

// without ends a node's process for a while. What it has counted is kept.
func (s *system) without(ctx context.Context, n *node, down time.Duration, end func() error) error {
	counted, err := n.scrape(ctx)
	if err != nil {
		return err
	}
	if err := end(); err != nil {
		return err
	}
	n.before = counted
	pause(ctx, down)
	s.start(n)
	return s.ready(ctx, n)
}
