package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lapse/test/process"
	"lapse/test/services"
)

// scenario is one run.
type scenario struct {
	name       string
	broker     string // RocketMQ's version
	delay      string // delay.mode
	orders     int
	creating   time.Duration // how long creates go on
	minTimeout time.Duration
	maxTimeout time.Duration
	copied     share // of the orders whose time-out message is sent again by somebody else
	faults     []fault
	before     string   // revision of the version that runs first
	chaos      bool     // the database breaks, too
	env        []string // settings beside those of all scenarios
	// messagesMost is how many time-out messages an order may have at the most; 0: not judged, since faults and copies
	// bring more.
	messagesMost int
}

// hardTimes are faults of each of the roles that messages need, early in the run, so that there is calm after them.
func hardTimes(broker string) []fault {
	return []fault{
		{20 * time.Second, "kill consumer-2", 5 * time.Second},
		{28 * time.Second, "kill producer-2", 5 * time.Second},
		{36 * time.Second, broker, 10 * time.Second},
	}
}

var scenarios = []scenario{
	{
		name: "timer messages, killed processes and a stopped broker", broker: "5.5.0", delay: "timer",
		orders: 10_000, creating: 110 * time.Second, minTimeout: 3 * time.Second, maxTimeout: 40 * time.Second,
		copied: .05, faults: hardTimes("stop broker"),
	},
	{
		name: "delay levels, killed processes and a killed broker", broker: "5.5.0", delay: "levels",
		orders: 10_000, creating: 110 * time.Second, minTimeout: 3 * time.Second, maxTimeout: 40 * time.Second,
		copied: .05, faults: hardTimes("kill broker"),
	},
	{
		name: "a broker that ignores delays", broker: "4.9.4", delay: "timer",
		orders: 2_000, creating: 20 * time.Second, minTimeout: 3 * time.Second, maxTimeout: 20 * time.Second, messagesMost: 3,
	},
	{
		name: "an upgrade of one process after the other", broker: "5.5.0", delay: "timer", before: "99cb8d4987685d6dbb3da4e0fb11634270d5d106",
		orders: 3_000, creating: 60 * time.Second, minTimeout: 3 * time.Second, maxTimeout: 20 * time.Second,
		faults: []fault{
			{8 * time.Second, "migrate", 0}, // the version before goes on for a while
			{14 * time.Second, "kill consumer-2", 0}, {20 * time.Second, "upgrade consumer-1", 0}, {26 * time.Second, "upgrade producer-1", 0},
			{40 * time.Second, "upgrade producer-2", 0}, {46 * time.Second, "upgrade compensator-1", 0},
		},
	},
}

// run is a scenario in the middle of it, and what was found when it was over.
type run struct {
	scenario
	seed     uint64
	sys      *system
	shop     *shop
	forger   *forger
	out      *sender
	tap      *listener // of the time-outs, in a group of its own
	listener *listener // of the events
	begin    time.Time // by the database's clock
	windows  []window

	orders   map[string]*row
	payments map[string]payment
	timeouts []message
	events   []message
	handled  float64 // time-out messages that the consumers have handled
}

func TestWhatIsDueEndsOnceAndOnTime(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("minutes on a real database and broker")
	}
	services.Need(t, "LAPSE_TEST_MYSQL_DSN", "LAPSE_TEST_ROCKETMQ")
	programs := process.Build(t)
	seed := seedOfRun(t)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s, err := s.sized(os.Getenv("LAPSE_E2E_ORDERS"))
			if err != nil {
				t.Fatal(err)
			}
			first := programs
			if s.before != "" {
				first = process.BuildAt(t, s.before)
			}
			r := &run{scenario: s, seed: seed, sys: startSystem(t, first, s)}
			r.sys.next = programs
			r.play(t)
			r.judge(t)
		})
	}
}

func seedOfRun(t *testing.T) uint64 {
	given := os.Getenv("LAPSE_E2E_SEED")
	if given == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(given, 10, 64)
	if err != nil {
		t.Fatalf("LAPSE_E2E_SEED: %v", err)
	}
	return seed
}

// sized is the scenario with another number of orders, created at the same rate unless that leaves no time for faults.
func (s scenario) sized(orders string) (scenario, error) {
	if orders == "" {
		return s, nil
	}
	n, err := strconv.Atoi(orders)
	if err != nil || n < 1 {
		return s, fmt.Errorf("LAPSE_E2E_ORDERS: %q is not a number of orders", orders)
	}
	s.creating = s.creating * time.Duration(n) / time.Duration(s.orders)
	for _, f := range s.faults {
		s.creating = max(s.creating, f.at+f.down)
	}
	s.orders = n
	return s, nil
}

