package storetest

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// patience is how long orders of these tests wait for the gateway.
const patience = 10 * time.Minute

// attempt starts a payment of an order.
func (b bed) attempt(at time.Duration, orderNo, attemptNo string, lifetime time.Duration) order.Attempt {
	b.t.Helper()
	a, _, err := b.at(at).StartPayment(context.Background(),
		order.Attempting{AttemptNo: attemptNo, OrderNo: orderNo, Channel: "card", Lifetime: lifetime, Actor: "shop"})
	if err != nil {
		b.t.Fatal(err)
	}
	return a
}

// expire closes what is due by a clock at noon + d, where there is a gateway to be asked.
func (b bed) expire(d time.Duration, nos ...string) order.ClosedBatch {
	b.t.Helper()
	c := order.Closing{OrderNos: nos, Reason: order.ReasonTimeout, Actor: "closer-1", Confirm: patience}
	batch, err := b.at(d).CloseDue(context.Background(), c, leased)
	if err != nil {
		b.t.Fatal(err)
	}
	return batch
}

// inDoubt makes an order over one of "a" that is confirming since noon + 1 min, with attempts that end at noon + 30 min.
func (b bed) inDoubt(no string, attempts ...string) {
	b.t.Helper()
	b.create(draft(no, "a"))
	for _, a := range attempts {
		b.attempt(0, no, a, 30*time.Minute)
	}
	if batch := b.expire(time.Minute, no); batch.Doubtful != 1 {
		b.t.Fatalf("%+v", batch)
	}
}

// claim leases what is to be asked about.
func (b bed) claim(d time.Duration) []order.InDoubt {
	b.t.Helper()
	doubtful, _, _, err := b.at(d).ClaimDoubtful(context.Background(), 100, leaseTime)
	if err != nil {
		b.t.Fatal(err)
	}
	return doubtful
}

// claimOne leases the only order that is to be asked about.
func (b bed) claimOne(d time.Duration) order.Verdict {
	b.t.Helper()
	doubtful := b.claim(d)
	if len(doubtful) != 1 {
		b.t.Fatalf("%d orders are to be asked about", len(doubtful))
	}
	return order.Verdict{InDoubt: doubtful[0]}
}

const askWait = 8 * time.Second

// confirm applies a verdict, and expects what it leads to.
func (b bed) confirm(d time.Duration, v order.Verdict, end order.ConfirmEnd, want order.ConfirmResult) order.Confirmed {
	b.t.Helper()
	done, err := b.at(d).Confirm(context.Background(), v, end, askWait, order.Rules{}, leased)
	if err != nil {
		b.t.Fatal(err)
	}
	if done.Result != want {
		b.t.Fatalf("it led to %s, want %s", done.Result, want)
	}
	return done
}

// captured is the money of an attempt.
func captured(paymentNo string, a order.Attempt) order.Payment {
	p := payment(paymentNo, a.OrderNo)
	p.AttemptNo = a.AttemptNo
	return p
}

// story is what the log says of an order: its events, with the status after each.
func (b bed) story(no string) string {
	b.t.Helper()
	log, _, err := b.at(0).Timeline(context.Background(), no)
	if err != nil {
		b.t.Fatal(err)
	}
	steps := make([]string, len(log))
	for i, e := range log {
		steps[i] = fmt.Sprintf("%s→%d", e.Event, e.To)
	}
	return strings.Join(steps, " ")
}

// timeoutRow is the time-out row of an order.
func (b bed) timeoutRow(no string) order.Scheduled {
	b.t.Helper()
	_, scheduled, err := b.at(0).Timeline(context.Background(), no)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, m := range scheduled {
		if m.Kind == order.Timeout {
			return m
		}
	}
	b.t.Fatalf("%s has no time-out row", no)
	return order.Scheduled{}
}

// lastEntry is the newest entry of an order's log.
func (b bed) lastEntry(no string) order.LogEntry {
	b.t.Helper()
	log, _, err := b.at(0).Timeline(context.Background(), no)
	if err != nil || len(log) == 0 {
		b.t.Fatal(log, err)
	}
	return log[len(log)-1]
}

