package server

import (
	"context"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

func (s *operatorService) GetBrakes(ctx context.Context, _ *lapsev1.GetBrakesRequest) (*lapsev1.Brakes, error) {
	b, err := s.brakes.Get(ctx)
	if err != nil {
		return nil, err
	}
	return brakesOf(b), nil
}

func (s *operatorService) SetBrakes(ctx context.Context, req *lapsev1.SetBrakesRequest) (*lapsev1.Brakes, error) {
	c := order.BrakeChange{
		Mode: order.Mode(req.GetMode()), ByType: map[string]int{}, ByDefault: req.GetByDefault(), Version: int(req.GetVersion()), Resume: req.GetResume(),
		Act: act(ctx, req.GetReason()),
	}
	if req.Percent != nil {
		c.Percent = new(int(req.GetPercent()))
	}
	for bizType, percent := range req.GetByType() {
		c.ByType[bizType] = int(percent)
	}
	b, err := s.brakes.Set(ctx, c)
	if err != nil {
		return nil, err
	}
	return brakesOf(b), nil
}

func brakesOf(b order.Brakes) *lapsev1.Brakes {
	out := &lapsev1.Brakes{
		Mode: string(b.Mode), Percent: int32(b.Percent), ByType: map[string]int32{}, Tripped: b.Tripped, TrippedAt: instant(b.TrippedAt), Version: int32(b.Version),
	}
	for bizType, percent := range b.ByType {
		out.ByType[bizType] = int32(percent)
	}
	return out
}

func (s *operatorService) GetShadowReport(ctx context.Context, req *lapsev1.GetShadowReportRequest) (*lapsev1.ShadowReport, error) {
	c := order.Comparing{From: moment(req.GetFrom()), To: moment(req.GetTo()), Tolerance: asked(req.GetTolerance()), Job: req.GetJob()}
	var bad []order.Field
	if c.Tolerance < 0 {
		bad = append(bad, order.Field{Name: "tolerance", Reason: "more than 0s"})
	}
	if !c.To.IsZero() && !c.To.After(c.From) {
		bad = append(bad, order.Field{Name: "to", Reason: "later than from"})
	}
	if err := refused(bad...); err != nil {
		return nil, err
	}
	r, err := s.brakes.ShadowReport(ctx, c)
	if err != nil {
		return nil, err
	}
	out := &lapsev1.ShadowReport{
		Decided: r.Decided, Closed: r.Closed, Agreed: r.Agreed, Early: r.Early, Late: r.Late, Missed: r.Missed, Wrong: r.Wrong, Coverage: r.Coverage,
	}
	for _, e := range r.Examples {
		out.Examples = append(out.Examples, &lapsev1.ShadowCase{
			OrderNo: e.OrderNo, Kind: e.Kind, ExpireAt: instant(e.ExpireAt), DecidedAt: instant(e.DecidedAt), EndedAt: instant(e.EndedAt),
		})
	}
	return out, nil
}
