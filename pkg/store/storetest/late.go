package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
)

// lately are rules by which late money is treated so.
func lately(policy order.LatePolicy) order.Rules {
	return order.Rules{Default: order.Rule{Late: policy}}
}

// pay tells of a payment, which must be taken.
func (b bed) pay(d time.Duration, no, orderNo string, rules order.Rules) order.PaymentResult {
	b.t.Helper()
	got, err := b.at(d).Pay(context.Background(), payment(no, orderNo), rules, leased)
	if err != nil {
		b.t.Fatal(err)
	}
	return got
}

// theCase is the only late-payment case there is.
func (b bed) theCase() order.LatePayment {
	b.t.Helper()
	cases, next, err := b.at(0).LatePayments(context.Background(), "", 10, "")
	if err != nil || len(cases) != 1 || next != "" {
		b.t.Fatalf("cases %+v, next %q, %v", cases, next, err)
	}
	return cases[0]
}

// everything is all that a business call could change.
func (b bed) everything() string {
	b.t.Helper()
	return b.dump(append([]string{"t_local_message"}, businessTables...)...)
}

// expectRefused wants an answer, and that nothing was changed for it.
func (b bed) expectRefused(before string, err error, kind order.Kind, code string) {
	b.t.Helper()
	expectError(b.t, err, kind, code)
	if after := b.everything(); after != before {
		b.t.Errorf("refused, but changed\n%s\nto\n%s", before, after)
	}
}

// types are the types of messages.
func types(rows []order.Message) string {
	var all []string
	for _, m := range rows {
		all = append(all, m.Type)
	}
	return strings.Join(all, " ")
}

// atPayment is a draft whose stock is taken when it is paid.
func atPayment(no string, refs ...string) order.Draft {
	rules := order.Rules{Default: order.Rule{StockAtPayment: true}}
	return rules.Apply(draft(no, refs...))
}

