package rocketmq

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"

	"lapse/pkg/delay"
	"lapse/pkg/delay/delaytest"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/test/services"
)

// TestMain looks for goroutines that are left behind. The client library leaves its own: timers of its clients
// and statistics that sleep for up to a day, pulls that sleep or wait up to 30 s for an answer on
// a closed connection, connections to name servers until they time out. None grows with the number of messages.
func TestMain(m *testing.M) {
	const client = "github.com/apache/rocketmq-client-go/v2/"
	allowed := []goleak.Option{
		goleak.IgnoreAnyFunction(client + "internal/remote.(*ResponseFuture).waitResponse"),
		goleak.IgnoreAnyFunction(client + "internal/remote.(*remotingClient).receiveResponse"),
		goleak.IgnoreAnyFunction(client + "consumer.(*pushConsumer).pullMessage"),
		goleak.IgnoreAnyFunction("github.com/patrickmn/go-cache.(*janitor).Run"),
	}
	for i := range 9 {
		allowed = append(allowed,
			goleak.IgnoreAnyFunction(fmt.Sprintf(client+"internal.(*rmqClient).Start.func1.%d", i)),
			goleak.IgnoreAnyFunction(fmt.Sprintf(client+"consumer.(*pushConsumer).Start.func1.%d", i)),
			goleak.IgnoreAnyFunction(fmt.Sprintf(client+"consumer.(*statsItemSet).init.func%d", i)))
	}
	goleak.VerifyTestMain(m, allowed...)
}

// brokerOptions are what it takes to reach the broker of the tests; it may have an ACL.
func brokerOptions(t *testing.T) Options {
	t.Helper()
	return Options{
		NameServers: []string{broker(t)},
		AccessKey:   os.Getenv("LAPSE_TEST_ROCKETMQ_ACCESS_KEY"), SecretKey: os.Getenv("LAPSE_TEST_ROCKETMQ_SECRET_KEY"),
	}
}

// broker is the name server that the tests use.
func broker(t *testing.T) string {
	t.Helper()
	services.Need(t, "LAPSE_TEST_ROCKETMQ")
	return os.Getenv("LAPSE_TEST_ROCKETMQ")
}

// ownOptions are options with topics and a group that no other test has; the topics are removed at the end.
func ownOptions(t *testing.T) Options {
	t.Helper()
	id := strings.TrimPrefix(instance(""), "lapse--")
	opts := brokerOptions(t)
	opts.TimeoutTopic, opts.EventTopic, opts.Group = "test-timeout-"+id, "test-event-"+id, "test-"+id
	opts.CreateTopics, opts.Queues = true, 4
	t.Cleanup(func() { removeTopics(t, opts) })
	return opts
}

// removeTopics takes the topics from brokers and name server.
func removeTopics(t *testing.T, opts Options) {
	const reqDeleteInBroker, reqDeleteInNameServer = 215, 216
	a := newAdmin(t, opts)
	masters, err := a.masters(context.Background())
	if err != nil {
		t.Logf("topics are left behind: %v", err)
		return
	}
	for _, topic := range []string{opts.TimeoutTopic, opts.EventTopic, "%RETRY%" + opts.Group} {
		for _, b := range masters {
			_, _ = a.remoting.call(context.Background(), b.Addr, reqDeleteInBroker, map[string]string{"topic": topic})
		}
		_, _ = a.remoting.call(context.Background(), opts.NameServers[0], reqDeleteInNameServer, map[string]string{"topic": topic})
	}
}

func newAdmin(t *testing.T, opts Options) *Admin {
	t.Helper()
	a, err := NewAdmin(opts, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// testLog writes to the test's log. It outlives the test, because goroutines of the client do.
func testLog(t *testing.T) *zap.Logger {
	w := &lasting{t: t}
	t.Cleanup(w.end)
	return zaptest.NewLogger(w)
}

type lasting struct {
	mu sync.Mutex
	t  *testing.T // nil when the test has ended
}

func (l *lasting) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t = nil
}

func (l *lasting) Logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.t != nil {
		l.t.Logf(format, args...)
	}
}

func (l *lasting) Errorf(format string, args ...any) { l.Logf(format, args...) }
func (l *lasting) Fail()                             {}
func (l *lasting) Failed() bool                      { return false }
func (l *lasting) Name() string                      { return "" }
func (l *lasting) FailNow()                          {}

// startSender makes a Sender that is ready and closed at the end of the test.
func startSender(t *testing.T, opts Options) *Sender {
	t.Helper()
	s, err := NewSender(opts, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// startConsumer runs a Consumer until stop is called, or the test ends.
func startConsumer(t *testing.T, opts Options, kind order.MessageKind, handler delay.Handler) (c *Consumer, stop func()) {
	t.Helper()
	c, err := NewConsumer(opts, kind, handler, testLog(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

// channel is the suite's view of a broker.
type channel struct {
	opts   Options
	sender *Sender
}

func (c channel) Sender() lifecycle.Sender { return c.sender }

func (c channel) Post(ctx context.Context, e order.Envelope) error {
	_, err := c.sender.Send(ctx, e)
	return err
}

func (c channel) Consume(t *testing.T, kind order.MessageKind, handler delay.Handler) func() {
	_, stop := startConsumer(t, c.opts, kind, handler)
	return stop
}

func TestConformanceInTimerMode(t *testing.T) {
	needTimer(t)
	delaytest.Run(t, func(t *testing.T) delaytest.Channel {
		opts := ownOptions(t)
		return channel{opts, startSender(t, opts)}
	})
}
