package rocketmq

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"lapse/pkg/delay"
	"lapse/pkg/delay/delaytest"
	"lapse/pkg/order"
	"lapse/test/services"
)

func TestStoredMessage(t *testing.T) {
	opts := ownOptions(t)
	sender := startSender(t, opts)
	receipt, err := sender.Send(t.Context(), delaytest.Event("stored-1", `{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	if receipt.MessageID == "" || receipt.OffsetMessageID == "" {
		t.Errorf("the receipt %+v names no message", receipt)
	}
	opts, _ = opts.withDefaults()
	client, err := consumer.NewPushConsumer(opts.consumerOptions()...)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *primitive.MessageExt, 1)
	// The broker filters by tag.
	err = client.Subscribe(opts.EventTopic, consumer.MessageSelector{Type: consumer.TAG, Expression: order.TypeCancelled},
		func(_ context.Context, ms ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			got <- ms[0]
			return consumer.ConsumeSuccess, nil
		})
	if err := errors.Join(err, client.Start()); err != nil {
		t.Fatal(err)
	}
	m := <-got
	if m.GetKeys() != "stored-1 "+order.EventID("stored-1", 1, order.TypeCancelled) || m.GetShardingKey() != "stored-1" || m.MsgId != receipt.MessageID {
		t.Errorf("stored with keys %q, sharding key %q, id %s; receipt %+v", m.GetKeys(), m.GetShardingKey(), m.MsgId, receipt)
	}
	(&session{Consumer: &Consumer{opts: opts, kind: order.Notice, admin: newAdmin(t, opts), log: testLog(t)}, gate: newGate(), dropped: make(chan struct{})}).stop(client, func() {})
}

func TestBeyondTheBrokersCap(t *testing.T) {
	needTimer(t)
	sender := startSender(t, ownOptions(t))
	e := delaytest.Timeout("beyond-cap", 90*24*time.Hour)
	if _, err := sender.Send(t.Context(), e); order.KindOf(err) != order.Invalid {
		t.Errorf("sent as it is: %v, want Invalid", err)
	}
	e.DeliverAt = sender.Step(time.Now(), e.DeliverAt)
	if _, err := sender.Send(t.Context(), e); err != nil {
		t.Errorf("sent in a step: %v", err)
	}
}

// relay is what the lifecycle does around a broker that only waits in steps: a message that comes early is
// scheduled again, and waits here when the broker cannot wait for as little as is left.
type relay struct {
	channel
	waiting sync.WaitGroup
	hops    atomic.Int32
}

func openRelay(t *testing.T, opts Options) *relay {
	opts.Mode = ModeLevels
	r := &relay{channel: channel{opts, startSender(t, opts)}}
	t.Cleanup(r.waiting.Wait) // before the sender is closed
	return r
}

func (r *relay) Post(ctx context.Context, e order.Envelope) error {
	if e.Kind != order.Timeout {
		return r.channel.Post(ctx, e)
	}
	now := time.Now()
	step := r.sender.Step(now, e.ExpireAt)
	if step.After(now) || !e.ExpireAt.After(now) {
		e.DeliverAt, e.Delay = step, step.Sub(now)
		return r.channel.Post(ctx, e)
	}
	r.waiting.Go(func() {
		time.Sleep(time.Until(e.ExpireAt)) // less than a second
		e.DeliverAt, e.Delay = e.ExpireAt, 0
		for r.channel.Post(context.Background(), e) != nil {
			time.Sleep(100 * time.Millisecond)
		}
	})
	return nil
}

func (r *relay) Consume(t *testing.T, kind order.MessageKind, handler delay.Handler) func() {
	return r.channel.Consume(t, kind, func(ctx context.Context, ds []order.Delivery) error {
		var due []order.Delivery
		for _, d := range ds {
			r.hops.Add(1)
			body, err := order.DecodeTimeout(d.Body)
			if err != nil || !body.ExpireAt.After(time.Now()) {
				due = append(due, d)
				continue
			}
			e := order.Envelope{Kind: d.Kind, OrderNo: d.OrderNo, MessageID: body.MessageID, ExpireAt: body.ExpireAt, Body: d.Body}
			if err := r.Post(ctx, e); err != nil {
				return err
			}
		}
		if len(due) == 0 {
			return nil
		}
		return handler(ctx, due)
	})
}

func TestConformanceInLevelsMode(t *testing.T) {
	delaytest.Run(t, func(t *testing.T) delaytest.Channel { return openRelay(t, ownOptions(t)) })
}

func TestLevelsStepThrough(t *testing.T) {
	r := openRelay(t, ownOptions(t))
	inbox := &delaytest.Inbox{}
	r.Consume(t, order.Timeout, inbox.Take)
	e := delaytest.Timeout("levels-step", 7300*time.Millisecond)
	if err := r.Post(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	delaytest.Await(t, "the last step", func() bool { return len(inbox.All()) > 0 })
	if got := inbox.All()[0]; got.At.Before(e.ExpireAt) {
		t.Errorf("taken %v early", e.ExpireAt.Sub(got.At))
	}
	// 5 s, 1 s, 1 s, and the rest from the table; a late delivery can only save steps.
	if hops := r.hops.Load(); hops < 2 || hops > 4 {
		t.Errorf("%d deliveries, want 2 to 4", hops)
	}
}

func TestPoisonBecomesADeadLetter(t *testing.T) {
	opts := ownOptions(t)
	opts.MaxRetries, opts.Queues = 2, 1
	sender := startSender(t, opts)
	var mu sync.Mutex
	attempts := map[string][]int{}
	handler := func(_ context.Context, ds []order.Delivery) error {
		mu.Lock()
		defer mu.Unlock()
		var failed error
		for _, d := range ds {
			attempts[d.OrderNo] = append(attempts[d.OrderNo], d.Attempt)
			if d.OrderNo == "poison-0" || len(ds) > 1 {
				failed = errors.New("nobody can take this")
			}
		}
		return failed
	}
	// They wait together, so that the poison's batch has neighbours.
	orders := []string{"poison-0", "neighbour-1", "neighbour-2", "neighbour-3", "neighbour-4"}
	e := delaytest.Timeout("poison-0", 0)
	for _, no := range orders {
		e.OrderNo = no
		if _, err := sender.Send(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	c, stop := startConsumer(t, opts, order.Timeout, handler)
	dead := func() int64 { return endOf(t, opts, "%DLQ%"+opts.Group) }
	delaytest.Await(t, "the dead letter", func() bool { return dead() > 0 })
	stop()
	mu.Lock()
	defer mu.Unlock()
	if got := attempts["poison-0"]; !slices.Equal(got, []int{0, 1, 2}) {
		t.Errorf("the poison was delivered in attempts %v, want 0, 1 and 2", got)
	}
	if dead() != 1 {
		t.Errorf("%d dead letters, want only the poison", dead())
	}
	for _, no := range orders[1:] {
		if got := attempts[no]; len(got) == 0 || len(got) > 2 {
			t.Errorf("%s was delivered in attempts %v, want one or two", no, got)
		}
	}
	if c.Redelivered() < 2 {
		t.Errorf("%d redeliveries are counted, want two at least", c.Redelivered())
	}
}

// endOf is the number of messages that a topic has ever had; 0 if it does not exist.
func endOf(t *testing.T, opts Options, topic string) int64 {
	t.Helper()
	a := newAdmin(t, opts)
	r, err := a.route(t.Context(), topic)
	if isCode(err, resNoTopic) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	var n int64
	for _, q := range r.QueueDatas {
		some, err := a.positionsAt(t.Context(), r.master(q.BrokerName), topic, q.BrokerName, q.ReadQueueNums)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range some {
			n += p.end
		}
	}
	return n
}

func TestStopCancelsHandlersThatHang(t *testing.T) {
	opts := ownOptions(t)
	opts.Drain = 100 * time.Millisecond
	sender := startSender(t, opts)
	running := make(chan struct{}, 1)
	_, stop := startConsumer(t, opts, order.Timeout, func(ctx context.Context, _ []order.Delivery) error {
		running <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	if _, err := sender.Send(t.Context(), delaytest.Timeout("hangs-1", 0)); err != nil {
		t.Fatal(err)
	}
	<-running
	stop()
	inbox := &delaytest.Inbox{}
	startConsumer(t, opts, order.Timeout, inbox.Take)
	delaytest.Await(t, "the message at the next consumer", func() bool { return len(inbox.All()) > 0 })
}

func TestLag(t *testing.T) {
	opts := ownOptions(t)
	sender := startSender(t, opts)
	const n = 20
	for range n {
		if _, err := sender.Send(t.Context(), delaytest.Timeout("lag-order", 0)); err != nil {
			t.Fatal(err)
		}
	}
	a := newAdmin(t, opts)
	lag := func() int64 {
		positions, err := a.positions(t.Context(), opts.TimeoutTopic)
		if err != nil {
			t.Fatal(err)
		}
		c := &Consumer{log: testLog(t)}
		c.report(positions, stalls{}, time.Now())
		return c.Lag()
	}
	// The broker files a past-due timer message under its topic a moment after it has taken it.
	delaytest.Await(t, "a lag of all messages", func() bool { return lag() == n })
	inbox := &delaytest.Inbox{}
	_, stop := startConsumer(t, opts, order.Timeout, inbox.Take)
	delaytest.Await(t, "the messages", func() bool { return len(inbox.All()) == n })
	stop()
	delaytest.Await(t, "no lag", func() bool { return lag() == 0 })
}

func TestBrokers(t *testing.T) {
	brokers, err := newAdmin(t, brokerOptions(t)).Brokers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range brokers {
		t.Logf("broker %s at %s is RocketMQ %s, its clock is off by %v", b.Name, b.Addr, b.Version, b.Skew)
		if b.Name == "" || b.Version == "" || b.hasTimer() == strings.HasPrefix(b.Version, "4.") || b.Skew.Abs() > time.Second {
			t.Errorf("got %+v", b)
		}
	}
}

// watched returns a log and what it has seen of warnings.
func watched(t *testing.T) (*zap.Logger, *observer.ObservedLogs) {
	core, seen := observer.New(zapcore.WarnLevel)
	return testLog(t).WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core { return zapcore.NewTee(c, core) })), seen
}

func TestTopicIsMissingAtStart(t *testing.T) {
	opts := ownOptions(t)
	opts.CreateTopics = false
	log, seen := watched(t)
	sender, err := NewSender(opts, log)
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	if _, err := sender.Send(t.Context(), delaytest.Timeout("too-early", 0)); order.KindOf(err) != order.Unavailable {
		t.Errorf("a send before Start: %v, want Unavailable", err)
	}
	inbox := &delaytest.Inbox{}
	startConsumer(t, opts, order.Timeout, inbox.Take)
	started := make(chan error, 1)
	go func() { started <- sender.Start(t.Context()) }()

	delaytest.Await(t, "a line that says what is missing and how to make it", func() bool {
		return slices.ContainsFunc(seen.FilterMessage("waiting for the broker").All(), func(e observer.LoggedEntry) bool {
			hint, _ := e.ContextMap()["hint"].(string)
			return strings.Contains(hint, "mqadmin updateTopic -n "+opts.NameServers[0]) && strings.Contains(hint, "-t "+opts.TimeoutTopic) &&
				strings.Contains(hint, "+message.type=DELAY")
		})
	})
	if err := newAdmin(t, opts).EnsureTopics(t.Context()); order.KindOf(err) != order.Unavailable {
		t.Errorf("EnsureTopics that may not make them: %v, want Unavailable", err)
	}

	allowed := opts
	allowed.CreateTopics = true
	if err := newAdmin(t, allowed).EnsureTopics(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if _, err := sender.Send(t.Context(), delaytest.Timeout("after-all", 0)); err != nil {
		t.Fatal(err)
	}
	delaytest.Await(t, "the message", func() bool { return len(inbox.All()) > 0 })
}

func TestBrokerRefusesToMakeATopic(t *testing.T) {
	opts := ownOptions(t)
	opts.Queues = 1024
	opts.TimeoutTopic = "TBW102" // a system topic: exists on the broker, and nobody may change it
	a := newAdmin(t, opts)
	masters, err := a.masters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = a.createOn(t.Context(), masters[0], opts.TimeoutTopic, 1, "")
	var refused *codeError
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want the broker's refusal", err)
	}
}

// proxy forwards connections to a name server from the moment it is opened.
type proxy struct{ addr string }

func newProxy(t *testing.T) *proxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &proxy{l.Addr().String()}
}

func (p *proxy) open(t *testing.T, target string) {
	l, err := net.Listen("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	conns := []net.Conn{}
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, c := range conns {
			c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	forward := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // ends with either side
		to.Close()
	}
	all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			all.Go(func() { forward(out, in) })
			all.Go(func() { forward(in, out) })
		}
	})
}

func TestNameServerComesLate(t *testing.T) {
	opts := ownOptions(t)
	late := newProxy(t)
	opts.NameServers = []string{late.addr}
	log, seen := watched(t)
	sender, err := NewSender(opts, log)
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	started := make(chan error, 1)
	go func() { started <- sender.Start(t.Context()) }()
	delaytest.Await(t, "a line that says what it waits for", func() bool { return seen.FilterMessage("waiting for the broker").Len() > 0 })
	late.open(t, broker(t))
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if _, err := sender.Send(t.Context(), delaytest.Timeout("late-server", 0)); err != nil {
		t.Error(err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	dead := newProxy(t)
	log, seen := watched(t)
	opts := Options{NameServers: []string{dead.addr}}
	sender, err := NewSender(opts, log)
	if err != nil {
		t.Fatal(err)
	}
	defer sender.Close()
	c, err := NewConsumer(opts, order.Timeout, func(context.Context, []order.Delivery) error { return nil }, log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 2)
	go func() { ended <- sender.Start(ctx) }()
	go func() { ended <- c.Run(ctx) }()
	delaytest.Await(t, "both to wait", func() bool { return seen.FilterMessage("waiting for the broker").Len() >= 2 })
	cancel()
	got := []error{<-ended, <-ended}
	if !slices.Contains(got, nil) || !slices.ContainsFunc(got, func(err error) bool { return errors.Is(err, context.Canceled) }) {
		t.Errorf("got %v, want nil of Run and the context's error of Start", got)
	}
}

func TestSecondNameServerIsAsked(t *testing.T) {
	opts := ownOptions(t)
	opts.NameServers = []string{newProxy(t).addr, broker(t)}
	if err := newAdmin(t, opts).EnsureTopics(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMessageTrace(t *testing.T) {
	opts := ownOptions(t)
	opts.Trace = true
	sender := startSender(t, opts)
	before := endOf(t, opts, "RMQ_SYS_TRACE_TOPIC")
	inbox := &delaytest.Inbox{}
	startConsumer(t, opts, order.Timeout, inbox.Take)
	if _, err := sender.Send(t.Context(), delaytest.Timeout("is-traced", 0)); err != nil {
		t.Fatal(err)
	}
	delaytest.Await(t, "the message", func() bool { return len(inbox.All()) > 0 })
	// Sent, taken before and after.
	delaytest.Await(t, "its trace", func() bool { return endOf(t, opts, "RMQ_SYS_TRACE_TOPIC") > before })
}

// The broker speaks TLS with a certificate of its own making. TLS is one setting for a process, so this runs
// in another.
func TestTLS(t *testing.T) {
	addr := broker(t)
	if os.Getenv("LAPSE_TEST_TLS_CHILD") != "" {
		inTLS(t)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestTLS$", "-test.v")
	cmd.Env = append(os.Environ(), "LAPSE_TEST_TLS_CHILD=1", "LAPSE_TEST_ROCKETMQ="+addr)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func inTLS(t *testing.T) {
	opts := ownOptions(t)
	opts.TLS = true
	sender := startSender(t, opts)
	inbox := &delaytest.Inbox{}
	startConsumer(t, opts, order.Timeout, inbox.Take)
	if _, err := sender.Send(t.Context(), delaytest.Timeout("over-tls", 0)); err != nil {
		t.Fatal(err)
	}
	delaytest.Await(t, "the message", func() bool { return len(inbox.All()) > 0 })

	opts.TLSCAFile = "testdata/other-ca.pem"
	if err := newAdmin(t, opts).EnsureTopics(t.Context()); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a broker that the CA has not signed: %v", err)
	}
	opts.TLS, opts.TLSCAFile = false, ""
	if _, err := NewSender(opts, testLog(t)); order.KindOf(err) != order.Invalid {
		t.Errorf("a second broker without TLS: %v, want Invalid", err)
	}
}

func TestABrokerWithAnACLIsReachedByWhoKnowsThePasswordAndNobodyElse(t *testing.T) {
	services.Need(t, "LAPSE_TEST_ROCKETMQ")
	const user, password = "lapse", "a-password-of-the-acl"
	protected := services.NewBroker(t, "5.5.0", "LAPSE_ROCKETMQ_ACL="+user+":"+password)
	opts := Options{NameServers: []string{protected.Addr}, AccessKey: user, SecretKey: password, TimeoutTopic: "acl-timeout", EventTopic: "acl-event", Group: "acl", CreateTopics: true, Queues: 2}
	sender := startSender(t, opts)
	inbox := &delaytest.Inbox{}
	startConsumer(t, opts, order.Timeout, inbox.Take)
	if _, err := sender.Send(t.Context(), delaytest.Timeout("under-an-acl", time.Second)); err != nil {
		t.Fatal(err)
	}
	delaytest.Await(t, "the message", func() bool { return len(inbox.All()) > 0 })

	for name, change := range map[string]func(*Options){
		"another password": func(o *Options) { o.SecretKey = "another-password" },
		"another user":     func(o *Options) { o.AccessKey = "somebody" },
		"nobody":           func(o *Options) { o.AccessKey, o.SecretKey = "", "" },
	} {
		stranger := opts
		change(&stranger)
		if _, err := startSender(t, stranger).Send(t.Context(), delaytest.Timeout("by-a-stranger", time.Second)); err == nil {
			t.Errorf("%s may send", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}

// steer runs one of the commands that stop and start the broker.
func steer(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

func TestBrokerGoesAndComesBack(t *testing.T) {
	opts := ownOptions(t)
	for name, command := range map[string]string{
		"in order": os.Getenv("LAPSE_TEST_BROKER_STOP"), "by SIGKILL": os.Getenv("LAPSE_TEST_BROKER_KILL"),
	} {
		t.Run(name, func(t *testing.T) {
			start := os.Getenv("LAPSE_TEST_BROKER_START")
			if command == "" || start == "" {
				t.Skip("this broker was given by its address: it is not ours to stop")
			}
			goesAndComesBack(t, opts, command, start)
		})
	}
}

func goesAndComesBack(t *testing.T, opts Options, stop, start string) {
	opts.SendTimeout = time.Second
	sender := startSender(t, opts)
	inbox := &delaytest.Inbox{}
	startConsumer(t, opts, order.Timeout, inbox.Take)
	taken := map[string]bool{}
	send := func(no string, wait time.Duration) error {
		_, err := sender.Send(t.Context(), delaytest.Timeout(no, wait))
		if err == nil {
			taken[no] = true
		}
		return err
	}
	if err := errors.Join(send("before-stop", 0), send("waits-meanwhile", 8*time.Second)); err != nil {
		t.Fatal(err)
	}
	delaytest.Await(t, "the first message", func() bool { return len(inbox.All()) > 0 })

	steer(t, stop)
	back := sync.OnceFunc(func() { steer(t, start) })
	defer back()
	for _, no := range []string{"while-down-1", "while-down-2"} {
		if err := send(no, 0); order.KindOf(err) != order.Unavailable {
			t.Errorf("%s: %v, want Unavailable", no, err)
		}
	}
	back()
	delaytest.Await(t, "a send that is taken", func() bool { return send("after-start", 0) == nil })
	delaytest.Await(t, "everything that was taken", func() bool {
		got := inbox.Orders()
		for no := range taken {
			if _, ok := got[no]; !ok {
				return false
			}
		}
		return true
	})
}

// needTimer skips what a broker before 5.0 cannot do.
func needTimer(t *testing.T) {
	t.Helper()
	brokers, err := newAdmin(t, brokerOptions(t)).Brokers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range brokers {
		if !b.hasTimer() {
			t.Skipf("RocketMQ %s has no timer messages", b.Version)
		}
	}
}

func TestBrokerWithoutTimers(t *testing.T) {
	s, err := NewSender(brokerOptions(t), testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		version string
		mode    Mode
		warns   bool
	}{
		{"4.9.4", ModeTimer, true}, {"4.9.4", ModeLevels, false}, {"5.5.0", ModeTimer, false}, {"5.5.0", ModeLevels, false}, {"", ModeTimer, true},
	} {
		t.Run(tt.version+" in mode "+string(tt.mode), func(t *testing.T) {
			log, seen := watched(t)
			s.log, s.opts.Mode = log, tt.mode
			s.describe(Broker{Name: "broker-a", Version: tt.version})
			if got := seen.Len() > 0; got != tt.warns {
				t.Errorf("warned: %v, want %v", got, tt.warns)
			}
		})
	}
}
