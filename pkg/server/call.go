package server

import (
	"context"
	"time"

	"go.uber.org/zap"
)

// call is what the server knows about one call of either face.
type call struct {
	face   string // http or grpc
	route  string // route template or full gRPC method; a bounded set, so a metric label
	caller string // name of the credential; "" without one
	scopes []Scope
	trace  trace
	start  time.Time
}

type callKey struct{}

func withCall(ctx context.Context, c *call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// callOf returns the call that ctx belongs to.
func callOf(ctx context.Context) *call {
	c, _ := ctx.Value(callKey{}).(*call)
	return c
}

// finish counts and logs a call that was answered with code.
func (s *Server) finish(c *call, code string) {
	took := time.Since(c.start)
	s.duration.WithLabelValues(c.face, c.route, code).Observe(took.Seconds())
	if e := s.log.Check(zap.DebugLevel, "call"); e != nil {
		e.Write(zap.String("face", c.face), zap.String("route", c.route), zap.String("code", code),
			zap.String("caller", c.caller), zap.String("trace_id", c.trace.id), zap.Duration("took", took))
	}
}

// bounded gives a call its deadline. What is not to be hurried may work while the server runs.
func (s *Server) bounded(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	if unhurried[method] {
		return s.untilStop(ctx)
	}
	return context.WithTimeout(ctx, s.opts.CallTimeout)
}

// untilStop ends what might never end by itself when the server begins to stop.
func (s *Server) untilStop(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(s.stopping, cancel)
	return ctx, func() {
		unhook()
		cancel()
	}
}
