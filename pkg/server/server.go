package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	lapsev1 "lapse/api/lapse/v1"
)

// Options configure a Server.
type Options struct {
	Addr           string        // host:port to listen on; port 0 takes a free one
	TLS            *tls.Config   // nil serves plain text
	Tokens         []Token       // without any, only payment notifications, health and the contract are served
	PaymentSecrets []string      // shared with the payment channels, at least 16 characters each; several while they are rotated
	SignatureAge   time.Duration // how far from now a notification may be signed; 0 means 5 min
	CallerRate     int           // calls a second of one caller, twice as many at once; 0 means any number

	CallTimeout       time.Duration // how long one call may work, sweeps and the like excepted; 0 means 10 s
	ReadHeaderTimeout time.Duration // 0 means 5 s
	ReadTimeout       time.Duration // for a whole request; 0 means 10 s
	WriteTimeout      time.Duration // from the end of the header to the end of the answer; 0 means 30 s
	IdleTimeout       time.Duration // between two requests of a connection; 0 means 2 min
	ShutdownTimeout   time.Duration // how long calls in flight may take to end; 0 means 10 s
	MaxHeaderBytes    int           // 0 means 16 KiB
}

func (o Options) withDefaults() Options {
	o.SignatureAge = cmp.Or(o.SignatureAge, 5*time.Minute)
	o.CallTimeout = cmp.Or(o.CallTimeout, 10*time.Second)
	o.ReadHeaderTimeout = cmp.Or(o.ReadHeaderTimeout, 5*time.Second)
	o.ReadTimeout = cmp.Or(o.ReadTimeout, 10*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 30*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 2*time.Minute)
	o.ShutdownTimeout = cmp.Or(o.ShutdownTimeout, 10*time.Second)
	o.MaxHeaderBytes = cmp.Or(o.MaxHeaderBytes, 16<<10)
	return o
}

// Server serves both faces on one port.
type Server struct {
	opts     Options
	log      *zap.Logger
	duration *prometheus.HistogramVec
	keys     keyring
	routes   routeTable
	health   *health.Server
	gateway  *runtime.ServeMux
	grpc     *grpc.Server
	http     *http.Server
	listener net.Listener
	silent   silent

	stopping context.Context // done once the server begins to stop
	stop     context.CancelFunc
}

// services are the methods behind both faces.
type services struct {
	orders    *orderService
	payments  *paymentService
	resources *resourceService
	operator  *operatorService
}

// New makes a server and takes its port, so that a port in use or a bad option is known before anything
// else is started. It serves nothing, and reports itself as not ready, until Run and SetReady. A server
// that is not to run after all is closed by Run with a context that is done.
func New(opts Options, sv Services, log *zap.Logger, reg prometheus.Registerer) (*Server, error) {
	s := &Server{opts: opts.withDefaults(), log: log, health: health.NewServer(), silent: silent{conns: map[net.Conn]bool{}}}
	var err error
	if s.keys, err = newKeyring(opts.Tokens, opts.CallerRate); err != nil {
		return nil, err
	}
	if s.routes, err = newRouteTable(); err != nil {
		return nil, err
	}
	signatures, err := newVerifier(opts.PaymentSecrets, s.opts.SignatureAge)
	if err != nil {
		return nil, err
	}
	behind := services{
		orders:    &orderService{orders: sv.Orders},
		payments:  &paymentService{orders: sv.Orders, verifier: signatures},
		resources: &resourceService{orders: sv.Orders},
		operator:  &operatorService{orders: sv.Orders, sweeper: sv.Sweeper, reconciler: sv.Reconciler, brakes: sv.Brakes},
	}
	if s.gateway, err = s.newGateway(behind); err != nil {
		return nil, err
	}
	if s.duration, err = newDuration(reg); err != nil {
		return nil, err
	}
	s.grpc = s.newGRPC(behind)
	s.stopping, s.stop = context.WithCancel(context.Background())
	s.SetReady(false)
	if err := s.listen(); err != nil {
		return nil, err
	}
	return s, nil
}

func newDuration(reg prometheus.Registerer) (*prometheus.HistogramVec, error) {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "lapse_api_call_duration_seconds",
		Help:    "Time to answer a call, by face (http, grpc), route and status code.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 14), // 1 ms to 8 s
	}, []string{"face", "route", "code"})
	return h, reg.Register(h)
}

func (s *Server) listen() error {
	s.http = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: s.opts.ReadHeaderTimeout,
		ReadTimeout:       s.opts.ReadTimeout,
		WriteTimeout:      s.opts.WriteTimeout,
		IdleTimeout:       s.opts.IdleTimeout,
		MaxHeaderBytes:    s.opts.MaxHeaderBytes,
		ConnState:         s.silent.track,
	}
	std, err := zap.NewStdLogAt(s.log, zap.DebugLevel) // broken connections and handshakes of strangers
	if err != nil {
		return err
	}
	s.http.ErrorLog = std
	s.http.Protocols.SetHTTP1(true)
	if s.opts.TLS == nil {
		s.http.Protocols.SetUnencryptedHTTP2(true)
	} else {
		s.http.Protocols.SetHTTP2(true)
		s.http.TLSConfig = s.opts.TLS.Clone()
	}
	if s.listener, err = net.Listen("tcp", s.opts.Addr); err != nil {
		return fmt.Errorf("API port: %w", err)
	}
	return nil
}

// Addr is the address the server listens on.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// SetReady says whether callers should come here; gRPC health answers it.
func (s *Server) SetReady(ready bool) {
	serving := healthpb.HealthCheckResponse_NOT_SERVING
	if ready {
		serving = healthpb.HealthCheckResponse_SERVING
	}
	s.health.SetServingStatus("", serving)
	for _, service := range s.contract() {
		s.health.SetServingStatus(service, serving)
	}
}

// contract lists the full names of the contract's services.
func (s *Server) contract() []string {
	descriptors := lapsev1.File_lapse_v1_lapse_proto.Services()
	names := make([]string, descriptors.Len())
	for i := range names {
		names[i] = string(descriptors.Get(i).FullName())
	}
	return names
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	if isGRPC(r) {
		s.serveGRPC(w, r)
		return
	}
	s.serveHTTP(w, r)
}

// Run serves until ctx is done, then lets the calls in flight end within ShutdownTimeout. It returns nil
// after a clean stop; calls that had to be cut off are an error.
func (s *Server) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.accept() })
	g.Go(func() error {
		<-ctx.Done()
		return s.shutdown()
	})
	return g.Wait()
}

func (s *Server) accept() error {
	serve := s.http.Serve
	if s.opts.TLS != nil {
		serve = func(l net.Listener) error { return s.http.ServeTLS(l, "", "") }
	}
	if err := serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("API server: %w", err)
	}
	return nil
}

// shutdown stops intake first. gRPC's own graceful stop does not know connections of net/http; its calls
// are requests of s.http like all others.
func (s *Server) shutdown() error {
	s.health.Shutdown()
	s.stop()
	s.silent.close()
	ctx, cancel := context.WithTimeout(context.Background(), s.opts.ShutdownTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if err != nil {
		err = fmt.Errorf("API server: calls were cut off after %v: %w", s.opts.ShutdownTimeout, errors.Join(err, s.http.Close()))
	}
	s.grpc.Stop()
	return err
}
