package demo

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
)

const (
	callTime    = 10 * time.Second // bound of one call
	maxAnswer   = 1 << 20          // bytes of an answer that are read
	connections = 16               // at most, to each of API and operations
)

// keys open the API: bearer tokens for the shop and the staff, and the secret that the payment channel
// signs with.
type keys struct {
	shop, staff, secret string
}

// client calls the API over HTTP, as a shop, its staff and a payment channel would.
type client struct {
	api, ops string // base URLs, like http://127.0.0.1:8080
	keys     keys
	http     *http.Client
}

func newClient(api, ops string, k keys) *client {
	// Connections of its own, so that leave can close them all.
	transport := &http.Transport{MaxIdleConnsPerHost: connections, MaxConnsPerHost: connections}
	return &client{api: api, ops: ops, keys: k, http: &http.Client{Timeout: callTime, Transport: transport}}
}

// leave closes the connections. A server that stops would else wait for those on which nothing was asked yet.
func (c *client) leave() { c.http.CloseIdleConnections() }

// refusal is an answer that is not 2xx: an RFC 9457 problem.
type refusal struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
}

func (r *refusal) Error() string { return fmt.Sprintf("%d %s: %s", r.Status, r.Code, r.Detail) }

// create asks for an order. Without a key the order has the plan's number. Replayed: the answer says that
// the order was there already.
func (c *client) create(ctx context.Context, p planned, key string) (o *lapsev1.Order, replayed bool, err error) {
	in := &lapsev1.CreateOrderRequest{
		UserId: p.user, BizType: p.biz, Amount: proto.Int64(p.amount), Currency: currency, Timeout: durationpb.New(p.timeout),
	}
	for _, h := range p.holds {
		in.Items = append(in.Items, &lapsev1.Item{Kind: h.kind, Ref: h.ref, Quantity: h.quantity})
	}
	header := bearer(c.keys.shop)
	if key == "" {
		in.OrderNo = p.no
	} else {
		header.Set("Idempotency-Key", key)
	}
	o = &lapsev1.Order{}
	answered, err := c.post(ctx, "/v1/orders", header, in, o)
	return o, answered.Get("Idempotent-Replayed") == "true", err
}

func (c *client) order(ctx context.Context, no string) (*lapsev1.Order, error) {
	o := &lapsev1.Order{}
	_, err := c.do(ctx, http.MethodGet, "/v1/orders/"+no, bearer(c.keys.shop), nil, o)
	return o, err
}

func (c *client) cancel(ctx context.Context, no, user string) (*lapsev1.Order, error) {
	o := &lapsev1.Order{}
	_, err := c.post(ctx, "/v1/orders/"+no+":cancel", bearer(c.keys.shop), &lapsev1.CancelOrderRequest{UserId: user}, o)
	return o, err
}

func (c *client) timeline(ctx context.Context, no string) (*lapsev1.Timeline, error) {
	t := &lapsev1.Timeline{}
	_, err := c.do(ctx, http.MethodGet, "/v1/orders/"+no+"/timeline", bearer(c.keys.staff), nil, t)
	return t, err
}

func (c *client) startPayment(ctx context.Context, no, user, attemptNo string) error {
	in := &lapsev1.StartPaymentRequest{UserId: user, AttemptNo: attemptNo, Channel: "bank"}
	_, err := c.post(ctx, "/v1/orders/"+no+"/attempts", bearer(c.keys.shop), in, &lapsev1.StartPaymentResponse{})
	return err
}

func (c *client) restore(ctx context.Context, no, reason string, timeout time.Duration) (*lapsev1.Order, error) {
	o := &lapsev1.Order{}
	_, err := c.post(ctx, "/v1/orders/"+no+":restore", bearer(c.keys.staff), &lapsev1.RestoreOrderRequest{Reason: reason, Timeout: durationpb.New(timeout)}, o)
	return o, err
}

