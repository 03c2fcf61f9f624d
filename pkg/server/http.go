package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/dynamicpb"

	"lapse/api"
	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

// maxBody is the largest request body of either face.
const maxBody = 64 << 10

const unmatched = "unmatched" // route label of a path that is none of ours

// newGateway makes the HTTP face. Its handlers call the services in this process, without a gRPC hop.
func (s *Server) newGateway(sv services) (*runtime.ServeMux, error) {
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, newCodec()),
		runtime.WithMiddlewares(s.admitRoute),
		runtime.WithErrorHandler(s.handleError),
		runtime.WithRoutingErrorHandler(s.handleRoutingError),
		runtime.WithIncomingHeaderMatcher(inboundHeader),
		runtime.WithOutgoingHeaderMatcher(func(key string) (string, bool) { return key, true }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithUnescapingMode(runtime.UnescapingModeAllExceptSlash),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithDisableHTTPMethodOverride(),
		runtime.WithWriteContentLength(),
	)
	ctx := context.Background() // only used by registrations that dial
	return mux, errors.Join(
		lapsev1.RegisterOrderServiceHandlerServer(ctx, mux, sv.orders),
		lapsev1.RegisterPaymentServiceHandlerServer(ctx, mux, sv.payments),
		lapsev1.RegisterResourceServiceHandlerServer(ctx, mux, sv.resources),
		lapsev1.RegisterOperatorServiceHandlerServer(ctx, mux, sv.operator),
	)
}

// inboundHeader names the headers that a method may read as metadata, the same on both faces.
func inboundHeader(key string) (string, bool) {
	switch key = strings.ToLower(key); key {
	case keyIdempotency, keyTimestamp, keySignature:
		return key, true
	}
	return "", false
}

// serveHTTP is the HTTP face: it gives every request its call, and every panic an answer.
func (s *Server) serveHTTP(out http.ResponseWriter, r *http.Request) {
	c := &call{face: "http", route: unmatched, trace: traceOf(r.Header.Get("Traceparent")), start: time.Now()}
	w := &recorder{ResponseWriter: out}
	r = r.WithContext(withCall(r.Context(), c))
	w.Header().Set("Trace-Id", c.trace.id)
	defer func() {
		if p := recover(); p != nil {
			s.panicked(c, p)
			if w.status != 0 {
				panic(http.ErrAbortHandler) // half an answer is out: cut it off
			}
			s.refuse(w, r, errPanic)
		}
		s.finish(c, strconv.Itoa(w.status))
	}()
	if r.URL.Path == openAPIPath {
		s.serveOpenAPI(w, r, c)
		return
	}
	s.gateway.ServeHTTP(w, r)
}

var errPanic = errors.New("panic; see the log line call_panicked")

func (s *Server) panicked(c *call, p any) {
	s.log.Error("call_panicked", zap.String("route", c.route), zap.String("trace_id", c.trace.id),
		zap.String("panic", fmt.Sprint(p)), zap.ByteString("stack", debug.Stack()))
}

const openAPIPath = "/openapi.yaml"

func (s *Server) serveOpenAPI(w http.ResponseWriter, r *http.Request, c *call) {
	c.route = "GET " + openAPIPath
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		s.refuse(w, r, methodNotAllowed(w, "GET, HEAD"))
		return
	}
	w.Header().Set("Content-Type", "application/yaml")
	w.Write(api.OpenAPI) //nolint:errcheck // nobody is left to tell
}

// admitRoute stands before every route: credential, headers, query, body, deadline, in this order, so that
// a stranger cannot make the server read anything.
func (s *Server) admitRoute(next runtime.HandlerFunc) runtime.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request, params map[string]string) {
		c := callOf(r.Context())
		rt, ok := s.routes.of(r)
		if !ok {
			s.refuse(w, r, fmt.Errorf("the gateway serves a route that the contract lacks: %s", r.URL.Path))
			return
		}
		c.route = rt.label()
		raw, err := s.admitRequest(w, r, rt)
		if err != nil {
			s.refuse(w, r, err)
			return
		}
		ctx, cancel := s.bounded(r.Context(), rt.method)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = newBody(raw)
		next(w, r, params)
	}
}

