package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"lapse/pkg/order"
)

// shop is what the customers' side knows: what it has asked for, and what it was answered.
type shop struct {
	sold  []*sold
	stock int // adjustments made
}

// sold is an order that a customer has asked for.
type sold struct {
	order.Draft
	asking   bool
	answered bool // with a 2xx
	attempts []string
}

// open puts something on the shelves.
func (w *world) open() {
	ctx := context.Background()
	for _, a := range []order.Adjustment{
		{ID: "open-a", Kind: "stock", Ref: "a", Delta: int64(1 + w.rng.IntN(12))},
		{ID: "open-b", Kind: "stock", Ref: "b", Delta: int64(1 + w.rng.IntN(12))},
		{ID: "open-c", Kind: "coupon", Ref: "c", Delta: 1, Owner: "u1", ValidUntil: noon.Add(time.Duration(w.rng.IntN(60)) * minute)},
	} {
		if _, err := w.store.Adjust(ctx, a); err != nil {
			panic(err)
		}
	}
}

// event is something that may happen in a step.
type event struct {
	weight int // how often, as a share of all weights
	happen func(w *world)
}

// needed is what every world lives on.
var needed = []event{
	{560, (*world).letOne},
	{70, (*world).timePasses},
	{100, (*world).someFlush},
	{80, (*world).someDelivery},
	{110, (*world).create},
	{20, (*world).processStarts},
}

// special is what a world may have much of, or nothing at all.
var special = []event{
	{80, (*world).startPayment},
	{8, (*world).failPayment},
	{20, (*world).payment},
	{30, (*world).notification},
	{8, (*world).userCancels},
	{6, (*world).staffCancels},
	{12, (*world).extend},
	{14, (*world).restore},
	{10, (*world).decide},
	{10, (*world).refund},
	{8, (*world).acknowledge},
	{4, (*world).archive},
	{4, (*world).adjust},
	{10, (*world).brake},
	{4, (*world).sweepByHand},
	{4, (*world).forge},
	{4, (*world).clockIsMoved},
	{4, (*world).brokerFails},
	{6, (*world).processStops},
}

// mix draws how often what happens in a world: worlds that differ find more than worlds of one average.
func mix(r *rand.Rand) (events []event, all int) {
	events = slices.Clone(needed)
	for _, e := range special {
		e.weight *= one(r, 0, 1, 1, 1, 4)
		events = append(events, e)
	}
	for _, e := range events {
		all += e.weight
	}
	return events, all
}

// step lets one thing happen.
func (w *world) step() {
	at := w.rng.IntN(w.weights)
	for _, e := range w.events {
		if at -= e.weight; at < 0 {
			e.happen(w)
			return
		}
	}
}

// someone is a process that runs; nil if none does.
func (w *world) someone() *process {
	if len(w.procs) == 0 {
		return nil
	}
	return w.procs[w.rng.IntN(len(w.procs))]
}

// asked lets some process do something that is nothing but a call.
func (w *world) asked(what string, do func(ctx context.Context, p *process) error) {
	if p := w.someone(); p != nil {
		w.ask(p, "", what, func(ctx context.Context) error { return do(ctx, p) }, func(error) {})
	}
}

// some is an order that was asked for, rather one that was promised; nil if there is none.
func (w *world) some() (found *sold) {
	for range 3 {
		if n := len(w.shop.sold); n > 0 && (found == nil || !found.answered) {
			found = w.shop.sold[w.rng.IntN(n)]
		}
	}
	return found
}

func (w *world) act() order.Act { return order.Act{Actor: "staff", Note: "asked to"} }

// timePasses: a little, or to the edge of what is due next.
func (w *world) timePasses() {
	edge := w.judge.nextDeadline()
	switch d := edge.Sub(w.clock()); {
	case !edge.IsZero() && w.rng.IntN(3) == 0:
		w.sleep(max(0, d+one(w.rng, -second, -time.Millisecond, 0, time.Millisecond, second, 2*second, 31*second)))
	case w.rng.IntN(25) == 0:
		w.sleep(time.Duration(w.rng.IntN(40)) * minute)
	case w.rng.IntN(2) == 0:
		w.sleep(time.Duration(w.rng.IntN(30)) * second)
	default:
		w.sleep(time.Duration(w.rng.IntN(1500)) * time.Millisecond)
	}
}