func (c *client) refunded(ctx context.Context, paymentNo, reason string) error {
	in := &lapsev1.CompleteRefundRequest{RefundNo: "refund-" + paymentNo, Reason: reason}
	_, err := c.post(ctx, "/v1/payments/"+paymentNo+":refunded", bearer(c.keys.staff), in, &lapsev1.Order{})
	return err
}

func (c *client) latePayments(ctx context.Context) ([]*lapsev1.LatePayment, error) {
	list := &lapsev1.ListLatePaymentsResponse{}
	_, err := c.do(ctx, http.MethodGet, "/v1/late-payments", bearer(c.keys.staff), nil, list)
	return list.LatePayments, err
}

// stockUp adds to a resource.
func (c *client) stockUp(ctx context.Context, s stock) error {
	in := &lapsev1.AdjustResourceRequest{AdjustmentId: "demo-" + s.ref, Delta: s.quantity, Owner: s.owner}
	_, err := c.post(ctx, "/v1/resources/"+s.name()+":adjust", bearer(c.keys.staff), in, &lapsev1.Resource{})
	return err
}

func (c *client) resource(ctx context.Context, h hold) (*lapsev1.Resource, error) {
	r := &lapsev1.Resource{}
	_, err := c.do(ctx, http.MethodGet, "/v1/resources/"+h.name(), bearer(c.keys.staff), nil, r)
	return r, err
}

// notify reports a captured payment of an order, signed with secret.
func (c *client) notify(ctx context.Context, o *lapsev1.Order, secret string) (*lapsev1.NotifyPaymentResponse, error) {
	now := time.Now()
	body, err := encode(&lapsev1.PaymentNotification{
		PaymentNo: fmt.Sprintf("pay-%s-%d", o.OrderNo, o.Round), OrderNo: o.OrderNo, Amount: o.Amount, Currency: o.Currency, PaidAt: timestamppb.New(now),
	})
	if err != nil {
		return nil, err
	}
	timestamp := strconv.FormatInt(now.Unix(), 10)
	header := http.Header{"Lapse-Timestamp": {timestamp}, "Lapse-Signature": {sign(secret, timestamp, body)}}
	out := &lapsev1.NotifyPaymentResponse{}
	_, err = c.do(ctx, http.MethodPost, "/v1/payments:notify", header, body, out)
	return out, err
}

// sign is written from the contract, not shared with the server: this is the other side.
func sign(secret, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(timestamp + "."))
	mac.Write(body)
	return hex.EncodeToString(mac.Sum(nil))
}

func bearer(token string) http.Header { return http.Header{"Authorization": {"Bearer " + token}} }

func encode(m proto.Message) ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
}

func (c *client) post(ctx context.Context, path string, header http.Header, in, out proto.Message) (http.Header, error) {
	body, err := encode(in)
	if err != nil {
		return nil, err
	}
	return c.do(ctx, http.MethodPost, path, header, body, out)
}

// do makes one call of the API and returns the answer's header. The error is a *refusal if it answered one.
func (c *client) do(ctx context.Context, method, path string, header http.Header, body []byte, out proto.Message) (http.Header, error) {
	header.Set("Content-Type", "application/json")
	answered, raw, err := c.fetch(ctx, method, c.api+path, header, body)
	if err != nil {
		return nil, err
	}
	return answered, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw, out)
}

func (c *client) fetch(ctx context.Context, method, url string, header http.Header, body []byte) (http.Header, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	req.Header = header
	res, err := c.http.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return nil, nil, err
	}
	if res.StatusCode/100 != 2 {
		return nil, nil, refused(res.StatusCode, raw)
	}
	return res.Header, raw, nil
}

// counter reads a counter without labels from the metrics.
func (c *client) counter(ctx context.Context, name string) (float64, error) {
	_, raw, err := c.fetch(ctx, http.MethodGet, c.ops+"/metrics", http.Header{}, nil)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// refused reads a problem; what is none is shown as it came.
func refused(status int, raw []byte) error {
	r := &refusal{}
	if json.Unmarshal(raw, r) != nil {
		r.Detail = string(raw)
	}
	r.Status = status
	return r
}
