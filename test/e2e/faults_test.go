package e2e

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// fault is something that breaks during a run and is mended.
type fault struct {
	at time.Duration // from the start of the run
	// what: a node's name, which is killed; "broker", which is stopped in order; "broker!", which is killed; "migrate", by
	// which the schema becomes that of the new version; or "upgrade" and a node's name, which is stopped in order.
	what string
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
		s.t.Logf("%s was down for %v", f.what, w.end.Sub(w.begin).Round(100*time.Millisecond))
		windows = append(windows, w)
	}
	return windows, nil
}

// suffer breaks something, leaves it broken for a while, and returns when it is whole again.
func (s *system) suffer(ctx context.Context, f fault) error {
	switch f.what {
	case "broker":
		return s.withoutBroker(ctx, s.broker.Stop, f.down)
	case "broker!":
		return s.withoutBroker(ctx, s.broker.Kill, f.down)
	}
	if f.what == "migrate" {
		s.programs = s.next
		_, err := s.programs.Run(ctx, s.env, "lapse", "migrate")
		return err
	}
	name, upgrade := strings.CutPrefix(f.what, "upgrade ")
	n := s.node(name)
	counted, err := n.scrape(ctx)
	if err != nil {
		return err
	}
	if upgrade {
		err = n.running.Stop(stopBound)
	} else {
		n.running.Kill()
	}
	if err != nil {
		return err
	}
	n.before = counted
	pause(ctx, f.down)
	s.start(n)
	return s.ready(ctx, n)
}

func (s *system) withoutBroker(ctx context.Context, end func(context.Context) error, down time.Duration) error {
	if err := end(ctx); err != nil {
		return err
	}
	pause(ctx, down)
	return s.broker.Start(ctx)
}
