package server

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

type resourceService struct {
	lapsev1.UnimplementedResourceServiceServer
	orders Orders
}

func (s *resourceService) GetResource(ctx context.Context, req *lapsev1.GetResourceRequest) (*lapsev1.Resource, error) {
	r, err := s.orders.Resource(ctx, req.GetKind(), req.GetRef())
	if err != nil {
		return nil, err
	}
	return resourceOf(r), nil
}

func (s *resourceService) AdjustResource(ctx context.Context, req *lapsev1.AdjustResourceRequest) (*lapsev1.Resource, error) {
	a := order.Adjustment{ID: req.GetAdjustmentId(), Kind: req.GetKind(), Ref: req.GetRef(), Delta: req.GetDelta(), Owner: req.GetOwner(), ValidUntil: moment(req.GetValidUntil())}
	r, err := s.orders.Adjust(ctx, a)
	if err != nil {
		return nil, err
	}
	return resourceOf(r), nil
}

func resourceOf(r order.Resource) *lapsev1.Resource {
	return &lapsev1.Resource{
		Kind: r.Kind, Ref: r.Ref, Available: r.Available, Held: r.Held, Sold: r.Sold,
		Owner: r.Owner, ValidUntil: instant(r.ValidUntil),
	}
}

// instant is t on the wire; nothing for the zero time and for a deadline that never comes.
func instant(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() || t.Equal(order.Never) {
		return nil
	}
	return timestamppb.New(t)
}

// moment reads an optional instant; the zero time if it was not given.
func moment(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
