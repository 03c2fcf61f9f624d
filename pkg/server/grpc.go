package server

import (
	"context"
	"net/http"
	"strings"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	lapsev1 "lapse/api/lapse/v1"
)

// Metadata keys; the header of the same name over HTTP.
const (
	keyAuthorization = "authorization"
	keyIdempotency   = "idempotency-key"
	keyReplayed      = "idempotent-replayed"
	keySignature     = "lapse-signature"
	keyTimestamp     = "lapse-timestamp"
	keyTraceID       = "trace-id"
	keyTraceParent   = "traceparent"
)

// newGRPC makes the gRPC face.
func (s *Server) newGRPC(sv services) *grpc.Server {
	g := grpc.NewServer(grpc.MaxRecvMsgSize(maxBody), grpc.UnaryInterceptor(s.unary), grpc.StreamInterceptor(s.stream))
	lapsev1.RegisterOrderServiceServer(g, sv.orders)
	lapsev1.RegisterPaymentServiceServer(g, sv.payments)
	lapsev1.RegisterResourceServiceServer(g, sv.resources)
	lapsev1.RegisterOperatorServiceServer(g, sv.operator)
	healthpb.RegisterHealthServer(g, s.health)
	reflection.Register(g)
	return g
}

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc")
}

// serveGRPC hands a request to the gRPC face. Calls that may take as long as they like lose the server's
// time-outs; a health watch, which never ends by itself, is ended when the server stops.
func (s *Server) serveGRPC(w http.ResponseWriter, r *http.Request) {
	watch := r.URL.Path == healthpb.Health_Watch_FullMethodName
	if watch || unhurried[r.URL.Path] {
		deadlines := http.NewResponseController(w)
		if deadlines.SetWriteDeadline(time.Time{}) != nil || watch && deadlines.SetReadDeadline(time.Time{}) != nil {
			s.log.Warn("deadline_kept", zap.String("route", r.URL.Path))
		}
	}
	if watch {
		ctx, cancel := s.untilStop(r.Context())
		defer cancel()
		r = r.WithContext(ctx)
	}
	s.grpc.ServeHTTP(w, r)
}

// unary stands before every method as admitRoute stands before every route.
func (s *Server) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	c := &call{face: "grpc", route: info.FullMethod, trace: traceOf(incoming(ctx, keyTraceParent)), start: time.Now()}
	ctx = withCall(ctx, c)
	defer func() {
		if p := recover(); p != nil {
			s.panicked(c, p)
			resp, err = nil, errPanic
		}
		if err != nil {
			err = s.grpcError(c, err)
		}
		s.finish(c, status.Code(err).String())
	}()
	if err := grpc.SetHeader(ctx, metadata.Pairs(keyTraceID, c.trace.id)); err != nil {
		return nil, err
	}
	if isOpen(info.FullMethod) {
		return handler(ctx, req)
	}
	if err := s.keys.admit(c, info.FullMethod, incoming(ctx, keyAuthorization)); err != nil {
		return nil, err
	}
	ctx, cancel := s.bounded(ctx, info.FullMethod)
	defer cancel()
	return handler(ctx, req)
}

// stream admits the streams of health and reflection; the contract has none.
func (s *Server) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	if !isOpen(info.FullMethod) {
		return status.Error(codes.PermissionDenied, "no streams here")
	}
	return handler(srv, ss)
}

// grpcError is err as a gRPC caller sees it. Health answers with statuses of its own.
func (s *Server) grpcError(c *call, err error) error {
	if isOpen(c.route) {
		return err
	}
	return statusOf(s.refusal(c, err), c.trace.id)
}

// incoming is the first value of a metadata key, or "".
func incoming(ctx context.Context, key string) string {
	if values := metadata.ValueFromIncomingContext(ctx, key); len(values) > 0 {
		return values[0]
	}
	return ""
}