func (w *world) someFlush() {
	if p := w.someone(); p != nil {
		w.flush(p)
	}
}

// someDelivery hands messages over: due ones, or any; and now and then one that was handed over long ago.
func (w *world) someDelivery() {
	p := w.someone()
	if p == nil {
		return
	}
	if past := w.broker.past; len(past) > 0 && w.chance(w.wild, 20) {
		w.broker.hand(w, past[w.rng.IntN(len(past))], w.clock())
		w.count("broker: redelivered")
	}
	all := w.chance(w.wild, 12)
	found := w.broker.waiting(w.clock(), all)
	if len(found) == 0 {
		return
	}
	if all {
		w.count("broker: reordered or early")
	}
	w.rng.Shuffle(len(found), func(i, j int) { found[i], found[j] = found[j], found[i] })
	w.deliver(p, found[:1+w.rng.IntN(min(len(found), one(w.rng, 1, 1, 4)))])
}

// create asks for a new order, or again for one, or for another one with its number.
func (w *world) create() {
	p := w.someone()
	if p == nil {
		return
	}
	again := w.some()
	if len(w.shop.sold) < w.terms.orders && (again == nil || w.rng.IntN(4) > 0) {
		again = &sold{Draft: w.draft()}
		w.shop.sold = append(w.shop.sold, again)
	}
	if again == nil || again.asking {
		return
	}
	d, other := again.Draft, again.answered && w.rng.IntN(6) == 0
	if other {
		d.Amount++
	}
	w.askForOrder(p, again, d, other)
}

func (w *world) askForOrder(p *process, s *sold, d order.Draft, other bool) {
	s.asking = true
	what := fmt.Sprintf("create %s %s %v %v", d.OrderNo, d.BizType, d.Timeout, d.Items)
	w.ask(p, "create", what, func(ctx context.Context) error {
		_, err := p.orders.Create(ctx, d)
		return err
	}, func(err error) {
		s.asking = false
		s.answered = s.answered || err == nil
		if other && err == nil {
			w.fail("I8", "order %s was taken for another one", d.OrderNo)
		}
	})
}

func (w *world) draft() order.Draft {
	no := ""
	for n := 0; no == "" || order.ShardOf(no) != w.terms.shard; n++ {
		no = fmt.Sprintf("ORDER-%d-%d", len(w.shop.sold)+1, n)
	}
	r := w.rng
	items := []order.Item{{Kind: "stock", Ref: one(r, "a", "b"), Quantity: int64(1 + r.IntN(3))}}
	if r.IntN(3) == 0 {
		items = append(items, order.Item{Kind: "coupon", Ref: "c", Quantity: 1})
	}
	if r.IntN(3) == 0 {
		items = append(items, order.Item{Kind: "cart", Ref: "x", Quantity: 2})
	}
	return order.Draft{
		OrderNo: no, Caller: "shop", UserID: one(r, "u1", "u1", "u2"), BizType: one(r, "retail", "retail", "flash", "hotel"), Items: items,
		Amount: 500 * int64(min(1, r.IntN(12))), Currency: "CNY",
		Timeout: one(r, second, 10*second, 30*second, 30*second, minute, minute, 5*minute, 30*minute, 2*time.Hour),
	}
}

func (w *world) startPayment() {
	if p, o := w.someone(), w.some(); p != nil && o != nil {
		w.attempt(p, o, one(w.rng, second, minute, 5*minute, 15*minute, 15*minute, 15*minute))
	}
}

func (w *world) failPayment() {
	if o := w.some(); o != nil && len(o.attempts) > 0 {
		no := o.attempts[w.rng.IntN(len(o.attempts))]
		w.bank.bills[no].givenUp = true
		w.asked("fail "+no, func(ctx context.Context, p *process) error {
			_, err := p.orders.FailPayment(ctx, o.OrderNo, no)
			return err
		})
	}
}

