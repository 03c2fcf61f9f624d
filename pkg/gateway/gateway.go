// Package gateway asks a payment gateway over HTTP how bills stand. docs/gateway.md is the contract of the other side.
//
// It never guesses: only a whole answer in the agreed form is one. Whatever else comes back, an error status, a text or a
// page in a 200, half a JSON, another payment's figures, or nothing in time, is an error of kind Unavailable. A channel
// that keeps failing is left alone for a while, and only that channel.
package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"lapse/pkg/callout"
	"lapse/pkg/order"
)

const (
	maxAnswer   = 64 << 10 // bytes of an answer
	keepIdle    = 16       // connections
	maxChannels = 100      // channels with a breaker of their own; more of them share one
	// openAfter is how many failures in a row open a channel's breaker, and openFor how long it stays open.
	openAfter = 5
	openFor   = 5 * time.Second
)

// HTTP is a payment gateway behind a URL. It is safe for concurrent use.
type HTTP struct {
	header http.Header
	client *callout.Client

	mu       sync.Mutex
	breakers map[string]*gobreaker.CircuitBreaker[order.Bill]
}

// New makes a gateway from the URL under which query and close are, and the bearer token that it wants, if any.
func New(base, token string) (*HTTP, error) {
	client, err := callout.New("gateway", base, keepIdle, maxAnswer)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return &HTTP{header: header, client: client, breakers: map[string]*gobreaker.CircuitBreaker[order.Bill]{}}, nil
}

// CloseIdle closes the connections that are idle.
func (g *HTTP) CloseIdle() { g.client.CloseIdle() }

// Query says how the bill of an attempt stands.
func (g *HTTP) Query(ctx context.Context, a order.Attempt) (order.Bill, error) {
	return g.ask(ctx, "/query", a)
}

// Close asks for the bill of an attempt to be closed and says how it stands then.
func (g *HTTP) Close(ctx context.Context, a order.Attempt) (order.Bill, error) {
	return g.ask(ctx, "/close", a)
}

func (g *HTTP) ask(ctx context.Context, path string, a order.Attempt) (order.Bill, error) {
	bill, err := g.breaker(a.Channel).Execute(func() (order.Bill, error) { return g.post(ctx, path, a) })
	if err != nil {
		return order.Bill{}, order.Errorf(order.Unavailable, "gateway_unknown", "the gateway gave no answer about attempt %s", a.AttemptNo).Wrap(err)
	}
	return bill, nil
}

// breaker is that of a channel.
func (g *HTTP) breaker(channel string) *gobreaker.CircuitBreaker[order.Bill] {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.breakers) >= maxChannels && g.breakers[channel] == nil {
		channel = ""
	}
	b := g.breakers[channel]
	if b == nil {
		b = gobreaker.NewCircuitBreaker[order.Bill](gobreaker.Settings{
			Name: channel, Timeout: openFor, ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= openAfter },
		})
		g.breakers[channel] = b
	}
	return b
}

// None stands where no gateway is configured: it knows nothing of any bill.
type None struct{}

// Query knows nothing.
func (None) Query(context.Context, order.Attempt) (order.Bill, error) { return order.Bill{}, errNone }

// Close knows nothing.
func (None) Close(context.Context, order.Attempt) (order.Bill, error) { return order.Bill{}, errNone }

var errNone = order.Errorf(order.Unavailable, "gateway_unknown", "there is no gateway to ask").WithHint("Set gateway.url.")

// question is what the gateway is asked.
type question struct {
	AttemptNo string `json:"attempt_no"`
	OrderNo   string `json:"order_no"`
	Channel   string `json:"channel"`
	Amount    int64  `json:"amount,string"`
	Currency  string `json:"currency"`
}

// answer is what it has to say. Fields that are not named here are ignored.
type answer struct {
	State   order.BillState `json:"state"`
	Payment *payment        `json:"payment"`
}

type payment struct {
	PaymentNo string    `json:"payment_no"`
	Amount    amount    `json:"amount"`
	Currency  string    `json:"currency"`
	PaidAt    time.Time `json:"paid_at"`
}

// amount is a number of minor units, as JSON number or string.
type amount int64

func (a *amount) UnmarshalJSON(raw []byte) error {
	var n json.Number
	if err := json.Unmarshal(bytes.Trim(raw, `"`), &n); err != nil {
		return err
	}
	v, err := n.Int64()
	*a = amount(v)
	return err
}

func (g *HTTP) post(ctx context.Context, path string, a order.Attempt) (order.Bill, error) {
	body, err := json.Marshal(question{a.AttemptNo, a.OrderNo, a.Channel, a.Amount, a.Currency})
	if err != nil {
		return order.Bill{}, err
	}
	var said answer
	if err := g.client.Call(ctx, http.MethodPost, path, g.header, body, &said); err != nil {
		return order.Bill{}, err
	}
	bill, err := said.bill(a)
	if err != nil {
		return order.Bill{}, fmt.Errorf("%w: %+v", err, said)
	}
	return bill, nil
}

// bill accepts an answer that says how the bill of an attempt stands.
func (s answer) bill(a order.Attempt) (order.Bill, error) {
	switch s.State {
	case order.BillUnpaid, order.BillClosed:
		return order.Bill{State: s.State}, nil
	case order.BillPaid:
		return s.paid(a)
	}
	return order.Bill{}, errors.New("no state that is known")
}

// paid accepts a payment that is whole and the attempt's.
func (s answer) paid(a order.Attempt) (order.Bill, error) {
	if s.Payment == nil {
		return order.Bill{}, errors.New("paid, but no payment")
	}
	p := order.Payment{
		PaymentNo: s.Payment.PaymentNo, OrderNo: a.OrderNo, AttemptNo: a.AttemptNo, Amount: int64(s.Payment.Amount),
		Currency: s.Payment.Currency, PaidAt: s.Payment.PaidAt,
	}
	if err := p.Validate(); err != nil {
		return order.Bill{}, err
	}
	if p.Amount != a.Amount || p.Currency != a.Currency {
		return order.Bill{}, errors.New("paid, but another amount")
	}
	return order.Bill{State: order.BillPaid, Payment: p}, nil
}
