package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// walkTests let random events happen to a few orders that share what they hold. Whatever happens in whatever order, every
// step is one that the transition table lists, what is refused changes nothing, and in the end all invariants hold.
var walkTests = map[string]func(t *testing.T, b bed){
	"any sequence of events keeps the invariants": func(t *testing.T, b bed) {
		rapid.Check(t, func(r *rapid.T) {
			w := newWalk(r, b)
			r.Repeat(w.actions())
			w.finish()
		})
	},
}

// walk is one sequence of events.
type walk struct {
	r       *rapid.T
	b       bed
	now     time.Duration // from noon
	nos     []string
	rules   order.Rules
	confirm time.Duration
	mode    order.Mode
	serial  int
}

func newWalk(r *rapid.T, b bed) *walk {
	for _, table := range append([]string{"t_local_message", "t_shadow"}, businessTables...) {
		if _, err := b.DB.Exec("DELETE FROM " + table); err != nil {
			r.Fatal(err)
		}
	}
	w := &walk{r: r, b: b}
	w.setMode(order.ModeEnforce)
	w.rules.Default = order.Rule{
		Late:           rapid.SampledFrom([]order.LatePolicy{"", order.LateManual, order.LateRefund, order.LateReopen}).Draw(r, "late"),
		RemindLead:     rapid.SampledFrom([]time.Duration{0, 20 * time.Second}).Draw(r, "remind"),
		SecondChance:   rapid.SampledFrom([]time.Duration{0, 0, time.Minute, order.Forever}).Draw(r, "second chance"),
		StockAtPayment: rapid.Bool().Draw(r, "stock at payment"),
		Restock:        rapid.Bool().Draw(r, "restock"),
	}
	w.rules.Remote = []string{"cart"}
	w.confirm = rapid.SampledFrom([]time.Duration{0, 2 * time.Minute}).Draw(r, "confirm")
	ctx := context.Background()
	s := w.store()
	defer s.Close()
	for _, a := range []order.Adjustment{
		{ID: "walk-stock", Kind: "stock", Ref: "a", Delta: 3},
		{ID: "walk-coupon", Kind: "coupon", Ref: "c", Delta: 1, Owner: "u1", ValidUntil: noon.Add(3 * time.Minute)},
	} {
		if _, err := s.Adjust(ctx, a); err != nil {
			r.Fatal(err)
		}
	}
	return w
}

// store is the store at the present moment.
func (w *walk) store() *store.Store { return w.b.at(w.now) }

func (w *walk) name(what string) string {
	w.serial++
	return fmt.Sprintf("%s-%d", what, w.serial)
}

// which draws one of the orders.
func (w *walk) which() string { return rapid.SampledFrom(w.nos).Draw(w.r, "order") }

func (w *walk) act() order.Act { return order.Act{Actor: "staff", Note: "a walk"} }

// step runs one event and checks what it did. A closing step is one that brakes must stop.
func (w *walk) step(closing bool, event func(ctx context.Context, s *store.Store) error) {
	ctx, s := context.Background(), w.store()
	defer s.Close()
	before, ends := w.b.dump(businessTables...), w.timeoutEnds()
	err := event(ctx, s)
	switch order.KindOf(err) {
	case order.Internal, order.Unavailable:
		if err != nil {
			w.r.Fatal(err)
		}
	default:
		if after := w.b.dump(businessTables...); after != before {
			w.r.Fatalf("refused (%v), but changed\n%s\nto\n%s", err, before, after)
		}
	}
	if closing && w.mode != order.ModeEnforce && w.timeoutEnds() != ends {
		w.r.Fatalf("closed while closing is %s (I15)", w.mode)
	}
	w.transitions(ctx, s)
}

// timeoutEnds counts what brakes are to stop: what a deadline has led to, and no user or staff.
func (w *walk) timeoutEnds() int {
	return w.b.count("SELECT COUNT(*) FROM t_order_log WHERE to_status IN (5, 20) AND reason IN ('TIMEOUT', 'COMPENSATE')")
}

// transitions checks every step of every order against the table.
func (w *walk) transitions(ctx context.Context, s *store.Store) {
	for _, no := range w.nos {
		log, _, err := s.Timeline(ctx, no)
		if err != nil {
			w.r.Fatal(err)
		}
		for i, e := range log[1:] {
			if next, err := order.Next(e.From, e.Event); err != nil || next.To != e.To || log[i].To != e.From {
				w.r.Fatalf("%s went from %v by %s to %v after %+v", no, e.From, e.Event, e.To, log[i])
			}
		}
	}
}

