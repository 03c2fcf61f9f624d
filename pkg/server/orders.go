package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/oklog/ulid/v2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

const (
	maxKey      = 255 // bytes of an idempotency key
	defaultPage = 20  // orders
	maxPage     = 100 // orders
)

type orderService struct {
	lapsev1.UnimplementedOrderServiceServer
	orders Orders
}

func (s *orderService) CreateOrder(ctx context.Context, req *lapsev1.CreateOrderRequest) (*lapsev1.Order, error) {
	key, err := idempotencyKey(ctx, req)
	if err != nil {
		return nil, err
	}
	draft := draftOf(req)
	c := callOf(ctx)
	draft.Caller, draft.TraceParent = c.caller, c.trace.parent
	byKey := draft.OrderNo == "" && key != ""
	draft.OrderNo = identify(draft.OrderNo, c.caller, key)
	created, err := s.orders.Create(ctx, draft)
	if err == nil {
		err = created.Err
	}
	if err != nil {
		return nil, createError(err, byKey)
	}
	return s.createdOrder(ctx, created)
}

// identify gives an order its one identity: the caller's number, else that of the idempotency key, else a
// new one.
func identify(orderNo, caller, key string) string {
	switch {
	case orderNo != "":
		return orderNo
	case key != "":
		return order.DeriveNumber(caller, key)
	}
	return ulid.Make().String()
}

// createError says which identity was used twice: a number that came from a key is the key's affair.
func createError(err error, byKey bool) error {
	var e *order.Error
	if byKey && errors.As(err, &e) && e.Code == "order_no_taken" {
		return order.Errorf(order.KeyReused, "idempotency_key_reused", "the idempotency key was used with other content").
			WithHint("Use a new key for a new order; repeat an order with exactly the same content.")
	}
	return err
}

// createdOrder answers a create. A repeated one shows the order as it stands by the database's clock now.
func (s *orderService) createdOrder(ctx context.Context, created order.Created) (*lapsev1.Order, error) {
	if !created.Repeated {
		return orderOf(*created.Order, created.Order.CreatedAt), nil
	}
	o, now, err := s.orders.Get(ctx, created.Order.OrderNo)
	if err != nil {
		return nil, err
	}
	return orderOf(o, now), replayed(ctx)
}

// replayed tells the caller that an earlier call has done it.
func replayed(ctx context.Context) error {
	return grpc.SetHeader(ctx, metadata.Pairs(keyReplayed, "true"))
}

// idempotencyKey is the key of a create call, from its header or its request_id.
func idempotencyKey(ctx context.Context, req *lapsev1.CreateOrderRequest) (string, error) {
	header, field := incoming(ctx, keyIdempotency), req.GetRequestId()
	if header != "" && field != "" && header != field {
		return "", refused(order.Field{Name: "request_id", Reason: "the same as the Idempotency-Key header, or one of the two"})
	}
	if header != "" {
		field = header
	}
	if len(field) > maxKey {
		return "", refused(order.Field{Name: "request_id", Reason: fmt.Sprintf("at most %d bytes", maxKey)})
	}
	return field, nil
}

// refusedDuration stands for a duration that no limits allow.
const refusedDuration = -time.Millisecond

// asked reads an optional duration: 0 if it was not given, refusedDuration if it could not be meant.
func asked(d *durationpb.Duration) time.Duration {
	switch {
	case d == nil:
		return 0
	case !d.IsValid() || d.AsDuration() <= 0:
		return refusedDuration
	}
	return d.AsDuration()
}

// draftOf reads a draft. What a draft cannot tell any more (an amount that was not given, a time-out of 0 that
// was) becomes a value that the limits refuse, so that they name all refused fields at once.
func draftOf(req *lapsev1.CreateOrderRequest) order.Draft {
	d := order.Draft{
		OrderNo: req.GetOrderNo(), UserID: req.GetUserId(), BizType: req.GetBizType(),
		Amount: req.GetAmount(), Currency: req.GetCurrency(), Timeout: asked(req.GetTimeout()),
	}
	if req.Amount == nil {
		d.Amount = -1
	}
	for _, it := range req.GetItems() {
		d.Items = append(d.Items, order.Item{Kind: it.GetKind(), Ref: it.GetRef(), Quantity: it.GetQuantity()})
	}
	return d
}

func (s *orderService) GetOrder(ctx context.Context, req *lapsev1.GetOrderRequest) (*lapsev1.Order, error) {
	if err := checkNumber(req.GetOrderNo()); err != nil {
		return nil, err
	}
	o, now, err := s.orders.Get(ctx, req.GetOrderNo())
	if err != nil {
		return nil, hideOwner(err)
	}
	if req.GetUserId() != "" && req.GetUserId() != o.UserID {
		return nil, errUnknownOrder
	}
	return orderOf(o, now), nil
}

func (s *orderService) ListOrders(ctx context.Context, req *lapsev1.ListOrdersRequest) (*lapsev1.ListOrdersResponse, error) {
	size, bad := pageSize(req.GetPageSize())
	if req.GetUserId() == "" {
		bad = append(bad, order.Field{Name: "user_id", Reason: "required"})
	}
	if err := refused(bad...); err != nil {
		return nil, err
	}
	orders, next, now, err := s.orders.List(ctx, req.GetUserId(), size, req.GetPageToken())
	if err != nil {
		return nil, err
	}
	out := &lapsev1.ListOrdersResponse{NextPageToken: next}
	for _, o := range orders {
		out.Orders = append(out.Orders, orderOf(o, now))
	}
	return out, nil
}

