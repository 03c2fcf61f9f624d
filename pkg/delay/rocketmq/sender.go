package rocketmq

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"go.uber.org/zap"

	"lapse/pkg/delay"
	"lapse/pkg/order"
)

// timerCap is how long a timer message may wait: the broker's default cap of three days (timerMaxDelaySec),
// less a margin for clocks that differ.
const timerCap = 3*24*time.Hour - time.Hour

// levels are the 18 delay levels of every broker (messageDelayLevel); the first is number 1.
var levels = [...]time.Duration{
	time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 2 * time.Minute, 3 * time.Minute, 4 * time.Minute, 5 * time.Minute,
	6 * time.Minute, 7 * time.Minute, 8 * time.Minute, 9 * time.Minute, 10 * time.Minute,
	20 * time.Minute, 30 * time.Minute, time.Hour, 2 * time.Hour,
}

// levelFor is the number of the largest level of at most d, and how long it is; 0 if there is none.
func levelFor(d time.Duration) (int, time.Duration) {
	for i := len(levels) - 1; i >= 0; i-- {
		if levels[i] <= d {
			return i + 1, levels[i]
		}
	}
	return 0, 0
}

// levelSlack is how much of a delay may have gone by between Step and Send without a smaller level being
// taken. Within it a message comes late rather than in one more step.
const levelSlack = time.Second / 2

// Sender sends messages to RocketMQ. It is safe for concurrent use, and reconnects by itself.
type Sender struct {
	opts     Options
	admin    *Admin
	log      *zap.Logger
	producer interface {
		Start() error
		Shutdown() error
		SendSync(context.Context, ...*primitive.Message) (*primitive.SendResult, error)
	}

	mu      sync.RWMutex // held for reading during a send: the client must not be shut down under it
	started bool
}

// NewSender makes a Sender; it connects to nothing yet.
func NewSender(opts Options, log *zap.Logger) (*Sender, error) {
	admin, err := NewAdmin(opts, log)
	if err != nil {
		return nil, err
	}
	if err := prepare(admin.opts, log); err != nil {
		return nil, err
	}
	p, err := producer.NewDefaultProducer(admin.opts.producerOptions()...)
	if err != nil {
		return nil, order.Errorf(order.Invalid, "invalid_broker_options", "the broker's client refuses its configuration").Wrap(err)
	}
	return &Sender{opts: admin.opts, admin: admin, log: log, producer: p}, nil
}

// Start waits until name server, broker and both topics are there, saying in the log what it waits for, and
// makes missing topics if Options.CreateTopics says so. Its error is that of ctx. Until then every Send is
// Unavailable; afterwards the broker may come and go.
func (s *Sender) Start(ctx context.Context) error {
	if err := s.admin.awaitTopics(ctx, order.Timeout, order.Notice); err != nil {
		return err
	}
	if err := s.start(); err != nil {
		return err
	}
	s.checkBrokers(ctx)
	return nil
}

func (s *Sender) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.producer.Start(); err != nil {
		return order.Errorf(order.Internal, "broker_client", "the broker's client does not start").Wrap(err)
	}
	s.started = true
	return nil
}

// checkBrokers says in the log what the brokers are, and what does not fit.
func (s *Sender) checkBrokers(ctx context.Context) {
	brokers, err := s.admin.Brokers(ctx)
	if err != nil {
		s.log.Warn("the broker's version is unknown", zap.Error(err))
		return
	}
	for _, b := range brokers {
		s.describe(b)
	}
}

func (s *Sender) describe(b Broker) {
	log := s.log.With(zap.String("broker", b.Name), zap.String("broker_addr", b.Addr), zap.String("version", b.Version))
	log.Info("connected to a broker", zap.Duration("clock_skew", b.Skew), zap.String("mode", string(s.opts.Mode)))
	if s.opts.Mode == ModeTimer && !b.hasTimer() {
		log.Warn("this broker does not know timer messages: it delivers them at once, and they are scheduled again from the table",
			zap.String("hint", "Use the mode levels, or RocketMQ 5.0 or later."))
	}
}

// Close waits for the sends in flight and disconnects.
func (s *Sender) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.started = false
	return s.producer.Shutdown()
}

