package lifecycle

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"lapse/pkg/order"
)

// ConfirmOptions tunes how payments in flight are asked about.
type ConfirmOptions struct {
	End     order.ConfirmEnd // what becomes of an order that is still in doubt at its confirm deadline; "" means cancel
	Timeout time.Duration    // one question to the gateway; 0 means 3 s
	Rules   order.Rules
}

func (o ConfirmOptions) withDefaults() ConfirmOptions {
	o.End = or(o.End, order.ConfirmCancel)
	o.Timeout = or(o.Timeout, 3*time.Second)
	return o
}

const (
	confirmBatch = 64   // orders claimed at once
	openAsks     = 2048 // orders in work, over all channels
	// channelAsks is how many attempts of a channel are asked about at once, and channelWaits how many more wait for
	// that. What is beyond is asked later, so that a channel that hangs leaves room for the others.
	channelAsks  = 32
	channelWaits = 256
	confirmPoll  = time.Second
	confirmFirst = time.Second // wait before an undecided order is asked about again, doubling
	confirmMost  = 30 * time.Second
	confirmSlack = 10 * time.Second // of a lease, to write down what was learned
)

// Confirmer asks the gateway about orders that fell due, or were cancelled, with a payment in flight. Only the gateway's
// word that a bill is closed lets an order be cancelled; whatever is not an explicit answer is asked again. It never
// touches orders without a payment in flight, and a channel that hangs keeps no other waiting.
type Confirmer struct {
	store   ConfirmStore
	gateway Gateway
	relay   *Relay
	options func() ConfirmOptions
	mu      sync.Mutex
	lanes   map[string]*lane // by channel; those in use
	aside   aside
	metrics *Metrics
	log     *zap.Logger
}

// lane is the way to a channel.
type lane struct {
	places chan struct{} // one taken by each open question
	users  int           // who has a place or waits for one; guarded by Confirmer.mu
}

// NewConfirmer makes a confirmer; options are read at each round.
func NewConfirmer(store ConfirmStore, gateway Gateway, relay *Relay, options func() ConfirmOptions, metrics *Metrics, log *zap.Logger) *Confirmer {
	return &Confirmer{
		store: store, gateway: gateway, relay: relay, lanes: map[string]*lane{}, aside: aside{store, metrics, log}, metrics: metrics, log: log,
		options: func() ConfirmOptions { return options().withDefaults() },
	}
}

// Run asks until ctx ends, and then finishes the questions that are open.
func (c *Confirmer) Run(ctx context.Context) error {
	retry := newBackoff()
	var asks errgroup.Group
	asks.SetLimit(openAsks)
	for ctx.Err() == nil {
		opts := c.options()
		doubtful, now, wake, err := c.store.ClaimDoubtful(ctx, confirmBatch, opts.lease())
		if err != nil {
			if ctx.Err() == nil {
				c.metrics.Retries.WithLabelValues("confirm").Inc()
				c.log.Warn("orders in doubt could not be claimed, will be tried again", zap.Error(err))
			}
			sleep(ctx, retry.NextBackOff())
			continue
		}
		retry.Reset()
		for _, d := range doubtful {
			asks.Go(func() error {
				c.confirm(ctx, d, opts)
				return nil
			})
		}
		if len(doubtful) < confirmBatch {
			idle(ctx, confirmPoll, now, wake)
		}
	}
	return asks.Wait()
}

// idle waits for the next poll: less when something is to be asked about before.
func idle(ctx context.Context, poll time.Duration, now, wake time.Time) {
	wait := poll
	if !wake.IsZero() {
		wait = min(wait, max(wake.Sub(now), time.Millisecond))
	}
	sleep(ctx, wait)
}

// patience is how long an order's attempts may take that are asked about one after the other, two questions each.
func (o ConfirmOptions) patience() time.Duration { return 2 * order.MaxAttempts * o.Timeout }

// lease is how long an order belongs to whoever asks about it. A question that was begun in time ends in it.
func (o ConfirmOptions) lease() time.Duration { return o.patience() + 2*o.Timeout + confirmSlack }

// confirm asks about one order and writes down what it has learned: during an outage again, for as long as the lease
// lasts. What fails all the same is asked about anew by whoever claims it then.
func (c *Confirmer) confirm(ctx context.Context, d order.InDoubt, opts ConfirmOptions) {
	retry, leased := newBackoff(), c.relay.local()
	v := c.ask(ctx, d, opts)
	for {
		err := guard(func() error { return c.decide(context.WithoutCancel(ctx), v, opts) })
		if err == nil {
			return
		}
		c.metrics.Retries.WithLabelValues("confirm").Inc()
		c.log.Error("an order in doubt could not be decided, will be tried again", zap.String("order_no", d.OrderNo), zap.Error(err))
		if order.KindOf(err) != order.Unavailable || c.relay.local().Sub(leased) > opts.lease() || !sleep(ctx, retry.NextBackOff()) {
			return
		}
	}
}

// decide applies a verdict. Each captured payment is taken by itself: one that is refused is kept for a human, and neither
// costs the others their place (I7) nor keeps the order in doubt for ever.
func (c *Confirmer) decide(ctx context.Context, v order.Verdict, opts ConfirmOptions) error {
	captured, taken := v.Captured, false
	for _, p := range captured {
		v.Captured = []order.Payment{p}
		err := p.Validate()
		if err == nil {
			err = c.apply(ctx, v, opts)
		}
		switch {
		case err == nil:
			taken = true
		case order.KindOf(err) == order.Unavailable:
			return err
		default:
			if err := c.aside.payment(ctx, p, err); err != nil {
				return err
			}
			v.Failed = "a payment was refused: " + err.Error()
		}
	}
	if taken {
		return nil
	}
	v.Captured = nil
	return c.apply(ctx, v, opts)
}

