package storetest

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"lapse/pkg/order"
)

var payTests = map[string]func(t *testing.T, b bed){
	"a payment sells what the order holds and takes its time-out row away": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"))
		got, err := b.at(30*time.Second).Pay(context.Background(), payment("P1", "ORDER-1"), order.Rules{}, leased)
		if err != nil {
			t.Fatal(err)
		}
		o := got.Order
		if got.Outcome != order.PaymentAccepted || got.Repeated || o.Status != order.Paid || !o.PaidAt.Equal(noon.Add(30*time.Second)) ||
			o.Version != 2 || len(o.Items) != 1 {
			t.Errorf("%+v", got)
		}
		if read, _, _ := b.at(0).Get(context.Background(), "ORDER-1"); !reflect.DeepEqual(read, o) {
			t.Errorf("read %+v\npaid %+v", read, o)
		}
		b.expectStock("a", 1, 0, 1)
		log, scheduled, err := b.at(0).Timeline(context.Background(), "ORDER-1")
		if err != nil || len(log) != 2 || log[1].To != order.Paid || log[1].Event != order.EventPaid || len(scheduled) != 0 {
			t.Errorf("log %+v, scheduled %+v, %v", log, scheduled, err)
		}
		if batch := b.closeAt(time.Hour, "ORDER-1"); len(batch.Closed) != 0 {
			t.Error("a paid order was closed")
		}
	},
	"money is taken also for an attempt that nobody has started, and that is said and kept": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"), draft("ORDER-2"), draft("ORDER-3"))
		b.attempt(0, "ORDER-1", "TRY-1", time.Hour)
		for no, c := range map[string]struct {
			attempt string
			stray   bool
		}{"ORDER-1": {"TRY-1", false}, "ORDER-2": {"TRY-1", true}, "ORDER-3": {"TRY-3", true}} {
			p := payment("P-"+no, no)
			p.AttemptNo = c.attempt
			got, err := b.at(0).Pay(context.Background(), p, order.Rules{}, leased)
			if err != nil || got.Outcome != order.PaymentAccepted || got.Stray != c.stray {
				t.Errorf("%s: %+v, %v", no, got, err)
			}
			kept, _, err := b.at(0).Payments(context.Background(), no)
			if err != nil || len(kept) != 1 || kept[0].AttemptNo != c.attempt {
				t.Errorf("%s: kept %+v, %v", no, kept, err)
			}
		}
	},
	"the payments of an order are read with what became of them, oldest first": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		b.pay(0, "PAY-2", "ORDER-1", order.Rules{})
		b.pay(time.Second, "PAY-1", "ORDER-1", order.Rules{})
		b.pay(time.Second, "PAY-0", "ORDER-2", order.Rules{})
		if _, err := b.at(time.Minute).Refund(ctx, order.Refunding{PaymentNo: "PAY-2", RefundNo: "R1", Act: staff}, order.Rules{}); err != nil {
			t.Fatal(err)
		}
		payments, cases, err := b.at(0).Payments(ctx, "ORDER-1")
		want := []order.KeptPayment{
			{Payment: payment("PAY-2", "ORDER-1"), Outcome: order.PaymentRefunded, RefundNo: "R1", CreatedAt: noon},
			{Payment: payment("PAY-1", "ORDER-1"), Outcome: order.PaymentLate, CreatedAt: noon.Add(time.Second)},
		}
		if err != nil || !reflect.DeepEqual(payments, want) || len(cases) != 1 || cases[0].PaymentNo != "PAY-1" || cases[0].StateThen != order.Paid {
			t.Errorf("%+v\n%+v\n%v", payments, cases, err)
		}
	},
	"a payment after the deadline still pays an order that nobody closed": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		got, err := b.at(time.Hour).Pay(context.Background(), payment("P1", "ORDER-1"), order.Rules{}, leased)
		if err != nil || got.Outcome != order.PaymentAccepted {
			t.Error(got, err)
		}
	},
	"the same payment again repeats the first answer": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"))
		for i := range 3 {
			got, err := b.at(time.Duration(i)*time.Second).Pay(context.Background(), payment("P1", "ORDER-1"), order.Rules{}, leased)
			if err != nil || got.Outcome != order.PaymentAccepted || got.Repeated != (i > 0) || len(got.Order.Items) != 1 {
				t.Errorf("%d: %+v, %v", i, got, err)
			}
		}
		b.expectStock("a", 1, 0, 1)
	},
	"a payment for a cancelled order is one late case, however often it comes": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"))
		b.closeAt(time.Minute, "ORDER-1")
		for i := range 3 {
			got, err := b.at(2*time.Minute).Pay(context.Background(), payment("P1", "ORDER-1"), order.Rules{}, leased)
			if err != nil || got.Outcome != order.PaymentLate || got.Repeated != (i > 0) || got.Order.Status != order.Cancelled {
				t.Errorf("%d: %+v, %v", i, got, err)
			}
		}
		if n := b.count("SELECT COUNT(*) FROM t_late_payment WHERE state_then = 20 AND policy = 'manual' AND status = 'open'"); n != 1 {
			t.Errorf("%d cases", n)
		}
		b.expectStock("a", 2, 0, 0)
	},
	"a second payment of a paid order is a late case": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		if got, err := b.at(0).Pay(context.Background(), payment("P1", "ORDER-1"), order.Rules{}, leased); err != nil || got.Outcome != order.PaymentAccepted {
			t.Error(got, err)
		}
		if got, err := b.at(0).Pay(context.Background(), payment("P2", "ORDER-1"), order.Rules{}, leased); err != nil || got.Outcome != order.PaymentLate {
			t.Error(got, err)
		}
	},
	"what does not fit is refused and changes nothing": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		if _, err := s.Pay(ctx, payment("P1", "ORDER-1"), order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		before := b.rows()
		amount, currency := payment("P2", "ORDER-2"), payment("P2", "ORDER-2")
		amount.Amount = 1998
		currency.Currency = "USD"
		_, err := s.Pay(ctx, amount, order.Rules{}, leased)
		expectField(t, err, "amount")
		_, err = s.Pay(ctx, currency, order.Rules{}, leased)
		expectField(t, err, "currency")
		_, err = s.Pay(ctx, payment("P1", "ORDER-2"), order.Rules{}, leased)
		expectError(t, err, order.Conflict, "payment_no_taken")
		_, err = s.Pay(ctx, payment("P3", "ORDER-X"), order.Rules{}, leased)
		expectError(t, err, order.NotFound, "order_not_found")
		if after := b.rows(); after != before || b.status("ORDER-2") != order.Pending {
			t.Error(after, b.status("ORDER-2"))
		}
	},
}