// Step is due itself or as long as the broker can wait: three days less a margin in timer mode, the largest
// level of at most the rest in levels mode. Of less than the smallest level nothing waits on the broker.
func (s *Sender) Step(now, due time.Time) time.Time {
	rest := due.Sub(now)
	if s.opts.Mode == ModeTimer {
		return now.Add(min(rest, timerCap))
	}
	_, step := levelFor(rest)
	return now.Add(step)
}

// Send sends one message and waits for the broker's answer, for SendTimeout at most. With the broker down,
// sends in flight take that long and new ones fail at once.
func (s *Sender) Send(ctx context.Context, e order.Envelope) (order.Receipt, error) {
	if err := delay.Check(e); err != nil {
		return order.Receipt{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if !s.started {
		return order.Receipt{}, order.Errorf(order.Unavailable, "broker_unreachable", "not connected to the broker")
	}
	res, err := s.producer.SendSync(ctx, s.message(e))
	if err != nil {
		return order.Receipt{}, sendError(err, s.opts.topic(e.Kind))
	}
	if res.Status != primitive.SendOK {
		return order.Receipt{}, order.Errorf(order.Unavailable, "not_durable", "the broker took the message but could not make it durable (send status %d)", res.Status).
			WithHint("Look at the broker's disk and its replicas. The message is sent again.")
	}
	return order.Receipt{MessageID: res.MsgID, OffsetMessageID: res.OffsetMsgID}, nil
}

// message renders an envelope. The body stands alone; the properties repeat parts of it for whoever looks at
// the broker.
func (s *Sender) message(e order.Envelope) *primitive.Message {
	m := primitive.NewMessage(s.opts.topic(e.Kind), e.Body)
	m.WithKeys([]string{e.OrderNo, e.MessageID})
	switch e.Kind {
	case order.Timeout:
		m.WithTag("timeout")
		m.WithProperty("hop", strconv.Itoa(e.Hop))
		setTime(m, "expire_at", e.ExpireAt)
		setTime(m, "deliver_at", e.DeliverAt)
		if body, err := order.DecodeTimeout(e.Body); err == nil {
			m.WithProperty("version", strconv.Itoa(body.Version))
			setText(m, "traceparent", body.TraceParent)
		}
	default:
		m.WithTag(e.Type)
		m.WithShardingKey(e.OrderNo) // an order's events share a queue
	}
	s.delay(m, e)
	return m
}

// delay asks the broker to wait.
func (s *Sender) delay(m *primitive.Message, e order.Envelope) {
	switch {
	case e.DeliverAt.IsZero():
	case s.opts.Mode == ModeTimer:
		m.WithDelayTimestamp(e.DeliverAt)
	default:
		if level, _ := levelFor(e.Delay + levelSlack); level > 0 {
			m.WithDelayTimeLevel(level)
		}
	}
}

func setTime(m *primitive.Message, name string, at time.Time) {
	if !at.IsZero() {
		m.WithProperty(name, at.UTC().Format("2006-01-02T15:04:05.000Z07:00"))
	}
}

// setText sets a property unless it has the characters that the protocol separates properties with.
func setText(m *primitive.Message, name, value string) {
	if !strings.ContainsAny(value, "\x01\x02") {
		m.WithProperty(name, value)
	}
}

// sendError tells a message that is refused for ever from everything that may pass.
func sendError(err error, topic string) error {
	// The client gives the broker's answer as text only.
	var code int
	if _, scan := fmt.Sscanf(err.Error(), "CODE: %d,", &code); scan != nil {
		code = resOK // no answer at all
	}
	switch code {
	case resMessageIllegal:
		return order.Errorf(order.Invalid, "message_refused", "the broker refuses the message").Wrap(err)
	case resNoPermission:
		return order.Errorf(order.Unavailable, "broker_refuses", "the broker takes no message for topic %s", topic).Wrap(err).WithHint(hintKeys)
	}
	return order.Errorf(order.Unavailable, "broker_unreachable", "the broker did not take a message for topic %s", topic).Wrap(err).
		WithHint("Is the broker running and does it have the topic? It is tried again.")
}
