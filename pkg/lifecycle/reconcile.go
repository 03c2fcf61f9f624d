package lifecycle

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"lapse/pkg/order"
)

// ReconcileStore looks for damage, page by page, and keeps the record of it.
type ReconcileStore interface {
	// BeginReconcile begins a run if the last one that mends was begun at least every ago, or goes on with one that mends
	// and whose owner has given no sign of life for stale. Conflict if none is due, or one is under way.
	BeginReconcile(ctx context.Context, owner string, dryRun bool, every, stale time.Duration) (order.ReconcileRun, error)
	// Walk looks at a page of at most limit rows after a key, mends what it finds, and records it. Conflict if another
	// process has taken the run over.
	Walk(ctx context.Context, place order.Place, limit int, m order.Mending, first order.Schedule) (order.Walked, error)
	// NoteReconcile keeps where a run stands. Conflict as above.
	NoteReconcile(ctx context.Context, run order.ReconcileRun) error
	// KeepReconcile gives a sign of life of a run. Conflict as above.
	KeepReconcile(ctx context.Context, run order.ReconcileRun) error
	// EndReconcile ends a run, for run.Error if it ended early, and fills in what it has found. Conflict as above.
	EndReconcile(ctx context.Context, run *order.ReconcileRun) error
	// LastReconcile is when the last run that mends was begun; zero if there was none.
	LastReconcile(ctx context.Context) (time.Time, error)
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
	reconcileAlive = reconcileStale / 5
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

// Run reconciles every interval until ctx ends, and goes on with what others have broken off. The period lives in the
// database: neither a restart nor another instance changes it.
func (r *Reconciler) Run(ctx context.Context) error {
	for {
		every := r.options().Interval
		r.metrics.ReconcileEvery.Set(every.Seconds())
		_, err := r.run(ctx, false, every)
		if err != nil && order.KindOf(err) != order.Conflict && ctx.Err() == nil { // a Conflict: none is due, or another instance is at it
			r.log.Error("reconciliation failed, it goes on as usual", zap.Error(err))
		}
		if began, err := r.store.LastReconcile(ctx); err == nil && !began.IsZero() {
			r.metrics.ReconcileBegan.Set(float64(began.Unix()))
		}
		if !sleep(ctx, jitter(reconcileCheck)) {
			return nil
		}
	}
}

// Now looks everywhere and mends what it finds, unless it is a dry run. The record of a run that ended early says why.
func (r *Reconciler) Now(ctx context.Context, dryRun bool) (order.ReconcileRun, error) {
	return r.run(ctx, dryRun, 0)
}

func (r *Reconciler) run(ctx context.Context, dryRun bool, every time.Duration) (order.ReconcileRun, error) {
	run, err := r.store.BeginReconcile(ctx, r.owner, dryRun, every, reconcileStale)
	if err != nil {
		return run, err
	}
	err = r.walkAlive(ctx, &run)
	if err != nil && (order.KindOf(err) == order.Conflict || !dryRun && (ctx.Err() != nil || order.KindOf(err) == order.Unavailable)) {
		r.measure(run, "unfinished", err)
		return run, err // whoever has it by now, or comes next, goes on with it
	}
	outcome := "ok"
	if err != nil {
		outcome, run.Error = "failed", err.Error()
	}
	err = errors.Join(err, r.store.EndReconcile(context.WithoutCancel(ctx), &run))
	r.measure(run, outcome, err)
	return run, err
}

func (r *Reconciler) measure(run order.ReconcileRun, outcome string, err error) {
	r.metrics.ReconcileRuns.WithLabelValues(outcome).Inc()
	r.log.Info("reconciliation", zap.String("outcome", outcome), zap.Bool("dry_run", run.DryRun), zap.Int64("looked", run.Looked),
		zap.Int64("found", run.Found), zap.Int64("mended", run.Mended), zap.Error(err))
}

// walkAlive walks, and gives signs of life meanwhile: one look at a large ledger takes long. The walk ends when the run is
// lost.
func (r *Reconciler) walkAlive(ctx context.Context, run *order.ReconcileRun) error {
	group, walking := errgroup.WithContext(ctx)
	beating, stop := context.WithCancel(walking)
	id := *run
	group.Go(func() error {
		for sleep(beating, reconcileAlive) {
			if err := r.store.KeepReconcile(beating, id); order.KindOf(err) == order.Conflict {
				return err
			}
		}
		return nil
	})
	group.Go(func() error {
		defer stop()
		return guard(func() error { return r.walkAll(walking, run, r.options()) })
	})
	return group.Wait()
}

// walkAll takes the walks that are left of a run.
func (r *Reconciler) walkAll(ctx context.Context, run *order.ReconcileRun, opts ReconcileOptions) error {
	m := order.Mending{Run: run.ID, Owner: run.Owner, DryRun: run.DryRun, Patience: opts.Patience, Confirm: opts.Confirm, Actor: "reconciler"}
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
		r.relay.Offer(page.Messages...) // also of a page that was broken off: they are committed
		r.note(run, page)
		if err != nil {
			return err
		}
		if page.Last != "" {
			run.Position.Key = page.Last
		}
		if err := r.store.NoteReconcile(ctx, *run); err != nil {
			return err
		}
		if page.Last == "" {
			return nil
		}
		if !sleep(ctx, time.Duration(page.Looked+len(page.Findings))*time.Second/time.Duration(opts.Rate)) {
			return ctx.Err()
		}
	}
}

// note tells of what a page has brought.
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
