package demo

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"time"

	"lapse/pkg/app"
)

// settings make things happen while somebody watches: a lost message is noticed within seconds instead of
// minutes, and ports are free ones. They are set, not left to defaults, so that no variable of the
// environment leads the demo to another database.
func settings(dir, gateway string) map[string]string {
	return map[string]string{
		"database.driver":   "sqlite",
		"database.dsn":      filepath.Join(dir, "lapse.db"),
		"broker.driver":     "local",
		"server.addr":       "127.0.0.1:0",
		"ops.addr":          "127.0.0.1:0",
		"order.timeout.min": "100ms",
		"delay.grace":       "200ms",
		"sweep.interval":    "1s",
		"sweep.overdue":     "2s",
		"gateway.url":       gateway,
		"gateway.timeout":   "1s",
		"confirm.for":       "10s",
		"order.biz_types":   "[{name: late-refund, late: refund}, {name: late-reopen, late: reopen}]",
		"shutdown.timeout":  "10s",
	}
}

// bound is how long after its deadline an order may still be pending with these settings.
const bound = 5 * time.Second

// system is the application in this process.
type system struct {
	app  *app.App
	live *app.Live
	keys keys
	up   chan struct{} // closed when it serves

	api, ops string // base URLs, once it is up
}

// newSystem prepares the application. Gateway is where the bank is; event gets every event; lose says whose time-out
// message the broker loses.
func newSystem(dir, gateway string, log io.Writer, event func([]byte), lose func(string) bool) (*system, error) {
	if err := app.PrepareData(dir); err != nil {
		return nil, err
	}
	live, err := app.Open(app.Source{Data: dir, Set: settings(dir, gateway)})
	if err != nil {
		return nil, err
	}
	s := &system{live: live, up: make(chan struct{})}
	if s.keys, err = keysOf(live.Config()); err != nil {
		return nil, err
	}
	s.app = app.Dev(live, app.DevHooks{Event: event, Lose: lose, Serving: func(api, ops string) {
		s.api, s.ops = "http://"+api, "http://"+ops
		close(s.up)
	}}, log)
	return s, nil
}

func keysOf(c *app.Config) (keys, error) {
	shop, mayOrder := c.TokenFor("order")
	staff, mayOperate := c.TokenFor("operator")
	if !mayOrder || !mayOperate || len(c.Payment.Secrets) == 0 {
		return keys{}, errors.New("the settings lack a token or the payment secret")
	}
	return keys{shop, staff, c.Payment.Secrets[0]}, nil
}

// await waits until the system serves.
func (s *system) await(ctx context.Context) error {
	select {
	case <-s.up:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// audit asks the database for the invariants.
func (s *system) audit(ctx context.Context) ([]check, error) {
	found, err := app.Audit(ctx, s.live.Config(), bound)
	checks := make([]check, len(found))
	for i, f := range found {
		checks[i] = check{f.Invariant, f.Name, f.Checked, f.Violations, f.Example}
	}
	return checks, err
}
