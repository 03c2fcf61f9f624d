package server

import (
	"context"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

func (s *operatorService) ListLatePayments(ctx context.Context, req *lapsev1.ListLatePaymentsRequest) (*lapsev1.ListLatePaymentsResponse, error) {
	size, bad := pageSize(req.GetPageSize())
	status := order.LateStatus(req.GetStatus())
	switch status {
	case "", order.LateOpen, order.LateAsked, order.LateRefunded, order.LateConsumed:
	default:
		bad = append(bad, order.Field{Name: "status", Reason: "open, requested, refunded or consumed; empty for all"})
	}
	if err := refused(bad...); err != nil {
		return nil, err
	}
	cases, next, err := s.orders.LatePayments(ctx, status, size, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	out := &lapsev1.ListLatePaymentsResponse{NextPageToken: next}
	for _, l := range cases {
		out.LatePayments = append(out.LatePayments, latePaymentOf(l))
	}
	return out, nil
}

func (s *operatorService) DecideLatePayment(ctx context.Context, req *lapsev1.DecideLatePaymentRequest) (*lapsev1.LatePayment, error) {
	l, err := s.orders.Decide(ctx, order.Deciding{
		PaymentNo: req.GetPaymentNo(), Policy: order.LatePolicy(req.GetDecision()), Act: act(ctx, req.GetReason()),
	})
	if err != nil {
		return nil, err
	}
	return latePaymentOf(l), nil
}

func (s *operatorService) CompleteRefund(ctx context.Context, req *lapsev1.CompleteRefundRequest) (*lapsev1.Order, error) {
	o, err := s.orders.Refund(ctx, order.Refunding{
		PaymentNo: req.GetPaymentNo(), RefundNo: req.GetRefundNo(), Act: act(ctx, req.GetReason()),
	})
	if err != nil {
		return nil, err
	}
	return changed(ctx, s.orders, o)
}

func latePaymentOf(l order.LatePayment) *lapsev1.LatePayment {
	return &lapsev1.LatePayment{
		PaymentNo: l.PaymentNo, OrderNo: l.OrderNo, Amount: l.Amount, Currency: l.Currency, PaidAt: instant(l.PaidAt),
		OrderStatus: l.StateThen.String(), Round: int32(l.RoundThen), Why: l.Why, Policy: string(l.Policy), Status: string(l.Status),
		CreatedAt: instant(l.CreatedAt), ChangedAt: instant(l.ChangedAt), Actor: l.Actor, Note: l.Note,
	}
}
