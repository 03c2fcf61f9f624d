package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"lapse/pkg/order"
)

// buffer is a log that may be read while it is written.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// process is an App that runs.
type process struct {
	t        *testing.T
	app      *App
	live     *Live
	log      *buffer
	api, ops string // base URLs, once it serves
	serving  chan struct{}
	events   chan []byte
	stop     context.CancelFunc
	ended    chan error
}

// fast are settings with which things happen while a test waits.
var fast = map[string]string{
	"server.addr": "127.0.0.1:0", "ops.addr": "127.0.0.1:0", "order.timeout.min": "100ms", "delay.grace": "0s",
	"relay.poll_interval": "50ms", "log.format": "json", "log.level": "debug",
}

// startDev starts the whole system on a data directory.
func startDev(t *testing.T, data string, set map[string]string) *process {
	t.Helper()
	if err := PrepareData(data); err != nil {
		t.Fatal(err)
	}
	all := maps.Clone(fast)
	maps.Copy(all, set)
	file := all["config"]
	delete(all, "config")
	live, err := Open(Source{Data: data, File: file, Set: all})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, live: live, log: &buffer{}, serving: make(chan struct{}), events: make(chan []byte, 100), ended: make(chan error, 1)}
	hooks := DevHooks{
		Serving: func(api, ops string) {
			p.api, p.ops = "http://"+api, "http://"+ops
			close(p.serving)
		},
		Event: func(body []byte) { p.events <- body },
	}
	p.start(Dev(live, hooks, p.log))
	return p
}

func (p *process) start(a *App) {
	ctx, stop := context.WithCancel(context.Background())
	p.app, p.stop = a, stop
	go func() { p.ended <- a.Run(ctx) }()
	p.t.Cleanup(stop)
}

// wait waits until it serves.
func (p *process) wait() *process {
	p.t.Helper()
	select {
	case <-p.serving:
	case err := <-p.ended:
		p.t.Fatalf("ended with %v\n%s", err, p.log)
	case <-time.After(time.Minute):
		p.t.Fatalf("does not serve\n%s", p.log)
	}
	return p
}

// end stops it in order.
func (p *process) end() {
	p.t.Helper()
	p.stop()
	if err := <-p.ended; err != nil {
		p.t.Errorf("stopped with %v\n%s", err, p.log)
	}
}

func (p *process) token(scope string) string {
	token, ok := p.live.Config().TokenFor(scope)
	if !ok {
		p.t.Fatalf("no token for %s", scope)
	}
	return token
}

// call makes an API call and returns its answer.
func (p *process) call(method, path, scope, body string) map[string]any {
	p.t.Helper()
	req, err := http.NewRequest(method, p.api+path, strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+p.token(scope))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
		p.t.Fatalf("%s %s: %d %v %v", method, path, resp.StatusCode, answer, err)
	}
	return answer
}

func (p *process) create(no, timeout string) {
	p.t.Helper()
	p.call("POST", "/v1/orders", "order", fmt.Sprintf(
		`{"order_no":%q,"user_id":"u1","biz_type":"retail","amount":"100","currency":"CNY","timeout":%q}`, no, timeout))
}

func (p *process) status(no string) any {
	p.t.Helper()
	return p.call("GET", "/v1/orders/"+no, "operator", "")["status"]
}

// event returns the next event.
func (p *process) event() order.CloudEvent[order.CancelledData] {
	p.t.Helper()
	var e order.CloudEvent[order.CancelledData]
	select {
	case body := <-p.events:
		if err := json.Unmarshal(body, &e); err != nil {
			p.t.Fatal(err)
		}
	case <-time.After(time.Minute):
		p.t.Fatalf("no event\n%s", p.log)
	}
	return e
}

func TestDevClosesAnUnpaidOrderOnTimeAndTellsEverybody(t *testing.T) {
	p := startDev(t, t.TempDir(), nil).wait()
	p.create("order-1", "0.3s")
	if got := p.status("order-1"); got != "pending" {
		t.Errorf("just made, it is %v", got)
	}
	e := p.event()
	if e.ID != "order-1:1:cancelled" || e.Data.Reason != order.ReasonTimeout || e.Data.CancelledAt.Before(e.Data.ExpireAt) {
		t.Errorf("got %+v", e)
	}
	if got := p.status("order-1"); got != "cancelled" {
		t.Errorf("it is %v", got)
	}
	if log := p.log.String(); !strings.Contains(log, `"order cancelled","order_no":"order-1"`) {
		t.Errorf("the log does not tell:\n%s", log)
	}
	p.end()
	if checks, err := Audit(context.Background(), p.live.Config(), 0); err != nil || len(checks) == 0 {
		t.Errorf("audit: %v %v", checks, err)
	} else {
		for _, c := range checks {
			if !c.Holds() {
				t.Errorf("%s %s: %d violations, like %s", c.Invariant, c.Name, c.Violations, c.Example)
			}
		}
	}
}