func pageSize(asked int32) (size int, bad []order.Field) {
	if asked < 0 {
		return 0, []order.Field{{Name: "page_size", Reason: "0 or more"}}
	}
	if asked == 0 {
		return defaultPage, nil
	}
	return min(int(asked), maxPage), nil
}

func (s *orderService) GetTimeline(ctx context.Context, req *lapsev1.GetTimelineRequest) (*lapsev1.Timeline, error) {
	if err := checkNumber(req.GetOrderNo()); err != nil {
		return nil, err
	}
	entries, scheduled, err := s.orders.Timeline(ctx, req.GetOrderNo())
	if err != nil {
		return nil, hideOwner(err)
	}
	attempts, err := s.orders.Attempts(ctx, req.GetOrderNo())
	if err != nil {
		return nil, err
	}
	payments, cases, err := s.orders.Payments(ctx, req.GetOrderNo())
	if err != nil {
		return nil, err
	}
	out := &lapsev1.Timeline{OrderNo: req.GetOrderNo()}
	for _, e := range entries {
		out.Transitions = append(out.Transitions, transitionOf(e))
	}
	for _, m := range scheduled {
		out.Scheduled = append(out.Scheduled, scheduledOf(m))
	}
	for _, a := range attempts {
		out.Attempts = append(out.Attempts, attemptOf(a))
	}
	for _, p := range payments {
		out.Payments = append(out.Payments, paymentOf(p))
	}
	for _, l := range cases {
		out.LatePayments = append(out.LatePayments, latePaymentOf(l))
	}
	return out, nil
}

// errUnknownOrder is the one answer for an order that is not there and for one of somebody else: a caller
// must not learn which.
var errUnknownOrder = order.Errorf(order.NotFound, "order_not_found", "there is no such order")

func hideOwner(err error) error {
	if order.KindOf(err) == order.NotFound {
		return errUnknownOrder
	}
	return err
}

func checkNumber(orderNo string) error { return refused(wrongNumber("order_no", orderNo)...) }

// wrongNumber is the field that holds a number which could not be one of an order; none if it could.
func wrongNumber(field, number string) []order.Field {
	if err := order.CheckNumber(number); err != nil {
		return []order.Field{{Name: field, Reason: err.Error()}}
	}
	return nil
}

// changed answers an order that a call has just changed. Only of a pending one the answer depends on what time it is.
func changed(ctx context.Context, orders Orders, o order.Order) (*lapsev1.Order, error) {
	var now time.Time
	if o.Status == order.Pending {
		var err error
		if o, now, err = orders.Get(ctx, o.OrderNo); err != nil {
			return nil, err
		}
	}
	return orderOf(o, now), nil
}

// maxRemaining is shown as the time left of an order that stays payable for ever: whoever counts it down asks again.
const maxRemaining = 90 * 24 * time.Hour

// remaining is the time left to pay at now; more than 0 exactly when the order is payable.
func remaining(o order.Order, now time.Time) time.Duration {
	if o.ExpireAt.Equal(order.Never) {
		return min(o.Remaining(now), maxRemaining)
	}
	return o.Remaining(now)
}

// secondChance is an order's second chance on the wire; nothing if it has none, the longest duration for ever.
func secondChance(o order.Order) *durationpb.Duration {
	switch o.SecondChance {
	case 0:
		return nil
	case order.Forever:
		return &durationpb.Duration{Seconds: 315_576_000_000}
	}
	return durationpb.New(o.SecondChance)
}

// orderOf shows o as it stands at now.
func orderOf(o order.Order, now time.Time) *lapsev1.Order {
	out := &lapsev1.Order{
		OrderNo: o.OrderNo, UserId: o.UserID, BizType: o.BizType, Status: o.Status.String(),
		Amount: o.Amount, Currency: o.Currency,
		CreatedAt: instant(o.CreatedAt), ExpireAt: instant(o.ExpireAt), PaidAt: instant(o.PaidAt), CancelledAt: instant(o.CancelledAt),
		CancelReason: string(o.CancelReason), Round: int32(o.Round), Version: int32(o.Version),
		Payable: o.Payable(now), RemainingMs: remaining(o, now).Milliseconds(),
		ConfirmUntil: instant(o.ConfirmUntil), ClosedAt: instant(o.ClosedAt), SecondChance: secondChance(o),
	}
	for _, it := range o.Items {
		out.Items = append(out.Items, &lapsev1.Item{Kind: it.Kind, Ref: it.Ref, Quantity: it.Quantity, Remote: it.Remote, AtPayment: it.AtPayment})
	}
	return out
}

func transitionOf(e order.LogEntry) *lapsev1.Transition {
	out := &lapsev1.Transition{
		Version: int32(e.Version), Round: int32(e.Round), From: e.From.String(), To: e.To.String(), Event: string(e.Event),
		Reason: e.Reason, Actor: e.Actor, At: instant(e.At), EventSentAt: instant(e.EventSentAt), Note: e.Note, ExpireAt: instant(e.ExpireAt),
	}
	if e.Event == order.EventCreated || e.Event == order.EventNothingDue {
		out.From = "" // the stored zero means nothing before the order was there
	}
	return out
}

func scheduledOf(m order.Scheduled) *lapsev1.ScheduledMessage {
	return &lapsev1.ScheduledMessage{
		MessageId: m.Key, Kind: string(m.Kind), Type: m.Type, State: m.State.String(), Round: int32(m.Round), Hop: int32(m.Hop),
		DueAt: instant(m.DueAt), NextAt: instant(m.NextAt), Attempts: int32(m.Attempts),
		BrokerMessageId: m.Receipt.MessageID, BrokerOffsetMessageId: m.Receipt.OffsetMessageID, LastError: m.LastError,
	}
}
