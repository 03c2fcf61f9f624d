package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	lapsev1 "lapse/api/lapse/v1"
)

const (
	pollEvery = 200 * time.Millisecond // how often an order is looked at
	// patience is how long after the last deadline an order may take to be closed, and an event to come.
	patience = 12 * time.Second
)

// play is one performance of a scenario, and what was seen of it from outside.
type play struct {
	client *client
	audit  func(ctx context.Context) ([]check, error) // asks the database for the invariants
	inbox  *inbox
	bank   *bank
	pace   float64
	screen *screen
	stocks []stock
	orders []*order

	inDoubt sync.Once // asks for the invariants while a payment is in doubt

	mu      sync.Mutex
	answers []answer
	before  []*lapsev1.Resource
	after   []*lapsev1.Resource
	stories map[string][]*lapsev1.Transition // timelines of the orders to which something special happens
	cases   []*lapsev1.LatePayment
	metrics map[string]float64 // counters by name
	audited []check
}

// order is a planned order and what became of it.
type order struct {
	planned
	mu    sync.Mutex
	seen  *lapsev1.Order // as seen last; nil until it was made
	err   error          // of a call that should have worked
	ended chan struct{}  // closed when its fate is sealed, or nobody waits for it any more
}

// answer is what the API said to a call that it had to refuse, repeat or set aside.
type answer struct {
	What string `json:"what"`
	Want string `json:"want"`
	Got  string `json:"got"`
}

func newPlay(sc scenario, pace float64) *play {
	p := &play{inbox: newInbox(), pace: pace, stocks: sc.stocks, metrics: map[string]float64{}, stories: map[string][]*lapsev1.Transition{}}
	for _, it := range sc.plan(pace) {
		p.orders = append(p.orders, &order{planned: it, ended: make(chan struct{})})
	}
	return p
}

// loses says for which orders the broker is to lose the time-out message.
func (p *play) loses(orderNo string) bool {
	return slices.ContainsFunc(p.orders, func(o *order) bool { return o.act == lose && o.no == orderNo })
}

// run plays the scenario. What the API does wrong is noted for the judge; the error is of a demo that could
// not go on.
func (p *play) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{p.stockUp, p.createAll, p.tryAwkward, p.ask, p.wait, p.refund, p.lookBack, p.ask} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (p *play) stockUp(ctx context.Context) (err error) {
	p.screen.say("Putting %d resources on sale: stocks, a coupon, a user's points, a quota.", len(p.stocks))
	for _, s := range p.stocks {
		if err := p.client.stockUp(ctx, s); err != nil {
			return fmt.Errorf("resource %s: %w", s.name(), err)
		}
	}
	p.before, err = p.levels(ctx)
	return err
}

func (p *play) levels(ctx context.Context) ([]*lapsev1.Resource, error) {
	levels := make([]*lapsev1.Resource, len(p.stocks))
	for i, s := range p.stocks {
		var err error
		if levels[i], err = p.client.resource(ctx, s.hold); err != nil {
			return nil, fmt.Errorf("resource %s: %w", s.name(), err)
		}
	}
	return levels, nil
}

// createAll makes the orders that need not wait for another, all at the same time.
func (p *play) createAll(ctx context.Context) error {
	start := time.Now()
	var all sync.WaitGroup
	made := 0
	for _, o := range p.orders {
		if o.after == "" {
			made++
			all.Go(func() { p.create(ctx, o) })
		}
	}
	all.Wait()
	first, last := p.timeouts()
	p.screen.say("Created %d of %d orders, of %d types, in %d ms. What is not paid lapses after %s to %s.",
		made, len(p.orders), p.types(), time.Since(start).Milliseconds(), first, last)
	return ctx.Err()
}

// timeouts are the shortest and the longest one.
func (p *play) timeouts() (first, last time.Duration) {
	byTimeout := func(a, b *order) int { return int(a.timeout - b.timeout) }
	return slices.MinFunc(p.orders, byTimeout).timeout, slices.MaxFunc(p.orders, byTimeout).timeout
}