func (w *walk) actions() map[string]func(*rapid.T) {
	known := func(f func()) func(*rapid.T) {
		return func(r *rapid.T) {
			if len(w.nos) == 0 {
				r.Skip("no order yet")
			}
			f()
		}
	}
	return map[string]func(*rapid.T){
		"create":        func(*rapid.T) { w.create() },
		"time passes":   func(r *rapid.T) { w.now += time.Duration(rapid.IntRange(1, 90).Draw(r, "seconds")) * time.Second },
		"brakes":        func(*rapid.T) { w.brake() },
		"message":       known(w.message),
		"message again": known(w.message),
		"remind":        known(w.remind),
		"start payment": known(w.startPayment),
		"fail payment":  known(w.failPayment),
		"pay":           known(w.pay),
		"pay again":     known(w.payAgain),
		"user cancels":  known(w.userCancels),
		"staff cancels": known(w.staffCancels),
		"gateway":       known(w.gateway),
		"extend":        known(w.extend),
		"restore":       known(w.restore),
		"decide":        known(w.decide),
		"refunded":      known(w.refunded),
		"archive":       known(w.archive),
		"acknowledge":   known(w.acknowledge),
	}
}

func (w *walk) create() {
	d := draft(w.name("WALK-ORDER"))
	d.Amount = rapid.SampledFrom([]int64{1999, 1999, 1999, 0}).Draw(w.r, "amount")
	d.Items = append(d.Items, order.Item{Kind: "stock", Ref: "a", Quantity: int64(rapid.IntRange(1, 2).Draw(w.r, "quantity"))})
	if rapid.Bool().Draw(w.r, "with coupon") {
		d.Items = append(d.Items, order.Item{Kind: "coupon", Ref: "c", Quantity: 1})
	}
	if rapid.Bool().Draw(w.r, "with cart") {
		d.Items = append(d.Items, order.Item{Kind: "cart", Ref: "basket", Quantity: 1})
	}
	d.Items = order.MergeItems(d.Items)
	w.step(false, func(ctx context.Context, s *store.Store) error {
		made, err := s.Create(ctx, []order.Draft{w.rules.Apply(d)}, leased)
		if err == nil && made[0].Err == nil {
			w.nos = append(w.nos, d.OrderNo)
		}
		if err == nil {
			err = made[0].Err
		}
		return err
	})
}

func (w *walk) brake() {
	w.mode = rapid.SampledFrom([]order.Mode{order.ModeEnforce, order.ModeEnforce, order.ModeShadow, order.ModeOff}).Draw(w.r, "mode")
	w.setMode(w.mode)
}

func (w *walk) setMode(mode order.Mode) {
	w.mode = mode
	w.b.exec(fmt.Sprintf(`UPDATE t_setting SET value = '{"mode":"%s","percent":100}', version = version + 1 WHERE name = 'brakes'`, mode))
}

// message is a time-out message of an order, on time, early or late; or the compensator.
func (w *walk) message() {
	reason := rapid.SampledFrom([]order.Reason{order.ReasonTimeout, order.ReasonCompensate}).Draw(w.r, "by")
	w.step(true, func(ctx context.Context, s *store.Store) error {
		_, err := s.CloseDue(ctx, order.Closing{OrderNos: w.nos, Reason: reason, Actor: "walk", Confirm: w.confirm}, leased)
		return err
	})
}

func (w *walk) remind() {
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, err := s.Remind(ctx, w.nos, leased)
		return err
	})
}

func (w *walk) startPayment() {
	no := w.which()
	lifetime := time.Duration(rapid.IntRange(1, 300).Draw(w.r, "lifetime")) * time.Second
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, _, err := s.StartPayment(ctx, order.Attempting{AttemptNo: w.name("ATTEMPT"), OrderNo: no, Channel: "card", Lifetime: lifetime, Actor: "shop"})
		return err
	})
}

// openAttempts are the attempts of an order that have not ended.
func (w *walk) openAttempts(ctx context.Context, s *store.Store, no string) (open []order.Attempt) {
	all, err := s.Attempts(ctx, no)
	if err != nil {
		w.r.Fatal(err)
	}
	for _, a := range all {
		if a.State == order.AttemptOpen {
			open = append(open, a)
		}
	}
	return open
}

func (w *walk) failPayment() {
	no := w.which()
	w.step(false, func(ctx context.Context, s *store.Store) error {
		for _, a := range w.openAttempts(ctx, s, no) {
			if _, err := s.FailPayment(ctx, no, a.AttemptNo); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *walk) payment(no string) order.Payment {
	p := payment(w.name("PAY"), no)
	p.PaidAt = noon.Add(w.now)
	return p
}

func (w *walk) pay() {
	p := w.payment(w.which())
	w.step(false, func(ctx context.Context, s *store.Store) error {
		first, err := s.Pay(ctx, p, w.rules, leased)
		if err != nil {
			return err
		}
		again, err := s.Pay(ctx, p, w.rules, leased)
		if err != nil || !again.Repeated || again.Outcome != first.Outcome {
			w.r.Fatalf("paid %s, told again %s (%v), %v", first.Outcome, again.Outcome, again.Repeated, err)
		}
		return nil
	})
}

// payAgain tells a payment whose amount is wrong: refused.
func (w *walk) payAgain() {
	p := w.payment(w.which())
	p.Amount++
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, err := s.Pay(ctx, p, w.rules, leased)
		if err == nil {
			w.r.Fatal("a payment of another amount was taken")
		}
		return err
	})
}

func (w *walk) userCancels() {
	c := wish(w.which(), "u1")
	c.Confirm = w.confirm
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, _, err := s.Cancel(ctx, c, leased)
		return err
	})
}

