package order

import (
	"cmp"
	"slices"
	"time"
)

// Op is one kind of ledger entry. The ledger is the proof that what was held went somewhere once (I4, I5).
type Op string

const (
	OpReserve Op = "reserve" // available → held
	OpSell    Op = "sell"    // held → sold
	OpRelease Op = "release" // held → available
	OpForfeit Op = "forfeit" // just released, but its validity had run out: it leaves
	OpRestock Op = "restock" // sold → available, by a refund
	OpAdjust  Op = "adjust"  // changed from outside
)

// Resource is one counter row: a stock, a coupon, points, a quota.
type Resource struct {
	Kind       string
	Ref        string
	Available  int64
	Held       int64
	Sold       int64
	Owner      string    // the only user who may reserve it; "" for anyone
	ValidUntil time.Time // may not be reserved from then on; zero for ever
}

// Adjustment changes what is available of a resource from outside, once per ID.
type Adjustment struct {
	ID         string
	Kind       string
	Ref        string
	Delta      int64
	Owner      string    // set when the resource is made; "" for anyone
	ValidUntil time.Time // set when the resource is made; zero for ever
}

// CompareItems is the order in which every transaction locks resources: the primary key of t_resource.
func CompareItems(a, b Item) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Ref, b.Ref))
}

// MergeItems sorts items in resource order and adds up those of one resource.
func MergeItems(items []Item) []Item {
	sorted := slices.Clone(items)
	slices.SortFunc(sorted, CompareItems)
	merged := sorted[:0]
	for _, it := range sorted {
		if n := len(merged); n > 0 && CompareItems(merged[n-1], it) == 0 {
			merged[n-1].Quantity += it.Quantity
			continue
		}
		merged = append(merged, it)
	}
	return merged
}

// Reserve moves quantity from available to held for user at now, or says why not.
func (r *Resource) Reserve(quantity int64, user string, now time.Time) error {
	switch {
	case r.Owner != "" && r.Owner != user:
		return Errorf(Conflict, "resource_unusable", "%s %q belongs to somebody else", r.Kind, r.Ref)
	case r.Expired(now):
		return Errorf(Conflict, "resource_unusable", "%s %q has run out", r.Kind, r.Ref)
	case r.Available < quantity:
		return Errorf(Conflict, "out_of_stock", "%s %q: %d wanted, %d available", r.Kind, r.Ref, quantity, r.Available)
	}
	r.Available -= quantity
	r.Held += quantity
	return nil
}

// Sell moves quantity from held to sold.
func (r *Resource) Sell(quantity int64) error {
	if err := r.takeHeld(quantity); err != nil {
		return err
	}
	r.Sold += quantity
	return nil
}

// Release moves quantity from held back to available.
func (r *Resource) Release(quantity int64) error {
	if err := r.takeHeld(quantity); err != nil {
		return err
	}
	r.Available += quantity
	return nil
}

// Expired reports whether it may not be reserved any more at now.
func (r *Resource) Expired(now time.Time) bool {
	return !r.ValidUntil.IsZero() && !r.ValidUntil.After(now)
}

// Forfeit takes out what was released although its validity had run out.
func (r *Resource) Forfeit(quantity int64) error {
	if r.Available < quantity {
		return Errorf(Internal, "counter_damaged", "%s %q: %d to be forfeited, but only %d available", r.Kind, r.Ref, quantity, r.Available)
	}
	r.Available -= quantity
	return nil
}

// Restock moves quantity from sold back to available.
func (r *Resource) Restock(quantity int64) error {
	if r.Sold < quantity {
		return Errorf(Internal, "counter_damaged", "%s %q: %d to be restocked, but only %d sold", r.Kind, r.Ref, quantity, r.Sold)
	}
	r.Sold -= quantity
	r.Available += quantity
	return nil
}

// takeHeld refuses to take what nobody holds: then a counter and the ledger have parted (I4).
func (r *Resource) takeHeld(quantity int64) error {
	if r.Held < quantity {
		return Errorf(Internal, "counter_damaged", "%s %q: %d to be taken, but only %d held", r.Kind, r.Ref, quantity, r.Held)
	}
	r.Held -= quantity
	return nil
}
