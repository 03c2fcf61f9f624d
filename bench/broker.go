package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"lapse/pkg/delay"
	"lapse/pkg/delay/rocketmq"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// senders is how many messages the bench itself sends at a time.
const senders = 64

// topics are a pair of topics and a group that nobody else uses. Messages are traced, as by default.
func (l *lab) topics(name string) rocketmq.Options {
	prefix := "bench-" + l.run + "-" + name
	return rocketmq.Options{
		NameServers: []string{l.nameServer}, CreateTopics: true,
		TimeoutTopic: prefix + "-timeout", EventTopic: prefix + "-event", Group: prefix, Trace: true,
	}
}

// brokers are the versions of the brokers.
func (l *lab) brokers(ctx context.Context) ([]string, error) {
	admin, err := rocketmq.NewAdmin(l.topics("admin"), l.log)
	if err != nil {
		return nil, err
	}
	found, err := admin.Brokers(ctx)
	var versions []string
	for _, b := range found {
		versions = append(versions, b.Version)
	}
	return versions, err
}

// bare are topics whose messages are not traced.
func (l *lab) bare(name string) rocketmq.Options {
	opts := l.topics(name)
	opts.Trace = false
	return opts
}

// sender connects to the broker.
func (l *lab) sender(ctx context.Context, opts rocketmq.Options) (*rocketmq.Sender, error) {
	s, err := rocketmq.NewSender(opts, l.log)
	if err != nil {
		return nil, err
	}
	return s, s.Start(ctx)
}

// timeout is a time-out message as the relay sends it.
func timeout(no string, due time.Time) order.Envelope {
	return order.Envelope{
		Kind: order.Timeout, OrderNo: no, MessageID: order.TimeoutKey(no), ExpireAt: due, DeliverAt: due, Delay: time.Until(due),
		Body: order.TimeoutBody{
			Version: order.TimeoutVersion, OrderNo: no, MessageID: order.TimeoutKey(no), ExpireAt: due, DeliverAt: due,
		}.Encode(),
	}
}

// sendAll sends n messages as fast as it goes.
func sendAll(ctx context.Context, s *rocketmq.Sender, n int, message func(i int) order.Envelope) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(senders)
	for i := range n {
		g.Go(func() error {
			_, err := s.Send(ctx, message(i))
			return err
		})
	}
	return g.Wait()
}

// crew runs parts and stops them in reverse.
type crew struct {
	ctx   context.Context
	stops []func() error
}

// start runs a part until the crew stops.
func (c *crew) start(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(c.ctx)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	c.stops = append(c.stops, func() error {
		cancel()
		return <-ended
	})
}

// then closes something when the crew stops.
func (c *crew) then(closer func() error) { c.stops = append(c.stops, closer) }

func (c *crew) stop() error {
	var errs []error
	for len(c.stops) > 0 {
		last := len(c.stops) - 1
		errs = append(errs, c.stops[last]())
		c.stops = c.stops[:last]
	}
	return errors.Join(errs...)
}

// witness is the store, and sees what was closed and when that was committed.
type witness struct {
	*store.Store
	closed   atomic.Int64
	last     atomic.Int64 // unix nanoseconds of the last commit
	lateness chan []time.Duration
	early    atomic.Int64
}

// newWitness keeps the lateness of up to batches closing transactions.
func newWitness(s *store.Store, batches int) *witness {
	return &witness{Store: s, lateness: make(chan []time.Duration, batches)}
}

// CloseDue notes the time from each deadline to the commit of its close.
func (w *witness) CloseDue(ctx context.Context, c order.Closing, first order.Schedule) (order.ClosedBatch, error) {
	batch, err := w.Store.CloseDue(ctx, c, first)
	if err != nil || len(batch.Closed) == 0 {
		return batch, err
	}
	now := time.Now()
	late := make([]time.Duration, len(batch.Closed))
	for i, o := range batch.Closed {
		late[i] = now.Sub(o.ExpireAt)
		if o.CancelledAt.Before(o.ExpireAt) {
			w.early.Add(1)
		}
	}
	select {
	case w.lateness <- late:
	default: // only closed and last are looked at
	}
	w.last.Store(now.UnixNano())
	w.closed.Add(int64(len(late)))
	return batch, nil
}

// samples are the latenesses so far.
func (w *witness) samples() (all []time.Duration) {
	for {
		select {
		case late := <-w.lateness:
			all = append(all, late...)
		default:
			return all
		}
	}
}

// until waits for a condition, and fails when nothing moves for a minute.
func until(ctx context.Context, what string, progress func() int64, want int64) error {
	last, moved := int64(-1), time.Now()
	for {
		now := progress()
		if now >= want {
			return nil
		}
		if now != last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > time.Minute {
			return fmt.Errorf("%s: stuck at %d of %d", what, now, want)
		}
		if !sleep(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// closers starts the consumer role on a database: a relay for the events, a closer, and a consumer that feeds it.
func (l *lab) closers(ctx context.Context, c *crew, s *witness, opts rocketmq.Options, seen func([]order.Delivery)) error {
	sender, err := l.sender(ctx, opts)
	if err != nil {
		return err
	}
	c.then(sender.Close)
	m := metrics()
	relay := lifecycle.NewRelay(s, sender, defaults[lifecycle.RelayOptions], m, l.log)
	c.start(relay.Run)
	closer := lifecycle.NewCloser(s, relay, defaults[lifecycle.CloseOptions], m, l.log)
	c.start(closer.Run)
	return l.consume(c, opts, func(ctx context.Context, deliveries []order.Delivery) error {
		seen(deliveries)
		return closer.Handle(ctx, deliveries)
	})
}

// consume starts a consumer of time-outs.
func (l *lab) consume(c *crew, opts rocketmq.Options, handle delay.Handler) error {
	consumer, err := rocketmq.NewConsumer(opts, order.Timeout, handle, l.log)
	if err != nil {
		return err
	}
	c.start(consumer.Run)
	return nil
}