func (w *walk) staffCancels() {
	c := order.Cancelling{OrderNo: w.which(), Reason: order.ReasonManual, Confirm: w.confirm, Force: rapid.Bool().Draw(w.r, "force"), Act: w.act()}
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, _, err := s.Cancel(ctx, c, leased)
		return err
	})
}

// gateway asks about all orders in doubt, and hears anything.
func (w *walk) gateway() {
	w.step(true, func(ctx context.Context, s *store.Store) error {
		doubtful, _, _, err := s.ClaimDoubtful(ctx, 100, leaseTime)
		if err != nil {
			return err
		}
		for _, d := range doubtful {
			v := order.Verdict{InDoubt: d}
			for _, a := range d.Attempts {
				switch rapid.SampledFrom([]string{"paid", "closed", "unknown"}).Draw(w.r, "answer") {
				case "paid":
					p := w.payment(d.OrderNo)
					p.AttemptNo = a.AttemptNo
					v.Captured = append(v.Captured, p)
				case "closed":
					v.Closed = append(v.Closed, a.AttemptNo)
				case "unknown":
					v.Failed = "no answer"
				}
			}
			end := rapid.SampledFrom([]order.ConfirmEnd{order.ConfirmCancel, order.ConfirmHold}).Draw(w.r, "end")
			if _, err := s.Confirm(ctx, v, end, time.Second, w.rules, leased); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w *walk) extend() {
	e := order.Extending{OrderNo: w.which(), Act: w.act()}
	if rapid.Bool().Draw(w.r, "hold") {
		e.Until = noon.Add(w.now + time.Duration(rapid.IntRange(-60, 300).Draw(w.r, "until"))*time.Second)
	} else {
		e.By = time.Duration(rapid.IntRange(1, 120).Draw(w.r, "by")) * time.Second
	}
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, err := s.Extend(ctx, e, leased)
		return err
	})
}

func (w *walk) restore() {
	x := order.Restoring{OrderNo: w.which(), Round: rapid.IntRange(0, 3).Draw(w.r, "round"), Timeout: time.Minute, Act: w.act()}
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, err := s.Restore(ctx, x, leased)
		return err
	})
}

func (w *walk) decide() {
	policy := rapid.SampledFrom([]order.LatePolicy{order.LateRefund, order.LateReopen}).Draw(w.r, "policy")
	w.step(false, func(ctx context.Context, s *store.Store) error {
		cases, _, err := s.LatePayments(ctx, "", 100, "")
		if err != nil || len(cases) == 0 {
			return err
		}
		c := rapid.SampledFrom(cases).Draw(w.r, "case")
		_, _, err = s.Decide(ctx, order.Deciding{PaymentNo: c.PaymentNo, Policy: policy, Act: w.act()}, leased)
		return err
	})
}

func (w *walk) refunded() {
	x := order.Refunding{PaymentNo: fmt.Sprintf("PAY-%d", rapid.IntRange(1, max(w.serial, 1)).Draw(w.r, "payment")), RefundNo: w.name("REFUND"), Act: w.act()}
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, err := s.Refund(ctx, x, w.rules)
		return err
	})
}

func (w *walk) archive() {
	no := w.which()
	w.step(false, func(ctx context.Context, s *store.Store) error {
		_, err := s.Archive(ctx, no, time.Minute, w.act())
		return err
	})
}

func (w *walk) acknowledge() {
	no := w.which()
	w.step(false, func(ctx context.Context, s *store.Store) error {
		return s.Acknowledge(ctx, no, rapid.IntRange(1, 3).Draw(w.r, "round"), "cart")
	})
}

// finish lets everything end: with closing on and the gateway's deadline passed, nothing is left pending but what may
// stay for ever, and a second pass changes nothing.
func (w *walk) finish() {
	w.setMode(order.ModeEnforce)
	for range 3 { // a deadline, its second chance, a confirm deadline
		w.now += 100 * time.Hour
		w.message()
		w.gateway()
	}
	before := w.b.dump(businessTables...)
	w.message()
	if after := w.b.dump(businessTables...); len(w.nos) > 0 && after != before {
		w.r.Fatalf("closing again changed\n%s\nto\n%s", before, after)
	}
	s := w.store()
	defer s.Close()
	checks, err := s.Audit(context.Background(), store.AuditOptions{Overdue: time.Hour})
	if err != nil {
		w.r.Fatal(err)
	}
	for _, c := range checks {
		if !c.Holds() && c.Name != "no message is stuck" { // nothing here sends
			w.r.Fatalf("%s does not hold: %s (%d of %d, like %s)", c.Invariant, c.Name, c.Violations, c.Checked, c.Example)
		}
	}
}
