package demo

import (
	"fmt"
	"time"
)

// act is what happens to an order after it was made.
type act string

const (
	leave   act = "leave"    // nobody pays
	pay     act = "pay"      // a signed notification pays it before its deadline
	forge   act = "forge"    // a notification with a wrong signature; nobody else pays
	cancel  act = "cancel"   // its user takes it back
	payLate act = "pay late" // the money arrives after it was cancelled, and waits for a person
	lose    act = "lose"     // the broker accepts its time-out message and loses it

	payLateRefund act = "pay late, refund" // the money arrives after it was cancelled, and is refunded
	payLateReopen act = "pay late, reopen" // the money arrives after it was cancelled, and opens it again
	startOnly     act = "start payment"    // a payment is started and never made: the gateway closes its bill
	paySilently   act = "pay silently"     // a payment is made, but its notification is lost: the gateway tells
	restore       act = "restore"          // staff opens it again after it lapsed, and it is paid
)

// fate is how an order has to end. What a message should have closed the compensator may close on a machine
// that is busy enough; what lost its message nobody else can.
type fate struct {
	status  string
	reasons []string
}

var (
	lapses    = fate{"cancelled", []string{"TIMEOUT", "COMPENSATE"}}
	swept     = fate{"cancelled", []string{"COMPENSATE"}}
	withdrawn = fate{"cancelled", []string{"USER_CANCEL"}}
	paid      = fate{"paid", []string{""}}
)

// hold is so much of one resource.
type hold struct {
	kind, ref string
	quantity  int64
}

func (h hold) name() string { return h.kind + "/" + h.ref }

// stock is what there is before the first order. Owner: only this user may reserve it.
type stock struct {
	hold
	owner string
}

// orders is a row of the scenario: so many orders of one kind.
type orders struct {
	count    int
	biz      string
	users    []string      // taken in turn
	from, to time.Duration // time-outs, evenly spread
	amount   int64         // minor units of CNY; 0: nothing to pay
	holds    []hold
	act      act
	fate     fate
	after    string // made only once this order is cancelled
	keyed    bool   // made with an Idempotency-Key instead of a number of its own
}

// scenario is what the demo plays.
type scenario struct {
	stocks []stock
	orders []orders
}

// currency of all amounts.
const currency = "CNY"

var everybody = []string{"alice", "bob", "carol", "dave"}