// apply writes a verdict down, and tells what came of it.
func (c *Confirmer) apply(ctx context.Context, v order.Verdict, opts ConfirmOptions) error {
	done, err := c.store.Confirm(ctx, v, opts.End, askAgainIn(v.Message.Attempts), opts.Rules, c.relay.Schedule)
	if err != nil {
		return err
	}
	c.relay.Offer(done.Messages...)
	c.metrics.late(done.Cases...)
	c.metrics.Confirms.WithLabelValues(string(done.Result)).Inc()
	switch done.Result {
	case order.ConfirmClosed:
		c.metrics.Closes.WithLabelValues("confirm", string(done.CancelReason)).Inc()
	case order.ConfirmExpired:
		c.metrics.Closes.WithLabelValues("confirm", string(done.CancelReason)).Inc()
		c.log.Error("cancelled at its confirm deadline, with a payment still in doubt", zap.String("order_no", v.OrderNo), zap.String("last_error", v.Failed))
	case order.ConfirmHeld:
		c.metrics.Quarantined.WithLabelValues("confirm").Inc()
		c.log.Error("left to a person at its confirm deadline", zap.String("order_no", v.OrderNo), zap.String("last_error", v.Failed))
	}
	return nil
}

// askAgainIn is the wait before the next question, with jitter.
func askAgainIn(attempts int) time.Duration {
	wait := confirmMost
	if attempts < 5 {
		wait = min(confirmFirst<<attempts, confirmMost)
	}
	return wait - rand.N(wait/5)
}

// errUnasked: there is no room for a question now, or no time.
var errUnasked = order.Errorf(order.Unavailable, "not_asked", "too much else is asked about, or this instance stops")

// ask asks about each attempt of an order. When ctx ends, no more is asked.
func (c *Confirmer) ask(ctx context.Context, d order.InDoubt, opts ConfirmOptions) order.Verdict {
	ctx, cancel := context.WithTimeout(ctx, opts.patience())
	defer cancel()
	v := order.Verdict{InDoubt: d}
	var unknown []string
	for _, a := range d.Attempts {
		bill, err := c.settle(ctx, a, opts.Timeout)
		if errors.Is(err, errUnasked) {
			v.Unasked = true
			unknown = append(unknown, a.AttemptNo+": "+err.Error())
			continue
		}
		switch {
		case err != nil:
			c.log.Warn("the gateway gave no explicit answer", zap.String("order_no", d.OrderNo), zap.String("attempt_no", a.AttemptNo),
				zap.String("channel", a.Channel), zap.Error(err))
			unknown = append(unknown, a.AttemptNo+": "+err.Error())
			bill.State = "unknown"
		case bill.State == order.BillPaid:
			v.Captured = append(v.Captured, bill.Payment)
		case bill.State == order.BillClosed:
			v.Closed = append(v.Closed, a.AttemptNo)
		}
		c.metrics.GatewayAnswers.WithLabelValues(string(bill.State)).Inc()
	}
	v.Failed = strings.Join(unknown, "; ")
	return v
}

// settle asks how a bill stands, and has it closed if it is unpaid.
func (c *Confirmer) settle(ctx context.Context, a order.Attempt, limit time.Duration) (order.Bill, error) {
	leave, err := c.enter(ctx, a.Channel)
	if err != nil {
		return order.Bill{}, err
	}
	defer leave()
	ctx = context.WithoutCancel(ctx)
	bill, err := question(ctx, limit, a, c.gateway.Query)
	if err != nil || bill.State != order.BillUnpaid {
		return bill, err
	}
	return question(ctx, limit, a, c.gateway.Close)
}

// question asks within a time limit. Whatever is not one of the three answers is an error.
func question(ctx context.Context, limit time.Duration, a order.Attempt, put func(context.Context, order.Attempt) (order.Bill, error)) (bill order.Bill, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = guard(func() error {
		bill, err = put(ctx, a)
		return err
	})
	if err != nil {
		return order.Bill{}, err
	}
	switch bill.State {
	case order.BillPaid:
		bill.Payment.OrderNo, bill.Payment.AttemptNo = a.OrderNo, a.AttemptNo
	case order.BillUnpaid, order.BillClosed:
	default:
		return order.Bill{}, order.Errorf(order.Unavailable, "gateway_unknown", "%q is no state of a bill", string(bill.State))
	}
	return bill, nil
}

// enter takes one of a channel's places, and waits for it unless too many do. leave gives it back. The error is errUnasked.
func (c *Confirmer) enter(ctx context.Context, channel string) (leave func(), err error) {
	if ctx.Err() != nil {
		return nil, errUnasked
	}
	way, ok := c.lane(channel)
	if !ok {
		return nil, errUnasked
	}
	select {
	case way.places <- struct{}{}:
	case <-ctx.Done():
		c.leave(channel)
		return nil, errUnasked
	}
	return func() {
		<-way.places
		c.leave(channel)
	}, nil
}

// lane is the way to a channel, or not ok if it is full.
func (c *Confirmer) lane(channel string) (way *lane, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	way = c.lanes[channel]
	if way == nil {
		way = &lane{places: make(chan struct{}, channelAsks)}
		c.lanes[channel] = way
	}
	if way.users >= channelAsks+channelWaits {
		return nil, false
	}
	way.users++
	return way, true
}

func (c *Confirmer) leave(channel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	way := c.lanes[channel]
	if way.users--; way.users == 0 {
		delete(c.lanes, channel)
	}
}