// types is how many business types there are.
func (p *play) types() int {
	distinct := map[string]bool{}
	for _, o := range p.orders {
		distinct[o.biz] = true
	}
	return len(distinct)
}

func (p *play) create(ctx context.Context, o *order) {
	made, _, err := p.client.create(ctx, o.planned, o.key())
	o.note(made, err)
}

// note keeps what a call answered.
func (o *order) note(seen *lapsev1.Order, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.err = errors.Join(o.err, err)
		return
	}
	o.seen = seen
}

// look returns what was seen last; nil if the order could not be made.
func (o *order) look() *lapsev1.Order {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen
}

// tryAwkward makes the calls that must not do what they ask for.
func (p *play) tryAwkward(ctx context.Context) error {
	for _, o := range p.orders {
		seen := o.look()
		switch {
		case o.after != "":
			_, _, err := p.client.create(ctx, o.planned, "")
			p.heard(fmt.Sprintf("an order of %s, all of which %s holds", o.holds[0].name(), o.after), "refused with 409", outcome("accepted", err))
		case seen == nil:
		case o.keyed:
			p.tryRepeat(ctx, o.planned, seen)
		case o.act == forge:
			_, err := p.client.notify(ctx, seen, "not the secret of the channel")
			p.heard("a payment with a forged signature", "refused with 401", outcome("accepted", err))
		case o.act == cancel:
			p.screen.say("%s cancels %s.", o.user, seen.OrderNo)
			o.note(p.client.cancel(ctx, seen.OrderNo, o.user))
		}
	}
	p.tryTooMany(ctx)
	return ctx.Err()
}

// tryRepeat makes an order again under the same key, then another one.
func (p *play) tryRepeat(ctx context.Context, it planned, first *lapsev1.Order) {
	again, replayed, err := p.client.create(ctx, it, it.key())
	got := outcome(fmt.Sprintf("another order %s", again.GetOrderNo()), err)
	if err == nil && replayed && again.OrderNo == first.OrderNo {
		got = "the same order, replayed"
	}
	p.heard("the same create again, same Idempotency-Key", "the same order, replayed", got)
	it.amount++
	_, _, err = p.client.create(ctx, it, it.key())
	p.heard("another create with that Idempotency-Key", "refused with 422", outcome("accepted", err))
}

// tryTooMany asks for more than there is.
func (p *play) tryTooMany(ctx context.Context) {
	it := p.orders[0].planned
	it.no = "too-many-01"
	it.holds = []hold{p.stocks[0].hold}
	it.holds[0].quantity++
	_, _, err := p.client.create(ctx, it, "")
	p.heard(fmt.Sprintf("an order of %d %s, one more than there ever were", it.holds[0].quantity, it.holds[0].name()), "refused with 409", outcome("accepted", err))
	_, err = p.client.order(ctx, it.no)
	p.heard("looking for the refused order", "refused with 404", outcome("it is there", err))
}

// outcome says what a call came to.
func outcome(otherwise string, err error) string {
	var r *refusal
	switch {
	case err == nil:
		return otherwise
	case errors.As(err, &r):
		return fmt.Sprintf("refused with %d", r.Status)
	}
	return err.Error()
}

// heard notes an answer and tells it.
func (p *play) heard(what, want, got string) {
	p.mu.Lock()
	p.answers = append(p.answers, answer{what, want, got})
	p.mu.Unlock()
	p.screen.say("Tried: %s. Answer: %s.", what, got)
}

// wait lives through the life of every order, until all are final or patience ends.
func (p *play) wait(ctx context.Context) error {
	_, last := p.timeouts()
	p.screen.say("Waiting for the deadlines, at most %s.", last+last+patience)
	bounded, cancel := context.WithTimeout(ctx, last+last+patience)
	defer cancel()
	showing, hide := context.WithCancel(ctx)
	var shown, lives sync.WaitGroup
	shown.Go(func() { p.screen.progress(showing, len(p.orders), p.state) })
	for _, o := range p.orders {
		lives.Go(func() {
			defer close(o.ended)
			p.live(bounded, o)
		})
	}
	lives.Wait()
	p.awaitEvents(bounded)
	hide()
	shown.Wait()
	return ctx.Err()
}

