package order

import "time"

// Rule is how the orders of a business type are treated.
type Rule struct {
	Late LatePolicy // who decides about money that comes too late
	// RemindLead is how long before the deadline the event TypeExpiringSoon is sent; 0 means never.
	RemindLead time.Duration
	// SecondChance: at the deadline the order is only reminded; see Order.SecondChance. 0 means it is closed.
	SecondChance time.Duration
	// StockAtPayment: items of kind "stock" are taken when the order is paid instead of being held from its creation.
	StockAtPayment bool
	// Restock: a refund of a paid order gives its items back.
	Restock bool
}

// Rules are the rules of all business types, which kinds of resources live elsewhere, and what one user may have.
type Rules struct {
	Default Rule
	ByType  map[string]Rule
	Remote  []string // kinds that other services hold
	Quota   Quota
}

// Quota is how many orders one user may have made; 0 means any number.
type Quota struct {
	Pending int // that still wait to be paid
	Minute  int // within the last minute
}

// Check says why a user who has so many already may not make one more: Exhausted.
func (q Quota) Check(pending, minute int) error {
	switch {
	case q.Pending > 0 && pending >= q.Pending:
		return Errorf(Exhausted, "too_many_pending", "the user has %d orders that are not paid, and may have %d", pending, q.Pending).
			WithHint("Pay or cancel one of them.")
	case q.Minute > 0 && minute >= q.Minute:
		return Errorf(Exhausted, "too_many_orders", "the user has made %d orders within a minute, and may make %d", minute, q.Minute).
			WithHint("Wait a minute.")
	}
	return nil
}

// KindStock is the kind of items that StockAtPayment is about.
const KindStock = "stock"

// For is the rule of a business type.
func (r Rules) For(bizType string) Rule {
	if rule, ok := r.ByType[bizType]; ok {
		return rule
	}
	return r.Default
}

// Apply gives a valid draft the rule of its business type and the quota of its user, and marks its items.
func (r Rules) Apply(d Draft) Draft {
	d.Rule, d.Quota = r.For(d.BizType), r.Quota
	if d.Rule.RemindLead >= d.Timeout {
		d.Rule.RemindLead = 0 // its customer has just been here
	}
	for i := range d.Items {
		it := &d.Items[i]
		it.Remote = r.remote(it.Kind)
		it.AtPayment = d.Rule.StockAtPayment && it.Kind == KindStock && !it.Remote && d.Amount > 0
	}
	return d
}

func (r Rules) remote(kind string) bool {
	for _, k := range r.Remote {
		if k == kind {
			return true
		}
	}
	return false
}