func (s *Server) admitRequest(w http.ResponseWriter, r *http.Request, rt route) (raw []byte, err error) {
	if rt.method != notifyMethod { // there the signature is the credential
		if err := s.keys.admit(callOf(r.Context()), rt.method, r.Header.Get("Authorization")); err != nil {
			return nil, err
		}
	}
	if err := checkHeaders(r.Header); err != nil {
		return nil, err
	}
	if err := checkQuery(r.URL.RawQuery, rt); err != nil {
		return nil, err
	}
	if unhurried[rt.method] {
		if err := http.NewResponseController(w).SetWriteDeadline(time.Time{}); err != nil {
			return nil, err
		}
	}
	if rt.verb == http.MethodGet {
		return nil, nil
	}
	return readBody(w, r)
}

// checkHeaders refuses what the gateway would drop: a key that is lost would make a create unrepeatable.
func checkHeaders(h http.Header) error {
	for _, name := range []string{"Idempotency-Key", "Lapse-Timestamp", "Lapse-Signature"} {
		values := h.Values(name)
		if len(values) > 1 {
			return refused(order.Field{Name: name, Reason: "given more than once"})
		}
		for _, v := range values {
			if strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r > '~' }) {
				return refused(order.Field{Name: name, Reason: "printable ASCII characters only"})
			}
		}
	}
	return nil
}

// checkQuery refuses what the gateway would pass over in silence or answer without naming the field.
func checkQuery(raw string, rt route) error {
	if raw == "" {
		return nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return order.Errorf(order.Invalid, "malformed_query", "the query string is not valid: %v", err)
	}
	var wrong []order.Field
	for name, v := range values {
		fd := rt.input.Fields().ByTextName(name)
		switch {
		case rt.verb != http.MethodGet || fd == nil || strings.Contains(rt.template, "{"+name+"}"):
			wrong = append(wrong, order.Field{Name: name, Reason: "unknown parameter"})
		case len(v) > 1:
			wrong = append(wrong, order.Field{Name: name, Reason: "given more than once"})
		default:
			quoted, err := json.Marshal(v[0])
			if err != nil {
				return err
			}
			wrong = append(wrong, wrongValue(name, fd, quoted, dynamicpb.NewMessageType(rt.input))...)
		}
	}
	return refused(wrong...)
}

// readBody reads a body of at most maxBody bytes.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	if r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var over *http.MaxBytesError
	switch {
	case err == nil:
		return raw, nil
	case errors.As(err, &over):
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, order.Errorf(order.Invalid, codeTooSlow, "the body did not come in time")
	}
	return nil, order.Errorf(order.Invalid, "body_cut_short", "the body could not be read to its end")
}

func tooLarge() error {
	return order.Errorf(order.Invalid, codeTooLarge, "a body has at most %d bytes", maxBody)
}

func methodNotAllowed(w http.ResponseWriter, allow string) error {
	w.Header().Set("Allow", allow)
	return order.Errorf(order.Invalid, codeMethod, "this path does not answer this method").
		WithHint("It answers " + allow + ".")
}

// handleError answers the error of a service, the one that the body has kept, or one that the gateway's
// generated code found in the request.
func (s *Server) handleError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	if b, ok := r.Body.(*body); ok && b.err != nil {
		err = b.err
	} else if st, ok := status.FromError(err); ok && st.Code() == codes.InvalidArgument {
		err = order.Errorf(order.Invalid, "invalid_argument", "%s", st.Message())
	}
	s.refuse(w, r, err)
}

func (s *Server) handleRoutingError(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, code int) {
	if code == http.StatusMethodNotAllowed {
		s.refuse(w, r, methodNotAllowed(w, s.routes.allowed(r.URL.Path)))
		return
	}
	s.refuse(w, r, order.Errorf(order.NotFound, "unknown_route", "there is nothing at this path").
		WithHint("The routes are in "+openAPIPath+"."))
}

// recorder remembers the status that was sent; 0 while none was.
type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }
