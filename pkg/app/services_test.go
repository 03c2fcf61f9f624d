package app

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"lapse/pkg/order"
	"lapse/test/services"
)

// installation has the settings that its services share; its database is empty.
func installation(t *testing.T, name string) Source {
	t.Helper()
	services.Need(t, "LAPSE_TEST_MYSQL_DSN", "LAPSE_TEST_ROCKETMQ")
	suffix := fmt.Sprintf("%s-%d", name, os.Getpid())
	return Source{File: file(t, full), Set: map[string]string{
		"database.dsn": services.NewDatabase(t).DSN, "database.replica_dsn": "", "broker.name_servers": os.Getenv("LAPSE_TEST_ROCKETMQ"), "broker.access_key": "", "broker.secret_key": "",
		"broker.timeout_topic": "timeout-" + suffix, "broker.event_topic": "event-" + suffix, "broker.group": "group-" + suffix,
		"server.addr": "127.0.0.1:0", "ops.addr": "127.0.0.1:0", "delay.grace": "0s",
		"sweep.interval": "1s", "sweep.overdue": "5s",
		// The client library keeps one tracing client for the whole process, and several processes in one race for it.
		"broker.trace": "false",
	}}
}

// member starts one service of an installation.
func member(t *testing.T, src Source, role Role) *process {
	t.Helper()
	live, err := Open(src)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, live: live, log: &buffer{}, serving: make(chan struct{}), ended: make(chan error, 1)}
	hooks := DevHooks{Serving: func(api, ops string) {
		p.api, p.ops = "http://"+api, "http://"+ops
		close(p.serving)
	}}
	p.start(newApp(role, live, hooks, p.log))
	return p
}

func (p *process) metrics() string {
	p.t.Helper()
	resp, err := http.Get(p.ops + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(body)
}

func TestThreeServicesCloseOrdersThroughRocketMQ(t *testing.T) {
	src := installation(t, "roles")
	c := load(t, src)
	if _, err := Migrate(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	producer, consumer, compensator := member(t, src, RoleProducer), member(t, src, RoleConsumer), member(t, src, RoleCompensator)
	for _, p := range []*process{producer, consumer, compensator} {
		p.wait()
	}
	const orders = 50
	for n := range orders {
		producer.create(fmt.Sprintf("order-%d", n), fmt.Sprintf("%.2fs", 1+float64(n)/50))
	}
	for n := range orders {
		no := fmt.Sprintf("order-%d", n)
		eventually(t, no+" is cancelled", func() bool { return producer.status(no) == "cancelled" })
	}
	closed := consumer.metrics() + compensator.metrics()
	for _, want := range []string{`lapse_closes_total{path="message"`, "lapse_early_closes_total 0", `lapse_up{component="broker"} 1`, "lapse_consumer_lag ", "lapse_sweep_runs_total"} {
		if !strings.Contains(closed, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	for _, p := range []*process{producer, consumer, compensator} {
		p.end()
		for _, want := range []string{"connected to the database", "connected to a broker", `"version":`} {
			if !strings.Contains(p.log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, p.log)
			}
		}
	}
	checks, err := Audit(context.Background(), c, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range checks {
		if !k.Holds() {
			t.Errorf("%s %s: %d violations, like %s", k.Invariant, k.Name, k.Violations, k.Example)
		}
	}
}

func TestAServiceThatWaitsForItsBrokerSaysSoAndIsAliveButNotReady(t *testing.T) {
	src := installation(t, "brokerless")
	src.Set["broker.name_servers"], src.Set["ops.addr"] = silent(t), freeAddr(t)
	if _, err := Migrate(t.Context(), load(t, src)); err != nil {
		t.Fatal(err)
	}
	for _, role := range []Role{RoleProducer, RoleConsumer, RoleCompensator} {
		t.Run(string(role), func(t *testing.T) {
			p := member(t, src, role)
			eventually(t, "the log says what it waits for", func() bool { return strings.Contains(p.log.String(), "waiting for the broker") })
			resp, err := http.Get("http://" + src.Set["ops.addr"] + "/readyz")
			if err != nil || resp.Body.Close() != nil || resp.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("readiness: %v %v", resp, err)
			}
			p.end()
		})
	}
}

func TestAMissingSchemaIsNamed(t *testing.T) {
	src := installation(t, "bare")
	live, err := Open(src)
	if err != nil {
		t.Fatal(err)
	}
	if err := Producer(live, io.Discard).Run(t.Context()); order.KindOf(err) != order.Conflict {
		t.Errorf("got %v", err)
	}
}
