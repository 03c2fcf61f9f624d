package e2e

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	lapsev1 "lapse/api/lapse/v1"
)

// face is one producer as a client sees it by one protocol.
type face interface {
	create(ctx context.Context, key string, r *lapsev1.CreateOrderRequest) (*lapsev1.Order, error)
	cancel(ctx context.Context, r *lapsev1.CancelOrderRequest) (*lapsev1.Order, error)
	notify(ctx context.Context, r *lapsev1.NotifyPaymentRequest) (*lapsev1.NotifyPaymentResponse, error)
	adjust(ctx context.Context, r *lapsev1.AdjustResourceRequest) (*lapsev1.Resource, error)
}

// secrets are what the processes are configured with.
type secrets struct{ shop, gateway, staff, payment string }

// refusal is an answer that the same call would get again.
type refusal struct{ code string }

func (r refusal) Error() string { return "refused: " + r.code }

// defect is an answer that must never be given: something went wrong inside.
type defect struct{ said string }

func (d defect) Error() string { return "the producer has a defect: " + d.said }

// callBound is how long a client waits for one answer.
const callBound = 15 * time.Second

// sign is the signature of a payment notification, written after the contract and not after the server.
func sign(secret string, timestamp int64, body []byte) string {
	h := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(h, "%d.%s", timestamp, body)
	return hex.EncodeToString(h.Sum(nil))
}

// overHTTP is a producer's HTTP face.
type overHTTP struct {
	base    string
	client  *http.Client
	secrets secrets
}

// jsonForm writes names as in the contract and 64-bit numbers as strings.
var jsonForm = protojson.MarshalOptions{UseProtoNames: true}

func (f overHTTP) create(ctx context.Context, key string, r *lapsev1.CreateOrderRequest) (*lapsev1.Order, error) {
	answer := &lapsev1.Order{}
	return answer, f.post(ctx, "/v1/orders", r, answer, map[string]string{"Authorization": "Bearer " + f.secrets.shop, "Idempotency-Key": key})
}

func (f overHTTP) cancel(ctx context.Context, r *lapsev1.CancelOrderRequest) (*lapsev1.Order, error) {
	answer := &lapsev1.Order{}
	body := &lapsev1.CancelOrderRequest{UserId: r.UserId}
	return answer, f.post(ctx, "/v1/orders/"+r.OrderNo+":cancel", body, answer, map[string]string{"Authorization": "Bearer " + f.secrets.shop})
}

func (f overHTTP) notify(ctx context.Context, r *lapsev1.NotifyPaymentRequest) (*lapsev1.NotifyPaymentResponse, error) {
	answer := &lapsev1.NotifyPaymentResponse{}
	return answer, f.send(ctx, "/v1/payments:notify", r.Body, answer, map[string]string{
		"Lapse-Timestamp": strconv.FormatInt(r.Timestamp, 10), "Lapse-Signature": r.Signature,
	})
}

func (f overHTTP) adjust(ctx context.Context, r *lapsev1.AdjustResourceRequest) (*lapsev1.Resource, error) {
	answer := &lapsev1.Resource{}
	body := &lapsev1.AdjustResourceRequest{AdjustmentId: r.AdjustmentId, Delta: r.Delta, Owner: r.Owner}
	path := fmt.Sprintf("/v1/resources/%s/%s:adjust", r.Kind, r.Ref)
	return answer, f.post(ctx, path, body, answer, map[string]string{"Authorization": "Bearer " + f.secrets.staff})
}

func (f overHTTP) post(ctx context.Context, path string, body, answer proto.Message, header map[string]string) error {
	raw, err := jsonForm.Marshal(body)
	if err != nil {
		return err
	}
	return f.send(ctx, path, raw, answer, header)
}

func (f overHTTP) send(ctx context.Context, path string, raw []byte, answer proto.Message, header map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.base+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	for name, value := range header {
		r.Header.Set(name, value)
	}
	response, err := f.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	said, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode/100 == 2 {
		return protojson.Unmarshal(said, answer)
	}
	return httpError(response.StatusCode, said)
}

// httpError tells refusals, outages and defects apart.
func httpError(code int, said []byte) error {
	var problem struct{ Code string }
	if err := json.Unmarshal(said, &problem); err != nil || problem.Code == "" {
		return defect{fmt.Sprintf("HTTP %d that is no problem document: %s", code, said)}
	}
	switch {
	case code == http.StatusServiceUnavailable || code == http.StatusTooManyRequests:
		return fmt.Errorf("HTTP %d: %s", code, said)
	case code >= 500:
		return defect{fmt.Sprintf("HTTP %d: %s", code, said)}
	}
	return refusal{problem.Code}
}

// overGRPC is a producer's gRPC face.
type overGRPC struct {
	orders    lapsev1.OrderServiceClient
	payments  lapsev1.PaymentServiceClient
	resources lapsev1.ResourceServiceClient
	secrets   secrets
}

// dial makes a connection that comes back soon after its producer does.
func dial(addr string) (*grpc.ClientConn, error) {
	return grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.5, Jitter: .2, MaxDelay: time.Second}, MinConnectTimeout: time.Second,
	}))
}

func newGRPCFace(conn *grpc.ClientConn, s secrets) overGRPC {
	return overGRPC{lapsev1.NewOrderServiceClient(conn), lapsev1.NewPaymentServiceClient(conn), lapsev1.NewResourceServiceClient(conn), s}
}

func (f overGRPC) create(ctx context.Context, key string, r *lapsev1.CreateOrderRequest) (*lapsev1.Order, error) {
	return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.secrets.shop, "idempotency-key", key), f.orders.CreateOrder, r)
}

func (f overGRPC) cancel(ctx context.Context, r *lapsev1.CancelOrderRequest) (*lapsev1.Order, error) {
	return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.secrets.shop), f.orders.CancelOrder, r)
}

func (f overGRPC) notify(ctx context.Context, r *lapsev1.NotifyPaymentRequest) (*lapsev1.NotifyPaymentResponse, error) {
	return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.secrets.gateway), f.payments.NotifyPayment, r)
}

func (f overGRPC) adjust(ctx context.Context, r *lapsev1.AdjustResourceRequest) (*lapsev1.Resource, error) {
	return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+f.secrets.staff), f.resources.AdjustResource, r)
}

// method is one call of a gRPC client.
type method[Q, A any] func(context.Context, *Q, ...grpc.CallOption) (*A, error)

// invoke makes one call and tells refusals, outages and defects apart.
func invoke[Q, A any](ctx context.Context, method method[Q, A], r *Q) (*A, error) {
	ctx, cancel := context.WithTimeout(ctx, callBound)
	defer cancel()
	answer, err := method(ctx, r)
	if err == nil {
		return answer, nil
	}
	st := status.Convert(err)
	switch st.Code() {
	case codes.Unavailable, codes.ResourceExhausted, codes.DeadlineExceeded, codes.Canceled:
		return nil, err
	case codes.Internal, codes.Unknown, codes.DataLoss, codes.Unimplemented:
		return nil, defect{err.Error()}
	}
	for _, detail := range st.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok {
			return nil, refusal{info.Reason}
		}
	}
	return nil, defect{"a refusal without ErrorInfo: " + err.Error()}
}

// final reports whether err is the last word on a call.
func final(err error) bool {
	var r refusal
	var d defect
	return err == nil || errors.As(err, &r) || errors.As(err, &d)
}
