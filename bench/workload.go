package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"

	"lapse/pkg/order"
)

// The shop that all measurements share: few resources that everybody wants and many that hardly anybody does.
const (
	hotSKUs  = 10
	coldSKUs = 5000
	hotShare = 5       // one pick in five is a hot one
	mostSKUs = 3       // an order holds 1 to 3 resources
	stock    = 1 << 40 // of each resource, so that nothing sells out
	caller   = "bench"
)

// skus are the references of all resources, the hot ones first.
var skus = func() []string {
	refs := make([]string, hotSKUs+coldSKUs)
	for i := range refs {
		refs[i] = fmt.Sprintf("sku-%05d", i)
	}
	return refs
}()

// draft makes up an order. The same random source makes the same order.
func draft(r *rand.Rand, no string, timeout time.Duration) order.Draft {
	items := make([]order.Item, 1+r.IntN(mostSKUs))
	for i := range items {
		ref := skus[hotSKUs+r.IntN(coldSKUs)]
		if r.IntN(hotShare) == 0 {
			ref = skus[r.IntN(hotSKUs)]
		}
		items[i] = order.Item{Kind: "stock", Ref: ref, Quantity: 1 + r.Int64N(3)}
	}
	return order.Draft{
		OrderNo: no, Caller: caller, UserID: fmt.Sprintf("user-%06d", r.IntN(200_000)), BizType: "retail",
		Items: order.MergeItems(items), Amount: 100 + r.Int64N(100_000), Currency: "CNY", Timeout: timeout,
	}
}

// newNumber is what the API gives an order without a number of its own.
func newNumber() string { return ulid.Make().String() }

// row is an order as it is loaded, without having gone through Lapse.
type row struct {
	order.Draft
	status  order.Status
	created time.Time
	expire  time.Time
	sent    bool // the broker has its time-out message
}

// ended is when a row that is not pending any more ended.
func (r row) ended() time.Time {
	if r.status == order.Paid {
		return r.created.Add(min(time.Minute, r.Timeout/2))
	}
	return r.expire
}

// batch is a number of orders to be loaded, made up again and again instead of kept.
type batch struct {
	name   string // begins their numbers; 1 to 16 characters
	orders int
	// shape sets status, times and whether the message was sent; the draft is there already.
	shape func(i int, r *row)
}

// row makes up the i-th order.
func (b batch) row(i int) row {
	r := row{Draft: draft(rand.New(rand.NewPCG(uint64(i), 1)), b.number(i), 0)}
	b.shape(i, &r)
	r.Timeout = r.expire.Sub(r.created)
	return r
}

// number is the number of the i-th order. Numbers grow, as ULIDs do.
func (b batch) number(i int) string { return fmt.Sprintf("%s-%09d", b.name, i) }

// pending shapes orders that wait for their deadline, their messages with the broker.
func pending(created, expire time.Time) func(int, *row) {
	return func(_ int, r *row) { r.created, r.expire, r.sent = created, expire, true }
}

// utc is a time as SQL text.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000") }

// orderLine and the functions below render the rows of an order as lines for LOAD DATA.
func orderLine(w *strings.Builder, r row) {
	paid, cancelled, reason, version := `\N`, `\N`, "", 2
	switch r.status {
	case order.Pending:
		version = 1
	case order.Paid:
		paid = utc(r.ended())
	case order.Cancelled:
		cancelled, reason = utc(r.ended()), string(order.ReasonTimeout)
	}
	line(w, r.OrderNo, r.Caller, r.Hash(), r.UserID, r.BizType, uint8(r.status), r.Amount, r.Currency,
		utc(r.created), utc(r.expire), paid, cancelled, reason, version, order.ShardOf(r.OrderNo))
}

func itemLines(w *strings.Builder, r row) {
	for _, it := range r.Items {
		line(w, r.OrderNo, it.Kind, it.Ref, it.Quantity)
	}
}

func ledgerLines(w *strings.Builder, r row) {
	op := map[order.Status]order.Op{order.Paid: order.OpSell, order.Cancelled: order.OpRelease}[r.status]
	for _, it := range r.Items {
		if op == order.OpRelease { // the primary key's order is the fastest to load
			line(w, r.OrderNo, 1, op, it.Kind, it.Ref, it.Quantity, utc(r.ended()))
		}
	}
	for _, it := range r.Items {
		line(w, r.OrderNo, 1, order.OpReserve, it.Kind, it.Ref, it.Quantity, utc(r.created))
	}
	for _, it := range r.Items {
		if op == order.OpSell {
			line(w, r.OrderNo, 1, op, it.Kind, it.Ref, it.Quantity, utc(r.ended()))
		}
	}
}

func logLines(w *strings.Builder, r row) {
	line(w, r.OrderNo, 1, 1, 0, 0, order.EventCreated, "", r.Caller, utc(r.created), `\N`)
	switch r.status {
	case order.Paid:
		line(w, r.OrderNo, 2, 1, 0, uint8(r.status), order.EventPaid, "", r.Caller, utc(r.ended()), `\N`)
	case order.Cancelled:
		line(w, r.OrderNo, 2, 1, 0, uint8(r.status), order.EventExpired, order.ReasonTimeout, "consumer", utc(r.ended()), utc(r.ended()))
	}
}

func messageLine(w *strings.Builder, r row) {
	if r.status != order.Pending {
		return
	}
	state, next := order.ToSend, r.created
	if r.sent {
		state, next = order.AlreadySent, r.expire
	}
	line(w, order.TimeoutKey(r.OrderNo), order.Timeout, r.OrderNo, 1, "timeout", 0, utc(r.expire), uint8(state), utc(next), "")
}

func line(w *strings.Builder, values ...any) {
	for i, v := range values {
		if i > 0 {
			w.WriteByte('\t')
		}
		fmt.Fprint(w, v)
	}
	w.WriteByte('\n')
}
