package lifecycle

import (
	"context"
	"encoding/json"
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
	confirmBatch = 64 // orders claimed at once
	// channelAsks is how many questions a channel may have open, so that one that hangs leaves room for the others.
	channelAsks  = 16
	openAsks     = 256 // orders asked about at once, over all channels
	confirmPoll  = time.Second
	confirmFirst = time.Second // wait before an undecided order is asked about again, doubling
	confirmMost  = 30 * time.Second
	// confirmSlack is what a lease has beyond the two questions to each attempt: to write down what they brought.
	confirmSlack = 10 * time.Second
)

// Confirmer asks the gateway about orders that fell due, or were cancelled, with a payment in flight. Only the gateway's
// word that a bill is closed lets an order be cancelled; whatever is not an explicit answer is asked again. It never
// touches orders without a payment in flight, so a gateway that hangs delays nobody else.
type Confirmer struct {
	store   ConfirmStore
	gateway Gateway
	relay   *Relay
	options func() ConfirmOptions
	mu      sync.Mutex
	asking  map[string]int // open questions by channel
	metrics *Metrics
	log     *zap.Logger
}

// NewConfirmer makes a confirmer; options are read at each round.
func NewConfirmer(store ConfirmStore, gateway Gateway, relay *Relay, options func() ConfirmOptions, metrics *Metrics, log *zap.Logger) *Confirmer {
	return &Confirmer{
		store: store, gateway: gateway, relay: relay, metrics: metrics, log: log, asking: map[string]int{},
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
				c.confirm(context.WithoutCancel(ctx), d, opts)
				return nil
			})
		}
		if len(doubtful) < confirmBatch {
			c.idle(ctx, now, wake)
		}
	}
	return asks.Wait()
}

// idle waits for the next poll: less when an order is to be asked about before.
func (c *Confirmer) idle(ctx context.Context, now, wake time.Time) {
	wait := confirmPoll
	if !wake.IsZero() {
		wait = min(wait, max(wake.Sub(now), time.Millisecond))
	}
	sleep(ctx, wait)
}

// lease is how long an order belongs to whoever asks about it: two questions to each attempt, one after the other.
func (o ConfirmOptions) lease() time.Duration {
	return 2*order.MaxAttempts*o.Timeout + confirmSlack
}

// confirm asks about one order and writes down what it has learned. What fails is tried when the lease has run out.
func (c *Confirmer) confirm(ctx context.Context, d order.InDoubt, opts ConfirmOptions) {
	var after order.Order
	var rows []order.Message
	err := guard(func() (err error) {
		v := c.ask(ctx, d, opts)
		wait := askAgainIn(d.Message.Attempts)
		after, rows, err = c.store.Confirm(ctx, v, opts.End, wait, opts.Rules, c.relay.Schedule)
		if err == nil || len(v.Captured) == 0 || order.KindOf(err) == order.Unavailable {
			return err
		}
		// Money that cannot be this order's must not keep it in doubt for ever.
		if err := c.keep(ctx, v, err); err != nil {
			return err
		}
		v.Captured, v.Failed = nil, err.Error()
		after, rows, err = c.store.Confirm(ctx, v, opts.End, wait, opts.Rules, c.relay.Schedule)
		return err
	})
	if err != nil {
		c.metrics.Retries.WithLabelValues("confirm").Inc()
		c.log.Error("an order in doubt could not be decided, will be tried again", zap.String("order_no", d.OrderNo), zap.Error(err))
		return
	}
	c.relay.Offer(rows...)
	c.metrics.Confirms.WithLabelValues(after.Status.String()).Inc()
	if after.Status == order.Cancelled {
		c.metrics.Closes.WithLabelValues("confirm", string(after.CancelReason)).Inc()
	}
}

// keep sets captured payments that were refused aside for a human.
func (c *Confirmer) keep(ctx context.Context, v order.Verdict, refusal error) error {
	body, err := json.Marshal(v.Captured)
	if err != nil {
		return err
	}
	c.metrics.Quarantined.WithLabelValues("payment").Inc()
	c.log.Error("the gateway told of a payment that was refused", zap.String("order_no", v.OrderNo), zap.Error(refusal))
	return c.store.Quarantine(ctx, order.Quarantined{Source: "payment", OrderNo: v.OrderNo, Reason: refusal.Error(), Body: body})
}

// askAgainIn is the wait before the next question, with jitter.
func askAgainIn(attempts int) time.Duration {
	wait := confirmMost
	if attempts < 5 {
		wait = min(confirmFirst<<attempts, confirmMost)
	}
	return wait - rand.N(wait/5)
}

// ask asks about each attempt of an order.
func (c *Confirmer) ask(ctx context.Context, d order.InDoubt, opts ConfirmOptions) order.Verdict {
	v := order.Verdict{InDoubt: d}
	var unknown []string
	for _, a := range d.Attempts {
		bill, err := c.settle(ctx, a, opts.Timeout)
		switch {
		case err != nil:
			c.metrics.GatewayAnswers.WithLabelValues("unknown").Inc()
			c.log.Warn("the gateway gave no explicit answer", zap.String("order_no", d.OrderNo), zap.String("attempt_no", a.AttemptNo),
				zap.String("channel", a.Channel), zap.Error(err))
			unknown = append(unknown, a.AttemptNo+": "+err.Error())
			continue
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

// settle asks how a bill stands, and has it closed if it is unpaid. Each question has its time limit.
func (c *Confirmer) settle(ctx context.Context, a order.Attempt, limit time.Duration) (order.Bill, error) {
	if !c.enter(a.Channel) {
		return order.Bill{}, order.Errorf(order.Unavailable, "channel_busy", "%d questions to channel %q are open already", channelAsks, a.Channel)
	}
	defer c.leave(a.Channel)
	bill, err := c.within(ctx, limit, a, c.gateway.Query)
	if err != nil || bill.State != order.BillUnpaid {
		return bill, err
	}
	return c.within(ctx, limit, a, c.gateway.Close)
}

func (c *Confirmer) within(ctx context.Context, limit time.Duration, a order.Attempt, question func(context.Context, order.Attempt) (order.Bill, error)) (order.Bill, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	bill, err := question(ctx, a)
	if err == nil && bill.State == order.BillPaid {
		bill.Payment.OrderNo, bill.Payment.AttemptNo = a.OrderNo, a.AttemptNo
	}
	return bill, err
}

// enter takes one of a channel's places.
func (c *Confirmer) enter(channel string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking[channel] >= channelAsks {
		return false
	}
	c.asking[channel]++
	return true
}

func (c *Confirmer) leave(channel string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking[channel]--; c.asking[channel] == 0 {
		delete(c.asking, channel)
	}
}
