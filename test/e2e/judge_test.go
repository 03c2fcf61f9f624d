package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	lapsev1 "lapse/api/lapse/v1"
)

// row is an order as it is stored.
type row struct {
	orderNo, user, biz, currency, reason string
	status, round, version               int
	amount                               int64
	createdAt, expireAt                  time.Time
	paidAt, cancelledAt                  *time.Time
	items                                []item
}

// readOrders reads all orders.
func (s *system) readOrders(ctx context.Context) (map[string]*row, error) {
	orders := map[string]*row{}
	rows, err := s.db.QueryContext(ctx, `SELECT order_no, user_id, biz_type, currency, cancel_reason, status, round, version, amount,
		created_at, expire_at, paid_at, cancelled_at FROM t_order`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var o row
		if err := rows.Scan(&o.orderNo, &o.user, &o.biz, &o.currency, &o.reason, &o.status, &o.round, &o.version, &o.amount,
			&o.createdAt, &o.expireAt, &o.paidAt, &o.cancelledAt); err != nil {
			return nil, err
		}
		orders[o.orderNo] = &o
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	items, err := s.db.QueryContext(ctx, "SELECT order_no, kind, ref, quantity FROM t_order_item ORDER BY order_no, kind, ref")
	if err != nil {
		return nil, err
	}
	defer items.Close()
	for items.Next() {
		var no string
		var it item
		if err := items.Scan(&no, &it.kind, &it.ref, &it.quantity); err != nil {
			return nil, err
		}
		if o := orders[no]; o != nil { // else a check by query names it
			o.items = append(o.items, it)
		}
	}
	return orders, items.Err()
}

// byAnswers judges what is stored by what customers were told.
func (v *verdict) byAnswers(shop *shop, orders map[string]*row, payments map[string]payment) {
	var made, refused, repeated, reused, paid []string // those for which it does not hold
	var nMade, nRefused, nRepeated, nReused, nPaid int64
	known := map[string]bool{}
	for _, r := range shop.records {
		name := fmt.Sprintf("order %d", r.no)
		if r.order == nil {
			nRefused++
			if !r.holds("gift") || r.refused != "out_of_stock" || len(r.repeated) > 0 {
				refused = append(refused, name+": "+r.refused)
			}
			continue
		}
		nMade++
		known[r.order.OrderNo] = true
		if why := differs(r, r.order, orders[r.order.OrderNo]); why != "" {
			made = append(made, name+": "+why)
		}
		for _, again := range r.repeated {
			nRepeated++
			if again.OrderNo != r.order.OrderNo || !again.ExpireAt.AsTime().Equal(r.order.ExpireAt.AsTime()) {
				repeated = append(repeated, name+" became "+again.OrderNo)
			}
		}
		if r.reuse {
			nReused++
			if r.reused != "idempotency_key_reused" {
				reused = append(reused, name+": "+r.reused)
			}
		}
		for _, p := range r.payments {
			nPaid++
			if at := payments[p.paymentNo]; at.orderNo != r.order.OrderNo || at.outcome != p.outcome {
				paid = append(paid, fmt.Sprintf("%s: told %+v, stored %+v", name, p, at))
			}
		}
	}
	v.holds("I8", "a create that was answered 2xx is stored as it was asked for and answered", nMade, made)
	v.holds("I8", "a create that was refused was of a gift that had run out", nRefused, refused)
	v.holds("I8", "the same create again got the same order", nRepeated, repeated)
	v.holds("I8", "another create with the same key was refused", nReused, reused)
	var unknown []string
	for no := range orders {
		if !known[no] {
			unknown = append(unknown, no)
		}
	}
	v.holds("I8", "no order is stored that nobody was told of", int64(len(orders)), unknown)
	v.holds("I7", "an answered payment is stored with the outcome that was told, each time", nPaid, paid)
	v.byCancels(shop, orders)
	v.byTimes(shop, orders)
}

// differs says in what an order is not what was asked for and answered; "" if nothing.
func differs(r *record, told *lapsev1.Order, o *row) string {
	if o == nil {
		return "it is not stored"
	}
	wanted := merged(r.items)
	switch {
	case r.orderNo != "" && r.orderNo != o.orderNo:
		return "it has another number"
	case o.user != r.user || o.biz != r.biz || o.amount != r.amount || o.currency != "CNY":
		return fmt.Sprintf("it is of %s, %s, %d %s", o.user, o.biz, o.amount, o.currency)
	case !slices.Equal(o.items, wanted):
		return fmt.Sprintf("it holds %v instead of %v", o.items, wanted)
	case !o.expireAt.Equal(told.ExpireAt.AsTime()) || !o.createdAt.Equal(told.CreatedAt.AsTime()):
		return fmt.Sprintf("it expires at %v, its customer was told %v", o.expireAt, told.ExpireAt.AsTime())
	case o.amount > 0 && !o.expireAt.Equal(o.createdAt.Add(r.timeout)):
		return fmt.Sprintf("it expires %v after its create instead of %v", o.expireAt.Sub(o.createdAt), r.timeout)
	}
	return ""
}

// merged adds up items of one resource, in the order of the table's key.
func merged(items []item) []item {
	var all []item
	for _, it := range items {
		if i := slices.IndexFunc(all, func(o item) bool { return o.kind == it.kind && o.ref == it.ref }); i >= 0 {
			all[i].quantity += it.quantity
		} else {
			all = append(all, it)
		}
	}
	slices.SortFunc(all, func(a, b item) int {
		if a.kind != b.kind {
			return compare(a.kind, b.kind)
		}
		return compare(a.ref, b.ref)
	})
	return all
}

func compare(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// byCancels judges the answers to users who wanted to cancel, and those who did nothing and whom nothing may befall
// but the deadline.
func (v *verdict) byCancels(shop *shop, orders map[string]*row) {
	var asked, others int64
	var wrong, strange []string
	for _, r := range shop.records {
		if r.order == nil || orders[r.order.OrderNo] == nil {
			continue
		}
		o := orders[r.order.OrderNo]
		if r.cancel != nil {
			asked++
			if r.cancelled != map[int]string{10: "state_conflict", 20: "cancelled"}[o.status] {
				wrong = append(wrong, fmt.Sprintf("%s: told %q, status %d", o.orderNo, r.cancelled, o.status))
			}
			continue
		}
		others++
		switch {
		case o.reason == "USER_CANCEL":
			strange = append(strange, o.orderNo+" was cancelled by nobody")
		case r.amount > 0 && len(r.pays) == 0 && o.status != 20:
			strange = append(strange, fmt.Sprintf("%s has status %d without a payment", o.orderNo, o.status))
		case r.amount == 0 && o.status != 10:
			strange = append(strange, fmt.Sprintf("%s has status %d with nothing to pay", o.orderNo, o.status))
		}
	}
	v.holds("I1", "who cancelled was told what became of the order", asked, wrong)
	v.holds("I1", "any other order was paid by a payment, free, or closed by its deadline", others, strange)
}

// byTimes judges payments that came in time: an order cannot have been closed before its deadline, so one that was
// paid clearly before is paid.
func (v *verdict) byTimes(shop *shop, orders map[string]*row) {
	var early int64
	var lost []string
	for _, r := range shop.records {
		for _, p := range r.payments {
			o := orders[r.order.OrderNo]
			if o == nil || r.cancel != nil || !p.answered.Before(o.expireAt) {
				continue
			}
			early++
			if o.status != 10 {
				lost = append(lost, o.orderNo)
			}
		}
	}
	v.holds("I2", "who was answered to a payment before the deadline has the order", early, lost)
}

// bySupply judges the counters by what was put in from outside.
func (v *verdict) bySupply(ctx context.Context, s *system, shop *shop) {
	rows, err := s.db.QueryContext(ctx, "SELECT kind, ref, available, held, sold FROM t_resource")
	if err != nil {
		v.t.Errorf("I4: %v", err)
		return
	}
	defer rows.Close()
	var n int64
	var wrong []string
	for rows.Next() {
		var at resource
		var available, held, sold int64
		if err := rows.Scan(&at.kind, &at.ref, &available, &held, &sold); err != nil {
			v.t.Errorf("I4: %v", err)
			return
		}
		n++
		if put := shop.putIn(at); available+held+sold != put || held != 0 {
			wrong = append(wrong, fmt.Sprintf("%s/%s: %d put in, %d available, %d held, %d sold", at.kind, at.ref, put, available, held, sold))
		}
	}
	if err := rows.Err(); err != nil {
		v.t.Errorf("I4: %v", err)
		return
	}
	v.holds("I4", "initial + adjustments = available + held + sold, as the shop knows them", n, wrong)
}

// payment is a captured payment as it is stored.
type payment struct{ orderNo, outcome string }

func (s *system) readPayments(ctx context.Context) (map[string]payment, error) {
	rows, err := s.db.QueryContext(ctx, "SELECT payment_no, order_no, outcome FROM t_payment")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	payments := map[string]payment{}
	for rows.Next() {
		var no string
		var p payment
		if err := rows.Scan(&no, &p.orderNo, &p.outcome); err != nil {
			return nil, err
		}
		payments[no] = p
	}
	return payments, rows.Err()
}

// event is a cancelled event as docs/api.md promises it.
type event struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject"`
	Time            time.Time `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	Data            struct {
		OrderNo     string    `json:"order_no"`
		Round       int       `json:"round"`
		Version     int       `json:"version"`
		UserID      string    `json:"user_id"`
		BizType     string    `json:"biz_type"`
		Reason      string    `json:"reason"`
		Amount      int64     `json:"amount,string"`
		Currency    string    `json:"currency"`
		ExpireAt    time.Time `json:"expire_at"`
		CancelledAt time.Time `json:"cancelled_at"`
		Items       []struct {
			Kind     string `json:"kind"`
			Ref      string `json:"ref"`
			Quantity int64  `json:"quantity"`
		} `json:"items"`
	} `json:"data"`
}

// byEvents judges what an independent subscriber was given.
func (v *verdict) byEvents(given []message, orders map[string]*row) {
	bodies := map[string]string{} // by event id
	ids := map[string][]string{}  // by order number
	var wrong, changed []string
	for _, m := range given {
		var e event
		if err := json.Unmarshal([]byte(m.body), &e); err != nil {
			wrong = append(wrong, m.keys+": "+err.Error())
			continue
		}
		if first, known := bodies[e.ID]; known {
			if first != m.body {
				changed = append(changed, e.ID)
			}
			continue
		}
		bodies[e.ID] = m.body
		ids[e.Data.OrderNo] = append(ids[e.Data.OrderNo], e.ID)
		if why := misreports(e, m, orders[e.Data.OrderNo]); why != "" {
			wrong = append(wrong, e.ID+": "+why)
		}
	}
	var missing []string
	var cancelled int64
	for no, o := range orders {
		if o.status == 20 {
			cancelled++
			if len(ids[no]) != 1 {
				missing = append(missing, fmt.Sprintf("%s has %d events", no, len(ids[no])))
			}
		}
	}
	v.holds("I6", "a cancelled order has one event id at the subscriber", cancelled, missing)
	v.holds("I6", "an event tells of a cancelled order, and tells it right", int64(len(bodies)), wrong)
	v.holds("I6", "an event that comes again says the same, byte for byte", int64(len(given)-len(bodies)), changed)
}

// misreports says in what an event differs from its order; "" if in nothing.
func misreports(e event, m message, o *row) string {
	if o == nil || o.status != 20 {
		return "its order is not cancelled"
	}
	var items []item
	for _, it := range e.Data.Items {
		items = append(items, item{it.Kind, it.Ref, it.Quantity})
	}
	d := e.Data
	switch {
	case e.SpecVersion != "1.0" || e.Type != "cancelled" || e.Subject != o.orderNo || e.Source == "" || e.DataContentType != "application/json":
		return "it is no CloudEvent of this order"
	case m.tag != "cancelled" || orderOf(m) != o.orderNo:
		return fmt.Sprintf("its tag is %q and its keys are %q", m.tag, m.keys)
	case d.Round != o.round || d.Version != o.version || d.UserID != o.user || d.BizType != o.biz || d.Reason != o.reason ||
		d.Amount != o.amount || d.Currency != o.currency:
		return "its body differs from the order"
	case !d.ExpireAt.Equal(o.expireAt) || !d.CancelledAt.Equal(*o.cancelledAt) || !e.Time.Equal(*o.cancelledAt):
		return "its times differ from the order's"
	case !slices.Equal(items, o.items):
		return fmt.Sprintf("it names %v instead of %v", items, o.items)
	}
	return ""
}