var lateTests = map[string]func(t *testing.T, b bed){
	"late money is treated by the policy of its business type, once": func(t *testing.T, b bed) {
		for i, c := range []struct {
			policy  order.LatePolicy
			outcome order.PaymentOutcome
			status  order.LateStatus
			events  string
			story   string
		}{
			{"", order.PaymentLate, order.LateOpen, "", "created→0 expired→20"},
			{order.LateManual, order.PaymentLate, order.LateOpen, "", "created→0 expired→20"},
			{order.LateRefund, order.PaymentLate, order.LateAsked, "refund_requested", "created→0 expired→20"},
			{order.LateReopen, order.PaymentAccepted, order.LateConsumed, "restored", "created→0 expired→20 reopened→10"},
		} {
			no, ref := fmt.Sprintf("ORDER-%d", i), fmt.Sprint("sku-", i)
			rules := order.Rules{Default: order.Rule{Late: "manual"}, ByType: map[string]order.Rule{"retail": {Late: c.policy}}}
			b.stock(ref, 1)
			b.create(draft(no, ref))
			b.closeAt(time.Minute, no)
			got := b.pay(2*time.Minute, "PAY-"+no, no, rules)
			if got.Outcome != c.outcome || got.Repeated || got.Case == nil || got.Case.Status != c.status || types(got.Messages) != c.events || len(got.Order.Items) != 1 {
				t.Errorf("%q: %+v", c.policy, got)
			}
			if story := b.story(no); story != c.story {
				t.Errorf("%q: %s", c.policy, story)
			}
			before := b.everything()
			for range 2 {
				again := b.pay(3*time.Minute, "PAY-"+no, no, rules)
				if again.Outcome != c.outcome || !again.Repeated || again.Case != nil || len(again.Messages) != 0 {
					t.Errorf("%q again: %+v", c.policy, again)
				}
			}
			if after := b.everything(); after != before {
				t.Errorf("%q: told again, it changed\n%s\nto\n%s", c.policy, before, after)
			}
			if sold := int64(strings.Count(c.story, "10")); sold == 1 {
				b.expectStock(ref, 0, 0, 1)
			} else {
				b.expectStock(ref, 1, 0, 0)
			}
		}
	},
	"a case keeps the evidence": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		b.closeAt(time.Minute, "ORDER-1")
		p := payment("PAY-1", "ORDER-1")
		p.AttemptNo = "BILL-0001"
		if _, err := b.at(2*time.Minute).Pay(context.Background(), p, order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		want := order.LatePayment{Payment: p, StateThen: order.Cancelled, RoundThen: 1, Policy: order.LateManual, Status: order.LateOpen,
			CreatedAt: noon.Add(2 * time.Minute)}
		if got := b.theCase(); got != want {
			t.Errorf("case %+v\nwant %+v", got, want)
		}
	},
	"the event that requests a refund says what to give back": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		b.closeAt(time.Minute, "ORDER-1")
		m := b.pay(2*time.Minute, "PAY-1", "ORDER-1", lately(order.LateRefund)).Messages[0]
		var e order.CloudEvent[order.RefundData]
		if err := json.Unmarshal(m.Payload, &e); err != nil {
			t.Fatal(err)
		}
		want := order.RefundData{PaymentNo: "PAY-1", OrderNo: "ORDER-1", UserID: "u1", BizType: "retail", Amount: 1999, Currency: "CNY",
			PaidAt: noon.Add(time.Second), Status: "cancelled"}
		if e.Data != want || e.ID != m.Key || m.Key != order.RefundEventID("ORDER-1", "PAY-1") || !m.NextAt.Equal(noon.Add(2*time.Minute+leaseTime)) {
			t.Errorf("%+v in %+v", e, m)
		}
	},
	"an order that cannot be opened again has its money refunded": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 9)
		b.stock("last", 1)
		b.create(draft("ORDER-paid", "a"), draft("ORDER-archived", "a"), draft("ORDER-refunded", "a"), draft("ORDER-gone", "last"))
		b.pay(0, "PAY-1", "ORDER-paid", order.Rules{})
		b.pay(0, "PAY-2", "ORDER-refunded", order.Rules{})
		if _, err := b.at(0).Refund(ctx, order.Refunding{PaymentNo: "PAY-2", RefundNo: "R1", Act: staff}, order.Rules{}); err != nil {
			t.Fatal(err)
		}
		b.closeAt(time.Minute, "ORDER-archived", "ORDER-gone")
		if _, err := b.at(time.Minute).Archive(ctx, "ORDER-archived", 0, staff); err != nil {
			t.Fatal(err)
		}
		b.create(draft("ORDER-other", "last"))
		for no, why := range map[string]string{
			"ORDER-paid": "paid", "ORDER-archived": "closed", "ORDER-refunded": "closed", "ORDER-gone": `stock "last"`,
		} {
			before := b.dump("t_order", "t_order_log", "t_resource", "t_resource_log")
			got := b.pay(time.Minute, "LATE-"+no, no, lately(order.LateReopen))
			if got.Outcome != order.PaymentLate || types(got.Messages) != "refund_requested" || got.Case.Status != order.LateAsked ||
				got.Case.Policy != order.LateReopen || !strings.Contains(got.Case.Why, why) || len(got.Order.Items) != 1 {
				t.Errorf("%s: %+v, case %+v", no, got, got.Case)
			}
			if after := b.dump("t_order", "t_order_log", "t_resource", "t_resource_log"); after != before {
				t.Errorf("%s changed from\n%s\nto\n%s", no, before, after)
			}
		}
	},
	"a coupon that is used elsewhere since has one holder, and the late money is refunded": func(t *testing.T, b bed) {
		ctx := context.Background()
		if _, err := b.at(0).Adjust(ctx, order.Adjustment{ID: "c1", Kind: "coupon", Ref: "c", Delta: 1, Owner: "u1"}); err != nil {
			t.Fatal(err)
		}
		with := func(no string) order.Draft {
			d := draft(no)
			d.Items = []order.Item{{Kind: "coupon", Ref: "c", Quantity: 1}}
			return d
		}
		b.create(with("ORDER-1"))
		b.closeAt(time.Minute, "ORDER-1")
		b.create(with("ORDER-2"))
		got := b.pay(2*time.Minute, "PAY-1", "ORDER-1", lately(order.LateReopen))
		if got.Outcome != order.PaymentLate || types(got.Messages) != "refund_requested" {
			t.Errorf("%+v", got)
		}
		r, err := b.at(0).Resource(ctx, "coupon", "c")
		if err != nil || r.Available != 0 || r.Held != 1 || r.Sold != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	},
	"the last thing that is taken at payment is sold once, the other payment is a case": func(t *testing.T, b bed) {
		for policy, status := range map[order.LatePolicy]order.LateStatus{order.LateManual: order.LateOpen, order.LateRefund: order.LateAsked, order.LateReopen: order.LateAsked} {
			ref := string(policy)
			b.stock(ref, 1)
			b.create(atPayment("FIRST-"+ref, ref), atPayment("SECOND-"+ref, ref))
			b.expectStock(ref, 1, 0, 0)
			b.attempt(0, "SECOND-"+ref, "BILL-"+ref, time.Hour)
			if got := b.pay(time.Second, "PAY-1-"+ref, "FIRST-"+ref, lately(policy)); got.Outcome != order.PaymentAccepted || len(got.Order.Items) != 1 {
				t.Errorf("%+v", got)
			}
			b.expectStock(ref, 0, 0, 1)
			got := b.pay(time.Second, "PAY-2-"+ref, "SECOND-"+ref, lately(policy))
			if got.Outcome != order.PaymentLate || got.Case.Status != status || got.Case.StateThen != order.Pending || !strings.Contains(got.Case.Why, ref) ||
				got.Order.Status != order.Pending || len(got.Order.Items) != 1 || !got.Order.PayingUntil.IsZero() {
				t.Errorf("%+v, case %+v", got, got.Case)
			}
			if batch := b.closeAt(time.Minute, "SECOND-"+ref); len(batch.Closed) != 1 || len(batch.Closed[0].Items) != 0 {
				t.Errorf("%+v", batch)
			}
			b.expectStock(ref, 0, 0, 1)
		}
	},
	"buyers who pay for the last thing at one moment: one gets it": func(t *testing.T, b bed) {
		s := b.at(0)
		b.stock("a", 1)
		var sold, late atomic.Int32
		var buyers []func()
		for i := range 10 {
			no := fmt.Sprintf("ORDER-%d", i)
			b.create(atPayment(no, "a"))
			buyers = append(buyers, func() {
				got, err := s.Pay(context.Background(), payment("P-"+no, no), lately(order.LateReopen), leased)
				switch {
				case err != nil:
					t.Error(err)
				case got.Outcome == order.PaymentAccepted:
					sold.Add(1)
				case got.Case.Status == order.LateAsked:
					late.Add(1)
				}
			})
		}
		together(buyers...)
		if sold.Load() != 1 || late.Load() != 9 {
			t.Errorf("%d sold, %d late", sold.Load(), late.Load())
		}
		b.expectStock("a", 0, 0, 1)
	},
	"one late payment that is told at one moment is one case with one event": func(t *testing.T, b bed) {
		s := b.at(time.Minute)
		b.create(draft("ORDER-1"))
		b.closeAt(time.Minute, "ORDER-1")
		var first atomic.Int32
		var tellers []func()
		for range 10 {
			tellers = append(tellers, func() {
				got, err := s.Pay(context.Background(), payment("PAY-1", "ORDER-1"), lately(order.LateRefund), leased)
				if err != nil || got.Outcome != order.PaymentLate {
					t.Error(got, err)
				}
				if !got.Repeated {
					first.Add(1)
				}
			})
		}
		together(tellers...)
		if n := b.count("SELECT COUNT(*) FROM t_local_message WHERE type = 'refund_requested'"); first.Load() != 1 || n != 1 {
			t.Errorf("%d were the first, %d events", first.Load(), n)
		}
		b.theCase()
	},
	"an operator decides an open case, once": func(t *testing.T, b bed) {
		ctx := context.Background()
		for i, c := range []struct {
			decision order.LatePolicy
			status   order.LateStatus
			events   string
			end      order.Status
		}{
			{order.LateRefund, order.LateAsked, "refund_requested", order.Cancelled},
			{order.LateReopen, order.LateConsumed, "restored", order.Paid},
		} {
			no, pay := fmt.Sprintf("ORDER-%d", i), fmt.Sprintf("PAY-%d", i)
			b.create(draft(no))
			b.closeAt(time.Minute, no)
			b.pay(time.Minute, pay, no, order.Rules{})
			d := order.Deciding{PaymentNo: pay, Policy: c.decision, Act: staff}
			l, rows, err := b.at(2*time.Minute).Decide(ctx, d, leased)
			if err != nil || l.Status != c.status || l.Policy != c.decision || l.Actor != staff.Actor || l.Note != staff.Note ||
				!l.ChangedAt.Equal(noon.Add(2*time.Minute)) || types(rows) != c.events || b.status(no) != c.end {
				t.Errorf("%+v, %s, %v", l, types(rows), err)
			}
			kept, _, err := b.at(0).LatePayments(ctx, c.status, 10, "")
			if err != nil || len(kept) != 1 || kept[0] != l {
				t.Errorf("kept %+v\ntold %+v, %v", kept, l, err)
			}
			if again := b.pay(time.Hour, pay, no, order.Rules{}); again.Outcome != l.Outcome() || !again.Repeated {
				t.Errorf("%+v", again)
			}
			before := b.everything()
			for _, decision := range []order.LatePolicy{order.LateRefund, order.LateReopen} {
				d.Policy = decision
				_, _, err := b.at(time.Hour).Decide(ctx, d, leased)
				b.expectRefused(before, err, order.Conflict, "late_payment_settled")
			}
		}
	},
	"a decision that cannot be had is refused and leaves the case open": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(2*time.Minute)
		b.stock("last", 1)
		b.create(draft("ORDER-1", "last"), draft("ORDER-2"))
		b.pay(0, "PAY-2", "ORDER-2", order.Rules{})
		b.closeAt(time.Minute, "ORDER-1")
		b.create(draft("ORDER-3", "last"))
		b.pay(time.Minute, "LATE-1", "ORDER-1", order.Rules{})
		b.pay(time.Minute, "LATE-2", "ORDER-2", order.Rules{})
		before := b.everything()
		for no, code := range map[string]string{"LATE-1": "out_of_stock", "LATE-2": "state_conflict"} {
			_, _, err := s.Decide(ctx, order.Deciding{PaymentNo: no, Policy: order.LateReopen, Act: staff}, leased)
			b.expectRefused(before, err, order.Conflict, code)
		}
		for _, no := range []string{"PAY-2", "nosuch"} {
			_, _, err := s.Decide(ctx, order.Deciding{PaymentNo: no, Policy: order.LateReopen, Act: staff}, leased)
			b.expectRefused(before, err, order.NotFound, "late_payment_not_found")
		}
	},
	"cases are read oldest first, page by page, by their status": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"))
		b.closeAt(time.Minute, "ORDER-1")
		want := map[order.LateStatus][]string{}
		for i := range 8 { // of each moment two, so that pages end between cases of one time
			policy, status := order.LateManual, order.LateOpen
			if i%3 == 0 {
				policy, status = order.LateRefund, order.LateAsked
			}
			no := fmt.Sprintf("PAY.%d", i)
			b.pay(time.Minute+time.Duration(i/2)*time.Second, no, "ORDER-1", lately(policy))
			want[status] = append(want[status], no)
			want[""] = append(want[""], no)
		}
		for status, nos := range want {
			for size := 1; size <= 9; size++ {
				var got []string
				for cursor, more := "", true; more; more = cursor != "" {
					page, next, err := b.at(0).LatePayments(ctx, status, size, cursor)
					if err != nil || len(page) == 0 || len(page) > size {
						t.Fatal(page, err)
					}
					for _, l := range page {
						got = append(got, l.PaymentNo)
					}
					cursor = next
				}
				if fmt.Sprint(got) != fmt.Sprint(nos) {
					t.Errorf("%q, pages of %d: %v, want %v", status, size, got, nos)
				}
			}
		}
		for _, cursor := range []string{"x", "!!", "MS4x", "MTJhYmMuUEFZ", "MTc3NDc4NTYwMDEyMw"} {
			_, _, err := b.at(0).LatePayments(ctx, "", 10, cursor)
			expectField(t, err, "page_token")
		}
	},
	"a payment ends the attempt that it names, or else the newest": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		for _, no := range []string{"ORDER-1", "ORDER-2"} {
			b.attempt(0, no, no+"-A", time.Hour)
			b.attempt(time.Second, no, no+"-B", time.Minute)
		}
		named := payment("PAY-1", "ORDER-1")
		named.AttemptNo = "ORDER-1-A"
		if _, err := b.at(2*time.Second).Pay(context.Background(), named, order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		b.pay(2*time.Second, "PAY-2", "ORDER-2", order.Rules{})
		for no, want := range map[string]string{"ORDER-1": "paid open", "ORDER-2": "open paid"} {
			attempts, err := b.at(0).Attempts(context.Background(), no)
			if err != nil || len(attempts) != 2 {
				t.Fatal(attempts, err)
			}
			if got := fmt.Sprint(attempts[0].State, " ", attempts[1].State); got != want {
				t.Errorf("%s: %s, want %s", no, got, want)
			}
		}
	},
	"the log names who paid": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		b.pay(0, "PAY-1", "ORDER-1", order.Rules{})
		log, _, err := b.at(0).Timeline(context.Background(), "ORDER-1")
		if err != nil || log[1].Actor != "payment" {
			t.Errorf("%+v, %v", log, err)
		}
	},
}