func TestDevClosesAfterARestartWhatFellDueMeanwhile(t *testing.T) {
	data := t.TempDir()
	early := ""
	for timeout := time.Second; early == ""; timeout *= 2 { // on a slow machine an order falls due before the stop
		first, no := startDev(t, data, nil).wait(), "order-"+timeout.String()
		first.create(no, fmt.Sprintf("%ds", timeout/time.Second))
		first.create("order-2", "3600s")
		first.end()
		if len(first.events) == 0 {
			early = no
		}
	}
	second := startDev(t, data, nil).wait()
	if e := second.event(); e.Subject != early {
		t.Errorf("got %+v", e)
	}
	if got := second.status("order-2"); got != "pending" {
		t.Errorf("order-2 is %v", got)
	}
	second.end()
	if strings.Contains(second.log.String(), "broker out of reach") {
		t.Errorf("it sent before anybody listened:\n%s", second.log)
	}
}

func TestOnlyTimeoutsHaveALateness(t *testing.T) {
	p := startDev(t, t.TempDir(), nil).wait()
	isLate := func(e order.CloudEvent[order.CancelledData]) bool {
		for line := range strings.Lines(p.log.String()) {
			if strings.Contains(line, `"event_id":"`+e.ID+`"`) {
				return strings.Contains(line, "lateness_ms")
			}
		}
		t.Fatalf("%s is not in the log:\n%s", e.ID, p.log)
		return false
	}
	p.create("order-1", "0.1s")
	if !isLate(p.event()) {
		t.Error("a time-out has none")
	}
	p.create("order-2", "3600s")
	p.call("POST", "/v1/orders/order-2:cancel", "order", `{"user_id":"u1"}`)
	if isLate(p.event()) {
		t.Error("a user's cancel has one")
	}
	p.call("POST", "/v1/orders/order-2:restore", "operator", `{"reason":"wants it after all","round":1}`)
	if isLate(p.event()) {
		t.Error("a restore has one")
	}
	p.call("POST", "/v1/orders/order-2:cancel", "operator", `{"reason":"a duplicate"}`)
	if isLate(p.event()) {
		t.Error("a cancel by staff has one")
	}
	p.end()
}

func TestALostMessageIsClosedBySweeping(t *testing.T) {
	data := t.TempDir()
	if err := PrepareData(data); err != nil {
		t.Fatal(err)
	}
	live, err := Open(Source{Data: data, Set: fast})
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, live: live, log: &buffer{}, serving: make(chan struct{}), events: make(chan []byte, 1), ended: make(chan error, 1)}
	p.start(Dev(live, DevHooks{
		Serving: func(api, _ string) { p.api = "http://" + api; close(p.serving) },
		Event:   func(body []byte) { p.events <- body },
		Lose:    func(no string) bool { return no == "order-1" },
	}, p.log))
	p.wait()
	p.create("order-1", "0.1s")
	eventually(t, "the message is lost", func() bool {
		timeline := fmt.Sprint(p.call("GET", "/v1/orders/order-1/timeline", "operator", ""))
		return strings.Contains(timeline, "sent")
	})
	if run := p.call("POST", "/v1/sweeps", "operator", "{}"); run["closed"] != "1" {
		t.Errorf("got %v", run)
	}
	if e := p.event(); e.Data.Reason != order.ReasonCompensate {
		t.Errorf("got %+v", e)
	}
	p.end()
}

func TestReloadsDoNotPutOffTheSweep(t *testing.T) {
	path := file(t, "sweep: {limit: 1, interval: 1s}\n")
	p := startDev(t, t.TempDir(), map[string]string{"config": path}).wait()
	reloads := 0
	eventually(t, "five more rounds while settings change all the time", func() bool {
		if !strings.Contains(p.log.String(), "configuration refused") && strings.Count(p.log.String(), "configuration reloaded") >= reloads {
			reloads++
			write(t, path, fmt.Sprintf("sweep: {limit: %d, interval: 1s}\n", 1+reloads%2000))
		}
		return strings.Count(p.log.String(), `"msg":"sweep"`) >= 6
	})
	if reloads < 6 {
		t.Errorf("only %d reloads", reloads)
	}
	p.end()
}

