// Package hook calls the owners of adopted items over HTTP, and serves their side of it. docs/adopt.md is the contract.
//
//	POST {url}/close  {"kind","ref","deadline"}         → {"result":"closed"|"final"|"later","deadline"}
//	GET  {url}/due?before=…&after=…&limit=…             → {"items":[{"kind","ref","deadline"}],"next"}
//
// Calls are signed as payment notifications are. It never guesses: whatever is not a whole answer in this form is an error
// of kind Unavailable, and the owner is called again. An owner that knows nothing of an item says final.
package hook

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
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"lapse/pkg/order"
)

const (
	// TimestampHeader has Unix seconds, SignatureHeader the hexadecimal digits of Sign.
	TimestampHeader = "Lapse-Timestamp"
	SignatureHeader = "Lapse-Signature"

	minSecret = 16
	maxAnswer = 1 << 20 // bytes of an answer
	maxShown  = 120     // bytes of a strange answer that an error shows
)

// Sign returns the signature of a call: the hexadecimal HMAC-SHA256 of timestamp (Unix seconds) + "." + content, which is
// the raw body of a POST and the raw query of a GET.
func Sign(secret string, timestamp int64, content []byte) string {
	return hex.EncodeToString(mac(secret, timestamp, content))
}

func mac(secret string, timestamp int64, content []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write(strconv.AppendInt(nil, timestamp, 10))
	h.Write([]byte{'.'})
	h.Write(content)
	return h.Sum(nil)
}

// HTTP is an owner behind a URL. It is safe for concurrent use.
type HTTP struct {
	base   string
	secret string
	client *http.Client
}

// New makes a hook from the URL under which close and due are, and the secret that both sides know.
func New(base, secret string) (*HTTP, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, order.Errorf(order.Invalid, "invalid_hook", "%q is no URL of a hook", base).WithHint("Write http:// or https://, a host, and maybe a path.")
	}
	if len(secret) < minSecret {
		return nil, order.Errorf(order.Invalid, "invalid_hook", "the secret of a hook has at least %d characters", minSecret)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 64
	return &HTTP{
		base: strings.TrimSuffix(base, "/"), secret: secret,
		client: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// CloseIdle closes the connections that are idle.
func (h *HTTP) CloseIdle() { h.client.CloseIdleConnections() }

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
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.base+"/close", bytes.NewReader(body))
	if err != nil {
		return order.Answer{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	var said answer
	if err := h.call(r, body, &said); err != nil {
		return order.Answer{}, err
	}
	return order.Answer{Word: said.Result, Deadline: said.Deadline}.Validate()
}

// Due lists open items whose deadline is before a time, from a cursor on.
func (h *HTTP) Due(ctx context.Context, before time.Time, after string, limit int) ([]order.Adopted, string, error) {
	query := url.Values{"before": {before.UTC().Format(time.RFC3339Nano)}, "after": {after}, "limit": {strconv.Itoa(limit)}}.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, h.base+"/due?"+query, nil)
	if err != nil {
		return nil, "", err
	}
	var said list
	if err := h.call(r, []byte(query), &said); err != nil {
		return nil, "", err
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

// call makes one signed call and reads its answer.
func (h *HTTP) call(r *http.Request, content []byte, into any) error {
	now := time.Now().Unix()
	r.Header.Set(TimestampHeader, strconv.FormatInt(now, 10))
	r.Header.Set(SignatureHeader, Sign(h.secret, now, content))
	r.Header.Set("Accept", "application/json")
	response, err := h.client.Do(r)
	if err != nil {
		return unknown(err)
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	if err != nil {
		return unknown(err)
	}
	if err := read(response, raw, into); err != nil {
		return unknown(fmt.Errorf("%w: %s %q", err, response.Status, raw[:min(len(raw), maxShown)]))
	}
	return nil
}

func read(response *http.Response, raw []byte, into any) error {
	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case response.StatusCode != http.StatusOK:
		return errors.New("not 200")
	case err != nil || media != "application/json":
		return errors.New("not JSON")
	case len(raw) > maxAnswer:
		return errors.New("too long")
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("not an answer: %w", err)
	}
	return nil
}

func unknown(err error) error {
	return order.Errorf(order.Unavailable, "hook_unknown", "the hook gave no answer").Wrap(err)
}
