package server

import (
	"cmp"
	"context"

	"github.com/oklog/ulid/v2"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

func (s *orderService) StartPayment(ctx context.Context, req *lapsev1.StartPaymentRequest) (*lapsev1.StartPaymentResponse, error) {
	attempt, o, err := s.orders.StartPayment(ctx, order.Attempting{
		AttemptNo: cmp.Or(req.GetAttemptNo(), ulid.Make().String()), OrderNo: req.GetOrderNo(), UserID: req.GetUserId(),
		Channel: req.GetChannel(), Lifetime: asked(req.GetLifetime()), Actor: callOf(ctx).caller,
	})
	if err != nil {
		return nil, hideOwner(err)
	}
	shown, err := changed(ctx, s.orders, o)
	if err == nil && attempt.Repeated {
		err = replayed(ctx)
	}
	if err != nil {
		return nil, err
	}
	return &lapsev1.StartPaymentResponse{Attempt: attemptOf(attempt), Order: shown}, nil
}

func (s *orderService) FailPayment(ctx context.Context, req *lapsev1.FailPaymentRequest) (*lapsev1.PaymentAttempt, error) {
	bad := append(wrongNumber("order_no", req.GetOrderNo()), wrongNumber("attempt_no", req.GetAttemptNo())...)
	if err := refused(bad...); err != nil {
		return nil, err
	}
	attempt, err := s.orders.FailPayment(ctx, req.GetOrderNo(), req.GetAttemptNo())
	if err != nil {
		return nil, err
	}
	return attemptOf(attempt), nil
}

func attemptOf(a order.Attempt) *lapsev1.PaymentAttempt {
	return &lapsev1.PaymentAttempt{
		AttemptNo: a.AttemptNo, OrderNo: a.OrderNo, Round: int32(a.Round), Channel: a.Channel, State: string(a.State),
		StartedAt: instant(a.StartedAt), Deadline: instant(a.Deadline), EndedAt: instant(a.EndedAt),
	}
}

// AcknowledgeRelease is a remote service's word that it has given back what it held.
func (s *orderService) AcknowledgeRelease(ctx context.Context, req *lapsev1.AcknowledgeReleaseRequest) (*lapsev1.AcknowledgeReleaseResponse, error) {
	bad := wrongNumber("order_no", req.GetOrderNo())
	if req.GetRound() < 1 {
		bad = append(bad, order.Field{Name: "round", Reason: "the round of the cancelled event"})
	}
	if req.GetKind() == "" {
		bad = append(bad, order.Field{Name: "kind", Reason: "required: what was given back"})
	}
	if err := refused(bad...); err != nil {
		return nil, err
	}
	return &lapsev1.AcknowledgeReleaseResponse{}, s.orders.Acknowledge(ctx, req.GetOrderNo(), int(req.GetRound()), req.GetKind())
}
