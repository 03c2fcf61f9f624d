package server

import (
	"context"

	lapsev1 "lapse/api/lapse/v1"
)

type operatorService struct {
	lapsev1.UnimplementedOperatorServiceServer
	orders     Orders
	sweeper    Sweeper
	reconciler Reconciler
	brakes     Brakes
}

// Sweep answers the record of its run, also of one that ended early: what it closed is closed.
func (s *operatorService) Sweep(ctx context.Context, _ *lapsev1.SweepRequest) (*lapsev1.SweepRun, error) {
	run, err := s.sweeper.Now(ctx)
	if err != nil && (run.Error == "" || run.Finished.IsZero()) { // the record does not say why
		return nil, err
	}
	return &lapsev1.SweepRun{
		Id: run.ID, Owner: run.Owner, StartedAt: instant(run.Started), FinishedAt: instant(run.Finished),
		DurationMs: run.Finished.Sub(run.Started).Milliseconds(), Shards: int32(run.Shards),
		Looked: int64(run.Looked), Closed: int64(run.Closed), Failed: int64(run.Failed), Braked: int64(run.Braked), Error: run.Error,
	}, nil
}

// Reconcile answers the record of its run, as Sweep does. It mends only when it is told to.
func (s *operatorService) Reconcile(ctx context.Context, req *lapsev1.ReconcileRequest) (*lapsev1.ReconcileRun, error) {
	run, err := s.reconciler.Now(ctx, req.DryRun == nil || req.GetDryRun())
	if err != nil && (run.Error == "" || run.Finished.IsZero()) { // as above
		return nil, err
	}
	out := &lapsev1.ReconcileRun{
		Id: run.ID, Owner: run.Owner, DryRun: run.DryRun, StartedAt: instant(run.Started), FinishedAt: instant(run.Finished),
		Looked: run.Looked, Found: run.Found, Mended: run.Mended, Error: run.Error,
	}
	for _, f := range run.Findings {
		out.Findings = append(out.Findings, &lapsev1.Finding{Kind: f.Kind, Subject: f.Subject, Detail: f.Detail, Action: f.Action, Mended: f.Mended})
	}
	return out, nil
}