// state is how far the orders have come.
func (p *play) state() (done int, words string) {
	for _, o := range p.orders {
		if seen := o.look(); seen != nil && seen.Status != "pending" && seen.Status != "confirming" {
			done++
		}
	}
	return done, fmt.Sprintf("%d cancelled events received", p.inbox.distinct())
}

// live is the life of one order from its creation to its end.
func (p *play) live(ctx context.Context, o *order) {
	if o.after != "" && !p.succeed(ctx, o) {
		return
	}
	seen := o.look()
	if seen == nil {
		return
	}
	if o.act == pay && sleep(ctx, o.timeout/4) {
		if _, err := p.client.notify(ctx, seen, p.client.keys.secret); err != nil {
			o.note(nil, fmt.Errorf("payment: %w", err))
		}
	}
	if (o.act == startOnly || o.act == paySilently) && sleep(ctx, o.timeout/4) {
		p.startPayment(ctx, o)
	}
	p.untilFinal(ctx, o)
	if o.look().Status != "cancelled" {
		return
	}
	switch o.act {
	case payLate, payLateRefund, payLateReopen:
		p.payLate(ctx, o)
	case restore:
		p.restore(ctx, o)
	}
}

// succeed makes an order of what another one gave back.
func (p *play) succeed(ctx context.Context, o *order) bool {
	i := slices.IndexFunc(p.orders, func(other *order) bool { return other.no == o.after })
	<-p.orders[i].ended // at the latest with ctx
	if ctx.Err() != nil {
		return false
	}
	p.create(ctx, o)
	p.screen.say("%s has lapsed: %s is free again, and %s orders it.", o.after, o.holds[0].name(), o.user)
	return true
}

// untilFinal looks at an order until no time-out can change it any more.
func (p *play) untilFinal(ctx context.Context, o *order) {
	for {
		seen, err := p.client.order(ctx, o.look().OrderNo)
		if ctx.Err() != nil {
			return // the judge sees that it is not final
		}
		o.note(seen, err)
		if seen.GetStatus() == "confirming" {
			p.inDoubt.Do(func() {
				if err := p.ask(ctx); err != nil {
					o.note(nil, err)
				}
			})
		}
		if err != nil || seen.Status != "pending" && seen.Status != "confirming" || !sleep(ctx, pollEvery) {
			return
		}
	}
}

// awaitEvents waits until the subscriber has as many events as there are cancelled rounds.
func (p *play) awaitEvents(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for p.inbox.distinct() < p.cancelled() && sleep(bounded, pollEvery/4) {
	}
}

func (p *play) cancelled() (n int) {
	for _, o := range p.orders {
		n += o.cancelledRounds()
	}
	return n
}

// cancelledRounds is how often the order was cancelled: in each round but the last, and in that if it still is.
func (o *order) cancelledRounds() int {
	last := o.look()
	switch {
	case last == nil:
		return 0
	case last.Status == "cancelled":
		return int(last.Round)
	}
	return int(last.Round) - 1
}

// ask asks for the invariants: while orders are pending, while one is confirming, and in the end. Figures are added up.
func (p *play) ask(ctx context.Context) error {
	found, err := p.audit(ctx)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range found {
		p.audited = c.addTo(p.audited)
	}
	return nil
}

// lookBack reads what is left to be read before the system goes.
func (p *play) lookBack(ctx context.Context) (err error) {
	for _, o := range p.orders {
		if seen := o.look(); o.told() != "" && seen != nil {
			t, err := p.client.timeline(ctx, seen.OrderNo)
			if err != nil {
				return err
			}
			p.stories[o.no] = t.Transitions
		}
	}
	if p.cases, err = p.client.latePayments(ctx); err != nil {
		return err
	}
	for _, name := range []string{lostMetric, earlyMetric} {
		if p.metrics[name], err = p.client.counter(ctx, name); err != nil {
			return err
		}
	}
	p.after, err = p.levels(ctx)
	return err
}

// The counters that the judge asks for.
const (
	lostMetric  = "lapse_timeout_messages_lost_total"
	earlyMetric = "lapse_early_closes_total"
)

// sleep waits; false if ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
