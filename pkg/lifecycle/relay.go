package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"lapse/pkg/order"
)

// RelayOptions tunes the sending of local messages.
type RelayOptions struct {
	Grace       time.Duration    // from an order's deadline to the delivery of its time-out; 0 means none
	Horizon     time.Duration    // messages due later than this stay in the table for now; 0 means 24 h
	Poll        time.Duration    // how often the table is asked for what is left; 0 means 1 s
	Lease       time.Duration    // how long a row belongs to whoever took it; 0 means 10 s
	Batch       int              // rows claimed by a poll, and settled together; 0 means 256
	MaxAttempts int              // refusals of one row before it is quarantined; 0 means 16
	Now         func() time.Time // the local clock; nil means the machine's
	// Retry makes the waits while the broker is away; nil means 200 ms, doubling to 5 s, give or take half.
	Retry func() backoff.BackOff
}

func (o RelayOptions) withDefaults() RelayOptions {
	o.Horizon = or(o.Horizon, 24*time.Hour)
	o.Poll = or(o.Poll, time.Second)
	o.Lease = or(o.Lease, 10*time.Second)
	o.Batch = or(o.Batch, 256)
	o.MaxAttempts = or(o.MaxAttempts, 16)
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Retry == nil {
		o.Retry = func() backoff.BackOff { return newBackoff() }
	}
	return o
}

const (
	relaySenders  = 64                    // sends in flight of each kind; the client sends one message a call, so concurrency makes the rate
	relayQueue    = 4096                  // rows of a kind in memory; what does not fit waits in the table
	settleLinger  = 50 * time.Millisecond // what was sent waits so long to be settled together; a crash sends it again
	retryFirst    = 200 * time.Millisecond
	retryMost     = 5 * time.Second
	giveWay       = 2 * time.Second
	refusedWait   = time.Second // before a refused row is tried again, times the attempts
	leaseHeadroom = 2           // a row is sent only while more than 1/leaseHeadroom of its lease is left
)

// Relay sends what was committed. The local message table is the truth: a row is deleted or marked only
// after the broker took it, so a crash sends it again and never loses it (I9).
//
// A broker that is down costs rows nothing but time: sending stops, the rows stay, and one small batch at
// a time asks whether it is back. Only a broker that refuses the row itself counts attempts. Time-outs and events go to
// topics of their own, each on its own route: one that cannot be reached holds up no other.
type Relay struct {
	store   MessageStore
	sender  Sender
	options func() RelayOptions
	routes  map[order.MessageKind]*route
	settle  *group[order.Sent]
	giveUp  *group[order.Deferred]
	offset  atomic.Int64 // database clock minus local clock, nanoseconds
	metrics *Metrics
	log     *zap.Logger
}

// route is the way of one kind of message to the broker.
type route struct {
	kind   order.MessageKind
	queue  chan order.Message
	wake   chan time.Time
	outage outage
}

// NewRelay makes a relay; options are read at each use.
func NewRelay(store MessageStore, sender Sender, options func() RelayOptions, metrics *Metrics, log *zap.Logger) *Relay {
	r := &Relay{
		store: store, sender: sender, metrics: metrics, log: log,
		options: func() RelayOptions { return options().withDefaults() },
		routes:  map[order.MessageKind]*route{},
	}
	for _, kind := range []order.MessageKind{order.Timeout, order.Notice} {
		r.routes[kind] = &route{kind: kind, queue: make(chan order.Message, relayQueue), wake: make(chan time.Time, relaySenders), outage: outage{now: r.local, retry: r.retry}}
	}
	batch := func() groupOptions { return groupOptions{Size: r.options().Batch, Linger: settleLinger, Patient: true} }
	r.settle = newGroup(1, relayQueue, batch, r.settleAll)
	r.giveUp = newGroup(1, relayQueue, batch, r.deferAll)
	return r
}

// Run sends until ctx ends, finishes the sends in flight, and settles them.
func (r *Relay) Run(ctx context.Context) error {
	settling, stop := context.WithCancel(context.WithoutCancel(ctx))
	var settlers, senders errgroup.Group
	settlers.Go(func() error { return r.settle.Run(settling) })
	settlers.Go(func() error { return r.giveUp.Run(settling) })
	for _, way := range r.routes {
		senders.Go(func() error { return r.poll(ctx, way) })
		for range relaySenders {
			senders.Go(func() error { return r.send(ctx, way) })
		}
	}
	err := senders.Wait()
	stop()
	return errors.Join(err, settlers.Wait())
}

// local is this process's clock: it only measures how long ago something was.
func (r *Relay) local() time.Time { return r.options().Now() }

func (r *Relay) retry() backoff.BackOff { return r.options().Retry() }

// now is the database's clock as the poll has last seen it.
func (r *Relay) now() time.Time { return r.local().Add(time.Duration(r.offset.Load())) }

