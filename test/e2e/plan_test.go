package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// plan is what one order's customer is going to do.
type plan struct {
	no      int
	start   time.Duration // of the create, from the start of the run
	user    string
	biz     string
	items   []item
	amount  int64
	timeout time.Duration
	orderNo string // the caller's own number, or ""
	key     string // idempotency key

	twin   bool           // is created twice at the same moment, at both producers
	repeat *time.Duration // is created again, so long after the first answer
	reuse  bool           // another order is created with the same key, which has to be refused
	pays   []payPlan
	cancel *time.Duration // from the deadline

	copyRow  *time.Duration // a copy of its time-out message is sent then, from the deadline: too early, or too late
	copies   int            // so many copies, burstEvery apart
	copySeen *time.Duration // a copy of its time-out message is sent so long after it was delivered
}

// item is what the order holds of one resource.
type item struct {
	kind, ref string
	quantity  int64
}

// payPlan is one captured payment.
type payPlan struct {
	at    time.Duration // from the deadline; negative: before it
	again bool          // the notification is sent twice
}

// share is a probability.
type share float64

// The workload. A resource of kind gift is short: there is less of it than is asked for.
const (
	users     = 300
	skus      = 200
	hotSKUs   = 4
	gifts     = 2
	giftsEach = 20

	shareHot       share = .6  // of a stock item being a hot one
	shareCoupon    share = .08 // holds a coupon that only its user may use
	sharePoints    share = .15
	shareQuota     share = .2 // all of one row
	shareGift      share = .03
	shareOwnNumber share = .25
	shareFree      share = .01 // nothing to pay
	sharePaid      share = .4
	shareCancelled share = .06
	shareBoth      share = .01 // paid and cancelled at the same moment
	sharePaidTwice share = .01 // by two payments
	shareTold      share = .1  // of payments, told twice
	shareRepeated  share = .05 // created again with the same key
	shareReused    share = .005
)

var bizTypes = []string{"retail", "ticket", "hotel", "flash-sale"}

// makePlans decides everything that will happen, so that a seed tells all of it.
func makePlans(s scenario, seed uint64) []plan {
	r := dice{rand.New(rand.NewPCG(seed, 1))}
	plans := make([]plan, s.orders)
	for i := range plans {
		plans[i] = r.plan(s, i)
	}
	return plans
}

type dice struct{ *rand.Rand }

func (d dice) yes(p share) bool { return d.Float64() < float64(p) }

// between is a time of at least low and less than high, in whole milliseconds.
func (d dice) between(low, high time.Duration) time.Duration {
	return (low + time.Duration(d.Int64N(int64(high-low)))).Truncate(time.Millisecond)
}

func (d dice) plan(s scenario, no int) plan {
	p := plan{
		no: no, start: s.creating * time.Duration(no) / time.Duration(s.orders),
		user: fmt.Sprintf("user-%d", d.IntN(users)), biz: bizTypes[d.IntN(len(bizTypes))],
		amount: 1 + d.Int64N(100_000), timeout: d.between(s.minTimeout, s.maxTimeout),
		key: fmt.Sprintf("cart-%d", no),
	}
	p.items = d.items(p)
	if d.yes(shareOwnNumber) {
		p.orderNo = fmt.Sprintf("E2E-%d", 100_000+no)
	}
	if d.yes(shareRepeated) && !p.holds("gift") { // else one of two creates might find the last gift, and the other not
		at := d.between(0, p.timeout+5*time.Second)
		p.twin, p.repeat = d.yes(.5), &at
	}
	p.reuse = p.orderNo == "" && d.yes(shareReused)
	if d.yes(s.copied) {
		d.copied(&p)
	}
	d.fate(&p)
	return p
}

func (p plan) holds(kind string) bool {
	return slices.ContainsFunc(p.items, func(it item) bool { return it.kind == kind })
}

// items are one or two stocks, and now and then something of another kind.
func (d dice) items(p plan) []item {
	var items []item
	for range 1 + d.IntN(2) {
		sku := hotSKUs + d.IntN(skus-hotSKUs)
		if d.yes(shareHot) {
			sku = d.IntN(hotSKUs)
		}
		items = append(items, item{"stock", fmt.Sprintf("sku-%d", sku), 1 + d.Int64N(3)})
	}
	if d.yes(shareCoupon) {
		items = append(items, item{"coupon", fmt.Sprintf("coupon-%d", p.no), 1})
	}
	if d.yes(sharePoints) {
		items = append(items, item{"points", p.user, 10 * (1 + d.Int64N(20))})
	}
	if d.yes(shareQuota) {
		items = append(items, item{"quota", "campaign", 1})
	}
	if d.yes(shareGift) {
		items = append(items, item{"gift", fmt.Sprintf("gift-%d", d.IntN(gifts)), 1})
	}
	return items
}

