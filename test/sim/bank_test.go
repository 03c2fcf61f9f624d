package sim

import (
	"context"
	"fmt"
	"time"

	"lapse/pkg/order"
)

// bank is the payment channel: bills of attempts, and the money that it has captured.
type bank struct {
	bills    map[string]*bill // by attempt
	open     []*bill          // in the order in which they were made
	captured []*capture
}

type bill struct {
	attemptNo string
	orderNo   string
	amount    int64
	state     order.BillState
	payment   order.Payment
	givenUp   bool // a caller has said that its attempt failed
}

// capture is a payment that the bank has taken, and what it knows of whether Lapse has heard of it.
type capture struct {
	order.Payment
	wrong   bool // its amount is not the order's: it is to be refused
	telling bool
	told    bool
	outcome order.PaymentOutcome
}

// bill is the bill of an attempt. One that the customer never went to the bank with is made by the question.
func (b *bank) bill(attemptNo, orderNo string, amount int64) *bill {
	found := b.bills[attemptNo]
	if found == nil {
		found = &bill{attemptNo: attemptNo, orderNo: orderNo, amount: amount, state: order.BillUnpaid}
		b.bills[attemptNo] = found
		b.open = append(b.open, found)
	}
	return found
}

// pay captures money.
func (w *world) pay(paymentNo, orderNo, attemptNo string, amount int64, wrong bool) *capture {
	c := &capture{wrong: wrong, Payment: order.Payment{
		PaymentNo: paymentNo, OrderNo: orderNo, AttemptNo: attemptNo, Amount: amount, Currency: "CNY", PaidAt: w.clock(),
	}}
	w.say("bank: captures %s of %s for %d", paymentNo, orderNo, amount)
	w.bank.captured = append(w.bank.captured, c)
	return c
}

// payBill is a customer who pays the bill of an attempt.
func (w *world) payBill(b *bill) {
	b.payment = w.pay("B-"+b.attemptNo, b.orderNo, b.attemptNo, b.amount, false).Payment
	b.state = order.BillPaid
}

// tell notifies a process of captured money.
func (w *world) tell(p *process, c *capture) {
	c.telling = true
	var result order.PaymentResult
	w.ask(p, "", "pay "+c.PaymentNo+" of "+c.OrderNo, func(ctx context.Context) (err error) {
		result, err = p.orders.Pay(ctx, c.Payment)
		return err
	}, func(err error) {
		c.telling = false
		switch kind := order.KindOf(err); {
		case err == nil && c.wrong:
			w.fail("I7", "payment %s of a wrong amount was taken", c.PaymentNo)
		case err == nil:
			c.told, c.outcome = true, result.Outcome
		case kind == order.Unavailable || kind == order.Exhausted:
		case c.wrong:
			c.told = true
		default:
			w.fail("I7", "payment %s of %s was refused: %v", c.PaymentNo, c.OrderNo, err)
		}
	})
}

// gateway asks the bank for one process.
type gateway struct{ border }

// Query says how a bill stands, or does not.
func (g gateway) Query(_ context.Context, a order.Attempt) (order.Bill, error) {
	return g.question("Query", a, func(*bill) {})
}

// Close closes a bill that is unpaid. Its answer may be lost.
func (g gateway) Close(_ context.Context, a order.Attempt) (order.Bill, error) {
	return g.question("CloseBill", a, func(b *bill) {
		if b.state == order.BillUnpaid {
			b.state = order.BillClosed
		}
	})
}

func (g gateway) question(name string, a order.Attempt, do func(*bill)) (answer order.Bill, err error) {
	w := g.p.world
	err = g.pass(name, a.AttemptNo, func() error {
		unheard := w.chance(w.wild, 4)
		if unheard && w.rng.IntN(2) == 0 {
			w.count("gateway: unknown")
			return order.Errorf(order.Unavailable, "gateway_unknown", "<html>502")
		}
		b := w.bank.bill(a.AttemptNo, a.OrderNo, a.Amount)
		do(b)
		answer = order.Bill{State: b.state, Payment: b.payment}
		w.say("bank: bill %s is %s", a.AttemptNo, b.state)
		if unheard {
			w.count("gateway: answer lost")
			answer = order.Bill{}
			return order.Errorf(order.Unavailable, "gateway_unknown", "no answer in time")
		}
		return nil
	})
	return answer, err
}

// attempt is a customer who starts to pay.
func (w *world) attempt(p *process, o *sold, lifetime time.Duration) {
	w.serial++
	no := fmt.Sprintf("ATTEMPT-%d", w.serial)
	var made order.Attempt
	w.ask(p, "", "start "+no+" of "+o.OrderNo, func(ctx context.Context) (err error) {
		made, _, err = p.orders.StartPayment(ctx, order.Attempting{AttemptNo: no, OrderNo: o.OrderNo, UserID: o.UserID, Channel: "bank", Lifetime: lifetime, Actor: "shop"})
		return err
	}, func(err error) {
		if err == nil && !made.Repeated {
			w.bank.bill(no, o.OrderNo, o.Amount)
			o.attempts = append(o.attempts, no)
		}
	})
}
