package app

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"lapse/pkg/order"
)

func get(t *testing.T, h http.Handler, path string) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestReadinessFollowsPhaseDatabaseAndBroker(t *testing.T) {
	away := errors.New("connection refused")
	cases := []struct {
		name             string
		phase            phase
		database, broker error
		code             int
		status           string
	}{
		{"all is there", serving, nil, nil, 200, "ready"},
		{"a lost broker is degraded, not dead", serving, nil, away, 200, "degraded"},
		{"a lost database is not ready", serving, away, nil, 503, "not_ready"},
		{"starting is not ready", starting, nil, nil, 503, "not_ready"},
		{"stopping is not ready", stopping, nil, nil, 503, "not_ready"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := newHealth(RoleConsumer)
			handler := opsHandler(h, prometheus.NewRegistry(), false)
			h.enter(c.phase)
			h.note(databaseCheck, c.database)
			h.note(brokerCheck, c.broker)
			code, body := get(t, handler, "/readyz")
			var r readiness
			if err := json.Unmarshal([]byte(body), &r); err != nil {
				t.Fatal(err)
			}
			if code != c.code || r.Status != c.status || r.Phase != c.phase || r.Role != RoleConsumer {
				t.Errorf("got %d %s", code, body)
			}
			if c.broker != nil && (r.Checks[brokerCheck].OK || r.Checks[brokerCheck].Error != away.Error()) {
				t.Errorf("the broker's error is missing: %s", body)
			}
			if code, body := get(t, handler, "/healthz"); code != 200 || !strings.Contains(body, "ok") {
				t.Errorf("the process is alive all the same, got %d %s", code, body)
			}
		})
	}
}

