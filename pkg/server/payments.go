package server

import (
	"context"
	"strconv"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

type paymentService struct {
	lapsev1.UnimplementedPaymentServiceServer
	orders   Orders
	verifier verifier
}

// NotifyPayment believes nothing of a notification before its signature was verified over its raw bytes.
func (s *paymentService) NotifyPayment(ctx context.Context, req *lapsev1.NotifyPaymentRequest) (*lapsev1.NotifyPaymentResponse, error) {
	timestamp, signature, err := signatureOf(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := s.verifier.verify(timestamp, signature, req.GetBody()); err != nil {
		return nil, err
	}
	payment, err := decodePayment(req.GetBody())
	if err != nil {
		return nil, err
	}
	result, err := s.orders.Pay(ctx, payment)
	if err != nil {
		return nil, err
	}
	return &lapsev1.NotifyPaymentResponse{
		Outcome: string(result.Outcome), Repeated: result.Repeated,
		OrderNo: payment.OrderNo, OrderStatus: result.Order.Status.String(),
	}, nil
}

// signatureOf returns the time stamp and signature of a notification: fields over gRPC, headers over HTTP,
// where the body is taken by the notification itself.
func signatureOf(ctx context.Context, req *lapsev1.NotifyPaymentRequest) (timestamp int64, signature string, err error) {
	header := incoming(ctx, keyTimestamp)
	if header == "" {
		return req.GetTimestamp(), req.GetSignature(), nil
	}
	timestamp, err = strconv.ParseInt(header, 10, 64)
	if err != nil {
		return 0, "", refused(order.Field{Name: "Lapse-Timestamp", Reason: "whole seconds since 1970"})
	}
	return timestamp, incoming(ctx, keySignature), nil
}

// decodePayment reads the body of a notification.
func decodePayment(raw []byte) (order.Payment, error) {
	var n lapsev1.PaymentNotification
	if err := decode(raw, &n); err != nil {
		return order.Payment{}, err
	}
	p := order.Payment{PaymentNo: n.GetPaymentNo(), OrderNo: n.GetOrderNo(), Amount: n.GetAmount(), Currency: n.GetCurrency()}
	if n.GetPaidAt() != nil {
		p.PaidAt = n.GetPaidAt().AsTime()
	}
	return p, p.Validate()
}
