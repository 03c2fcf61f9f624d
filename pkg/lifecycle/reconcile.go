package lifecycle

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"lapse/pkg/order"
)

// ReconcileStore looks for damage, page by page, and keeps the record of it.
type ReconcileStore interface {
	// BeginReconcile begins a run, or goes on with one whose owner has given no sign of life for stale. Conflict
	// while one is under way.
	BeginReconcile(ctx context.Context, owner string, dryRun bool, stale time.Duration) (order.ReconcileRun, error)
	// Walk looks at a page of at most limit rows after a key, and mends what it finds.
	Walk(ctx context.Context, place order.Place, limit int, m order.Mending, first order.Schedule) (order.Walked, error)
	// NoteReconcile keeps what a page has brought and where the run stands, and ends it if ended. Conflict if another
	// process has taken it over.
	NoteReconcile(ctx context.Context, run *order.ReconcileRun, findings []order.Finding, ended bool) error
	// Findings returns what a run has found.
	Findings(ctx context.Context, runID int64) ([]order.Finding, error)
	// LastReconcile is when the last run that mended was begun, and now; zero if there was none.
	LastReconcile(ctx context.Context) (began, now time.Time, err error)
}

// ReconcileOptions tunes the reconciler.
type ReconcileOptions struct {
	Interval time.Duration // from one run to the next; 0 means 24 h
	Rate     int           // rows looked at a second; 0 means 2,000
	Patience order.Patience
	Confirm  time.Duration // how long a payment in flight is waited for; 0: there is nobody to ask
}

func (o ReconcileOptions) withDefaults() ReconcileOptions {
	o.Interval = or(o.Interval, 24*time.Hour)
	o.Rate = or(o.Rate, 2000)
	o.Patience = o.Patience.WithDefaults()
	return o
}

const (
	reconcilePage  = 200
	reconcileCheck = time.Minute     // how often it is looked whether a run is due
	reconcileStale = 5 * time.Minute // without a sign of life, another process goes on with a run
)

// Reconciler compares what is stored with itself, now and then, and mends what cannot be: the last resort behind
// transactions, messages and the compensator. A run that is broken off is gone on with where it stood.
type Reconciler struct {
	store   ReconcileStore
	relay   *Relay
	owner   string
	walks   []string
	options func() ReconcileOptions
	metrics *Metrics
	log     *zap.Logger
}

// NewReconciler makes a reconciler that takes the walks in turn; options are read at each run.
func NewReconciler(store ReconcileStore, relay *Relay, owner string, walks []string, options func() ReconcileOptions, metrics *Metrics, log *zap.Logger) *Reconciler {
	return &Reconciler{
		store: store, relay: relay, owner: owner, walks: walks, metrics: metrics, log: log,
		options: func() ReconcileOptions { return options().withDefaults() },
	}
}

// Run reconciles every interval until ctx ends. The period lives in the database: neither a restart nor another instance
// changes it.
func (r *Reconciler) Run(ctx context.Context) error {
	for {
		if err := guard(func() error { return r.ifDue(ctx) }); err != nil && ctx.Err() == nil {
			r.log.Error("reconciliation failed, it goes on as usual", zap.Error(err))
		}
		if !sleep(ctx, jitter(reconcileCheck)) {
			return nil
		}
	}
}

// ifDue runs if the last run was begun long enough ago, or goes on with one that was broken off.
func (r *Reconciler) ifDue(ctx context.Context) error {
	every := r.options().Interval
	r.metrics.ReconcileEvery.Set(every.Seconds())
	began, now, err := r.store.LastReconcile(ctx)
	if err != nil {
		return err
	}
	if !began.IsZero() {
		r.metrics.ReconcileBegan.Set(float64(began.Unix()))
	}
	if now.Sub(began) < every {
		return nil
	}
	_, err = r.Now(ctx, false)
	if order.KindOf(err) == order.Conflict {
		return nil // another instance is at it
	}
	return err
}

// Now looks everywhere and mends what it finds, unless it is a dry run. The record of a run that ended early says why.
func (r *Reconciler) Now(ctx context.Context, dryRun bool) (order.ReconcileRun, error) {
	opts := r.options()
	run, err := r.store.BeginReconcile(ctx, r.owner, dryRun, reconcileStale)
	if err != nil {
		return run, err
	}
	err = guard(func() error { return r.walkAll(ctx, &run, opts) })
	switch {
	case errors.Is(err, context.Canceled) || ctx.Err() != nil:
		return run, err // another process goes on with it
	case err != nil:
		run.Error = err.Error()
	}
	end := context.WithoutCancel(ctx)
	err = errors.Join(err, r.store.NoteReconcile(end, &run, nil, true))
	if found, ferr := r.store.Findings(end, run.ID); ferr == nil {
		run.Findings = found
	}
	r.measure(run, err)
	return run, err
}

func (r *Reconciler) measure(run order.ReconcileRun, err error) {
	outcome := "ok"
	if err != nil {
		outcome = "failed"
	}
	r.metrics.ReconcileRuns.WithLabelValues(outcome).Inc()
	r.log.Info("reconciliation", zap.Bool("dry_run", run.DryRun), zap.Int64("looked", run.Looked), zap.Int64("found", run.Found),
		zap.Int64("mended", run.Mended), zap.Error(err))
}

// walkAll takes the walks that are left of a run.
func (r *Reconciler) walkAll(ctx context.Context, run *order.ReconcileRun, opts ReconcileOptions) error {
	m := order.Mending{DryRun: run.DryRun, Patience: opts.Patience, Confirm: opts.Confirm, Actor: "reconciler"}
	first := max(0, slices.Index(r.walks, run.Position.Walk))
	for _, walk := range r.walks[first:] {
		if run.Position.Walk != walk {
			run.Position = order.Place{Walk: walk}
		}
		if err := r.walk(ctx, run, m, opts); err != nil {
			return err
		}
	}
	return nil
}

// walk goes through one walk to its end.
func (r *Reconciler) walk(ctx context.Context, run *order.ReconcileRun, m order.Mending, opts ReconcileOptions) error {
	for {
		page, err := r.store.Walk(ctx, run.Position, reconcilePage, m, r.relay.Schedule)
		if err != nil {
			return err
		}
		r.relay.Offer(page.Messages...)
		r.note(run, page)
		if page.Last != "" {
			run.Position.Key = page.Last
		}
		if err := r.store.NoteReconcile(ctx, run, page.Findings, false); err != nil {
			return err
		}
		if page.Last == "" {
			return nil
		}
		if !sleep(ctx, time.Duration(page.Looked)*time.Second/time.Duration(opts.Rate)) {
			return ctx.Err()
		}
	}
}

// note counts what a page has brought.
func (r *Reconciler) note(run *order.ReconcileRun, page order.Walked) {
	run.Looked += int64(page.Looked)
	for _, f := range page.Findings {
		run.Found++
		if f.Mended {
			run.Mended++
		}
		r.metrics.Findings.WithLabelValues(f.Kind).Inc()
		r.log.Error("damage found", zap.String("kind", f.Kind), zap.String("subject", f.Subject), zap.String("detail", f.Detail),
			zap.String("action", f.Action), zap.Bool("mended", f.Mended), zap.Bool("dry_run", run.DryRun))
	}
}