func TestHealthOverGRPCFollowsReadiness(t *testing.T) {
	p := startDev(t, t.TempDir(), nil).wait()
	defer p.end()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := grpc.NewClient(strings.TrimPrefix(p.api, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	watch, err := healthpb.NewHealthClient(conn).Watch(ctx, &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		when   string
		change func()
		want   healthpb.HealthCheckResponse_ServingStatus
	}{
		{"it serves", func() {}, healthpb.HealthCheckResponse_SERVING},
		{"the database is lost", func() { p.app.health.note(databaseCheck, errors.New("gone")) }, healthpb.HealthCheckResponse_NOT_SERVING},
		{"the database is back", func() { p.app.health.note(databaseCheck, nil) }, healthpb.HealthCheckResponse_SERVING},
		{"it stops", func() { p.app.health.enter(stopping) }, healthpb.HealthCheckResponse_NOT_SERVING},
	} {
		c.change()
		if got, err := watch.Recv(); err != nil || got.GetStatus() != c.want {
			t.Errorf("%s: %v, %v", c.when, got, err)
		}
	}
}

func TestACheckKeepsTheTimeOfItsLastTurn(t *testing.T) {
	h := newHealth(RoleConsumer)
	if !h.note(databaseCheck, nil) || h.note(databaseCheck, nil) {
		t.Error("the first answer is news, the same again is not")
	}
	since := h.readiness().Checks[databaseCheck].Since
	h.note(databaseCheck, nil)
	if got := h.readiness().Checks[databaseCheck].Since; !got.Equal(since) {
		t.Errorf("%v became %v", since, got)
	}
	if !h.note(databaseCheck, errors.New("gone")) {
		t.Error("a turn is news")
	}
}

func TestProfilesAreServedOnlyIfAskedFor(t *testing.T) {
	h := newHealth(RoleConsumer)
	if code, _ := get(t, opsHandler(h, prometheus.NewRegistry(), false), "/debug/pprof/"); code != 404 {
		t.Errorf("off: got %d", code)
	}
	if code, _ := get(t, opsHandler(h, prometheus.NewRegistry(), true), "/debug/pprof/"); code != 200 {
		t.Errorf("on: got %d", code)
	}
}

func TestMetricsTellTheBuildAndTheRole(t *testing.T) {
	code, body := get(t, opsHandler(newHealth(RoleConsumer), newRegistry(RoleConsumer), false), "/metrics")
	for _, want := range []string{`lapse_build_info{`, `role="consumer"`, "go_goroutines", "process_"} {
		if code != 200 || !strings.Contains(body, want) {
			t.Errorf("%d, without %s", code, want)
		}
	}
}

func TestTheOpsServerStopsThoughAClientHoldsOn(t *testing.T) {
	l, err := listen("ops.addr", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	slow, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	if _, err := io.WriteString(slow, "GET /healthz HTTP/1.1\r\n"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- serveOps(ctx, l, http.NotFoundHandler()) }()
	if resp, err := http.Get("http://" + l.Addr().String()); err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestTheOpsServerEndsAfterItsLastAnswer(t *testing.T) {
	l, err := listen("ops.addr", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		stop()
		select {
		case err := <-ended:
			t.Errorf("it ended in the middle of an answer: %v", err)
			ended <- err
		case <-time.After(opsStopTime / 5):
		}
	})
	go func() { ended <- serveOps(ctx, l, handler) }()
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil || resp.Body.Close() != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestAnAddressInUseNamesItsSetting(t *testing.T) {
	l, err := listen("ops.addr", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := listen("ops.addr", l.Addr().String()); err == nil || !strings.HasPrefix(err.Error(), "ops.addr: ") {
		t.Errorf("got %v", err)
	}
}

func TestTheMonitorTellsWhatItWasAnswered(t *testing.T) {
	var failure error
	h := newHealth(RoleConsumer)
	m := newMonitor(probes{
		now: func(context.Context) (time.Time, error) { return time.Now().Add(time.Hour), failure },
		backlog: func(context.Context) (order.Backlog, error) {
			return order.Backlog{Rows: 7, Age: time.Minute, Quarantined: 3, Doubtful: 5, Held: 2, LateOpen: 4}, failure
		},
		broker: func(context.Context) (time.Duration, error) { return -time.Minute, failure },
	}, h, prometheus.NewRegistry(), zap.NewNop())
	h.enter(serving)
	m.ask(context.Background())
	for name, got := range map[string][2]float64{
		"rows": {read(m.rows), 7}, "age": {read(m.age), 60}, "quarantined": {read(m.quarantined), 3},
		"in doubt": {read(m.confirming.WithLabelValues("gateway")), 5}, "held": {read(m.confirming.WithLabelValues("person")), 2}, "late": {read(m.lateOpen), 4},
		"broker's skew": {read(m.skew.WithLabelValues(brokerCheck)), -60}, "database": {read(m.up.WithLabelValues(databaseCheck)), 1},
	} {
		if got[0] != got[1] {
			t.Errorf("%s: got %v, want %v", name, got[0], got[1])
		}
	}
	if skew := read(m.skew.WithLabelValues(databaseCheck)); skew < 3590 || skew > 3610 {
		t.Errorf("skew: got %v, want an hour", skew)
	}
	failure = errors.New("gone")
	m.ask(context.Background())
	if r := h.readiness(); r.Status != "not_ready" || read(m.up.WithLabelValues(brokerCheck)) != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestABacklogThatCannotBeCountedSaysNothingAboutTheDatabase(t *testing.T) {
	var slow error
	h := newHealth(RoleProducer)
	core, logs := observer.New(zap.InfoLevel)
	m := newMonitor(probes{
		now: func(context.Context) (time.Time, error) { return time.Now(), nil },
		backlog: func(context.Context) (order.Backlog, error) {
			if slow != nil {
				return order.Backlog{}, slow
			}
			return order.Backlog{Rows: 7, Age: time.Minute, Quarantined: 3}, nil
		},
	}, h, prometheus.NewRegistry(), zap.New(core))
	h.enter(serving)
	m.ask(context.Background())
	slow = context.DeadlineExceeded
	m.ask(context.Background())
	m.ask(context.Background())
	if r := h.readiness(); r.Status != "ready" || read(m.up.WithLabelValues(databaseCheck)) != 1 {
		t.Errorf("got %+v", r)
	}
	if read(m.rows) != 7 || read(m.age) != 60 || read(m.quarantined) != 3 {
		t.Errorf("the gauges became %v, %v, %v", read(m.rows), read(m.age), read(m.quarantined))
	}
	if n := logs.FilterMessageSnippet("cannot be counted").Len(); n != 1 {
		t.Errorf("logged %d times", n)
	}
	slow = nil
	m.ask(context.Background())
	if n := logs.FilterMessageSnippet("counted again").Len(); n != 1 {
		t.Errorf("its return was logged %d times", n)
	}
}

// read is the value of a counter or gauge.
func read(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		panic(err)
	}
	return out.GetGauge().GetValue() + out.GetCounter().GetValue()
}
