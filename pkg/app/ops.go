package app

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"lapse/pkg/order"
)

// phase is where the process stands between its start and its end.
type phase string

const (
	starting phase = "starting"
	serving  phase = "serving"
	stopping phase = "stopping"
)

// health is what /readyz tells.
type health struct {
	mu     sync.Mutex
	role   Role
	phase  phase
	checks map[string]check
	tell   func(ready bool) // told at each change
}

// check is the last word about one thing that the process needs.
type check struct {
	OK    bool      `json:"ok"`
	Since time.Time `json:"since"` // of OK being what it is
	Error string    `json:"error,omitempty"`
}

func newHealth(role Role) *health {
	return &health{role: role, phase: starting, checks: map[string]check{}, tell: func(bool) {}}
}

func (h *health) enter(p phase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.phase = p
	h.tell(h.ready())
}

// follow lets tell know whether the process is ready, now and from now on.
func (h *health) follow(tell func(ready bool)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tell = tell
	h.tell(h.ready())
}

func (h *health) ready() bool { return h.phase == serving && h.checks[databaseCheck].OK }

// note records what a check has found, and reports whether that is news.
func (h *health) note(name string, err error) (news bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last, known := h.checks[name]
	next := check{OK: err == nil, Since: last.Since}
	if err != nil {
		next.Error = err.Error()
	}
	if news = !known || last.OK != next.OK; news {
		next.Since = time.Now().UTC().Truncate(time.Millisecond)
	}
	h.checks[name] = next
	h.tell(h.ready())
	return news
}

// Names of checks. Without its database a process cannot work; without its broker it still can, since what
// is to be sent waits in the database: that is degraded, and no reason to take it out of service.
const (
	databaseCheck = "database"
	brokerCheck   = "broker"
)

// readiness is the body of /readyz.
type readiness struct {
	Status string           `json:"status"` // ready, degraded or not_ready
	Phase  phase            `json:"phase"`
	Role   Role             `json:"role"`
	Checks map[string]check `json:"checks"`
}

func (h *health) readiness() readiness {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := readiness{Status: "ready", Phase: h.phase, Role: h.role, Checks: map[string]check{}}
	for name, c := range h.checks {
		r.Checks[name] = c
		if !c.OK {
			r.Status = "degraded"
		}
	}
	if !h.ready() {
		r.Status = "not_ready"
	}
	return r
}

func (h *health) serveReady(w http.ResponseWriter, _ *http.Request) {
	r := h.readiness()
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if r.Status == "not_ready" {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(r) // a client that went away
}

// serveHealth says that the process is alive, nothing more: a lost database is no reason to restart it.
func serveHealth(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
}

// opsHandler serves what operators and their machines ask for.
func opsHandler(h *health, reg *prometheus.Registry, withPprof bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", serveHealth)
	mux.HandleFunc("GET /readyz", h.serveReady)
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	if withPprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// listen opens the address of a setting; the error names the setting and what to do.
func listen(setting, addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	hint := "Give an address that is free with --set " + setting + "=host:port."
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, order.Errorf(order.Conflict, "address_in_use", "%s: %s is in use", setting, addr).WithHint(hint)
	}
	return nil, order.Errorf(order.Invalid, "invalid_address", "%s: cannot listen on %s", setting, addr).Wrap(err).WithHint(hint)
}

// checkFree refuses the address of a setting that cannot be listened on now.
func checkFree(setting, addr string) error {
	l, err := listen(setting, addr)
	if err != nil {
		return err
	}
	return l.Close()
}

const (
	opsHeaderTime = 5 * time.Second
	opsWriteTime  = 2 * time.Minute // a profile takes a while
	opsStopTime   = time.Second
)

// serveOps serves handler on l until ctx ends, and then lets the answers under way end.
func serveOps(ctx context.Context, l net.Listener, handler http.Handler) error {
	s := &http.Server{Handler: handler, ReadHeaderTimeout: opsHeaderTime, WriteTimeout: opsWriteTime, IdleTimeout: opsWriteTime, MaxHeaderBytes: 16 << 10}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), opsStopTime)
		defer cancel()
		if s.Shutdown(bounded) != nil {
			_ = s.Close() // the bound has passed; nothing here is worth waiting for
		}
		return nil
	})
	return g.Wait()
}