var cancelTests = map[string]func(t *testing.T, b bed){
	"a user's cancellation gives everything back and writes its event": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"))
		o, m, err := b.at(time.Second).Cancel(context.Background(), wish("ORDER-1", "u1"), leased)
		if err != nil || len(m) != 1 {
			t.Fatal(m, err)
		}
		if o.Status != order.Cancelled || o.CancelReason != order.ReasonUserCancel || !o.CancelledAt.Equal(noon.Add(time.Second)) || o.Version != 2 {
			t.Errorf("%+v", o)
		}
		expectEvent(t, m[0], o, noon.Add(time.Second+leaseTime))
		if read, _, _ := b.at(0).Get(context.Background(), "ORDER-1"); !reflect.DeepEqual(read, o) {
			t.Errorf("read      %+v\ncancelled %+v", read, o)
		}
		b.expectStock("a", 2, 0, 0)
		log, scheduled, err := b.at(0).Timeline(context.Background(), "ORDER-1")
		if err != nil || len(log) != 2 || len(scheduled) != 1 || scheduled[0].Key != m[0].Key {
			t.Fatalf("log %+v, scheduled %+v, %v", log, scheduled, err)
		}
		want := order.LogEntry{OrderNo: "ORDER-1", Version: 2, Round: 1, To: order.Cancelled, Event: order.EventCancelled,
			Reason: "USER_CANCEL", Actor: "app", At: noon.Add(time.Second), ExpireAt: o.ExpireAt}
		if log[1] != want {
			t.Errorf("log %+v", log[1])
		}
	},
	"cancelling again answers the order and no message": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.closeAt(time.Minute, "ORDER-1")
		o, m, err := b.at(time.Hour).Cancel(context.Background(), wish("ORDER-1", "u1"), leased)
		if err != nil || m != nil || o.CancelReason != order.ReasonTimeout || len(o.Items) != 1 {
			t.Error(o, m, err)
		}
		b.expectStock("a", 1, 0, 0)
	},
	"staff cancels what is not paid, and says why": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		c := order.Cancelling{OrderNo: "ORDER-1", Reason: order.ReasonManual, Act: staff}
		o, m, err := b.at(time.Second).Cancel(context.Background(), c, leased)
		if err != nil || len(m) != 1 || o.Status != order.Cancelled || o.CancelReason != order.ReasonManual {
			t.Fatal(o, m, err)
		}
		if e := b.lastEntry("ORDER-1"); e.Reason != "MANUAL" || e.Actor != staff.Actor || e.Note != staff.Note {
			t.Errorf("log %+v", e)
		}
		b.expectStock("a", 1, 0, 0)
	},
	"with a payment in flight a cancellation waits for the gateway, if there is one": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"), draft("ORDER-2", "a"))
		b.attempt(0, "ORDER-1", "BILL-0001", time.Hour)
		b.attempt(0, "ORDER-2", "BILL-0002", time.Hour)
		c := wish("ORDER-1", "u1")
		c.Confirm = patience
		o, m, err := b.at(time.Second).Cancel(ctx, c, leased)
		if err != nil || m != nil || o.Status != order.Confirming || o.CancelReason != order.ReasonUserCancel || !o.ConfirmUntil.Equal(noon.Add(time.Second+patience)) {
			t.Fatal(o, m, err)
		}
		b.expectRead(o)
		if row := b.timeoutRow("ORDER-1"); row.State != order.ToAsk || !row.NextAt.Equal(noon.Add(time.Second)) {
			t.Errorf("%+v", row)
		}
		b.expectStock("a", 0, 2, 0)
		o, m, err = b.at(time.Second).Cancel(ctx, wish("ORDER-2", "u1"), leased)
		if err != nil || len(m) != 1 || o.Status != order.Cancelled {
			t.Error(o, m, err)
		}
		b.expectStock("a", 1, 1, 0)
	},
	"a wish to cancel an order in doubt is remembered, once": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		c := order.Cancelling{OrderNo: "ORDER-1", Reason: order.ReasonManual, Confirm: patience, Act: staff}
		o, m, err := b.at(2*time.Minute).Cancel(ctx, c, leased)
		if err != nil || m != nil || o.Status != order.Confirming || o.CancelReason != order.ReasonManual {
			t.Fatal(o, m, err)
		}
		if e := b.lastEntry("ORDER-1"); e.Event != order.EventCancelAsked || e.Reason != "MANUAL" || e.Note != staff.Note || e.Version != o.Version {
			t.Errorf("log %+v", e)
		}
		before := b.everything()
		if _, m, err := b.at(3*time.Minute).Cancel(ctx, c, leased); err != nil || m != nil || b.everything() != before {
			t.Errorf("the same wish again: %+v, %v", m, err)
		}
		v := b.claimOne(3 * time.Minute)
		v.Closed = []string{"BILL-0001"}
		done := b.confirm(3*time.Minute, v, order.ConfirmHold, order.ConfirmClosed)
		if e := b.lastEntry("ORDER-1"); done.CancelReason != order.ReasonManual || e.Event != order.EventCancelled {
			t.Errorf("%+v, %+v", done.Order, e)
		}
	},
	"an order in doubt with no attempt in flight is cancelled at once": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		c := wish("ORDER-1", "u1")
		c.Confirm = patience
		o, m, err := b.at(30*time.Minute).Cancel(context.Background(), c, leased) // its attempt has just run out
		if err != nil || len(m) != 1 || o.Status != order.Cancelled || o.CancelReason != order.ReasonUserCancel || !o.ConfirmUntil.IsZero() {
			t.Error(o, m, err)
		}
		b.expectRead(o)
		b.expectStock("a", 1, 0, 0)
	},
	"staff may end a doubt by force, once its time is over": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		c := order.Cancelling{OrderNo: "ORDER-1", Reason: order.ReasonManual, Confirm: patience, Force: true, Act: staff}
		end := time.Minute + patience
		o, m, err := b.at(end-time.Millisecond).Cancel(ctx, c, leased)
		if err != nil || m != nil || o.Status != order.Confirming {
			t.Fatal(o, m, err)
		}
		o, m, err = b.at(end).Cancel(ctx, c, leased)
		if err != nil || len(m) != 1 || o.Status != order.Cancelled || o.CancelReason != order.ReasonManual {
			t.Error(o, m, err)
		}
		b.expectStock("a", 1, 0, 0)
	},
	"unknown orders, others' orders and paid orders are refused": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		if _, err := s.Pay(ctx, payment("P1", "ORDER-2"), order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		_, _, err := s.Cancel(ctx, wish("ORDER-X", "u1"), leased)
		expectError(t, err, order.NotFound, "order_not_found")
		unknown := err.Error()
		_, _, err = s.Cancel(ctx, wish("ORDER-1", "u2"), leased)
		expectError(t, err, order.NotFound, "order_not_found")
		if strings.Replace(err.Error(), "ORDER-1", "ORDER-X", 1) != unknown {
			t.Errorf("another's order is answered %q, an unknown one %q", err, unknown)
		}
		_, _, err = s.Cancel(ctx, wish("ORDER-2", "u1"), leased)
		expectError(t, err, order.Conflict, "state_conflict")
		if b.status("ORDER-1") != order.Pending || b.status("ORDER-2") != order.Paid {
			t.Error("a refused cancellation changed an order")
		}
	},
}

