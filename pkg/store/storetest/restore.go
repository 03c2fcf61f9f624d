package storetest

import (
	"context"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
)

func restoring(no string, round int) order.Restoring {
	return order.Restoring{OrderNo: no, Round: round, Timeout: 5 * time.Minute, Act: staff}
}

// restore opens an order again, which must be possible.
func (b bed) restore(d time.Duration, r order.Restoring) order.Restored {
	b.t.Helper()
	done, err := b.at(d).Restore(context.Background(), r, leased)
	if err != nil {
		b.t.Fatal(err)
	}
	return done
}

var restoreTests = map[string]func(t *testing.T, b bed){
	"a restored order is pending in a new round with all that it had": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 1)
		d := draft("ORDER-1", "a")
		d.Items = append([]order.Item{{Kind: "cart", Ref: "basket", Quantity: 2, Remote: true}}, d.Items...)
		b.create(d)
		b.attempt(0, "ORDER-1", "BILL-0001", time.Hour)
		b.closeAt(time.Minute, "ORDER-1")
		done := b.restore(2*time.Minute, restoring("ORDER-1", 1))
		o, rows := done.Order, done.Messages
		if o.Status != order.Pending || o.Round != 2 || !o.ExpireAt.Equal(noon.Add(7*time.Minute)) || !o.CancelledAt.IsZero() || o.CancelReason != "" ||
			!o.PayingUntil.IsZero() || o.Version != 4 || !reflect.DeepEqual(o.Items, d.Items) {
			t.Errorf("%+v", o)
		}
		if read, _, err := b.at(0).Get(ctx, "ORDER-1"); err != nil || !reflect.DeepEqual(read, o) {
			t.Errorf("read     %+v\nrestored %+v, %v", read, o, err)
		}
		b.expectStock("a", 0, 1, 0)
		if done.Case != nil || len(rows) != 2 || rows[1].Kind != order.Timeout || rows[1].Round != 2 || !rows[1].DueAt.Equal(o.ExpireAt) {
			t.Fatalf("%+v", done)
		}
		expectNotice(t, rows[0], order.TypeRestored, o, noon.Add(2*time.Minute))
		log, _, err := b.at(0).Timeline(ctx, "ORDER-1")
		want := order.LogEntry{OrderNo: "ORDER-1", Version: 4, Round: 2, From: order.Cancelled, To: order.Pending, Event: order.EventRestored,
			Actor: staff.Actor, Note: staff.Note, At: noon.Add(2 * time.Minute), ExpireAt: o.ExpireAt}
		if err != nil || log[3] != want {
			t.Errorf("%+v, %v", log, err)
		}
		if early := b.closeAt(7*time.Minute-time.Millisecond, "ORDER-1"); len(early.Closed) != 0 {
			t.Error("the old deadline closed the new round")
		}
		if batch := b.closeAt(7*time.Minute, "ORDER-1"); len(batch.Closed) != 1 || batch.Closed[0].Round != 2 {
			t.Errorf("%+v", batch)
		}
		b.expectStock("a", 1, 0, 0)
		b.expectRounds("ORDER-1", 2, 2)
	},
	"asked again for the same round the answer is the same": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.closeAt(time.Minute, "ORDER-1")
		b.restore(2*time.Minute, restoring("ORDER-1", 1))
		again := func() {
			t.Helper()
			before := b.everything()
			if o := b.restore(3*time.Minute, restoring("ORDER-1", 1)); o.Round != 2 || o.Case != nil || len(o.Messages) != 0 || len(o.Items) != 1 {
				t.Errorf("%+v", o)
			}
			if after := b.everything(); after != before {
				t.Errorf("changed\n%s\nto\n%s", before, after)
			}
		}
		again()
		b.closeAt(time.Hour, "ORDER-1")
		again() // the wish was for round 1, which is over
		if o := b.restore(time.Hour, restoring("ORDER-1", 0)); o.Round != 3 {
			t.Errorf("%+v", o)
		}
	},
	"a restore takes the oldest open case and is paid by it": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.closeAt(time.Minute, "ORDER-1")
		b.pay(2*time.Minute, "PAY-refunded", "ORDER-1", lately(order.LateRefund))
		b.pay(3*time.Minute, "PAY-old", "ORDER-1", order.Rules{})
		b.pay(4*time.Minute, "PAY-new", "ORDER-1", order.Rules{})
		o := b.restore(5*time.Minute, restoring("ORDER-1", 1))
		if o.Status != order.Paid || !o.PaidAt.Equal(noon.Add(5*time.Minute)) || o.Round != 2 || types(o.Messages) != "restored" {
			t.Errorf("%+v", o)
		}
		if o.Case == nil || o.Case.PaymentNo != "PAY-old" || o.Case.Status != order.LateConsumed {
			t.Errorf("took %+v", o.Case)
		}
		if read, _, err := b.at(0).Get(context.Background(), "ORDER-1"); err != nil || !reflect.DeepEqual(read, o.Order) {
			t.Errorf("read     %+v\nrestored %+v, %v", read, o.Order, err)
		}
		b.expectStock("a", 0, 0, 1)
		cases, _, err := b.at(0).LatePayments(context.Background(), "", 10, "")
		if err != nil || len(cases) != 3 || cases[0].Status != order.LateAsked || cases[1].Status != order.LateConsumed || cases[2].Status != order.LateOpen {
			t.Errorf("%+v, %v", cases, err)
		}
		if n := b.count("SELECT COUNT(*) FROM t_local_message WHERE kind = 'timeout'"); n != 0 {
			t.Error("a paid order has a time-out row")
		}
		if got := b.pay(6*time.Minute, "PAY-old", "ORDER-1", order.Rules{}); got.Outcome != order.PaymentAccepted || !got.Repeated {
			t.Errorf("%+v", got)
		}
	},
	"what is gone, run out or somebody else's cannot be had again": func(t *testing.T, b bed) {
		ctx := context.Background()
		for ref, c := range map[string]struct {
			until time.Time
			then  func(ref string)
			code  string
		}{
			"gone": {then: func(ref string) { b.create(b.couponed("OTHER-"+ref, ref)) }, code: "out_of_stock"},
			"late": {until: noon.Add(90 * time.Second), then: func(string) {}, code: "resource_unusable"},
			"away": {then: func(ref string) { b.exec("UPDATE t_resource SET owner = 'u2' WHERE ref = '" + ref + "'") }, code: "resource_unusable"},
		} {
			a := order.Adjustment{ID: "c-" + ref, Kind: "coupon", Ref: ref, Delta: 1, Owner: "u1", ValidUntil: c.until}
			if _, err := b.at(0).Adjust(ctx, a); err != nil {
				t.Fatal(err)
			}
			b.stock(ref, 2)
			no := "ORDER-" + ref
			b.create(b.couponed(no, ref))
			b.closeAt(time.Minute, no)
			c.then(ref)
			before := b.everything()
			_, err := b.at(2*time.Minute).Restore(ctx, restoring(no, 1), leased)
			b.expectRefused(before, err, order.Conflict, c.code)
		}
	},
	"only a cancelled order of that round is restored": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(time.Minute)
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		b.closeAt(time.Minute, "ORDER-2")
		before := b.everything()
		_, err := s.Restore(ctx, restoring("ORDER-1", 1), leased)
		b.expectRefused(before, err, order.Conflict, "state_conflict")
		_, err = s.Restore(ctx, restoring("ORDER-2", 2), leased)
		b.expectRefused(before, err, order.Conflict, "unknown_round")
		_, err = s.Restore(ctx, restoring("ORDER-X", 1), leased)
		b.expectRefused(before, err, order.NotFound, "order_not_found")
	},
	"what is taken at payment is not held by a restore, but taken by money": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(atPayment("ORDER-1", "a"), atPayment("ORDER-2", "a"))
		b.closeAt(time.Minute, "ORDER-1", "ORDER-2")
		if o := b.restore(time.Minute, restoring("ORDER-1", 1)); o.Status != order.Pending {
			t.Errorf("%+v", o)
		}
		b.expectStock("a", 1, 0, 0)
		if got := b.pay(2*time.Minute, "PAY-2", "ORDER-2", lately(order.LateReopen)); got.Outcome != order.PaymentAccepted {
			t.Errorf("%+v", got)
		}
		b.expectStock("a", 0, 0, 1)
		if got := b.pay(2*time.Minute, "PAY-1", "ORDER-1", lately(order.LateReopen)); got.Outcome != order.PaymentLate || got.Case.StateThen != order.Pending {
			t.Errorf("%+v", got)
		}
	},
	"a reminder that is longer than the new time is not sent": func(t *testing.T, b bed) {
		for no, c := range map[string]struct{ timeout, lead time.Duration }{
			"ORDER-short": {20 * time.Second, 0}, "ORDER-long": {21 * time.Second, 20 * time.Second},
		} {
			b.create(remindedDraft(no))
			b.closeAt(time.Minute, no)
			r := restoring(no, 1)
			r.Timeout = c.timeout
			o := b.restore(time.Minute, r)
			read, _, err := b.at(0).Get(context.Background(), no)
			if err != nil || o.RemindLead != c.lead || read.RemindLead != c.lead || !o.Messages[1].DueAt.Equal(o.ExpireAt.Add(-c.lead)) {
				t.Errorf("%+v, %v", o, err)
			}
		}
	},
	"a restore that races late money, in whatever order, is paid by it": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(2*time.Minute)
		b.stock("a", 100)
		for i, policy := range []order.LatePolicy{order.LateManual, order.LateReopen, order.LateManual, order.LateReopen, order.LateManual, order.LateReopen} {
			no := fmt.Sprintf("ORDER-%d", i)
			b.create(draft(no, "a"))
			b.closeAt(time.Minute, no)
			together(
				func() {
					if _, err := s.Restore(ctx, restoring(no, 1), leased); err != nil {
						t.Error(err)
					}
				},
				func() {
					if _, err := s.Pay(ctx, payment("P-"+no, no), lately(policy), leased); err != nil {
						t.Error(err)
					}
				},
			)
			o, _, err := s.Get(ctx, no)
			if err != nil || o.Status != order.Paid || o.Round != 2 {
				t.Errorf("%s: %+v, %v", policy, o, err)
			}
		}
		b.expectStock("a", 94, 0, 6)
	},
	"two restores of one round at one moment make one new round": func(t *testing.T, b bed) {
		s := b.at(2 * time.Minute)
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.closeAt(time.Minute, "ORDER-1")
		var told atomic.Int32
		var all []func()
		for range 8 {
			all = append(all, func() {
				o, err := s.Restore(context.Background(), restoring("ORDER-1", 1), leased)
				if err != nil || o.Round != 2 {
					t.Error(o, err)
				}
				told.Add(int32(len(o.Messages)))
			})
		}
		together(all...)
		if told.Load() != 2 {
			t.Errorf("%d messages", told.Load())
		}
		b.expectStock("a", 0, 1, 0)
	},
	"what the table does not list is refused and changes nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		states := map[string]struct {
			status order.Status
			reach  func(no string)
		}{
			"pending":    {order.Pending, func(string) {}},
			"confirming": {order.Confirming, func(no string) { b.attempt(0, no, "BILL-"+no, time.Hour); b.expire(time.Minute, no) }},
			"paid":       {order.Paid, func(no string) { b.pay(0, "P-"+no, no, order.Rules{}) }},
			"cancelled":  {order.Cancelled, func(no string) { b.closeAt(time.Minute, no) }},
			"refunded": {order.Closed, func(no string) {
				b.pay(0, "P-"+no, no, order.Rules{})
				if _, err := b.at(0).Refund(ctx, order.Refunding{PaymentNo: "P-" + no, RefundNo: "R1-" + no, Act: staff}, order.Rules{}); err != nil {
					t.Fatal(err)
				}
			}},
			"archived": {order.Closed, func(no string) {
				b.closeAt(time.Minute, no)
				if _, err := b.at(time.Minute).Archive(ctx, no, 0, staff); err != nil {
					t.Fatal(err)
				}
			}},
		}
		soon := b.at(59 * time.Second) // every order was payable until a second from now
		calls := map[order.Event]func(no string) error{
			order.EventPaymentStarted: func(no string) error {
				_, _, err := soon.StartPayment(ctx, order.Attempting{AttemptNo: "TRY-" + no, OrderNo: no, Channel: "card", Lifetime: time.Minute, Actor: "shop"})
				return err
			},
			order.EventCancelled: func(no string) error {
				_, _, err := soon.Cancel(ctx, order.Cancelling{OrderNo: no, Reason: order.ReasonManual, Confirm: patience, Act: staff}, leased)
				return err
			},
			order.EventExtended: func(no string) error {
				_, err := soon.Extend(ctx, order.Extending{OrderNo: no, By: time.Minute, Act: staff}, leased)
				return err
			},
			order.EventRestored: func(no string) error {
				_, err := soon.Restore(ctx, restoring(no, 1), leased)
				return err
			},
			order.EventRefunded: func(no string) error {
				_, err := soon.Refund(ctx, order.Refunding{PaymentNo: "P-" + no, RefundNo: "R2", Act: staff}, order.Rules{})
				return err
			},
			order.EventArchived: func(no string) error {
				_, err := b.at(time.Hour).Archive(ctx, no, time.Minute, staff)
				return err
			},
		}
		for name, from := range states {
			for event, call := range calls {
				no := name + "-" + string(event)
				b.create(draft(no))
				from.reach(no)
				if got := b.status(no); got != from.status {
					t.Fatalf("%s is %s", no, got)
				}
				before := b.everything()
				err := call(no)
				_, refused := order.Next(from.status, event)
				switch changed := b.everything() != before; {
				case refused == nil && (err != nil || !changed):
					t.Errorf("%s: %v, changed is %v, though the table lists it", no, err, changed)
				case refused != nil && changed:
					t.Errorf("%s: %v, but it changed something", no, err)
				case err != nil && order.KindOf(err) != order.Conflict && order.KindOf(err) != order.NotFound:
					t.Errorf("%s: %v", no, err)
				}
			}
		}
	},
}

// couponed wants a coupon and one of stock, both of a name.
func (b bed) couponed(no, ref string) order.Draft {
	d := draft(no, ref)
	d.Items = append([]order.Item{{Kind: "coupon", Ref: ref, Quantity: 1}}, d.Items...)
	return d
}

// expectRounds wants an order to have so many ledger rounds of so many things, each of which sums to zero.
func (b bed) expectRounds(no string, rounds, things int) {
	b.t.Helper()
	const sums = `SELECT round, kind, ref, SUM(CASE op WHEN 'reserve' THEN quantity WHEN 'release' THEN -quantity WHEN 'sell' THEN -quantity ELSE 0 END) AS s
		FROM t_resource_log WHERE order_no = '%s' GROUP BY round, kind, ref`
	all := fmt.Sprintf("SELECT COUNT(*) FROM ("+sums+") x", no)
	zero := fmt.Sprintf("SELECT COUNT(*) FROM ("+sums+") x WHERE s = 0", no)
	if n, z := b.count(all), b.count(zero); n != rounds*things || z != n {
		b.t.Errorf("%s: %d sums, %d of them zero; want %d rounds of %d", no, n, z, rounds, things)
	}
}
