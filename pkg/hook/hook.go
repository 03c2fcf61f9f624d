// Package hook calls the owners of adopted items over HTTP, and serves their side of it. docs/adopt.md is the contract.
//
//	POST {url}/close  {"kind","ref","deadline"}         → {"result":"closed"|"final"|"later","deadline"}
//	GET  {url}/due?before=…&after=…&limit=…             → {"items":[{"kind","ref","deadline"}],"next"}
//
// Calls are signed as payment notifications are. It never guesses: whatever is not a whole answer in this form is an error
// of kind Unavailable, and the owner is called again. An owner that knows nothing of an item says final.
package hook

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"lapse/pkg/callout"
	"lapse/pkg/order"
	"lapse/pkg/signature"
)

const (
	maxAnswer = 1 << 20 // bytes of an answer
	keepIdle  = 64      // connections
)

// HTTP is an owner behind a URL. It is safe for concurrent use.
type HTTP struct {
	secret string
	client *callout.Client
}

// New makes a hook from the URL under which close and due are, and the secret that both sides know.
func New(base, secret string) (*HTTP, error) {
	client, err := callout.New("hook", base, keepIdle, maxAnswer)
	if err != nil {
		return nil, err
	}
	if err := checkSecret(secret); err != nil {
		return nil, err
	}
	return &HTTP{secret, client}, nil
}

func checkSecret(secret string) error {
	if len(secret) < signature.MinSecret {
		return order.Errorf(order.Invalid, "invalid_hook", "the secret of a hook has at least %d characters", signature.MinSecret)
	}
	return nil
}

// CloseIdle closes the connections that are idle.
func (h *HTTP) CloseIdle() { h.client.CloseIdle() }

// item is an adopted item on the wire.
type item struct {
	Kind     string    `json:"kind"`
	Ref      string    `json:"ref"`
	Deadline time.Time `json:"deadline"`
}

type answer struct {
	Result   order.Word `json:"result"`
	Deadline time.Time  `json:"deadline,omitzero"`
}

type list struct {
	Items *[]item `json:"items"` // must be there: an empty list is said, too
	Next  string  `json:"next,omitempty"`
}

// Close asks the owner to close an item if it is open and due.
func (h *HTTP) Close(ctx context.Context, a order.Adopted) (order.Answer, error) {
	body, err := json.Marshal(item(a))
	if err != nil {
		return order.Answer{}, err
	}
	var said answer
	if err := h.client.Call(ctx, http.MethodPost, "/close", h.signed(body), body, &said); err != nil {
		return order.Answer{}, unknown(err)
	}
	return order.Answer{Word: said.Result, Deadline: said.Deadline}.Validate()
}

// Due lists open items whose deadline is before a time, from a cursor on.
func (h *HTTP) Due(ctx context.Context, before time.Time, after string, limit int) ([]order.Adopted, string, error) {
	query := url.Values{"before": {before.UTC().Format(time.RFC3339Nano)}, "after": {after}, "limit": {strconv.Itoa(limit)}}.Encode()
	var said list
	if err := h.client.Call(ctx, http.MethodGet, "/due?"+query, h.signed([]byte(query)), nil, &said); err != nil {
		return nil, "", unknown(err)
	}
	if said.Items == nil {
		return nil, "", unknown(errors.New("no list of items"))
	}
	items := make([]order.Adopted, len(*said.Items))
	for i, it := range *said.Items {
		items[i] = order.Adopted(it)
	}
	return items, said.Next, nil
}

// signed are the headers that sign a call: the raw body of a POST, the raw query of a GET.
func (h *HTTP) signed(content []byte) http.Header {
	header, now := http.Header{}, time.Now().Unix()
	header.Set(signature.TimestampHeader, strconv.FormatInt(now, 10))
	header.Set(signature.Header, signature.Sign(h.secret, now, content))
	return header
}

func unknown(err error) error {
	return order.Errorf(order.Unavailable, "hook_unknown", "the hook gave no answer").Wrap(err)
}