func expectEvent(t *testing.T, m order.Message, o order.Order, nextAt time.Time) {
	t.Helper()
	if m.Kind != order.Notice || m.Key != order.EventID(o.OrderNo, o.Round, order.TypeCancelled) || m.OrderNo != o.OrderNo || !m.NextAt.Equal(nextAt) {
		t.Errorf("message %+v", m)
	}
	var event order.CloudEvent[order.CancelledData]
	if err := json.Unmarshal(m.Payload, &event); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(event, order.CancelledEvent(o)) {
		t.Errorf("event %+v\nfor   %+v", event, order.CancelledEvent(o))
	}
}

var closeTests = map[string]func(t *testing.T, b bed){
	"a millisecond before the deadline stays open, at the deadline it closes": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"))
		if early := b.closeAt(time.Minute-time.Millisecond, "ORDER-1"); len(early.Closed) != 0 || len(early.Messages) != 0 {
			t.Fatalf("closed early: %+v", early)
		}
		b.expectStock("a", 1, 1, 0)
		batch := b.closeAt(time.Minute, "ORDER-1")
		if len(batch.Closed) != 1 || len(batch.Messages) != 1 || !batch.Now.Equal(noon.Add(time.Minute)) {
			t.Fatalf("%+v", batch)
		}
		o := batch.Closed[0].Order
		if o.Status != order.Cancelled || o.CancelReason != order.ReasonTimeout || !o.CancelledAt.Equal(o.ExpireAt) || o.Version != 2 || len(o.Items) != 1 {
			t.Errorf("%+v", o)
		}
		expectEvent(t, batch.Messages[0], o, noon.Add(time.Minute+leaseTime))
		if read, _, _ := b.at(0).Get(context.Background(), "ORDER-1"); !reflect.DeepEqual(read, o) {
			t.Errorf("read   %+v\nclosed %+v", read, o)
		}
		b.expectStock("a", 2, 0, 0)
	},
	"a batch closes what is due and leaves the rest": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		b.stock("a", 9)
		later := draft("ORDER-later", "a")
		later.Timeout = time.Hour
		b.create(draft("ORDER-due", "a"), later, draft("ORDER-paid", "a"), draft("ORDER-cancelled", "a"), draft("ORDER-other", "a"))
		if _, err := s.Pay(ctx, payment("P1", "ORDER-paid"), order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.Cancel(ctx, wish("ORDER-cancelled", "u1"), leased); err != nil {
			t.Fatal(err)
		}
		batch := b.closeAt(2*time.Minute, "ORDER-due", "ORDER-later", "ORDER-paid", "ORDER-cancelled", "ORDER-nosuch", "ORDER-due")
		if len(batch.Closed) != 1 || batch.Closed[0].OrderNo != "ORDER-due" {
			t.Errorf("%+v", batch.Closed)
		}
		if b.status("ORDER-other") != order.Pending {
			t.Error("an order that nobody named was closed")
		}
		b.expectStock("a", 6, 2, 1)
	},
	"closing again closes nothing": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		for i := range 3 {
			if batch := b.closeAt(time.Hour, "ORDER-1"); len(batch.Closed) != max(0, 1-i) {
				t.Errorf("%d: %+v", i, batch)
			}
		}
		b.expectStock("a", 1, 0, 0)
	},
	"no numbers, nothing closed": func(t *testing.T, b bed) {
		batch, err := b.at(time.Hour).CloseDue(context.Background(), order.Closing{}, leased)
		if err != nil || len(batch.Closed) != 0 || !batch.Now.Equal(noon.Add(time.Hour)) {
			t.Error(batch, err)
		}
	},
	"without its lease a sweep closes nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"))
		lease, ok, err := b.at(0).AcquireShard(ctx, 7, "sweeper-1", time.Minute, 0)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		closing := func(change func(*order.Lease)) order.Closing {
			l := lease
			change(&l)
			return order.Closing{OrderNos: []string{"ORDER-1"}, Reason: order.ReasonCompensate, Lease: &l}
		}
		due := b.at(time.Minute - time.Millisecond)
		b.exec("UPDATE t_order SET expire_at = created_at")
		for name, c := range map[string]order.Closing{
			"other owner": closing(func(l *order.Lease) { l.Owner = "sweeper-2" }),
			"older token": closing(func(l *order.Lease) { l.Token-- }),
			"other shard": closing(func(l *order.Lease) { l.Shard = 8 }),
		} {
			_, err := due.CloseDue(ctx, c, leased)
			if expectError(t, err, order.Conflict, "lease_lost"); t.Failed() {
				t.Fatal(name)
			}
		}
		_, err = b.at(time.Minute).CloseDue(ctx, closing(func(*order.Lease) {}), leased)
		expectError(t, err, order.Conflict, "lease_lost")
		if b.status("ORDER-1") != order.Pending {
			t.Fatal("closed without a lease")
		}
		batch, err := due.CloseDue(ctx, closing(func(*order.Lease) {}), leased)
		if err != nil || len(batch.Closed) != 1 || batch.Closed[0].CancelReason != order.ReasonCompensate {
			t.Error(batch, err)
		}
	},
	"a sweep tells whose time-out message the broker lost": func(t *testing.T, b bed) {
		ctx := context.Background()
		created := b.create(draft("ORDER-sent"), draft("ORDER-unsent"))
		if err := b.at(0).Settle(ctx, []order.Sent{{Message: *created[0].Message}}); err != nil {
			t.Fatal(err)
		}
		lease, _, err := b.at(0).AcquireShard(ctx, 7, "sweeper-1", time.Hour, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := order.Closing{OrderNos: []string{"ORDER-sent", "ORDER-unsent"}, Reason: order.ReasonCompensate, Lease: &lease}
		batch, err := b.at(2*time.Minute).CloseDue(ctx, c, leased)
		if err != nil || len(batch.Closed) != 2 {
			t.Fatal(batch, err)
		}
		for _, o := range batch.Closed {
			if o.MessageLost != (o.OrderNo == "ORDER-sent") {
				t.Errorf("%s: lost is %v", o.OrderNo, o.MessageLost)
			}
		}
	},
	"damage stops the batch with its order named, and changes nothing": func(t *testing.T, b bed) {
		for name, plant := range map[string]string{
			"a reservation differs":     "UPDATE t_resource_log SET quantity = 2 WHERE order_no = 'ORDER-bad' AND op = 'reserve'",
			"released before":           "INSERT INTO t_resource_log (order_no, round, op, kind, ref, quantity, at) SELECT order_no, round, 'release', kind, ref, quantity, at FROM t_resource_log WHERE order_no = 'ORDER-bad' AND op = 'reserve'",
			"sold before":               "INSERT INTO t_resource_log (order_no, round, op, kind, ref, quantity, at) SELECT order_no, round, 'sell', kind, ref, quantity, at FROM t_resource_log WHERE order_no = 'ORDER-bad' AND op = 'reserve'",
			"the counter is too low":    "UPDATE t_resource SET held = 0 WHERE ref = 'b'",
			"the resource is not there": "DELETE FROM t_resource WHERE ref = 'b'",
		} {
			t.Run(name, func(t *testing.T) {
				b := bed{Bed: b.Bed, t: t}
				for _, table := range []string{"t_order", "t_order_item", "t_order_log", "t_resource_log", "t_resource", "t_local_message"} {
					if _, err := b.DB.Exec("DELETE FROM " + table); err != nil {
						t.Fatal(err)
					}
				}
				b.stock("a", 1)
				b.stock("b", 1)
				b.create(draft("ORDER-good", "a"), draft("ORDER-bad", "b"))
				b.exec(plant)
				before := b.rows()
				_, err := b.at(time.Hour).CloseDue(context.Background(), order.Closing{OrderNos: []string{"ORDER-good", "ORDER-bad"}, Reason: order.ReasonTimeout}, leased)
				expectError(t, err, order.Internal, "data_damaged")
				if err == nil || !strings.Contains(err.Error(), "ORDER-bad") {
					t.Errorf("the error does not name the order: %v", err)
				}
				if after := b.rows(); after != before || b.status("ORDER-good") != order.Pending {
					t.Error("changed:", after)
				}
			})
		}
		b.exec("DELETE FROM t_resource_log")
		b.exec("DELETE FROM t_order_item")
		b.exec("DELETE FROM t_resource")
	},
	"an order whose time-out row is gone is closed and paid all the same": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		b.exec("DELETE FROM t_local_message")
		if batch := b.closeAt(time.Minute, "ORDER-1"); len(batch.Closed) != 1 {
			t.Error(batch)
		}
		if got, err := b.at(0).Pay(context.Background(), payment("P1", "ORDER-2"), order.Rules{}, leased); err != nil || got.Outcome != order.PaymentAccepted {
			t.Error(got, err)
		}
	},
}
