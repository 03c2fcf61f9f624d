package server

import (
	"encoding/json"
	"net/http"

	"lapse/pkg/order"
)

// problem is an error over HTTP (RFC 9457). Its type is the status itself; what is special is in Code.
type problem struct {
	Type    string         `json:"type"`
	Title   string         `json:"title"`
	Status  int            `json:"status"`
	Detail  string         `json:"detail"`
	Code    string         `json:"code"`
	Hint    string         `json:"hint,omitempty"`
	Errors  []problemField `json:"errors,omitempty"`
	TraceID string         `json:"trace_id"`
}

type problemField struct {
	Field  string `json:"field"`
	Reason string `json:"reason"`
}

// problemOf is the HTTP form of a refusal.
func problemOf(e *order.Error, traceID string) problem {
	status := httpStatus(e)
	p := problem{
		Type: "about:blank", Title: http.StatusText(status), Status: status,
		Detail: e.Message, Code: e.Code, Hint: e.Hint, TraceID: traceID,
	}
	for _, f := range e.Fields {
		p.Errors = append(p.Errors, problemField{f.Name, f.Reason})
	}
	return p
}

// refuse answers r with err.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	c := callOf(r.Context())
	e := s.refusal(c, err)
	code := httpStatus(e)
	h := w.Header()
	switch code {
	case http.StatusUnauthorized:
		h.Set("WWW-Authenticate", "Bearer")
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		h.Set("Retry-After", "1")
	case http.StatusRequestEntityTooLarge, http.StatusRequestTimeout:
		h.Set("Connection", "close") // the rest of the body is not worth reading
	}
	body, err := json.Marshal(problemOf(e, c.trace.id))
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	h.Set("Content-Type", "application/problem+json")
	w.WriteHeader(code)
	w.Write(append(body, '\n')) //nolint:errcheck // nobody is left to tell
}