func (r *Relay) saw(now time.Time) { r.offset.Store(int64(now.Sub(r.local()))) }

// due is when a message is to reach its consumer.
func (r *Relay) due(m order.Message) time.Time {
	if m.Kind == order.Timeout {
		return m.DueAt.Add(r.options().Grace)
	}
	return m.DueAt
}

// waitUntil is how long a row stays in the table before it is handed to the broker; now if it is not to wait.
func (r *Relay) waitUntil(m order.Message, now time.Time) time.Time {
	due := r.due(m)
	if !due.After(now) {
		return now
	}
	if !r.sender.Step(now, due).After(now) {
		return due
	}
	if far := due.Add(-r.options().Horizon); far.After(now) {
		return far
	}
	return now
}

// Schedule is the order.Schedule of new rows: one that can be sent is born leased by this relay, which is
// offered it right after the commit.
func (r *Relay) Schedule(m order.Message, now time.Time) time.Time {
	if wait := r.waitUntil(m, now); wait.After(now) {
		return wait
	}
	return now.Add(r.options().Lease)
}

// UntilDue is the order.Schedule of rows whose broker does not delay: they wait in the table.
func (r *Relay) UntilDue(m order.Message, _ time.Time) time.Time { return r.due(m) }

// Later is the order.Schedule of rows that give way to more urgent work for a while: the poll finds them.
func (r *Relay) Later(_ order.Message, now time.Time) time.Time { return now.Add(giveWay) }

// Offer hands over rows that were just committed with Schedule. It never blocks: what does not fit is
// found by the poll when its lease has run out.
//
// A row that was leased to be sent, and by now is too near its time for the broker's smallest step, is taken as
// well: a sender gives it back until it is due, or it would wait for the end of its lease.
func (r *Relay) Offer(rows ...order.Message) {
	for _, m := range rows {
		now := r.now()
		wait := r.waitUntil(m, now)
		leased := m.NextAt.After(wait)
		way := r.routes[m.Kind]
		if wait.After(now) && !leased || way.outage.left() > 0 {
			r.Await(m)
			continue
		}
		select {
		case way.queue <- m:
		default:
			r.metrics.Sends.WithLabelValues(string(m.Kind), "dropped").Inc()
		}
	}
}

// Await sees to it that rows which wait in the table are polled for as soon as they are due.
func (r *Relay) Await(rows ...order.Message) {
	for _, m := range rows {
		if m.NextAt.Sub(r.now()) > r.options().Poll {
			continue // a poll comes before
		}
		select {
		case r.routes[m.Kind].wake <- m.NextAt:
		default: // the poll has plenty to look for
		}
	}
}

// poll claims what is due and in nobody's hands. There is no cursor: a row that commits late is found late.
func (r *Relay) poll(ctx context.Context, way *route) error {
	retry := newBackoff()
	for ctx.Err() == nil {
		if wait := way.outage.left(); wait > 0 {
			sleep(ctx, wait)
			continue
		}
		limit := r.options().Batch
		if way.outage.on() {
			limit = relaySenders // a probe
		}
		rows, now, wake, err := r.store.Claim(ctx, way.kind, limit, r.options().Lease)
		if err != nil {
			r.retrying(ctx, "claim", err)
			sleep(ctx, retry.NextBackOff())
			continue
		}
		retry.Reset()
		r.saw(now)
		for _, m := range rows {
			select {
			case way.queue <- m:
			case <-ctx.Done():
				return nil
			}
		}
		if len(rows) < limit || way.outage.on() { // a probe is under way: one at a time
			r.idle(ctx, way, wake)
		}
	}
	return nil
}

