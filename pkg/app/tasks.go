package app

import (
	"context"
	"maps"
	"slices"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// Migrate brings the database's schema to the version of this program, and returns it.
func Migrate(ctx context.Context, c *Config) (version int64, err error) {
	err = withStore(ctx, c, func(st *store.Store) error {
		if err := st.Migrate(ctx); err != nil {
			return err
		}
		version, _, err = st.SchemaVersion(ctx)
		return err
	})
	return version, err
}

// Audit looks at what is stored: each promise, checked by query. overdue is how long after its deadline an
// order may still be pending; 0 means 180 s.
func Audit(ctx context.Context, c *Config, overdue time.Duration) (checks []order.Check, err error) {
	err = withStore(ctx, c, func(st *store.Store) error {
		if err := st.Check(ctx); err != nil {
			return err
		}
		checks, err = st.Audit(ctx, store.AuditOptions{Overdue: overdue})
		return err
	})
	return checks, err
}

// PayTimes summarizes how long the payers of each business type took, of orders whose deadline lies within window.
func PayTimes(ctx context.Context, c *Config, window time.Duration) (reports []order.PayReport, err error) {
	if window <= 0 {
		return nil, order.Errorf(order.Invalid, "invalid_window", "the time to look at has to be more than 0")
	}
	err = withStore(ctx, c, func(st *store.Store) error {
		if err := st.Check(ctx); err != nil {
			return err
		}
		now, err := st.Now(ctx)
		if err != nil {
			return err
		}
		times, err := st.PayTimes(ctx, now.Add(-window))
		for _, biz := range slices.Sorted(maps.Keys(times)) {
			reports = append(reports, times[biz].Report())
		}
		return err
	})
	return reports, err
}

func withStore(ctx context.Context, c *Config, use func(st *store.Store) error) error {
	if c.Database.DSN == "" {
		return (&order.Error{Kind: order.Invalid, Code: "invalid_config", Message: "the configuration names no database",
			Fields: []order.Field{{Name: "database.dsn", Reason: "needed: where the database is"}}}).
			WithHint("Give --config FILE, or --data DIR for the database of `lapse dev`.")
	}
	st, err := openStore(ctx, c, nil)
	if err != nil {
		return err
	}
	defer st.Close()
	return use(st)
}

// TokenFor returns a configured token that has a scope.
func (c *Config) TokenFor(scope string) (token string, ok bool) {
	for _, t := range c.Auth.Tokens {
		if slices.Contains(t.Scopes, scope) {
			return t.Token, true
		}
	}
	return "", false
}