var refundTests = map[string]func(t *testing.T, b bed){
	"a refund closes its paid order, and gives things back if the rule says so": func(t *testing.T, b bed) {
		ctx := context.Background()
		for ref, restock := range map[string]bool{"kept": false, "back": true} {
			b.stock(ref, 1)
			no := "ORDER-" + ref
			d := draft(no, ref)
			d.Items = append(d.Items, order.Item{Kind: "voucher", Ref: ref, Quantity: 1, Remote: true})
			b.create(d)
			b.pay(0, "PAY-"+ref, no, order.Rules{})
			rules := order.Rules{ByType: map[string]order.Rule{"retail": {Restock: restock}}}
			x := order.Refunding{PaymentNo: "PAY-" + ref, RefundNo: "R1-" + ref, Act: staff}
			o, err := b.at(time.Hour).Refund(ctx, x, rules)
			if err != nil || o.Status != order.Closed || !o.ClosedAt.Equal(noon.Add(time.Hour)) || o.PaidAt.IsZero() || len(o.Items) != 2 {
				t.Errorf("%+v, %v", o, err)
			}
			log, _, err := b.at(0).Timeline(ctx, no)
			if last := log[len(log)-1]; err != nil || last.Event != order.EventRefunded || last.Actor != staff.Actor || last.Note != staff.Note || last.Version != o.Version {
				t.Errorf("%+v, %v", log, err)
			}
			if restock {
				b.expectStock(ref, 1, 0, 0)
			} else {
				b.expectStock(ref, 0, 0, 1)
			}
			if n := b.count("SELECT COUNT(*) FROM t_resource_log WHERE op = 'restock' AND remote = 1"); n != 0 {
				t.Error("what another service sold was taken back here")
			}
			before := b.everything()
			if again, err := b.at(2*time.Hour).Refund(ctx, x, rules); err != nil || again.Version != o.Version || again.Status != order.Closed {
				t.Errorf("again %+v, %v", again, err)
			}
			if paid := b.pay(2*time.Hour, "PAY-"+ref, no, rules); !paid.Repeated || paid.Outcome != order.PaymentAccepted || len(paid.Messages) != 0 {
				t.Errorf("its payment again %+v", paid)
			}
			x.RefundNo = "R2"
			_, err = b.at(2*time.Hour).Refund(ctx, x, rules)
			b.expectRefused(before, err, order.Conflict, "already_refunded")
		}
	},
	"a refund ends the case that requested it, and its payment told again changes nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"))
		b.closeAt(time.Minute, "ORDER-1")
		b.pay(time.Minute, "PAY-1", "ORDER-1", lately(order.LateRefund))
		x := order.Refunding{PaymentNo: "PAY-1", RefundNo: "R1", Act: staff}
		if o, err := b.at(2*time.Minute).Refund(ctx, x, order.Rules{}); err != nil || o.Status != order.Cancelled {
			t.Fatal(o, err)
		}
		if l := b.theCase(); l.Status != order.LateRefunded || l.Actor != staff.Actor || l.Note != staff.Note || !l.ChangedAt.Equal(noon.Add(2*time.Minute)) {
			t.Errorf("%+v", l)
		}
		before := b.everything()
		if _, err := b.at(time.Hour).Refund(ctx, x, order.Rules{}); err != nil {
			t.Error(err)
		}
		for _, policy := range []order.LatePolicy{order.LateManual, order.LateRefund, order.LateReopen} {
			if got := b.pay(time.Hour, "PAY-1", "ORDER-1", lately(policy)); got.Outcome != order.PaymentLate || !got.Repeated {
				t.Errorf("%+v", got)
			}
		}
		x.RefundNo = "R2"
		_, err := b.at(time.Hour).Refund(ctx, x, order.Rules{})
		b.expectRefused(before, err, order.Conflict, "already_refunded")
	},
	"the number of a refund belongs to one payment, whatever became of it": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"), draft("ORDER-2"), draft("ORDER-3"))
		b.closeAt(time.Minute, "ORDER-2")
		for i := range 3 {
			b.pay(2*time.Minute, fmt.Sprint("PAY-", i+1), fmt.Sprint("ORDER-", i+1), lately(order.LateRefund))
		}
		if _, err := b.at(time.Hour).Refund(ctx, order.Refunding{PaymentNo: "PAY-1", RefundNo: "R1", Act: staff}, order.Rules{}); err != nil {
			t.Fatal(err)
		}
		before := b.everything()
		for _, other := range []string{"PAY-2", "PAY-3"} {
			_, err := b.at(time.Hour).Refund(ctx, order.Refunding{PaymentNo: other, RefundNo: "R1", Act: staff}, order.Rules{})
			b.expectRefused(before, err, order.Conflict, "refund_no_taken")
		}
	},
	"one of many refunds with the same number that are reported at once is taken": func(t *testing.T, b bed) {
		const rivals = 8
		var taken, refused atomic.Int64
		var reports []func()
		for i := range rivals {
			no := fmt.Sprint("ORDER-", i)
			b.create(draft(no))
			b.pay(0, "PAY-"+no, no, order.Rules{})
			reports = append(reports, func() {
				_, err := b.at(time.Hour).Refund(context.Background(), order.Refunding{PaymentNo: "PAY-" + no, RefundNo: "R1", Act: staff}, order.Rules{})
				var e *order.Error
				switch {
				case err == nil:
					taken.Add(1)
				case errors.As(err, &e) && e.Code == "refund_no_taken":
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		together(reports...)
		if n := b.count("SELECT COUNT(*) FROM t_payment WHERE refund_no = 'R1'"); n != 1 || taken.Load() != 1 || refused.Load() != rivals-1 {
			t.Errorf("%d were taken, %d refused, %d payments have the number", taken.Load(), refused.Load(), n)
		}
	},
	"what nobody asked to refund, and what is not known, is refused": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(time.Hour)
		b.create(draft("ORDER-1"))
		b.closeAt(time.Minute, "ORDER-1")
		b.pay(time.Minute, "PAY-1", "ORDER-1", order.Rules{})
		before := b.everything()
		_, err := s.Refund(ctx, order.Refunding{PaymentNo: "PAY-1", RefundNo: "R1", Act: staff}, order.Rules{})
		b.expectRefused(before, err, order.Conflict, "refund_not_requested")
		_, err = s.Refund(ctx, order.Refunding{PaymentNo: "nosuch", RefundNo: "R1", Act: staff}, order.Rules{})
		b.expectRefused(before, err, order.NotFound, "payment_not_found")
	},
	"damage stops a payment and a refund with the order named, and changes nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		for i, c := range []struct {
			plant string // of counters of its ref
			call  func(no string) error
		}{
			{"UPDATE t_resource SET held = 0 WHERE ref = '%s'", func(no string) error {
				_, err := b.at(0).Pay(ctx, payment("PAY-"+no, no), order.Rules{}, leased)
				return err
			}},
			{"DELETE FROM t_resource WHERE ref = '%s'", func(no string) error {
				_, err := b.at(0).Pay(ctx, payment("PAY-"+no, no), order.Rules{}, leased)
				return err
			}},
			{"UPDATE t_resource SET sold = 0 WHERE ref = '%s'", func(no string) error {
				_, err := b.at(0).Refund(ctx, order.Refunding{PaymentNo: "PAID-" + no, RefundNo: "R1", Act: staff}, order.Rules{Default: order.Rule{Restock: true}})
				return err
			}},
		} {
			no, ref := fmt.Sprintf("ORDER-%d", i), fmt.Sprint("sku-", i)
			b.stock(ref, 1)
			b.create(draft(no, ref))
			if strings.Contains(c.plant, "sold") {
				b.pay(0, "PAID-"+no, no, order.Rules{})
			}
			b.exec(fmt.Sprintf(c.plant, ref))
			before := b.everything()
			err := c.call(no)
			b.expectRefused(before, err, order.Internal, "data_damaged")
			if err == nil || !strings.Contains(err.Error(), no) {
				t.Errorf("the error does not name the order: %v", err)
			}
		}
		b.tolerated["counters equal the ledger"] = true
		b.tolerated["all that was put in, and did not run out, is available, held or sold"] = true
		b.tolerated["the ledger names no unknown resource"] = true
	},
}
