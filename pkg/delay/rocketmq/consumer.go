package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"go.uber.org/zap"

	"lapse/pkg/delay"
	"lapse/pkg/order"
)

const (
	// watchEvery is how often the group's positions are read.
	watchEvery = 15 * time.Second
	// stallAfter is how long messages may wait in a queue without the group getting any further before that
	// is an alarm. The client needs up to 45 s to find a broker again, and mends a silent pull after 120 s.
	stallAfter = 150 * time.Second
)

// Consumer hands the messages of one topic to a handler, as one member of a consumer group.
type Consumer struct {
	opts    Options
	kind    order.MessageKind
	handler delay.Handler
	admin   *Admin
	log     *zap.Logger

	lag         atomic.Int64
	stalled     atomic.Int64
	redelivered atomic.Int64
	panicked    atomic.Int64
}

// NewConsumer makes a Consumer; it connects to nothing yet. Events need a group of their own for each
// subscriber: members of one group share its messages.
func NewConsumer(opts Options, kind order.MessageKind, handler delay.Handler, log *zap.Logger) (*Consumer, error) {
	admin, err := NewAdmin(opts, log)
	if err != nil {
		return nil, err
	}
	if kind != order.Timeout && admin.opts.Group == defaultGroup {
		return nil, order.Errorf(order.Invalid, "invalid_broker_options", "group %s is for time-outs", defaultGroup).
			WithHint("Give each subscriber of events a group of its own: members of one group share its messages.")
	}
	if err := prepare(admin.opts, log); err != nil {
		return nil, err
	}
	log = log.With(zap.String("topic", admin.opts.topic(kind)), zap.String("group", admin.opts.Group))
	return &Consumer{opts: admin.opts, kind: kind, handler: handler, admin: admin, log: log}, nil
}

// Lag is the number of messages that wait for the group, its retries included, as of at most 20 s ago.
// Messages that are not due yet do not count.
func (c *Consumer) Lag() int64 { return c.lag.Load() }

// Stalled is the number of queues in which messages wait and the group has not got any further for 150 s:
// either handlers hang, or a queue is silent.
func (c *Consumer) Stalled() int64 { return c.stalled.Load() }

// Redelivered counts the messages that came again after having been handed back.
func (c *Consumer) Redelivered() int64 { return c.redelivered.Load() }

// Panicked counts the panics of the handler.
func (c *Consumer) Panicked() int64 { return c.panicked.Load() }

// Run consumes until ctx ends, then stops without losing a message: see stop. It waits for name server and
// topic, saying in the log what it waits for, and reconnects by itself.
func (c *Consumer) Run(ctx context.Context) error {
	for try := 0; ctx.Err() == nil; try++ {
		if err := c.runClient(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("the broker's client did not start, trying again with a new one", zap.Error(err))
		}
		_ = pause(ctx, try) // ends at once with ctx
	}
	return nil
}

// runClient waits for the topic and runs a new client; one that did not start cannot be started again.
func (c *Consumer) runClient(ctx context.Context) error {
	if err := c.admin.awaitTopics(ctx, c.kind); err != nil {
		return err
	}
	if err := c.admin.ensureRetryTopic(ctx); err != nil {
		c.log.Warn("the group's retry topic is left to the broker, the first retries may take a minute", zap.Error(err), zap.String("hint", hintOf(err)))
	}
	return c.consume(ctx)
}

// pushConsumer is the part of the client library's consumer that is used here.
type pushConsumer interface {
	Start() error
	Suspend()
	Unsubscribe(topic string) error
	Rebalance()
	PersistConsumerOffset() error
	Shutdown() error
}

// consume runs one client until ctx ends. An error means that it did not start.
func (c *Consumer) consume(ctx context.Context) error {
	client, err := consumer.NewPushConsumer(c.opts.consumerOptions()...)
	if err != nil {
		return err
	}
	// Handlers finish what they have begun when ctx ends.
	handling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	s := &session{Consumer: c, ctx: handling, gate: newGate(), dropped: make(chan struct{})}
	if err := client.Subscribe(c.opts.topic(c.kind), consumer.MessageSelector{}, s.handle); err != nil {
		return err
	}
	if err := client.Start(); err != nil {
		return errors.Join(err, client.Shutdown())
	}
	c.log.Info("consuming", zap.Int("concurrency", c.opts.Concurrency))
	c.watch(ctx)
	s.stop(client, cancel)
	return nil
}