// payment is a customer who pays: a bill, in time or late, or by a transfer, of the right amount or not.
func (w *world) payment() {
	if n := len(w.bank.open); n > 0 && w.rng.IntN(3) > 0 {
		if b := w.bank.open[w.rng.IntN(n)]; b.state == order.BillUnpaid {
			w.payBill(b)
		}
		return
	}
	if o := w.some(); o != nil && o.answered && o.Amount > 0 {
		w.serial++
		wrong := w.rng.IntN(5) == 0
		amount := o.Amount
		if wrong {
			amount++
		}
		w.pay(fmt.Sprintf("TRANSFER-%d", w.serial), o.OrderNo, "", amount, wrong)
	}
}

// notification tells of captured money, also when it was told before.
func (w *world) notification() {
	if n := len(w.bank.captured); n > 0 {
		if c := w.bank.captured[w.rng.IntN(n)]; !c.telling && (!c.told || w.rng.IntN(3) == 0) {
			if p := w.someone(); p != nil {
				w.tell(p, c)
			}
		}
	}
}

func (w *world) userCancels() {
	if o := w.some(); o != nil {
		w.asked("cancel "+o.OrderNo, func(ctx context.Context, p *process) error {
			_, err := p.orders.Cancel(ctx, order.Cancelling{OrderNo: o.OrderNo, UserID: o.UserID, Reason: order.ReasonUserCancel})
			return err
		})
	}
}

func (w *world) staffCancels() {
	if o := w.some(); o != nil {
		c := order.Cancelling{OrderNo: o.OrderNo, Reason: order.ReasonManual, Force: w.rng.IntN(2) == 0, Act: w.act()}
		w.asked("staff cancels "+o.OrderNo, func(ctx context.Context, p *process) error {
			_, err := p.orders.Cancel(ctx, c)
			return err
		})
	}
}

func (w *world) extend() {
	o := w.some()
	if o == nil {
		return
	}
	e := order.Extending{OrderNo: o.OrderNo, Act: w.act()}
	if w.rng.IntN(4) == 0 {
		e = order.Extending{BizType: o.BizType, Act: w.act()}
	}
	if w.rng.IntN(2) == 0 {
		e.By = time.Duration(1+w.rng.IntN(300)) * second
	} else {
		e.Until = w.clock().Add(time.Duration(w.rng.IntN(600)) * second)
	}
	w.asked(fmt.Sprintf("extend %s%s", e.OrderNo, e.BizType), func(ctx context.Context, p *process) error {
		_, err := p.orders.Extend(ctx, e)
		return err
	})
}

func (w *world) restore() {
	if o := w.some(); o != nil {
		r := order.Restoring{OrderNo: o.OrderNo, Round: w.rng.IntN(3), Timeout: one(w.rng, second, minute, 10*minute), Act: w.act()}
		w.asked(fmt.Sprintf("restore %s of round %d", r.OrderNo, r.Round), func(ctx context.Context, p *process) error {
			_, err := p.orders.Restore(ctx, r)
			return err
		})
	}
}

// money is a payment that was captured; nil if there is none.
func (w *world) money() *capture {
	if n := len(w.bank.captured); n > 0 {
		return w.bank.captured[w.rng.IntN(n)]
	}
	return nil
}

func (w *world) decide() {
	if c := w.money(); c != nil {
		d := order.Deciding{PaymentNo: c.PaymentNo, Policy: one(w.rng, order.LateRefund, order.LateReopen), Act: w.act()}
		w.asked(fmt.Sprintf("decide %s: %s", d.PaymentNo, d.Policy), func(ctx context.Context, p *process) error {
			_, err := p.orders.Decide(ctx, d)
			return err
		})
	}
}

func (w *world) refund() {
	if c := w.money(); c != nil {
		r := order.Refunding{PaymentNo: c.PaymentNo, RefundNo: "R-" + c.PaymentNo, Act: w.act()}
		w.asked("refund "+r.PaymentNo, func(ctx context.Context, p *process) error {
			_, err := p.orders.Refund(ctx, r)
			return err
		})
	}
}

func (w *world) acknowledge() {
	if o := w.some(); o != nil {
		round := 1 + w.rng.IntN(2)
		w.asked("acknowledge "+o.OrderNo, func(ctx context.Context, p *process) error {
			return p.orders.Acknowledge(ctx, o.OrderNo, round, "cart")
		})
	}
}