func TestTheLogLevelIsReloaded(t *testing.T) {
	path := file(t, "log: {level: info}\n")
	t.Setenv("LAPSE_LOG_LEVEL", "")
	set := map[string]string{"config": path}
	delete(fast, "log.level")
	defer func() { fast["log.level"] = "debug" }()
	p := startDev(t, t.TempDir(), set).wait()
	write(t, path, "log: {level: debug}\n")
	eventually(t, "the level is in force", func() bool { return strings.Contains(p.log.String(), "configuration reloaded") })
	p.end()
	if !strings.Contains(p.log.String(), `"level":"debug"`) {
		t.Errorf("nothing at debug:\n%s", p.log)
	}
}

func TestStartsAndStopsLeaveNothingBehind(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	data := t.TempDir()
	for n := range 20 {
		p := startDev(t, data, map[string]string{"order.timeout.min": "100ms"})
		if n%4 != 3 { // every fourth is stopped while it starts
			p.wait()
			p.create(fmt.Sprintf("order-%d", n), "0.1s")
		}
		p.end()
	}
	http.DefaultClient.CloseIdleConnections()
	last := startDev(t, data, nil).wait()
	for n := range 20 {
		if n%4 == 3 {
			continue
		}
		no := fmt.Sprintf("order-%d", n)
		eventually(t, no+" is cancelled", func() bool { return last.status(no) == "cancelled" })
	}
	last.end()
	http.DefaultClient.CloseIdleConnections()
}

// silent accepts connections and never answers.
func silent(t *testing.T) string {
	l, err := listen("", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var conns []net.Conn
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conns = append(conns, conn)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-ended
		for _, c := range conns {
			c.Close()
		}
	})
	return l.Addr().String()
}

// freeAddr is an address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := listen("", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// service is a configuration with which a role runs, but for its database.
func service(t *testing.T, dsn string) *Live {
	t.Helper()
	live, err := Open(Source{File: file(t, full), Set: map[string]string{
		"database.dsn": dsn, "ops.addr": freeAddr(t), "server.addr": "127.0.0.1:0",
	}})
	if err != nil {
		t.Fatal(err)
	}
	return live
}

func TestAServiceThatWaitsForItsDatabaseSaysSoAndIsAliveButNotReady(t *testing.T) {
	cases := map[string]string{"silent": silent(t), "absent": freeAddr(t)}
	for name, addr := range cases {
		for role, start := range map[Role]func(*Live, io.Writer) *App{RoleProducer: Producer, RoleConsumer: Consumer, RoleCompensator: Compensator} {
			t.Run(name+" "+string(role), func(t *testing.T) {
				t.Parallel()
				live := service(t, "lapse:hunter2hunter2@tcp("+addr+")/lapse")
				p := &process{t: t, live: live, log: &buffer{}, ended: make(chan error, 1)}
				p.start(start(live, p.log))
				eventually(t, "the log says what it waits for", func() bool {
					return strings.Contains(p.log.String(), "waiting for the database")
				})
				for _, want := range []string{`"since":`, `"hint":"Is it running`, `"error":`} {
					if !strings.Contains(p.log.String(), want) {
						t.Errorf("the log lacks %s:\n%s", want, p.log)
					}
				}
				ops := "http://" + live.Config().Ops.Addr
				for path, code := range map[string]int{"/healthz": 200, "/readyz": 503, "/metrics": 200} {
					if resp, err := http.Get(ops + path); err != nil || resp.Body.Close() != nil || resp.StatusCode != code {
						t.Errorf("%s: %v %v", path, resp, err)
					}
				}
				p.end()
				if strings.Contains(p.log.String(), "hunter2") {
					t.Errorf("the log shows the password:\n%s", p.log)
				}
			})
		}
	}
}

func TestADatabaseThatIsThereButWrongFailsAtOnceWithTheHint(t *testing.T) {
	data := t.TempDir()
	live, err := Open(Source{File: file(t, full), Set: map[string]string{
		"database.driver": "sqlite", "database.dsn": filepath.Join(data, "empty.db"), "database.replica_dsn": "", "ops.addr": "127.0.0.1:0",
	}})
	if err != nil {
		t.Fatal(err)
	}
	err = Consumer(live, io.Discard).Run(context.Background())
	var e *order.Error
	if !errors.As(err, &e) || e.Kind != order.Conflict || !strings.Contains(e.Hint, "lapse migrate") {
		t.Errorf("got %v", err)
	}
}