// watch reads the group's positions now and then until ctx ends.
func (c *Consumer) watch(ctx context.Context) {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	seen, complained := stalls{}, false
	for {
		positions, err := c.admin.positions(ctx, c.opts.topic(c.kind))
		switch {
		case err == nil:
			c.report(positions, seen, time.Now())
			complained = false
		case ctx.Err() == nil && !complained:
			c.log.Warn("the group's positions are unknown", zap.Error(err), zap.String("hint", hintOf(err)))
			complained = true
			fallthrough
		default:
			clear(seen) // while the broker is away nothing can advance
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (c *Consumer) report(positions []position, seen stalls, now time.Time) {
	var lag int64
	for _, p := range positions {
		lag += p.behind()
	}
	stuck := seen.update(positions, now)
	c.lag.Store(lag)
	c.stalled.Store(int64(len(stuck)))
	for _, p := range stuck {
		c.log.Warn("messages wait in a queue, and the group gets no further", zap.String("queue_topic", p.topic), zap.String("broker", p.broker),
			zap.Int("queue", p.queue), zap.Int64("waiting", p.behind()), zap.String("hint", "Do handlers hang, for example on the database? Else restart the consumer that has this queue."))
	}
}

// stalls remembers since when each queue has been where it is.
type stalls map[string]standing

type standing struct {
	committed int64
	since     time.Time
}

// update returns the queues that have messages waiting and have not advanced for stallAfter.
func (s stalls) update(positions []position, now time.Time) []position {
	var stuck []position
	for _, p := range positions {
		name := fmt.Sprintf("%s/%s/%d", p.topic, p.broker, p.queue)
		last, known := s[name]
		if !known || last.committed != p.committed || p.behind() == 0 {
			s[name] = standing{p.committed, now}
			continue
		}
		if now.Sub(last.since) >= stallAfter {
			stuck = append(stuck, p)
		}
	}
	return stuck
}

// session is one client's life.
type session struct {
	*Consumer
	ctx     context.Context // of the handlers
	gate    *gate
	dropped chan struct{} // closed when the client has let go of its queues
}

// handle is the listener. It never panics and never returns an error: with one, the client logs whole
// bodies, and acknowledges if the result says so.
func (s *session) handle(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	if !s.gate.enter() {
		// Stopping. A result given now would cost the messages a retry and ten seconds; once the queues are
		// let go of it is ignored, and their next owner starts with these messages.
		<-s.dropped
		return consumer.ConsumeRetryLater, nil
	}
	defer s.gate.leave()
	if retried(messages) {
		return s.handleSingly(ctx, messages), nil
	}
	deliveries := make([]order.Delivery, len(messages))
	for i, m := range messages {
		deliveries[i] = delivery(s.kind, m)
	}
	if err := s.call(deliveries); err != nil {
		s.log.Warn("messages are handed back to the broker", zap.Int("messages", len(messages)), zap.Error(err))
		return handBackAll(ctx, 1), nil
	}
	return consumer.ConsumeSuccess, nil
}

// handleSingly delivers messages that came back one by one: whichever of them failed the others' batch must
// not take them along into the dead letters. The client can only hand back whole batches, so we hand back
// the ones that fail again.
func (s *session) handleSingly(ctx context.Context, messages []*primitive.MessageExt) consumer.ConsumeResult {
	s.redelivered.Add(int64(len(messages)))
	attempt := 0
	var failed []*primitive.MessageExt
	for _, m := range messages {
		attempt = max(attempt, int(m.ReconsumeTimes))
		d := delivery(s.kind, m)
		if err := s.call([]order.Delivery{d}); err != nil {
			s.log.Warn("a message is handed back to the broker", zap.String("order_no", d.OrderNo), zap.String("message_id", m.MsgId),
				zap.Int("attempt", d.Attempt), zap.Int("max_retries", s.opts.MaxRetries), zap.Error(err))
			failed = append(failed, m)
		}
	}
	if len(failed) == len(messages) {
		return handBackAll(ctx, attempt+1)
	}
	for _, m := range failed {
		if err := s.admin.sendBack(s.ctx, m.Topic, m.Queue.BrokerName, m.CommitLogOffset, m.MsgId, int(m.ReconsumeTimes)+1); err != nil {
			s.log.Warn("a message cannot be handed back by itself, so its neighbours come again too", zap.Error(err))
			return handBackAll(ctx, attempt+1)
		}
	}
	return consumer.ConsumeSuccess
}

// retried reports whether any of the messages has been handed back before.
func retried(messages []*primitive.MessageExt) bool {
	return slices.ContainsFunc(messages, func(m *primitive.MessageExt) bool { return m.ReconsumeTimes > 0 })
}

// handBackAll asks the client to hand the batch back, to come again after a delay level: 1 s, 5 s, 10 s …
func handBackAll(ctx context.Context, level int) consumer.ConsumeResult {
	if next, ok := primitive.GetConcurrentlyCtx(ctx); ok {
		next.DelayLevelWhenNextConsume = min(level, len(levels))
	}
	return consumer.ConsumeRetryLater
}

// call runs the handler and turns a panic into an error.
func (s *session) call(deliveries []order.Delivery) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.panicked.Add(1)
			s.log.Error("the handler panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			err = fmt.Errorf("the handler panicked: %v", p)
		}
	}()
	return s.handler(s.ctx, deliveries)
}

func delivery(kind order.MessageKind, m *primitive.MessageExt) order.Delivery {
	orderNo, _, _ := strings.Cut(m.GetKeys(), primitive.PropertyKeySeparator)
	return order.Delivery{Kind: kind, OrderNo: orderNo, Body: m.Body, Attempt: int(m.ReconsumeTimes)}
}

// stop ends the session so that nothing is lost and little comes twice: no new messages, running handlers
// finish within Options.Drain, their positions are committed, and only then the queues are let go of.
//
// The order matters. The client's Shutdown alone neither waits for handlers nor for pulls, and a pull that
// comes back meanwhile writes to a closed channel, which ends the process; so the queues are dropped first,
// by unsubscribing.
func (s *session) stop(client pushConsumer, cancelHandlers context.CancelFunc) {
	client.Suspend()
	if !wait(s.gate.close(), s.opts.Drain) {
		s.log.Warn("handlers are still running, cancelling them; their messages are delivered again")
		cancelHandlers()
		wait(s.gate.close(), time.Second)
	}
	// The client books a result some instructions after the handler has returned, and nothing tells when.
	// What it has not booked in this time is delivered once more.
	time.Sleep(50 * time.Millisecond)
	errs := []error{
		client.PersistConsumerOffset(),
		client.Unsubscribe(s.opts.topic(s.kind)),
		client.Unsubscribe(s.admin.retryTopic()),
	}
	client.Rebalance()
	close(s.dropped)
	if err := errors.Join(append(errs, client.Shutdown())...); err != nil {
		s.log.Warn("the broker's client did not stop in order", zap.Error(err))
	}
}

// wait reports whether done was closed within d.
func wait(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}