const (
	burst      = 10 // copies that arrive around the very deadline
	burstEvery = 4 * time.Millisecond
)

// copied decides when a time-out message comes again: after it was delivered, before or after its deadline, or several
// times around the deadline, where a millisecond decides.
func (d dice) copied(p *plan) {
	row, seen := d.between(-p.timeout, 5*time.Second), d.between(0, 3*time.Second)
	switch n := d.Float64(); {
	case n < .4:
		p.copySeen = &seen
	case n < .7:
		row = d.between(-60*time.Millisecond, -40*time.Millisecond)
		p.copyRow, p.copies = &row, burst
	default:
		p.copyRow, p.copies = &row, 1
	}
}

// fate decides whether and when the order is paid and cancelled.
func (d dice) fate(p *plan) {
	switch {
	case d.yes(shareFree):
		p.amount = 0
	case d.yes(sharePaid):
		at := d.aroundDeadline(p.timeout)
		p.pays = []payPlan{{at, d.yes(shareTold)}}
		if d.yes(shareBoth / sharePaid) {
			p.cancel = &at
		}
		if d.yes(sharePaidTwice / sharePaid) {
			p.pays = append(p.pays, payPlan{at: d.aroundDeadline(p.timeout)})
		}
	case d.yes(shareCancelled / (1 - sharePaid)):
		at := d.aroundDeadline(p.timeout)
		p.cancel = &at
	}
}

// aroundDeadline is a moment well before the deadline, within a breath of it, or some seconds after it.
func (d dice) aroundDeadline(timeout time.Duration) time.Duration {
	switch n := d.Float64(); {
	case n < .45:
		return -d.between(time.Second, timeout)
	case n < .8:
		return d.between(-time.Second, 1500*time.Millisecond)
	default:
		return d.between(1500*time.Millisecond, 6*time.Second)
	}
}

func TestAWorkloadHasEverythingThatMayHappen(t *testing.T) {
	s := scenarios[0]
	plans := makePlans(s, 1)
	seen := map[string]int{}
	count := func(what string, is bool) {
		if is {
			seen[what]++
		}
	}
	for _, p := range plans {
		if p.timeout < s.minTimeout || p.timeout > s.maxTimeout {
			t.Fatalf("order %d has a time-out of %v", p.no, p.timeout)
		}
		for _, pay := range p.pays {
			count("paid well before", pay.at < -time.Second)
			count("paid within a second of the deadline", pay.at.Abs() <= time.Second)
			count("paid long after", pay.at > 2*time.Second)
			count("paid and told again", pay.again)
		}
		count("paid", len(p.pays) > 0)
		count("paid twice", len(p.pays) > 1)
		count("cancelled", p.cancel != nil)
		count("paid and cancelled", p.cancel != nil && len(p.pays) > 0)
		count("created again", p.repeat != nil)
		count("created twice at once", p.twin)
		count("key reused", p.reuse)
		count("message copied", p.copyRow != nil || p.copySeen != nil)
		count("message copied at the deadline", p.copies == burst)
		count("free", p.amount == 0)
		count("own number", p.orderNo != "")
		for _, it := range p.items {
			count("holds "+it.kind, true)
		}
	}
	for what, want := range map[string]share{
		"paid": sharePaid, "paid well before": .18, "paid within a second of the deadline": .1, "paid long after": .06, "paid and told again": .04,
		"paid twice": .01, "cancelled": .07, "paid and cancelled": .01, "created again": .05, "created twice at once": .025, "key reused": .0037, "message copied": .05, "message copied at the deadline": .015,
		"free": .01, "own number": .25, "holds coupon": .08, "holds points": .15, "holds quota": .2, "holds gift": .03, "holds stock": 1.5,
	} {
		if n, expected := float64(seen[what]), float64(want)*float64(len(plans)); n < .6*expected || n > 1.5*expected {
			t.Errorf("%s: %v orders of %d, expected about %v", what, n, len(plans), expected)
		}
	}
}
