package demo

import (
	"context"
	"fmt"
	"time"

	lapsev1 "lapse/api/lapse/v1"
)

// This file is about what comes beside and after the deadline: a payment in flight, late money, and staff.

// attemptOf is the number of an order's payment attempt.
func attemptOf(orderNo string) string { return "try-" + orderNo }

// startPayment starts a payment that is still in flight at the deadline.
func (p *play) startPayment(ctx context.Context, o *order) {
	no := o.look().OrderNo
	if err := p.client.startPayment(ctx, no, o.user, attemptOf(no)); err != nil {
		o.note(nil, fmt.Errorf("starting a payment: %w", err))
		return
	}
	if o.act == paySilently {
		p.bank.pay(attemptOf(no))
	}
	p.screen.say("%s starts to pay %s and does not come back.", o.user, no)
}

// payLate pays a cancelled order, and says so twice as channels do. What the money becomes is a matter of the business
// type's policy.
func (p *play) payLate(ctx context.Context, o *order) {
	want := map[act]string{
		payLate: "kept for a person to decide", payLateRefund: "to be refunded", payLateReopen: "opens the order again",
	}[o.act]
	for _, again := range []string{"", ", said again"} {
		told, err := p.client.notify(ctx, o.look(), p.client.keys.secret)
		got := outcome("taken as "+told.GetOutcome(), err)
		if err == nil {
			got = p.became(ctx, told)
			if told.Repeated {
				got += ", said again"
			}
		}
		p.heard("a payment of the cancelled "+o.look().OrderNo, want+again, got)
	}
	seen, err := p.client.order(ctx, o.look().OrderNo)
	o.note(seen, err)
}

// became says what the money became, by the list of late-payment cases.
func (p *play) became(ctx context.Context, told *lapsev1.NotifyPaymentResponse) string {
	if told.Outcome == "paid" && told.OrderStatus == "paid" {
		return "opens the order again"
	}
	cases, err := p.client.latePayments(ctx)
	if err != nil {
		return err.Error()
	}
	for _, c := range cases {
		if c.OrderNo == told.OrderNo {
			return map[string]string{"open": "kept for a person to decide", "requested": "to be refunded", "refunded": "to be refunded"}[c.Status]
		}
	}
	return "taken as " + told.Outcome + ", and there is no case"
}

// restore is staff, who opens a cancelled order again, and its customer, who pays this time.
func (p *play) restore(ctx context.Context, o *order) {
	no := o.look().OrderNo
	again, err := p.client.restore(ctx, no, "she called: the lift had stopped", scale(10*time.Second, p.pace))
	o.note(again, err)
	if err != nil {
		return
	}
	p.screen.say("Staff opens %s again: round %d, %s until %s.", no, again.Round, again.Status, again.ExpireAt.AsTime().Format("15:04:05"))
	if _, err := p.client.notify(ctx, again, p.client.keys.secret); err != nil {
		o.note(nil, fmt.Errorf("payment: %w", err))
	}
	p.untilFinal(ctx, o)
}

// refund is the shop's payment service: it hears that a refund is wanted, makes it, and says so.
func (p *play) refund(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	wanted := 0
	for _, o := range p.orders {
		if o.act == payLateRefund {
			wanted++
		}
	}
	for len(p.inbox.refunds()) < wanted && sleep(bounded, pollEvery) {
	}
	for _, paymentNo := range p.inbox.refunds() {
		if err := p.client.refunded(ctx, paymentNo, "the bank says so"); err != nil {
			return fmt.Errorf("refund of %s: %w", paymentNo, err)
		}
		p.screen.say("Heard that %s is to be refunded; refunded it, and said so.", paymentNo)
	}
	return ctx.Err()
}
