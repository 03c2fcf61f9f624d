package demo

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	lapsev1 "lapse/api/lapse/v1"
)

// check is one statement that has to hold, with its figure.
type check struct {
	ID         string `json:"id"` // an invariant, or "seen" for what was seen from outside
	Name       string `json:"name"`
	Checked    int64  `json:"checked"`
	Violations int64  `json:"violations"`
	Example    string `json:"example,omitempty"` // of a violation
}

func (c check) holds() bool { return c.Violations == 0 }

// idle reports whether there was nothing that could have broken it, so that it shows nothing.
func (c check) idle() bool { return c.Checked == 0 && c.holds() }

// addTo adds the figures of c to those of the same statement in all.
func (c check) addTo(all []check) []check {
	i := slices.IndexFunc(all, func(o check) bool { return o.ID == c.ID && o.Name == c.Name })
	if i < 0 {
		return append(all, c)
	}
	all[i].Checked += c.Checked
	all[i].Violations += c.Violations
	all[i].Example = cmp.Or(all[i].Example, c.Example)
	return all
}

// seen starts a check of what was seen from outside.
func seen(name string) *check { return &check{ID: "seen", Name: name} }

// that counts one case; the example explains a violation.
func (c *check) that(ok bool, example string, args ...any) {
	c.Checked++
	if ok {
		return
	}
	if c.Violations == 0 {
		c.Example = fmt.Sprintf(example, args...)
	}
	c.Violations++
}

// judge adds to the invariants what was seen from outside, compared with the plan.
func (p *play) judge() []check {
	return slices.Concat(p.audited, []check{p.fates(), p.calls(), p.told(), p.notEarly(), p.givenBack(), p.answered(), p.counted(), p.storied()})
}

func (p *play) fates() check {
	c := seen("every order met the fate planned for it")
	for _, o := range p.orders {
		last := o.look()
		c.that(o.met(), "%s is %s %s, planned: %s %v", o.no, orNone(last.GetStatus()), last.GetCancelReason(), o.fate.status, o.fate.reasons)
	}
	return *c
}

// met reports whether the order ended as planned.
func (o *order) met() bool {
	last := o.look()
	return last.GetStatus() == o.fate.status && slices.Contains(o.fate.reasons, last.GetCancelReason())
}

func orNone(s string) string {
	if s == "" {
		return "not there"
	}
	return s
}

func (p *play) calls() check {
	c := seen("every call that had to work worked")
	for _, o := range p.orders {
		c.that(o.err == nil, "%s: %v", o.no, o.err)
	}
	return *c
}

func (p *play) told() check {
	c := seen("each cancelled round was told by one event, no other by any")
	for _, o := range p.orders {
		last := o.look()
		events := p.inbox.of(last.GetOrderNo())
		c.that(len(events) == o.cancelledRounds(), "%s is %s in round %d and has %d events", o.no, last.GetStatus(), last.GetRound(), len(events))
		for _, e := range events {
			if last.GetRound() > 1 {
				continue // its order tells of another round by now
			}
			c.that(e.Data.Reason == last.GetCancelReason() && e.Data.CancelledAt.Equal(last.GetCancelledAt().AsTime()),
				"%s: its event tells another reason or time", o.no)
		}
	}
	for _, raw := range p.inbox.summary().Strange {
		c.that(false, "strange event %s", raw)
	}
	return *c
}

func (p *play) notEarly() check {
	c := seen("no order was cancelled before its deadline, unless by its user")
	for _, o := range p.orders {
		if last := o.look(); timedOut(last) {
			c.that(lateness(last) >= 0, "%s was closed %s early", o.no, -lateness(last))
		}
	}
	return *c
}

func timedOut(o *lapsev1.Order) bool {
	return o.GetCancelReason() == "TIMEOUT" || o.GetCancelReason() == "COMPENSATE"
}

// lateness is the time from an order's deadline to its close, both by the database's clock.
func lateness(o *lapsev1.Order) time.Duration {
	return o.GetCancelledAt().AsTime().Sub(o.GetExpireAt().AsTime())
}

// givenBack expects of each resource: sold what the paid orders took, nothing held, the rest available.
func (p *play) givenBack() check {
	c := seen("of each resource the paid orders have their part, and the rest is back")
	taken := map[string]int64{}
	for _, o := range p.orders {
		if o.fate.status == paid.status {
			for _, h := range o.holds {
				taken[h.name()] += h.quantity
			}
		}
	}
	for i, s := range p.stocks {
		sold, r := taken[s.name()], p.after[i]
		c.that(r.Available == s.quantity-sold && r.Held == 0 && r.Sold == sold,
			"%s: %d available, %d held, %d sold; wanted %d, 0, %d", s.name(), r.Available, r.Held, r.Sold, s.quantity-sold, sold)
	}
	return *c
}

func (p *play) answered() check {
	c := seen("repeated, refused, forged and late calls were answered as they must be")
	for _, a := range p.answers {
		c.that(a.Got == a.Want, "%s: %s, wanted: %s", a.What, a.Got, a.Want)
	}
	return *c
}

// storied expects of the special orders that they went the way that is theirs.
func (p *play) storied() check {
	c := seen("a payment in flight, late money and a restore took their way")
	want := map[act][]string{
		startOnly:     {"created", "payment_started", "confirming", "expired"},
		paySilently:   {"created", "payment_started", "confirming", "paid"},
		payLate:       {"created", "expired"},
		payLateRefund: {"created", "expired"},
		payLateReopen: {"created", "expired", "reopened"},
		restore:       {"created", "expired", "restored", "paid"},
	}
	for _, o := range p.orders {
		if way, special := want[o.act]; special {
			var went []string
			for _, t := range p.stories[o.no] {
				went = append(went, t.Event)
			}
			c.that(slices.Equal(went, way), "%s went %v, wanted %v", o.no, went, way)
		}
	}
	ends := map[act]string{payLate: "open", payLateRefund: "refunded", payLateReopen: "consumed"}
	for _, o := range p.orders {
		if end, late := ends[o.act]; late {
			i := slices.IndexFunc(p.cases, func(l *lapsev1.LatePayment) bool { return l.OrderNo == o.no })
			c.that(i >= 0 && p.cases[i].Status == end, "the late payment of %s did not end as %s", o.no, end)
		}
	}
	return *c
}

// counted expects of the metrics what an operator needs to be told.
func (p *play) counted() check {
	c := seen("the metrics tell each lost message, and no early close")
	lost := 0.0
	for _, o := range p.orders {
		if o.act == lose {
			lost++
		}
	}
	for name, want := range map[string]float64{lostMetric: lost, earlyMetric: 0} {
		c.that(p.metrics[name] == want, "%s is %v, wanted %v", name, p.metrics[name], want)
	}
	return *c
}