// expectAttempts compares the states of an order's attempts.
func (b bed) expectAttempts(no string, want ...order.AttemptState) {
	b.t.Helper()
	found, err := b.at(0).Attempts(context.Background(), no)
	if err != nil || len(found) != len(want) {
		b.t.Fatal(found, err)
	}
	for i, a := range found {
		if a.State != want[i] || (a.State == order.AttemptOpen) != a.EndedAt.IsZero() {
			b.t.Errorf("attempt %s is %s, ended at %v; want %s", a.AttemptNo, a.State, a.EndedAt, want[i])
		}
	}
}

// expectRead wants an order to be stored as a method returned it.
func (b bed) expectRead(o order.Order) {
	b.t.Helper()
	if read, _, err := b.at(0).Get(context.Background(), o.OrderNo); err != nil || !reflect.DeepEqual(read, o) {
		b.t.Errorf("read     %+v, %v\nreturned %+v", read, err, o)
	}
}

var everything = append([]string{"t_local_message", "t_quarantine", "t_shadow"}, businessTables...)

var confirmTests = map[string]func(t *testing.T, b bed){
	"a due order with a payment in flight waits for the gateway": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"))
		b.attempt(0, "ORDER-1", "BILL-0001", 5*time.Minute)
		batch := b.expire(time.Minute, "ORDER-1")
		if batch.Doubtful != 1 || len(batch.Closed) != 0 || len(batch.Messages) != 0 || len(batch.Braked) != 0 {
			t.Fatalf("%+v", batch)
		}
		o, _, err := b.at(0).Get(context.Background(), "ORDER-1")
		if err != nil || o.Status != order.Confirming || !o.ConfirmUntil.Equal(noon.Add(time.Minute+patience)) || o.CancelReason != order.ReasonTimeout ||
			!o.CancelledAt.IsZero() || !o.PayingUntil.Equal(noon.Add(5*time.Minute)) || o.Version != 3 {
			t.Errorf("%+v, %v", o, err)
		}
		b.expectStock("a", 1, 1, 0)
		want := order.LogEntry{OrderNo: "ORDER-1", Version: 3, Round: 1, To: order.Confirming, Event: order.EventConfirming, Reason: "TIMEOUT",
			Actor: "closer-1", At: noon.Add(time.Minute), ExpireAt: noon.Add(time.Minute)}
		if got := b.lastEntry("ORDER-1"); got != want {
			t.Errorf("log %+v", got)
		}
		if m := b.timeoutRow("ORDER-1"); m.State != order.ToAsk || m.Hop != 1 || !m.NextAt.Equal(noon.Add(time.Minute)) || !m.DueAt.Equal(noon.Add(time.Minute)) {
			t.Errorf("%+v", m)
		}
		if again := b.expire(time.Hour, "ORDER-1"); again.Doubtful != 0 || len(again.Closed) != 0 {
			t.Errorf("a confirming order was ended by its message: %+v", again)
		}
	},
	"what cannot bring money any more keeps no order open": func(t *testing.T, b bed) {
		ctx := context.Background()
		for _, no := range []string{"ORDER-failed", "ORDER-over", "ORDER-touching"} {
			b.create(draft(no))
		}
		b.attempt(0, "ORDER-failed", "BILL-0001", time.Hour)
		if _, err := b.at(0).FailPayment(ctx, "ORDER-failed", "BILL-0001"); err != nil {
			t.Fatal(err)
		}
		b.attempt(0, "ORDER-over", "BILL-0002", 30*time.Second)
		b.attempt(0, "ORDER-touching", "BILL-0003", time.Minute)
		batch := b.expire(time.Minute, "ORDER-failed", "ORDER-over", "ORDER-touching")
		if len(batch.Closed) != 3 || batch.Doubtful != 0 {
			t.Errorf("%+v", batch)
		}
		b.create(draft("ORDER-nobody"))
		b.attempt(0, "ORDER-nobody", "BILL-0004", time.Hour)
		if batch := b.closeAt(time.Minute, "ORDER-nobody"); len(batch.Closed) != 1 || !batch.Closed[0].PayingUntil.IsZero() {
			t.Errorf("there is nobody to ask, and yet: %+v", batch)
		}
	},
	"the money of a confirming order pays it": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.inDoubt("ORDER-1", "BILL-0001", "BILL-0002")
		v := b.claimOne(time.Minute)
		if len(v.Attempts) != 2 || v.Status != order.Confirming {
			t.Fatalf("%+v", v)
		}
		v.Captured, v.Closed = []order.Payment{captured("P1", v.Attempts[0])}, []string{"BILL-0002"}
		done := b.confirm(time.Minute, v, order.ConfirmCancel, order.ConfirmPaid)
		if done.Status != order.Paid || !done.PaidAt.Equal(noon.Add(time.Minute)) || done.CancelReason != "" || len(done.Messages) != 0 {
			t.Errorf("%+v", done)
		}
		b.expectRead(done.Order)
		b.expectStock("a", 1, 0, 1)
		if got := b.story("ORDER-1"); got != "created→0 payment_started→0 payment_started→0 confirming→5 paid→10" {
			t.Error(got)
		}
		if found, _ := b.at(0).Attempts(context.Background(), "ORDER-1"); found[0].State != order.AttemptPaid {
			t.Errorf("%+v", found)
		}
		if n := b.count("SELECT COUNT(*) FROM t_local_message"); n != 0 {
			t.Errorf("%d messages are left", n)
		}
	},
	"a bill that was paid twice over pays once and makes a case": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.inDoubt("ORDER-1", "BILL-0001", "BILL-0002")
		v := b.claimOne(time.Minute)
		v.Captured = []order.Payment{captured("P1", v.Attempts[0]), captured("P2", v.Attempts[1])}
		rules := order.Rules{Default: order.Rule{Late: order.LateRefund}}
		done, err := b.at(time.Minute).Confirm(context.Background(), v, order.ConfirmCancel, askWait, rules, leased)
		if err != nil || done.Result != order.ConfirmPaid || len(done.Messages) != 1 || done.Messages[0].Type != order.TypeRefundRequested {
			t.Fatal(done, err)
		}
		b.expectAttempts("ORDER-1", order.AttemptPaid, order.AttemptPaid)
		b.expectStock("a", 1, 0, 1)
	},
	"only the gateway's word about every bill lets an order go": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.inDoubt("ORDER-1", "BILL-0001", "BILL-0002")
		v := b.claimOne(time.Minute)
		v.Closed = []string{"BILL-0001"}
		done := b.confirm(time.Minute, v, order.ConfirmCancel, order.ConfirmUnpaid)
		if done.Status != order.Confirming || len(done.Messages) != 0 {
			t.Errorf("%+v", done)
		}
		b.expectAttempts("ORDER-1", order.AttemptClosed, order.AttemptOpen)
		b.expectStock("a", 1, 1, 0)
		at := time.Minute + askWait
		v = b.claimOne(at)
		if len(v.Attempts) != 1 || v.Attempts[0].AttemptNo != "BILL-0002" {
			t.Fatalf("%+v", v.Attempts)
		}
		v.Closed = []string{"BILL-0002"}
		done = b.confirm(at, v, order.ConfirmCancel, order.ConfirmClosed)
		if done.Status != order.Cancelled || !done.CancelledAt.Equal(noon.Add(at)) || len(done.Messages) != 1 {
			t.Fatalf("%+v", done)
		}
		expectEvent(t, done.Messages[0], done.Order, noon.Add(at+leaseTime))
		b.expectRead(done.Order)
		b.expectAttempts("ORDER-1", order.AttemptClosed, order.AttemptClosed)
		b.expectStock("a", 2, 0, 0)
		want := order.LogEntry{OrderNo: "ORDER-1", Version: 5, Round: 1, From: order.Confirming, To: order.Cancelled, Event: order.EventExpired,
			Reason: "TIMEOUT", Actor: "confirmer", At: noon.Add(at), ExpireAt: noon.Add(time.Minute)}
		if got := b.lastEntry("ORDER-1"); got != want {
			t.Errorf("log %+v", got)
		}
		if n := b.count("SELECT COUNT(*) FROM t_local_message WHERE kind = 'timeout'"); n != 0 {
			t.Error("the time-out row is still there")
		}
	},
	"an order ends for the reason that it was doubted for": func(t *testing.T, b bed) {
		ctx := context.Background()
		staff := order.Cancelling{Reason: order.ReasonManual, Confirm: patience, Act: order.Act{Actor: "amy", Note: "asked by phone"}}
		for i, c := range []struct {
			reason order.Reason
			event  order.Event
			doubt  func(no string) error
		}{
			{order.ReasonTimeout, order.EventExpired, func(no string) error { b.expire(time.Minute, no); return nil }},
			{order.ReasonCompensate, order.EventExpired, func(no string) error {
				_, err := b.at(time.Minute).CloseDue(ctx, order.Closing{OrderNos: []string{no}, Reason: order.ReasonCompensate, Confirm: patience}, leased)
				return err
			}},
			{order.ReasonUserCancel, order.EventCancelled, func(no string) error {
				w := wish(no, "u1")
				w.Confirm = patience
				_, _, err := b.at(time.Second).Cancel(ctx, w, leased)
				return err
			}},
			{order.ReasonManual, order.EventCancelled, func(no string) error {
				staff.OrderNo = no
				_, _, err := b.at(time.Second).Cancel(ctx, staff, leased)
				return err
			}},
		} {
			no, bill := fmt.Sprintf("ORDER-%d", i), fmt.Sprintf("BILL-000%d", i)
			b.create(draft(no))
			b.attempt(0, no, bill, 30*time.Minute)
			if err := c.doubt(no); err != nil || b.status(no) != order.Confirming {
				t.Fatal(c.reason, b.status(no), err)
			}
			v := b.claimOne(time.Minute)
			v.Closed = []string{bill}
			done := b.confirm(time.Minute, v, order.ConfirmCancel, order.ConfirmClosed)
			if e := b.lastEntry(no); done.CancelReason != c.reason || e.Event != c.event || e.Reason != string(c.reason) {
				t.Errorf("%s: %+v, %+v", c.reason, done.Order, e)
			}
		}
	},
	"an order in doubt is asked about again, and no later than something ends by itself": func(t *testing.T, b bed) {
		b.stock("a", 3)
		b.inDoubt("ORDER-1", "BILL-0001")
		v := b.claimOne(time.Minute)
		v.Failed = "BILL-0001: the gateway answered HTML"
		b.confirm(time.Minute+time.Second, v, order.ConfirmHold, order.ConfirmUnknown)
		at := time.Minute + time.Second + askWait
		if m := b.timeoutRow("ORDER-1"); !m.NextAt.Equal(noon.Add(at)) || m.Attempts != 1 || m.LastError != v.Failed || m.State != order.ToAsk {
			t.Errorf("%+v", m)
		}
		doubtful, now, wake, err := b.at(at-time.Millisecond).ClaimDoubtful(context.Background(), 100, leaseTime)
		if err != nil || len(doubtful) != 0 || !now.Equal(noon.Add(at-time.Millisecond)) || !wake.Equal(noon.Add(at)) {
			t.Error(doubtful, now, wake, err)
		}
		if v := b.claimOne(at); v.Message.Attempts != 1 || !v.Message.NextAt.Equal(noon.Add(at+leaseTime)) {
			t.Errorf("%+v", v.Message)
		}
	},
	"an order in doubt is asked about as soon as its attempts or its time are over": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		b.create(draft("ORDER-2"))
		b.attempt(0, "ORDER-2", "BILL-0002", time.Minute+3*time.Second)
		b.expire(time.Minute, "ORDER-2")
		end := time.Minute + patience
		for _, c := range []struct{ asked, next time.Duration }{
			{time.Minute, time.Minute + 3*time.Second}, // the attempt of ORDER-2 is over
			{end - time.Second, end},                   // the confirm deadline of ORDER-1
		} {
			for _, d := range b.claim(c.asked) {
				v := order.Verdict{InDoubt: d}
				if len(v.Attempts) > 0 {
					v.Failed = "no answer"
				}
				if _, err := b.at(c.asked).Confirm(context.Background(), v, order.ConfirmHold, askWait, order.Rules{}, leased); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, wake, err := b.at(c.asked).ClaimDoubtful(context.Background(), 1, leaseTime); err != nil || !wake.Equal(noon.Add(c.next)) {
				t.Errorf("asked at %v, it is asked again at %v, not after %v", c.asked, wake, c.next)
			}
		}
	},
	"an attempt that is over by its own deadline lets the order go": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.attempt(0, "ORDER-1", "BILL-0001", 5*time.Minute)
		b.expire(time.Minute, "ORDER-1")
		v := b.claimOne(5 * time.Minute)
		if len(v.Attempts) != 0 {
			t.Errorf("%+v", v.Attempts)
		}
		b.confirm(5*time.Minute, v, order.ConfirmHold, order.ConfirmClosed)
		b.expectStock("a", 1, 0, 0)
	},
	"nobody is asked about attempts of an earlier round": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		end := time.Minute + patience
		v := b.claimOne(end)
		v.Failed = "no answer"
		b.confirm(end, v, order.ConfirmCancel, order.ConfirmExpired)
		again := order.Restoring{OrderNo: "ORDER-1", Timeout: time.Minute, Act: order.Act{Actor: "amy", Note: "wants it after all"}}
		if _, err := b.at(end).Restore(context.Background(), again, leased); err != nil {
			t.Fatal(err)
		}
		b.attempt(end, "ORDER-1", "BILL-0002", 10*time.Minute)
		b.expire(end+time.Minute, "ORDER-1")
		v = b.claimOne(end + time.Minute)
		if len(v.Attempts) != 1 || v.Attempts[0].AttemptNo != "BILL-0002" || v.Round != 2 {
			t.Fatalf("round %d, %+v", v.Round, v.Attempts)
		}
		v.Closed = []string{"BILL-0002"}
		b.confirm(end+time.Minute, v, order.ConfirmCancel, order.ConfirmClosed)
		b.expectAttempts("ORDER-1", order.AttemptOpen, order.AttemptClosed)
		b.expectStock("a", 1, 0, 0)
	},
	"at its confirm deadline an undecided order is cancelled, if so configured": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		end := time.Minute + patience
		v := b.claimOne(end - time.Millisecond)
		v.Failed = "no answer"
		b.confirm(end-time.Millisecond, v, order.ConfirmCancel, order.ConfirmUnknown)
		v = b.claimOne(end)
		v.Failed = "no answer"
		done := b.confirm(end, v, order.ConfirmCancel, order.ConfirmExpired)
		if done.Status != order.Cancelled || done.CancelReason != order.ReasonTimeout || !done.PayingUntil.IsZero() || len(done.Messages) != 1 {
			t.Errorf("%+v", done)
		}
		b.expectRead(done.Order)
		b.expectStock("a", 1, 0, 0)
		b.expectAttempts("ORDER-1", order.AttemptOpen) // nobody knows what becomes of it
		got, err := b.at(end).Pay(context.Background(), captured("P1", v.Attempts[0]), order.Rules{}, leased)
		if err != nil || got.Outcome != order.PaymentLate {
			t.Error(got, err)
		}
	},
	"at its confirm deadline an undecided order is left to a person, if so configured": func(t *testing.T, b bed) {
		ctx, end := context.Background(), time.Minute+patience
		b.stock("a", 2)
		for _, c := range []struct {
			no     string
			decide func(no string) error
			want   order.Status
		}{
			{"ORDER-paid", func(no string) error {
				_, err := b.at(end+time.Minute).Pay(ctx, payment("P1", no), order.Rules{}, leased)
				return err
			}, order.Paid},
			{"ORDER-cancelled", func(no string) error {
				_, _, err := b.at(end+time.Minute).Cancel(ctx, order.Cancelling{OrderNo: no, Reason: order.ReasonManual, Confirm: patience, Force: true,
					Act: order.Act{Actor: "amy", Note: "the bank says no"}}, leased)
				return err
			}, order.Cancelled},
		} {
			b.inDoubt(c.no, "BILL-"+c.no)
			v := b.claimOne(end)
			v.Failed = "no answer"
			done := b.confirm(end, v, order.ConfirmHold, order.ConfirmHeld)
			if done.Status != order.Confirming || len(done.Messages) != 0 {
				t.Errorf("%+v", done)
			}
			if m := b.timeoutRow(c.no); m.State != order.SetAside || !strings.Contains(m.LastError, "no answer") {
				t.Errorf("%+v", m)
			}
			if n := b.count("SELECT COUNT(*) FROM t_quarantine WHERE source = 'confirm' AND order_no = '" + c.no + "'"); n != 1 {
				t.Errorf("%d times in the quarantine", n)
			}
			if left := b.claim(end + 24*time.Hour); len(left) != 0 {
				t.Errorf("it is asked about again: %+v", left)
			}
			if err := c.decide(c.no); err != nil || b.status(c.no) != c.want {
				t.Errorf("%s is %v, %v", c.no, b.status(c.no), err)
			}
		}
		b.expectStock("a", 1, 0, 1)
	},
	"brakes that are set between question and verdict keep the order": func(t *testing.T, b bed) {
		for name, c := range map[string]struct {
			brakes string
			shadow int
		}{
			"off":            {`{"mode":"off","percent":100}`, 0},
			"tripped":        {`{"mode":"enforce","percent":100,"tripped":"no payments"}`, 0},
			"shadow":         {`{"mode":"shadow","percent":100}`, 1},
			"not rolled out": {`{"mode":"enforce","percent":100,"by_type":{"retail":0}}`, 1},
		} {
			t.Run(name, func(t *testing.T) {
				b := bed{Bed: b.Bed, t: t}
				no := "ORDER-" + strings.ReplaceAll(name, " ", "-")
				b.stock("for-"+no, 1)
				b.create(draft(no, "for-"+no))
				b.attempt(0, no, "BILL-"+no, 30*time.Minute)
				b.expire(time.Minute, no)
				v := b.claimOne(time.Minute)
				v.Closed = []string{v.Attempts[0].AttemptNo}
				b.brake(c.brakes)
				done := b.confirm(time.Minute, v, order.ConfirmCancel, order.ConfirmBraked)
				if done.Status != order.Confirming || len(done.Messages) != 0 {
					t.Errorf("%+v", done)
				}
				b.expectStock("for-"+no, 0, 1, 0)
				v = b.claimOne(time.Minute + askWait)
				b.confirm(time.Minute+askWait, v, order.ConfirmCancel, order.ConfirmBraked)
				if n := b.count("SELECT COUNT(*) FROM t_shadow WHERE order_no = '" + no + "' AND reason = 'TIMEOUT'"); n != c.shadow {
					t.Errorf("%d notes of what would have been cancelled", n)
				}
				b.brake(`{"mode":"enforce","percent":100}`)
				v = b.claimOne(time.Minute + 2*askWait)
				b.confirm(time.Minute+2*askWait, v, order.ConfirmCancel, order.ConfirmClosed)
				b.expectStock("for-"+no, 1, 0, 0)
			})
		}
	},
	"brakes neither keep money from paying nor a user from leaving": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.inDoubt("ORDER-1", "BILL-0001")
		b.create(draft("ORDER-2"))
		b.attempt(0, "ORDER-2", "BILL-0002", time.Hour)
		w := wish("ORDER-2", "u1")
		w.Confirm = patience
		if _, _, err := b.at(time.Minute).Cancel(context.Background(), w, leased); err != nil {
			t.Fatal(err)
		}
		b.brake(`{"mode":"off","percent":100}`)
		for _, d := range b.claim(time.Minute) {
			v, want := order.Verdict{InDoubt: d}, order.ConfirmClosed
			if d.OrderNo == "ORDER-1" {
				v.Captured, want = []order.Payment{captured("P1", d.Attempts[0])}, order.ConfirmPaid
			} else {
				v.Closed = []string{"BILL-0002"}
			}
			b.confirm(time.Minute, v, order.ConfirmCancel, want)
		}
	},
	"a worker whose lease has run out changes nothing, but money counts": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.inDoubt("ORDER-1", "BILL-0001")
		late := b.claimOne(time.Minute)
		late.Closed = []string{"BILL-0001"}
		before := b.dump(everything...)
		b.confirm(time.Minute+leaseTime, late, order.ConfirmCancel, order.ConfirmGone)
		if after := b.dump(everything...); after != before {
			t.Errorf("after its lease it changed\n%s\nto\n%s", before, after)
		}
		heir := b.claimOne(time.Minute + leaseTime)
		before = b.dump(everything...)
		b.confirm(time.Minute+leaseTime, late, order.ConfirmCancel, order.ConfirmGone)
		if after := b.dump(everything...); after != before {
			t.Errorf("while another has the lease it changed\n%s\nto\n%s", before, after)
		}
		heir.Failed = "no answer"
		b.confirm(time.Minute+leaseTime, heir, order.ConfirmCancel, order.ConfirmUnknown)
		late.Closed, late.Captured = nil, []order.Payment{captured("P1", late.Attempts[0])}
		b.confirm(time.Minute+leaseTime, late, order.ConfirmCancel, order.ConfirmPaid)
	},
	"after a notification has paid the order the verdict changes nothing": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		v := b.claimOne(time.Minute)
		if _, err := b.at(time.Minute).Pay(context.Background(), captured("P1", v.Attempts[0]), order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		before := b.dump(everything...)
		v.Closed = []string{"BILL-0001"}
		b.confirm(time.Minute, v, order.ConfirmCancel, order.ConfirmGone)
		v.Closed, v.Captured = nil, []order.Payment{captured("P1", v.Attempts[0])}
		b.confirm(time.Minute, v, order.ConfirmCancel, order.ConfirmGone)
		if after := b.dump(everything...); after != before {
			t.Errorf("changed\n%s\nto\n%s", before, after)
		}
	},
	"a verdict with money that is refused writes nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 2)
		b.create(draft("ORDER-0"))
		if _, err := b.at(0).Pay(ctx, payment("P0", "ORDER-0"), order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		b.inDoubt("ORDER-1", "BILL-0001", "BILL-0002")
		v := b.claimOne(time.Minute)
		v.Closed = []string{"BILL-0002"}
		before := b.dump(everything...)
		wrong, taken := captured("P1", v.Attempts[0]), captured("P0", v.Attempts[0])
		wrong.Amount++
		v.Captured = []order.Payment{wrong}
		_, err := b.at(time.Minute).Confirm(ctx, v, order.ConfirmCancel, askWait, order.Rules{}, leased)
		expectField(t, err, "amount")
		v.Captured = []order.Payment{taken}
		_, err = b.at(time.Minute).Confirm(ctx, v, order.ConfirmCancel, askWait, order.Rules{}, leased)
		expectError(t, err, order.Conflict, "payment_no_taken")
		v.OrderNo = "ORDER-nosuch"
		_, err = b.at(time.Minute).Confirm(ctx, v, order.ConfirmCancel, askWait, order.Rules{}, leased)
		expectError(t, err, order.NotFound, "order_not_found")
		if after := b.dump(everything...); after != before {
			t.Errorf("changed\n%s\nto\n%s", before, after)
		}
	},
	"a claim takes no more than its limit, and says when the rest is due": func(t *testing.T, b bed) {
		b.stock("a", 3)
		for i := range 3 {
			b.inDoubt(fmt.Sprintf("ORDER-%d", i), fmt.Sprintf("BILL-000%d", i))
		}
		s := b.at(time.Minute)
		first, _, _, err := s.ClaimDoubtful(context.Background(), 2, leaseTime)
		if err != nil || len(first) != 2 {
			t.Fatal(first, err)
		}
		rest, _, wake, err := s.ClaimDoubtful(context.Background(), 2, leaseTime)
		if err != nil || len(rest) != 1 || !wake.Equal(noon.Add(time.Minute+leaseTime)) {
			t.Error(rest, wake, err)
		}
		if none, _, _, err := s.ClaimDoubtful(context.Background(), 2, leaseTime); err != nil || len(none) != 0 {
			t.Error(none, err)
		}
	},
	"the relay sends no time-out that somebody is to be asked about": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		rows, _, _, err := claimAll(context.Background(), b.at(time.Hour), 100, leaseTime)
		if err != nil || len(rows) != 0 {
			t.Error(rows, err)
		}
		early, err := b.at(time.Hour).Postpone(context.Background(), []order.Early{{OrderNo: "ORDER-1", Hop: 1}}, leased)
		if err != nil || len(early) != 0 {
			t.Errorf("a forged message has taken it: %+v, %v", early, err)
		}
	},
	"a verdict racing a notification, a cancellation and itself has one winner": func(t *testing.T, b bed) {
		ctx := context.Background()
		first, second := b.at(time.Minute), b.at(time.Minute)
		b.stock("a", 100)
		paid := 0
		for i := range 20 {
			no, bill := fmt.Sprintf("ORDER-%d", i), fmt.Sprintf("BILL-%04d", i)
			b.inDoubt(no, bill)
			v := b.claimOne(time.Minute)
			v.Closed = []string{bill}
			var won atomic.Int32
			var outcome order.PaymentOutcome
			confirm := func(s *store.Store) func() {
				return func() {
					done, err := s.Confirm(ctx, v, order.ConfirmCancel, askWait, order.Rules{}, leased)
					if err != nil {
						t.Error(err)
					}
					if done.Result == order.ConfirmClosed {
						won.Add(1)
					}
				}
			}
			together(confirm(first), confirm(second), func() {
				got, err := second.Pay(ctx, payment("P-"+no, no), order.Rules{}, leased)
				if err != nil {
					t.Error(err)
				}
				if outcome = got.Outcome; outcome == order.PaymentAccepted {
					won.Add(1)
				}
			}, func() {
				w := wish(no, "u1")
				w.Confirm = patience
				if _, m, err := first.Cancel(ctx, w, leased); err == nil && m != nil {
					won.Add(1) // its bill was closed by the verdict, whose lease then was of no use
				} else if err != nil && order.KindOf(err) != order.Conflict {
					t.Error(err)
				}
			})
			if won.Load() != 1 {
				t.Errorf("%s had %d winners", no, won.Load())
			}
			if b.status(no) == order.Paid {
				paid++
			} else if outcome != order.PaymentLate {
				t.Errorf("%s is %v, and its payment was told %q", no, b.status(no), outcome)
			}
		}
		b.expectStock("a", int64(100-paid), 0, int64(paid))
	},
	"two confirmers claim each order once": func(t *testing.T, b bed) {
		b.stock("a", 60)
		for i := range 60 {
			b.inDoubt(fmt.Sprintf("ORDER-%d", i), fmt.Sprintf("BILL-%04d", i))
		}
		stores := []*store.Store{b.at(time.Minute), b.at(time.Minute)}
		var claimed atomic.Int32
		var work []func()
		for i := range 4 {
			work = append(work, func() {
				for range 10 {
					doubtful, _, _, err := stores[i%2].ClaimDoubtful(context.Background(), 7, leaseTime)
					if err != nil {
						t.Error(err)
					}
					claimed.Add(int32(len(doubtful)))
					for _, d := range doubtful {
						if len(d.Attempts) != 1 || d.Attempts[0].OrderNo != d.OrderNo || d.Message.OrderNo != d.OrderNo {
							t.Errorf("%s came with %+v and %+v", d.OrderNo, d.Attempts, d.Message)
						}
					}
				}
			})
		}
		together(work...)
		if claimed.Load() != 60 {
			t.Errorf("%d claims of 60 orders", claimed.Load())
		}
	},
}