// play makes the whole run and returns when nothing is due, to be sent or to be heard any more.
func (r *run) play(t *testing.T) {
	ctx := t.Context()
	var err error
	if r.shop, err = newShop(r.sys.apis(), r.sys.secrets, makePlans(r.scenario, r.seed)); err != nil {
		t.Fatal(err)
	}
	if err := r.shop.stock(ctx); err != nil {
		t.Fatal(err)
	}
	r.out = newSender(t, r.sys.broker.Addr)
	r.forger = newForger(r.sys, r.out, r.scenario.orders)
	r.listener = listen(t, r.sys.broker.Addr, eventTopic, nil)
	r.tap = listen(t, r.sys.broker.Addr, timeoutTopic, r.forger.heard)

	if r.begin, err = r.sys.now(ctx); err != nil {
		t.Fatal(err)
	}
	all, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	aside, enough := context.WithCancel(all)
	defer enough()
	trade, beside := crew{ctx: all, fail: fail}, crew{ctx: aside, fail: fail} // the second goes on until the first is done
	trade.do("trading", r.shop.trade)
	trade.do("copying messages", func(ctx context.Context) error { return r.forger.copyRows(ctx, r.shop.created) })
	trade.do("sending nonsense", r.forger.talkNonsense)
	beside.do("copying delivered messages", r.forger.copyDelivered)
	beside.do("restocking", r.shop.restock)
	beside.do("watching", func(ctx context.Context) error {
		rounds, err := r.sys.watch(ctx)
		t.Logf("what must hold at every moment was looked at %d times", rounds)
		return err
	})
	if err := r.toTheEnd(all, &trade); err != nil {
		fail(err)
	}
	enough()
	_, _ = trade.Wait(), beside.Wait() // what went wrong first is the cause
	if err := context.Cause(all); err != nil {
		t.Fatal(err)
	}
}

// crew are things that go on at the same time. The first thing that goes wrong ends everything.
type crew struct {
	errgroup.Group
	ctx  context.Context
	fail context.CancelCauseFunc
}

func (c *crew) do(what string, f func(context.Context) error) {
	c.Go(func() error {
		err := f(c.ctx)
		if err != nil {
			c.fail(fmt.Errorf("%s: %w", what, err))
		}
		return err
	})
}

// toTheEnd makes the faults and waits until nothing is left to be done.
func (r *run) toTheEnd(ctx context.Context, trade *crew) (err error) {
	if r.windows, err = r.sys.trouble(ctx, r.faults); err != nil {
		return err
	}
	if err := trade.Wait(); err != nil {
		return err
	}
	if err := r.sys.settled(ctx, r.maxTimeout+grace+bound); err != nil {
		return err
	}
	return r.heard(ctx)
}

// settled waits until nothing is pending and nothing is to be sent.
func (s *system) settled(ctx context.Context, within time.Duration) error {
	var pending, messages int
	err := await(ctx, within, "nothing is due", func(ctx context.Context) (bool, error) {
		err := s.db.QueryRowContext(ctx, "SELECT (SELECT COUNT(*) FROM t_order WHERE status = 0), (SELECT COUNT(*) FROM t_local_message)").Scan(&pending, &messages)
		return pending+messages == 0, err
	})
	if err != nil {
		return fmt.Errorf("%w: %d orders pending, %d messages left", err, pending, messages)
	}
	return nil
}

// heard waits until every message has been heard, here and by the consumers: markers are sent to all queues, and the
// consumers find them to be of nobody.
func (r *run) heard(ctx context.Context) error {
	unknown := func(ctx context.Context) (float64, error) {
		m, err := r.sys.counted(ctx, "consumer")
		return m.sum("lapse_timeout_messages_total", `result="unknown"`), err
	}
	before, err := unknown(ctx)
	if err != nil {
		return err
	}
	for _, l := range []*listener{r.listener, r.tap} {
		if err := l.drained(ctx, r.out); err != nil {
			return err
		}
	}
	return await(ctx, bound, "the consumers have heard every message", func(ctx context.Context) (bool, error) {
		now, err := unknown(ctx)
		return now >= before+queues, err
	})
}

