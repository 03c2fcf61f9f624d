package app

import (
	"context"

	"lapse/pkg/hook"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// startLapser starts calling the owners of adopted items, where there is somebody to call.
func (a *App) startLapser(p *parts, c *Config, st *store.Store, relay *lifecycle.Relay) error {
	if c.Hook.URL == "" {
		return nil
	}
	owners, err := hook.New(c.Hook.URL, c.Hook.Secret)
	if err != nil {
		return err
	}
	lapser := lifecycle.NewLapser(st, owners, relay, a.owner(), a.lapseOptions, a.metrics, a.log.Named("lapser"))
	p.start(part{"lapser", func(ctx context.Context) error {
		defer owners.CloseIdle()
		return lapser.Run(ctx)
	}})
	return nil
}

func (a *App) lapseOptions() lifecycle.LapseOptions {
	c := a.live.Config()
	return lifecycle.LapseOptions{Timeout: c.Hook.Timeout, Interval: c.Hook.Interval, Overdue: given(c.Delay.Grace + c.Sweep.Overdue)}
}

// Backfill asks the hook for all that its owner has open, and schedules what is not scheduled. It returns how many items
// it has seen and scheduled.
func Backfill(ctx context.Context, c *Config) (seen, scheduled int, err error) {
	if c.Hook.URL == "" {
		return 0, 0, &order.Error{Kind: order.Invalid, Code: "invalid_config", Message: "the configuration names no hook",
			Fields: []order.Field{{Name: "hook.url", Reason: "needed: who keeps the items"}}}
	}
	owners, err := hook.New(c.Hook.URL, c.Hook.Secret)
	if err != nil {
		return 0, 0, err
	}
	defer owners.CloseIdle()
	err = withStore(ctx, c, func(st *store.Store) error {
		if err := st.Check(ctx); err != nil {
			return err
		}
		seen, scheduled, err = lifecycle.Backfill(ctx, st, owners, c.Hook.Timeout)
		return err
	})
	return seen, scheduled, err
}
