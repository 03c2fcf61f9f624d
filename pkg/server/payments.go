package server

import (
	"cmp"
	"context"
	"strconv"
	"strings"

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
	timestamp, given, err := signatureOf(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := s.verifier.verify(timestamp, given, req.GetBody()); err != nil {
		return nil, err
	}
	payment, err := decodePayment(req.GetBody())
	if err != nil {
		return nil, s.orders.KeepUnread(ctx, req.GetBody(), err)
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
	timestamp, signature = req.GetTimestamp(), cmp.Or(req.GetSignature(), incoming(ctx, keySignature))
	if header := incoming(ctx, keyTimestamp); timestamp == 0 && header != "" {
		if timestamp, err = strconv.ParseInt(header, 10, 64); err != nil {
			return 0, "", refused(order.Field{Name: "Lapse-Timestamp", Reason: "whole seconds since 1970"})
		}
	}
	return timestamp, signature, checkSigned(timestamp, signature)
}

// checkSigned says what a notification lacks, rather than that its signature is bad.
func checkSigned(timestamp int64, signature string) error {
	var lacks []string
	if timestamp == 0 {
		lacks = append(lacks, "Lapse-Timestamp")
	}
	if signature == "" {
		lacks = append(lacks, "Lapse-Signature")
	}
	if len(lacks) == 0 {
		return nil
	}
	return order.Errorf(order.Unauthenticated, codeBadSignature, "the notification is not signed: it lacks %s", strings.Join(lacks, " and ")).
		WithHint(signHint)
}

// decodePayment reads the body of a notification.
func decodePayment(raw []byte) (order.Payment, error) {
	var n lapsev1.PaymentNotification
	if err := decode(raw, &n); err != nil {
		return order.Payment{}, err
	}
	p := order.Payment{
		PaymentNo: n.GetPaymentNo(), OrderNo: n.GetOrderNo(), AttemptNo: n.GetAttemptNo(),
		Amount: n.GetAmount(), Currency: n.GetCurrency(), PaidAt: moment(n.GetPaidAt()),
	}
	return p, p.Validate()
}

func paymentOf(p order.KeptPayment) *lapsev1.Payment {
	return &lapsev1.Payment{
		PaymentNo: p.PaymentNo, AttemptNo: p.AttemptNo, Amount: p.Amount, Currency: p.Currency, PaidAt: instant(p.PaidAt),
		Outcome: string(p.Outcome), RefundNo: p.RefundNo, CreatedAt: instant(p.CreatedAt),
	}
}