// idle waits for the next poll: at once when a row falls due before.
func (r *Relay) idle(ctx context.Context, way *route, wake time.Time) {
	until := r.now().Add(r.options().Poll)
	for {
		if !wake.IsZero() && wake.Before(until) {
			until = wake
		}
		timer := time.NewTimer(until.Sub(r.now()))
		select {
		case wake = <-way.wake:
			timer.Stop()
			continue
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		return
	}
}

// send is one sender. After the end of ctx it sends what is queued.
func (r *Relay) send(ctx context.Context, way *route) error {
	for {
		m, ok := next(ctx, way.queue)
		if !ok {
			return nil
		}
		r.sendOne(ctx, way, m)
	}
}

// sendOne sends a row that this relay holds the lease of.
func (r *Relay) sendOne(ctx context.Context, way *route, m order.Message) {
	now := r.now()
	if m.NextAt.Sub(now) < r.options().Lease/leaseHeadroom {
		return // it was in the queue for too long: the poll will find it
	}
	if wait := r.waitUntil(m, now); wait.After(now) {
		r.giveUp.Put(context.WithoutCancel(ctx), order.Deferred{Message: m, Wait: wait.Sub(now)})
		return
	}
	if left := way.outage.left(); left > 0 {
		r.giveUp.Put(context.WithoutCancel(ctx), order.Deferred{Message: m, Wait: left, Reason: "the broker is out of reach"})
		return
	}
	var receipt order.Receipt
	err := guard(func() (err error) {
		receipt, err = r.sender.Send(context.WithoutCancel(ctx), r.envelope(m, now))
		return err
	})
	switch {
	case err == nil:
		way.outage.end()
		r.metrics.Sends.WithLabelValues(string(m.Kind), "sent").Inc()
		r.settle.Put(context.WithoutCancel(ctx), order.Sent{Message: m, Receipt: receipt})
	case order.KindOf(err) == order.Unavailable:
		r.failed(ctx, way, m, err)
	default:
		r.refused(ctx, m, err)
	}
}

// failed gives back a row that the broker could not take now, and holds the others for a while.
func (r *Relay) failed(ctx context.Context, way *route, m order.Message, err error) {
	wait, first := way.outage.begin()
	r.metrics.Sends.WithLabelValues(string(m.Kind), "failed").Inc()
	if first {
		r.log.Warn("broker out of reach", zap.String("kind", string(m.Kind)), zap.String("order_no", m.OrderNo), zap.Duration("retry_in", wait), zap.Error(err))
	}
	r.giveUp.Put(context.WithoutCancel(ctx), order.Deferred{Message: m, Wait: wait, Reason: err.Error()})
}

// refused gives back a row that the broker does not take; after some attempts it is quarantined.
func (r *Relay) refused(ctx context.Context, m order.Message, err error) {
	r.metrics.Sends.WithLabelValues(string(m.Kind), "refused").Inc()
	r.log.Error("message refused", zap.String("order_no", m.OrderNo), zap.String("message_id", m.Key), zap.Int("attempts", m.Attempts+1), zap.Error(err))
	r.giveUp.Put(context.WithoutCancel(ctx), order.Deferred{
		Message: m, Wait: time.Duration(m.Attempts+1) * refusedWait, Reason: err.Error(), Refused: true,
	})
}

// settleAll marks rows as sent. If that fails the rows are sent again after their lease, which is harmless;
// one that is at fault itself does not keep the others from being settled.
func (r *Relay) settleAll(ctx context.Context, sent []order.Sent) []error {
	bisect(sent, func(part []order.Sent) error { return r.store.Settle(ctx, part) }, func(part []order.Sent, err error) {
		r.retrying(ctx, "settle", fmt.Errorf("%s and %d more: %w", part[0].Key, len(part)-1, err))
	})
	return make([]error, len(sent)) // nobody waits for it
}

// deferAll gives rows back, in the same way.
func (r *Relay) deferAll(ctx context.Context, rows []order.Deferred) []error {
	bisect(rows, func(part []order.Deferred) error {
		quarantined, err := r.store.Defer(ctx, part, r.options().MaxAttempts)
		r.metrics.Quarantined.WithLabelValues("relay").Add(float64(quarantined))
		return err
	}, func(part []order.Deferred, err error) {
		r.retrying(ctx, "defer", fmt.Errorf("%s and %d more: %w", part[0].Key, len(part)-1, err))
	})
	return make([]error, len(rows))
}

// retrying notes work that will be tried again.
func (r *Relay) retrying(ctx context.Context, what string, err error) {
	if ctx.Err() != nil {
		return
	}
	r.metrics.Retries.WithLabelValues(what).Inc()
	r.log.Warn("relay: "+what+" failed, will be tried again", zap.Error(err))
}

// newBackoff is the wait between tries of what an outage stops: 200 ms, doubling to 5 s, with jitter.
func newBackoff() *backoff.ExponentialBackOff { return newBackoffFrom(retryFirst) }

func newBackoffFrom(first time.Duration) *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier = first, retryMost, 2
	return b
}

// envelope is the message as it is sent at now.
func (r *Relay) envelope(m order.Message, now time.Time) order.Envelope {
	e := order.Envelope{Kind: m.Kind, OrderNo: m.OrderNo, MessageID: m.Key, Type: m.Type, Hop: m.Hop, Body: m.Payload}
	if m.Kind == order.Notice {
		return e
	}
	at := now
	if due := r.due(m); due.After(now) {
		at = r.sender.Step(now, due)
		e.DeliverAt, e.Delay = at, at.Sub(now)
	}
	e.ExpireAt = m.DueAt
	e.Body = order.TimeoutBody{
		Version: order.TimeoutVersion, OrderNo: m.OrderNo, MessageID: m.Key, Hop: m.Hop,
		ExpireAt: m.DueAt, DeliverAt: at, TraceParent: string(m.Payload),
	}.Encode()
	return e
}