// judge checks all that must hold and prints what the run has shown.
func (r *run) judge(t *testing.T) {
	ctx := t.Context()
	var err error
	if r.orders, err = r.sys.readOrders(ctx); err != nil {
		t.Fatal(err)
	}
	if r.payments, err = r.sys.readPayments(ctx); err != nil {
		t.Fatal(err)
	}
	r.timeouts, _ = r.tap.messages()
	r.events, _ = r.listener.messages()
	v := &verdict{t: t}
	v.byQuery(ctx, r.sys)
	v.inTime(r.orders, r.windows)
	v.byAnswers(r.shop, r.orders, r.payments)
	v.bySupply(ctx, r.sys, r.shop)
	v.byEvents(r.events, r.orders)
	v.byQuarantine(ctx, r.sys)
	r.byCounters(ctx, v)
	r.byPath(t)
	r.byAudit(ctx, t)
	figures, err := r.sys.figures(ctx, r)
	if err != nil {
		t.Error(err)
	}
	t.Logf("what must hold:\n  %s\nwhat it took:\n  %s", strings.Join(v.lines, "\n  "), strings.Join(figures, "\n  "))
	r.sys.stop()
	r.byLogs(t)
}

// byQuarantine judges that all nonsense was set aside, and nothing else (which a check by query says).
func (v *verdict) byQuarantine(ctx context.Context, s *system) {
	var kinds int64
	if err := s.db.QueryRowContext(ctx, "SELECT COUNT(DISTINCT body) FROM t_quarantine").Scan(&kinds); err != nil {
		v.t.Errorf("I9: %v", err)
		return
	}
	var missing []string
	if want := int64(len(nonsense) * nonsenseEach); kinds != want {
		missing = []string{fmt.Sprintf("%d of %d were set aside", kinds, want)}
	}
	v.holds("I9", "nonsense was set aside", int64(len(nonsense)*nonsenseEach), missing)
}

// byCounters judges what the processes have counted.
func (r *run) byCounters(ctx context.Context, v *verdict) {
	all, err := r.sys.counted(ctx, "")
	if err != nil {
		v.t.Error(err)
		return
	}
	if early := all.sum("lapse_early_closes_total"); early != 0 {
		v.t.Errorf("the processes have counted %v early closes", early)
	}
	byMessage, bySweep := all.sum("lapse_closes_total", `path="message"`), all.sum("lapse_closes_total", `path="sweep"`)
	if len(r.faults) > 0 && r.before == "" && (byMessage == 0 || bySweep == 0) {
		v.t.Errorf("messages closed %v orders and sweeps %v: with these faults, both should have closed some", byMessage, bySweep)
	}
	r.handled = all.sum("lapse_close_batch_size_sum")
	if r.messagesMost > 0 {
		r.byStorm(v)
	}
}

// byPath judges that the compensator is not what keeps the promise in calm times: a message that was taken for done before
// its order was due would leave it to the compensator every time. A stall of the machine may, now and then.
func (r *run) byPath(t *testing.T) {
	calm, _ := lateness(r.orders, r.windows)
	swept := 0
	for _, o := range calm {
		if o.reason == "COMPENSATE" {
			swept++
		}
	}
	if len(calm) == 0 || swept > len(calm)/3 {
		t.Errorf("in calm times the compensator closed %d of %d orders", swept, len(calm))
	}
}

// byStorm judges that no order had more than a few time-out messages, and that the consumers were hardly given any of
// them twice (which they may, when they share out the queues).
func (r *run) byStorm(v *verdict) {
	var flooded []string
	for no, n := range perKey(r.timeouts) {
		if n > r.messagesMost && r.orders[no] != nil {
			flooded = append(flooded, fmt.Sprintf("%s had %d", no, n))
		}
	}
	v.holds("I14", fmt.Sprintf("an order has %d time-out messages at the most", r.messagesMost), int64(len(r.orders)), flooded)
	if sent := float64(len(r.timeouts)); r.handled > 1.01*sent {
		v.t.Errorf("the consumers have handled %.0f messages of %.0f", r.handled, sent)
	}
}

// byAudit asks the program's own audit, which has to agree.
func (r *run) byAudit(ctx context.Context, t *testing.T) {
	said, err := r.sys.programs.Run(ctx, r.sys.env, "lapse", "audit")
	if err != nil {
		t.Errorf("the program's own audit does not agree: %v\n%s", err, said)
		return
	}
	t.Logf("lapse audit:\n%s", said)
}

var panicked = regexp.MustCompile(`(?m)^(panic:|fatal error:|goroutine \d+ \[)|"the handler panicked"|"call_panicked"`)

// byLogs judges that no process has panicked.
func (r *run) byLogs(t *testing.T) {
	logs, err := filepath.Glob(filepath.Join(r.sys.logs, "*.log"))
	if err != nil || len(logs) != len(r.sys.nodes) {
		t.Fatalf("%d logs of %d processes: %v", len(logs), len(r.sys.nodes), err)
	}
	for _, path := range logs {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if at := panicked.FindIndex(raw); at != nil {
			t.Errorf("%s:\n%s", filepath.Base(path), raw[at[0]:min(len(raw), at[0]+3000)])
		}
	}
}
