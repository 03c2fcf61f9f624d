package server

import (
	"context"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

// act is who makes a call by hand, and why.
func act(ctx context.Context, reason string) order.Act {
	return order.Act{Actor: callOf(ctx).caller, Note: reason}
}

// CancelOrder is a user's wish, or staff's, who need not be the user but say why.
func (s *orderService) CancelOrder(ctx context.Context, req *lapsev1.CancelOrderRequest) (*lapsev1.Order, error) {
	c := order.Cancelling{
		OrderNo: req.GetOrderNo(), UserID: req.GetUserId(), Reason: order.ReasonUserCancel, Force: req.GetForce(), Act: act(ctx, req.GetReason()),
	}
	if c.UserID == "" {
		c.Reason = order.ReasonManual
	}
	if err := mayCancel(callOf(ctx), c); err != nil {
		return nil, err
	}
	o, err := s.orders.Cancel(ctx, c)
	if err != nil {
		return nil, hideOwner(err)
	}
	return changed(ctx, s.orders, o)
}

// mayCancel keeps a user's wish and staff's apart.
func mayCancel(by *call, c order.Cancelling) error {
	bad := wrongNumber("order_no", c.OrderNo)
	asStaff := c.Note != "" || c.Force
	switch {
	case c.UserID != "" && asStaff:
		return refused(append(bad, order.Field{Name: "user_id", Reason: "not with reason or force, which are staff's"})...)
	case c.UserID != "" || by.may(ScopeOperator):
		return nil // the rest is the lifecycle's to refuse
	case asStaff:
		return by.denied(ScopeOperator)
	}
	return refused(append(bad, order.Field{Name: "user_id", Reason: "required: the user whose order it is"})...)
}

func (s *orderService) RestoreOrder(ctx context.Context, req *lapsev1.RestoreOrderRequest) (*lapsev1.Order, error) {
	o, err := s.orders.Restore(ctx, order.Restoring{
		OrderNo: req.GetOrderNo(), Round: int(req.GetRound()), Timeout: asked(req.GetTimeout()), Act: act(ctx, req.GetReason()),
	})
	if err != nil {
		return nil, err
	}
	return changed(ctx, s.orders, o)
}

func (s *orderService) ExtendOrder(ctx context.Context, req *lapsev1.ExtendOrderRequest) (*lapsev1.Order, error) {
	if err := checkNumber(req.GetOrderNo()); err != nil {
		return nil, err
	}
	done, err := s.orders.Extend(ctx, order.Extending{
		OrderNo: req.GetOrderNo(), By: asked(req.GetBy()), Until: moment(req.GetUntil()), Act: act(ctx, req.GetReason()),
	})
	if err != nil {
		return nil, err
	}
	return changed(ctx, s.orders, *done.Order)
}

// ExtendOrders moves the deadlines of many orders, a page a transaction.
func (s *operatorService) ExtendOrders(ctx context.Context, req *lapsev1.ExtendOrdersRequest) (*lapsev1.ExtendOrdersResponse, error) {
	done, err := s.orders.Extend(ctx, order.Extending{
		UserID: req.GetUserId(), BizType: req.GetBizType(), By: asked(req.GetBy()), Until: moment(req.GetUntil()), Act: act(ctx, req.GetReason()),
	})
	if err != nil {
		return nil, err
	}
	return &lapsev1.ExtendOrdersResponse{Extended: int64(done.Extended)}, nil
}

func (s *orderService) ArchiveOrder(ctx context.Context, req *lapsev1.ArchiveOrderRequest) (*lapsev1.Order, error) {
	if err := checkNumber(req.GetOrderNo()); err != nil {
		return nil, err
	}
	o, err := s.orders.Archive(ctx, req.GetOrderNo(), act(ctx, req.GetReason()))
	if err != nil {
		return nil, err
	}
	return changed(ctx, s.orders, o)
}
