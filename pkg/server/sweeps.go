package server

import (
	"context"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

type operatorService struct {
	lapsev1.UnimplementedOperatorServiceServer
	sweeper Sweeper
}

func (s *operatorService) Sweep(ctx context.Context, _ *lapsev1.SweepRequest) (*lapsev1.SweepRun, error) {
	if s.sweeper == nil {
		return nil, order.Errorf(order.Unavailable, "no_sweeper", "this process does not sweep").
			WithHint("Call the compensator, or run lapse sweep --now.")
	}
	run, err := s.sweeper.Now(ctx)
	if err != nil {
		return nil, err
	}
	return &lapsev1.SweepRun{
		Id: run.ID, Owner: run.Owner, StartedAt: instant(run.Started), FinishedAt: instant(run.Finished),
		DurationMs: run.Finished.Sub(run.Started).Milliseconds(), Shards: int32(run.Shards),
		Looked: int64(run.Looked), Closed: int64(run.Closed), Failed: int64(run.Failed), Error: run.Error,
	}, nil
}
