package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"lapse/pkg/signature"
)

const (
	orderToken    = "order-token-0123456789"
	paymentToken  = "payment-token-0123456789"
	operatorToken = "operator-token-0123456789"
	secret        = "payment-secret-0123456789"
	oldSecret     = "payment-secret-of-last-year"
)

// running is a server on a real socket, with a lifecycle in memory behind it.
type running struct {
	t    testing.TB
	mem  *memory
	srv  *Server
	logs *observer.ObservedLogs
	reg  *prometheus.Registry
	stop context.CancelFunc
	done chan error
	http *http.Client
	conn *grpc.ClientConn
}

func testOptions() Options {
	return Options{
		Addr: "127.0.0.1:0",
		Tokens: []Token{
			{"shop", orderToken, []Scope{ScopeOrder}},
			{"channel", paymentToken, []Scope{ScopePayment}},
			{"staff", operatorToken, []Scope{ScopeOperator}},
		},
		PaymentSecrets: []string{oldSecret, secret},
	}
}

// start runs a server for one test.
func start(t testing.TB, change ...func(*Options)) *running {
	t.Helper()
	opts := testOptions()
	for _, c := range change {
		c(&opts)
	}
	core, logs := observer.New(zap.DebugLevel)
	r := &running{t: t, mem: newMemory(), logs: logs, reg: prometheus.NewRegistry(), done: make(chan error, 1)}
	var err error
	if r.srv, err = New(opts, Services{Orders: r.mem, Sweeper: r.mem, Reconciler: reconciler{r.mem}, Brakes: brakes{r.mem}}, zap.New(core), r.reg); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() {
		defer close(r.done)
		r.done <- r.srv.Run(ctx)
	}()
	r.http = &http.Client{Transport: &http.Transport{}}
	if r.conn, err = grpc.NewClient(r.srv.Addr(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.conn.Close()
		r.http.CloseIdleConnections()
		stop()
		for range r.done { // the test may have read how it ended
		}
	})
	return r
}

// answer is what came back over HTTP.
type answer struct {
	status int
	header http.Header
	raw    string
	json   map[string]any
}

// headers are pairs of name and value.
func (r *running) send(verb, path, token, body string, headers ...string) answer {
	r.t.Helper()
	req, err := http.NewRequest(verb, "http://"+r.srv.Addr()+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := r.http.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	a := answer{status: resp.StatusCode, header: resp.Header, raw: string(raw)}
	if strings.Contains(resp.Header.Get("Content-Type"), "json") {
		if err := json.Unmarshal(raw, &a.json); err != nil {
			r.t.Fatalf("%s %s answered what is not JSON: %v\n%s", verb, path, err, raw)
		}
	}
	return a
}

// want fails unless the answer has this status.
func (a answer) want(t testing.TB, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.raw)
	}
	return a
}

// wantProblem fails unless the answer is a whole problem of this status and code.
func (a answer) wantProblem(t testing.TB, status int, code string) answer {
	t.Helper()
	a.want(t, status)
	if got := a.header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type %q", got)
	}
	if a.json["code"] != code || a.json["status"] != float64(status) || a.json["title"] != http.StatusText(status) ||
		a.json["type"] != "about:blank" || a.json["detail"] == "" {
		t.Errorf("problem %s, want code %s", a.raw, code)
	}
	if a.json["trace_id"] != a.header.Get("Trace-Id") || len(a.header.Get("Trace-Id")) != 32 {
		t.Errorf("trace_id %v, header %q", a.json["trace_id"], a.header.Get("Trace-Id"))
	}
	return a
}

// fields are the names of the refused fields.
func (a answer) fields() []string {
	var names []string
	list, _ := a.json["errors"].([]any)
	for _, e := range list {
		names = append(names, e.(map[string]any)["field"].(string))
	}
	return names
}

// escape is any text as one segment of a path.
func escape(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(url.PathEscape(s), ":", "%3A"), ".", "%2E")
}

// inProcess sends a request of the order scope past the socket.
func (r *running) inProcess(t testing.TB, verb, path string) answer {
	t.Helper()
	req := httptest.NewRequest(verb, path, nil)
	req.Header.Set("Authorization", "Bearer "+orderToken)
	rec := httptest.NewRecorder()
	r.srv.serve(rec, req)
	a := answer{status: rec.Code, header: rec.Header(), raw: rec.Body.String()}
	if err := json.Unmarshal(rec.Body.Bytes(), &a.json); err != nil {
		t.Fatalf("%s %s answered what is not JSON: %v\n%s", verb, path, err, a.raw)
	}
	return a
}

// notify sends a signed notification over HTTP.
func (r *running) notify(body string) answer {
	r.t.Helper()
	now := time.Now().Unix()
	return r.send("POST", "/v1/payments:notify", "", body,
		"Lapse-Timestamp", strconv.FormatInt(now, 10), "Lapse-Signature", signature.Sign(secret, now, []byte(body)))
}

// as is a context that carries a token over gRPC.
func as(t testing.TB, token string, pairs ...string) context.Context {
	if token != "" {
		pairs = append(pairs, "authorization", "Bearer "+token)
	}
	return metadata.AppendToOutgoingContext(t.Context(), pairs...)
}

// details are the ErrorInfo and the names of the refused fields of a gRPC error.
func details(t testing.TB, err error) (info *errdetails.ErrorInfo, fields []string) {
	t.Helper()
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			for _, v := range d.FieldViolations {
				fields = append(fields, v.Field)
			}
		}
	}
	if info == nil {
		t.Fatalf("no ErrorInfo in %v", err)
	}
	return info, fields
}

// logged is all that was logged, as it would be written.
func (r *running) logged() string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, e := range r.logs.All() {
		if err := enc.Encode(map[string]any{"msg": e.Message, "fields": e.ContextMap()}); err != nil {
			r.t.Fatal(err)
		}
	}
	return b.String()
}
