package server

import (
	"context"
	"errors"
	"net/http"

	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"

	"lapse/pkg/order"
)

// answers is how a kind of error leaves by each face.
var answers = map[order.Kind]struct {
	code   codes.Code
	status int
}{
	order.Internal:         {codes.Internal, http.StatusInternalServerError},
	order.Invalid:          {codes.InvalidArgument, http.StatusBadRequest},
	order.Unauthenticated:  {codes.Unauthenticated, http.StatusUnauthorized},
	order.PermissionDenied: {codes.PermissionDenied, http.StatusForbidden},
	order.NotFound:         {codes.NotFound, http.StatusNotFound},
	order.Conflict:         {codes.FailedPrecondition, http.StatusConflict},
	order.KeyReused:        {codes.AlreadyExists, http.StatusUnprocessableEntity},
	order.Exhausted:        {codes.ResourceExhausted, http.StatusTooManyRequests},
	order.Unavailable:      {codes.Unavailable, http.StatusServiceUnavailable},
}

// errorDomain is the domain of google.rpc.ErrorInfo.
const errorDomain = "lapse"

// httpOnly are the statuses of refusals that only HTTP knows, by code.
var httpOnly = map[string]int{
	codeMethod:   http.StatusMethodNotAllowed,
	codeTooSlow:  http.StatusRequestTimeout,
	codeTooLarge: http.StatusRequestEntityTooLarge,
}

const (
	codeMethod   = "method_not_allowed"
	codeTooSlow  = "body_too_slow"
	codeTooLarge = "body_too_large"
)

// httpStatus is the HTTP status of a refusal.
func httpStatus(e *order.Error) int {
	if status, ok := httpOnly[e.Code]; ok {
		return status
	}
	return answers[e.Kind].status
}

// refusal is err as the caller may see it. What only an operator may know (causes, defects) is logged
// under the call's trace id instead.
func (s *Server) refusal(c *call, err error) *order.Error {
	var e *order.Error
	if !errors.As(err, &e) || e.Kind == order.Internal {
		if e := contextError(err); e != nil {
			return e
		}
		s.log.Error("call_failed", zap.String("route", c.route), zap.String("trace_id", c.trace.id), zap.Error(err))
		return order.Errorf(order.Internal, "internal", "something went wrong here").
			WithHint("Report the trace id.")
	}
	if e.Kind == order.Unavailable {
		s.log.Warn("call_unavailable", zap.String("route", c.route), zap.String("trace_id", c.trace.id), zap.Error(err))
	}
	return e
}

// contextError says that a call ran out of time or was given up by its caller.
func contextError(err error) *order.Error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return order.Errorf(order.Unavailable, "timed_out", "the call took too long; whether it took effect is not known").
			WithHint("Repeat it with the same number or idempotency key.")
	}
	return nil
}

// statusOf is the gRPC form of a refusal.
func statusOf(e *order.Error, traceID string) error {
	st := status.New(answers[e.Kind].code, e.Message)
	info := &errdetails.ErrorInfo{Reason: e.Code, Domain: errorDomain, Metadata: map[string]string{"trace_id": traceID}}
	if e.Hint != "" {
		info.Metadata["hint"] = e.Hint
	}
	details := []protoadapt.MessageV1{info}
	if len(e.Fields) > 0 {
		details = append(details, badRequest(e.Fields))
	}
	detailed, err := st.WithDetails(details...)
	if err != nil {
		return st.Err()
	}
	return detailed.Err()
}

func badRequest(fields []order.Field) *errdetails.BadRequest {
	out := &errdetails.BadRequest{}
	for _, f := range fields {
		out.FieldViolations = append(out.FieldViolations, &errdetails.BadRequest_FieldViolation{Field: f.Name, Description: f.Reason})
	}
	return out
}

// refused makes the error for fields that the services refuse themselves; nil if there are none.
func refused(fields ...order.Field) error {
	if len(fields) == 0 {
		return nil
	}
	return &order.Error{Kind: order.Invalid, Code: "invalid_argument", Message: "the request is not valid", Fields: fields}
}