// standard is the scenario of `make demo`.
var standard = scenario{
	stocks: []stock{
		{hold{"stock", "mug", 60}, ""},
		{hold{"stock", "phone", 12}, ""},
		{hold{"stock", "seat", 40}, ""},
		{hold{"stock", "last-lamp", 1}, ""},
		{hold{"coupon", "ten-off", 20}, ""},
		{hold{"points", "alice", 1000}, "alice"},
		{hold{"quota", "flash-sale", 12}, ""},
	},
	orders: []orders{
		{count: 14, biz: "retail", users: everybody, from: 2 * time.Second, to: 15 * time.Second, amount: 4900,
			holds: []hold{{"stock", "mug", 2}}, act: leave, fate: lapses},
		{count: 8, biz: "retail", users: everybody, from: 8 * time.Second, to: 15 * time.Second, amount: 2450,
			holds: []hold{{"stock", "mug", 1}}, act: pay, fate: paid},
		{count: 10, biz: "ticket", users: everybody, from: 3 * time.Second, to: 12 * time.Second, amount: 18000,
			holds: []hold{{"stock", "seat", 2}}, act: leave, fate: lapses},
		{count: 4, biz: "ticket", users: everybody, from: 10 * time.Second, to: 15 * time.Second, amount: 9000,
			holds: []hold{{"stock", "seat", 1}}, act: pay, fate: paid},
		{count: 6, biz: "flash", users: everybody, from: 2 * time.Second, to: 4 * time.Second, amount: 199900,
			holds: []hold{{"stock", "phone", 1}, {"coupon", "ten-off", 1}, {"quota", "flash-sale", 1}}, act: leave, fate: lapses},
		{count: 4, biz: "flash", users: everybody, from: 10 * time.Second, to: 12 * time.Second, amount: 199900,
			holds: []hold{{"stock", "phone", 1}, {"coupon", "ten-off", 1}, {"quota", "flash-sale", 1}}, act: pay, fate: paid},
		{count: 3, biz: "points", users: []string{"alice"}, from: 4 * time.Second, to: 8 * time.Second, amount: 100,
			holds: []hold{{"points", "alice", 150}, {"stock", "mug", 1}}, act: leave, fate: lapses},
		{count: 2, biz: "points", users: []string{"alice"}, from: 10 * time.Second, to: 12 * time.Second, amount: 100,
			holds: []hold{{"points", "alice", 150}, {"stock", "mug", 1}}, act: pay, fate: paid},
		{count: 1, biz: "free", users: []string{"bob"}, from: 5 * time.Second, to: 5 * time.Second,
			holds: []hold{{"coupon", "ten-off", 1}}, act: leave, fate: paid},
		{count: 1, biz: "regret", users: []string{"carol"}, from: 15 * time.Second, to: 15 * time.Second, amount: 9000,
			holds: []hold{{"stock", "seat", 1}}, act: cancel, fate: withdrawn},
		{count: 1, biz: "forged", users: []string{"dave"}, from: 5 * time.Second, to: 5 * time.Second, amount: 199900,
			holds: []hold{{"stock", "phone", 1}}, act: forge, fate: lapses},
		{count: 1, biz: "late", users: []string{"bob"}, from: 3 * time.Second, to: 3 * time.Second, amount: 2450,
			holds: []hold{{"stock", "mug", 1}}, act: payLate, fate: lapses},
		{count: 1, biz: "late-refund", users: []string{"carol"}, from: 3 * time.Second, to: 3 * time.Second, amount: 2450,
			holds: []hold{{"stock", "mug", 1}}, act: payLateRefund, fate: lapses},
		{count: 1, biz: "late-reopen", users: []string{"dave"}, from: 3 * time.Second, to: 3 * time.Second, amount: 2450,
			holds: []hold{{"stock", "mug", 1}}, act: payLateReopen, fate: paid},
		{count: 1, biz: "in-flight", users: []string{"alice"}, from: 12 * time.Second, to: 12 * time.Second, amount: 2450,
			holds: []hold{{"stock", "mug", 1}}, act: startOnly, fate: lapses},
		{count: 1, biz: "silent", users: []string{"bob"}, from: 12 * time.Second, to: 12 * time.Second, amount: 2450,
			holds: []hold{{"stock", "mug", 1}}, act: paySilently, fate: paid},
		{count: 1, biz: "restored", users: []string{"carol"}, from: 4 * time.Second, to: 4 * time.Second, amount: 9000,
			holds: []hold{{"stock", "seat", 1}}, act: restore, fate: paid},
		{count: 1, biz: "lost", users: []string{"carol"}, from: 6 * time.Second, to: 6 * time.Second, amount: 9000,
			holds: []hold{{"stock", "seat", 1}}, act: lose, fate: swept},
		{count: 1, biz: "first", users: []string{"dave"}, from: 6 * time.Second, to: 6 * time.Second, amount: 30000,
			holds: []hold{{"stock", "last-lamp", 1}}, act: leave, fate: lapses},
		{count: 1, biz: "repeated", users: []string{"bob"}, from: 7 * time.Second, to: 7 * time.Second, amount: 4900,
			holds: []hold{{"stock", "mug", 1}}, act: leave, fate: lapses, keyed: true},
		{count: 1, biz: "second", users: []string{"alice"}, from: 10 * time.Second, to: 10 * time.Second, amount: 30000,
			holds: []hold{{"stock", "last-lamp", 1}}, act: pay, fate: paid, after: "first-01"},
	},
}

// planned is one order of the scenario.
type planned struct {
	orders
	no, user string
	timeout  time.Duration
}

// key is the Idempotency-Key that the order is made with; "" if it has a number of its own.
func (p planned) key() string {
	if p.keyed {
		return p.no
	}
	return ""
}

// plan lists the orders one by one, with all time-outs multiplied by pace.
func (s scenario) plan(pace float64) []planned {
	var all []planned
	made := map[string]int{}
	for _, row := range s.orders {
		for i := range row.count {
			made[row.biz]++
			timeout := row.from
			if row.count > 1 {
				timeout += (row.to - row.from) * time.Duration(i) / time.Duration(row.count-1)
			}
			all = append(all, planned{
				orders: row, no: fmt.Sprintf("%s-%02d", row.biz, made[row.biz]), user: row.users[i%len(row.users)],
				timeout: scale(timeout, pace),
			})
		}
	}
	return all
}

// scale multiplies a time-out, to whole milliseconds as the API wants it.
func scale(d time.Duration, pace float64) time.Duration {
	return time.Duration(float64(d) * pace).Truncate(time.Millisecond)
}
