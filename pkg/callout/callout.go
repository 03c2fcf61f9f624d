// Package callout calls the services of a shop over HTTP and accepts only whole answers: 200 and JSON of a bounded length.
// It follows no redirect.
package callout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"

	"lapse/pkg/order"
)

const maxShown = 120 // bytes of a strange answer that an error shows

// Client calls one service. It is safe for concurrent use.
type Client struct {
	base  string
	limit int
	http  *http.Client
}

// New makes a client of the service under a URL, which keeps up to idle connections and reads answers of up to limit bytes.
// What the service is called goes into the error.
func New(what, base string, idle, limit int) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, order.Errorf(order.Invalid, "invalid_"+what, "%q is no URL of a %s", base, what).WithHint("Write http:// or https://, a host, and maybe a path.")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = idle
	return &Client{base: strings.TrimSuffix(base, "/"), limit: limit, http: &http.Client{
		Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// CloseIdle closes the connections that are idle.
func (c *Client) CloseIdle() { c.http.CloseIdleConnections() }

// Call asks path below the service's URL and reads the answer into a value. A body, unless nil, is JSON.
func (c *Client) Call(ctx context.Context, method, path string, header http.Header, body []byte, into any) error {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bodyReader(body))
	if err != nil {
		return err
	}
	for name, values := range header {
		r.Header[name] = values
	}
	r.Header.Set("Accept", "application/json")
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := c.http.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(response.Body, int64(c.limit)+1))
	if err != nil {
		return err
	}
	if err := c.read(response, raw, into); err != nil {
		return fmt.Errorf("%w: %s %q", err, response.Status, raw[:min(len(raw), maxShown)])
	}
	return nil
}

func bodyReader(body []byte) io.Reader {
	if body == nil {
		return http.NoBody
	}
	return bytes.NewReader(body)
}

// read accepts an answer that is whole.
func (c *Client) read(response *http.Response, raw []byte, into any) error {
	media, _, err := mime.ParseMediaType(response.Header.Get("Content-Type"))
	switch {
	case response.StatusCode != http.StatusOK:
		return errors.New("not 200")
	case err != nil || media != "application/json":
		return errors.New("not JSON")
	case len(raw) > c.limit:
		return errors.New("too long")
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("not an answer: %w", err)
	}
	return nil
}