func TestAStartThatCannotWorkSaysWhy(t *testing.T) {
	taken, err := listen("", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	data := t.TempDir()
	if err := PrepareData(data); err != nil {
		t.Fatal(err)
	}
	inUse := func(setting string) string {
		return fmt.Sprintf("%s: %s is in use", setting, taken.Addr())
	}
	cases := []struct {
		name string
		set  map[string]string
		says string
		code int
	}{
		{"the operations port is taken", map[string]string{"ops.addr": taken.Addr().String()}, inUse("ops.addr"), ExitConflict},
		{"the API port is taken", map[string]string{"server.addr": taken.Addr().String()}, inUse("server.addr"), ExitConflict},
		{"an address is none", map[string]string{"server.addr": "nowhere"}, "server.addr: cannot listen on nowhere", ExitUsage},
		{"the certificate is missing", map[string]string{"server.tls.cert_file": "/none", "server.tls.key_file": "/none"}, "server.tls.cert_file: ", ExitUsage},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			set := map[string]string{"server.addr": "127.0.0.1:0", "ops.addr": "127.0.0.1:0"}
			maps.Copy(set, c.set)
			live, err := Open(Source{Data: data, Set: set})
			if err != nil {
				t.Fatal(err)
			}
			if err := Dev(live, DevHooks{}, io.Discard).Run(context.Background()); ExitCode(err) != c.code || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, exit code %d", err, ExitCode(err))
			}
		})
	}
}

func TestATakenPortIsSaidBeforeTheDatabaseIsMade(t *testing.T) {
	taken, err := listen("", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, setting := range []string{"server.addr", "ops.addr"} {
		t.Run(setting, func(t *testing.T) {
			data := t.TempDir()
			if err := PrepareData(data); err != nil {
				t.Fatal(err)
			}
			set := map[string]string{"server.addr": "127.0.0.1:0", "ops.addr": "127.0.0.1:0"}
			set[setting] = taken.Addr().String()
			live, err := Open(Source{Data: data, Set: set})
			if err != nil {
				t.Fatal(err)
			}
			err = Dev(live, DevHooks{}, io.Discard).Run(context.Background())
			var e *order.Error
			if !errors.As(err, &e) || e.Kind != order.Conflict || !strings.Contains(e.Hint, "--set "+setting+"=host:port") {
				t.Errorf("got %v", err)
			}
			if _, err := os.Stat(live.Config().Database.DSN); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the database was made: %v", err)
			}
		})
	}
}

func TestASecondDevOnTheSameDataIsRefused(t *testing.T) {
	data := t.TempDir()
	first := startDev(t, data, nil).wait()
	live, err := Open(Source{Data: data, Set: fast})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	err = Dev(live, DevHooks{Serving: func(string, string) { stop() }}, io.Discard).Run(ctx)
	var e *order.Error
	if !errors.As(err, &e) || e.Kind != order.Conflict || !strings.Contains(e.Message, data) || !strings.Contains(e.Hint, "--data") {
		t.Errorf("got %v", err)
	}
	if _, err := Audit(context.Background(), first.live.Config(), 0); err != nil {
		t.Errorf("an audit beside the first: %v", err)
	}
	first.create("order-1", "3600s")
	first.end()
	again := startDev(t, data, nil).wait()
	if got := again.status("order-1"); got != "pending" {
		t.Errorf("once the first has ended: order-1 is %v", got)
	}
	again.end()
}

func TestARoleWithoutItsSettingsIsRefusedBeforeAnythingStarts(t *testing.T) {
	live, err := Open(Source{})
	if err != nil {
		t.Fatal(err)
	}
	got := refusedBy(t, Producer(live, io.Discard).Run(context.Background()))
	if got["database.dsn"] == "" || got["auth.tokens"] == "" {
		t.Errorf("got %v", got)
	}
}

func TestTasksNeedADatabase(t *testing.T) {
	c := load(t, Source{})
	if _, err := Migrate(context.Background(), c); refusedBy(t, err)["database.dsn"] == "" {
		t.Errorf("got %v", err)
	}
	data := t.TempDir()
	if err := PrepareData(data); err != nil {
		t.Fatal(err)
	}
	dev := load(t, Source{Data: data})
	if _, err := Audit(context.Background(), dev, 0); order.KindOf(err) != order.Conflict {
		t.Errorf("an audit of an empty database: got %v", err)
	}
	for range 2 {
		if version, err := Migrate(context.Background(), dev); err != nil || version < 1 {
			t.Errorf("got %d %v", version, err)
		}
	}
	if _, err := os.Stat(dev.Database.DSN); err != nil {
		t.Error(err)
	}
}
