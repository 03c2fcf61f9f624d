package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"lapse/test/process"
	"lapse/test/services"
)

// What the processes are configured with, where it is not the default.
const (
	grace         = time.Second
	sweepOverdue  = 5 * time.Second
	sweepInterval = 5 * time.Second
	// bound is I3's B: grace, the time a sweep leaves to messages, two rounds, and what a busy machine takes.
	bound = 60 * time.Second

	timeoutTopic = "order-timeout"
	eventTopic   = "order-event"
	queues       = 8

	startBound = time.Minute
	stopBound  = 40 * time.Second // shutdown.timeout is 30 s
)

// system is everything that runs: database, broker and the project's processes.
type system struct {
	t        *testing.T
	programs process.Programs
	next     process.Programs // the version that is upgraded to
	db       services.Database
	server   *services.Server // the database's own, in runs that break it
	link     *link            // the way there
	broker   *services.Broker
	secrets  secrets
	env      []string
	config   string // path of the settings that may be changed while it runs
	logs     string
	nodes    []*node
}

// node is one place where a program runs; after a kill it runs there again.
type node struct {
	name    string
	program string
	api     string // address, of producers
	ops     string
	running *process.Process
	before  metrics // what it had counted when it was killed
}

// startSystem starts everything and returns once it is ready.
func startSystem(t *testing.T, programs process.Programs, s scenario) *system {
	t.Helper()
	sys := &system{
		t: t, programs: programs, logs: t.TempDir(), broker: services.NewBroker(t, s.broker),
		secrets: secrets{services.RandomHex(16), services.RandomHex(16), services.RandomHex(16), services.RandomHex(16)},
	}
	dsn := sys.connect(s.chaos)
	sys.config = filepath.Join(sys.logs, "lapse.yaml")
	if err := sys.settings(200); err != nil {
		t.Fatal(err)
	}
	sys.env = []string{
		"LAPSE_DATABASE_DSN=" + dsn,
		"LAPSE_BROKER_NAME_SERVERS=" + sys.broker.Addr,
		"LAPSE_BROKER_TIMEOUT_TOPIC=" + timeoutTopic, "LAPSE_BROKER_EVENT_TOPIC=" + eventTopic, fmt.Sprintf("LAPSE_BROKER_QUEUES=%d", queues),
		"LAPSE_DELAY_MODE=" + s.delay, "LAPSE_DELAY_GRACE=" + grace.String(),
		"LAPSE_SWEEP_OVERDUE=" + sweepOverdue.String(), "LAPSE_SWEEP_INTERVAL=" + sweepInterval.String(),
		"LAPSE_PAYMENT_SECRETS=" + sys.secrets.payment,
		fmt.Sprintf("LAPSE_AUTH_TOKENS=[{name: shop, token: %q, scopes: [order]}, {name: gateway, token: %q, scopes: [payment]}, {name: staff, token: %q, scopes: [operator]}]",
			sys.secrets.shop, sys.secrets.gateway, sys.secrets.staff),
	}
	sys.env = append(sys.env, s.env...)
	if err := sys.migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"producer-1", "producer-2", "consumer-1", "consumer-2", "compensator-1"} {
		program, _, _ := strings.Cut(name, "-")
		sys.nodes = append(sys.nodes, &node{
			name: name, program: program,
			api: fmt.Sprintf("127.0.0.1:%d", services.FreePort(t)), ops: fmt.Sprintf("127.0.0.1:%d", services.FreePort(t)),
		})
	}
	for _, n := range sys.nodes {
		sys.start(n)
	}
	for _, n := range sys.nodes {
		if err := sys.ready(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	return sys
}

// migrate brings the schema to the version of the programs, as its owner.
func (s *system) migrate(ctx context.Context) error {
	_, err := s.programs.Run(ctx, append(slices.Clone(s.env), "LAPSE_DATABASE_DSN="+s.db.DSN), "lapse", "migrate")
	return err
}

// connect makes the database and returns the DSN for the processes: in chaos a server of its own, behind a link.
func (s *system) connect(chaos bool) (dsn string) {
	if !chaos {
		s.db = services.NewDatabase(s.t)
		return s.db.Service
	}
	s.server = services.NewServer(s.t)
	s.db, s.link = s.server.Database, newLink(s.t, s.server.Addr)
	return strings.Replace(s.db.Service, s.server.Addr, s.link.addr(), 1)
}

func (s *system) start(n *node) {
	env := append(slices.Clone(s.env), "LAPSE_SERVER_ADDR="+n.api, "LAPSE_OPS_ADDR="+n.ops)
	n.running = process.Start(s.t, s.logs, n.name, s.programs.Path(n.program), env, "--config", s.config)
}

// ready waits until the node says that it is ready.
func (s *system) ready(ctx context.Context, n *node) error {
	return await(ctx, startBound, n.name+" is ready", func(ctx context.Context) (bool, error) {
		if n.running.Ended() {
			return false, fmt.Errorf("%s has ended; its log says\n%s", n.name, n.running.Tail())
		}
		_, err := get(ctx, "http://"+n.ops+"/readyz")
		return err == nil, nil
	})
}

func (s *system) node(name string) *node {
	i := slices.IndexFunc(s.nodes, func(n *node) bool { return n.name == name })
	return s.nodes[i]
}

// apis are the producers' addresses.
func (s *system) apis() [2]string {
	return [2]string{s.node("producer-1").api, s.node("producer-2").api}
}

// stop ends all processes in order and reports those that do not end well.
func (s *system) stop() {
	for _, n := range s.nodes {
		if err := n.running.Stop(stopBound); err != nil {
			s.t.Errorf("%v; its log says\n%s", err, n.running.Tail())
		}
	}
}

// now is the database's clock.
func (s *system) now(ctx context.Context) (now time.Time, err error) {
	err = s.db.QueryRowContext(ctx, "SELECT UTC_TIMESTAMP(3)").Scan(&now)
	return now, err
}

// await polls until done. An error of done ends the wait at once.
func await(ctx context.Context, bound time.Duration, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("not within %v: %s", bound, what))
	defer cancel()
	for {
		ok, err := done(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if ok || err != nil {
			return err
		}
		if !pause(ctx, 200*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// get reads a page of an operations port.
func get(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, response.Status, body)
	}
	return string(body), err
}

// metrics are samples by series, written like name{label="value"}.
type metrics map[string]float64

// scrape reads what a node counts now and what it had counted before it was killed.
func (n *node) scrape(ctx context.Context) (metrics, error) {
	page, err := get(ctx, "http://"+n.ops+"/metrics")
	if err != nil {
		return nil, err
	}
	m := metrics{}
	lines := bufio.NewScanner(strings.NewReader(page))
	for lines.Scan() {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if m[line[:i]], err = strconv.ParseFloat(line[i+1:], 64); err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
	}
	for series, value := range n.before {
		m[series] += value
	}
	return m, lines.Err()
}

// sum adds up the series of a name that have all labels, written like outcome="sent".
func (m metrics) sum(name string, labels ...string) (sum float64) {
	for series, value := range m {
		base, rest, _ := strings.Cut(series, "{")
		if base == name && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(rest, l) }) {
			sum += value
		}
	}
	return sum
}

// counted adds up what all nodes of a program have counted. Only counters may be asked for: a node's life before a
// kill counts as well.
func (s *system) counted(ctx context.Context, program string) (metrics, error) {
	all := metrics{}
	for _, n := range s.nodes {
		if program != "" && n.program != program {
			continue
		}
		m, err := n.scrape(ctx)
		if err != nil {
			return nil, err
		}
		for series, value := range m {
			all[series] += value
		}
	}
	return all, nil
}