func (w *world) archive() {
	if o := w.some(); o != nil {
		w.asked("archive "+o.OrderNo, func(ctx context.Context, p *process) error {
			_, err := p.orders.Archive(ctx, o.OrderNo, w.act())
			return err
		})
	}
}

func (w *world) adjust() {
	w.shop.stock++
	a := order.Adjustment{ID: fmt.Sprintf("adjust-%d", w.shop.stock), Kind: "stock", Ref: one(w.rng, "a", "b"), Delta: one(w.rng, int64(-1), 1, 3)}
	w.asked("adjust "+a.ID, func(ctx context.Context, p *process) error {
		_, err := p.orders.Adjust(ctx, a)
		return err
	})
}

func (w *world) brake() {
	mode := one(w.rng, order.ModeOff, order.ModeShadow, order.ModeEnforce, order.ModeEnforce, order.ModeEnforce)
	percent := one(w.rng, 100, 100, 100, 50)
	w.setBrakes(w.someone(), mode, percent)
}

func (w *world) setBrakes(p *process, mode order.Mode, percent int) {
	if p == nil {
		return
	}
	w.serial++
	c := order.BrakeChange{Mode: mode, Percent: &percent, Act: order.Act{Actor: "staff", Note: fmt.Sprintf("change %d", w.serial)}}
	w.ask(p, "", fmt.Sprintf("brakes: %s %d", mode, percent), func(ctx context.Context) error {
		_, err := p.brakes.Set(ctx, c)
		return err
	}, func(error) {})
	w.count("brakes: " + string(mode))
}

func (w *world) sweepByHand() {
	w.asked("sweep now", func(ctx context.Context, p *process) error {
		_, err := p.sweeper.Now(ctx)
		return err
	})
}

// forge puts something into the topic that Lapse has never sent.
func (w *world) forge() {
	no := "ORDER-UNKNOWN"
	if o := w.some(); o != nil {
		no = o.OrderNo
	}
	now := w.clock()
	body := order.TimeoutBody{Version: order.TimeoutVersion, OrderNo: no, Hop: w.rng.IntN(4), ExpireAt: now, DeliverAt: now.Add(-time.Hour)}
	raw := body.Encode()
	switch w.rng.IntN(4) {
	case 0:
		raw = []byte("\x1f\x8b\x08")
	case 1:
		body.Version = 99
		raw = body.Encode()
	case 2:
		raw = raw[:len(raw)/2]
	}
	w.broker.hand(w, order.Delivery{Kind: order.Timeout, OrderNo: no, Body: raw}, now)
	w.count("broker: forged")
}

// clockIsMoved sets the clock of a process, or of the broker, apart from the database's.
func (w *world) clockIsMoved() {
	if w.wild == 0 {
		return
	}
	skew := one(w.rng, 0, time.Duration(w.rng.IntN(7200)-3600)*second, time.Duration(w.rng.IntN(20)-10)*second)
	if w.rng.IntN(3) == 0 {
		w.broker.skew = skew
		w.say("the broker's clock is off by %v", skew)
	} else if p := w.someone(); p != nil {
		p.skew = skew
		w.say("%s's clock is off by %v", p, skew)
	}
	w.count("clock moved")
}

// brokerFails: for a while, or for one order.
func (w *world) brokerFails() {
	if w.wild == 0 {
		return
	}
	if o := w.some(); o != nil && w.rng.IntN(4) == 0 {
		w.broker.poison = o.OrderNo
		w.say("the broker refuses %s", o.OrderNo)
		return
	}
	for _, kind := range one(w.rng, []order.MessageKind{order.Timeout}, []order.MessageKind{order.Notice}, []order.MessageKind{order.Timeout, order.Notice}) {
		w.broker.down[kind] = w.clock().Add(time.Duration(w.rng.IntN(120)) * second)
		w.say("the broker takes no %s", kind)
	}
}

func (w *world) processStops() {
	if p := w.someone(); p != nil && w.chance(w.wild, 4) {
		w.crash(p, "between two calls")
	}
}

func (w *world) processStarts() {
	for _, name := range w.terms.names {
		running := false
		for _, p := range w.procs {
			running = running || p.name == name
		}
		if !running {
			w.start(name)
			return
		}
	}
}
