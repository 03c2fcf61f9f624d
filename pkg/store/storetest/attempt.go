package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// starting is the start of a payment of an order.
func starting(orderNo, attemptNo string, lifetime time.Duration) order.Attempting {
	return order.Attempting{AttemptNo: attemptNo, OrderNo: orderNo, Channel: "card", Lifetime: lifetime, Actor: "shop"}
}

// expectPaying wants an order to wait for its attempts until a time; 0 for not at all.
func (b bed) expectPaying(no string, until time.Duration) {
	b.t.Helper()
	o, _, err := b.at(0).Get(context.Background(), no)
	if err != nil {
		b.t.Fatal(err)
	}
	if want := noon.Add(until); until != 0 && !o.PayingUntil.Equal(want) || until == 0 && !o.PayingUntil.IsZero() {
		b.t.Errorf("%s waits for its attempts until %v, want %v after noon", no, o.PayingUntil, until)
	}
}

var attemptTests = map[string]func(t *testing.T, b bed){
	"an attempt has its own deadline, and its order keeps the one it has": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		a, o, err := b.at(time.Second).StartPayment(context.Background(), starting("ORDER-1", "BILL-0001", 10*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		want := order.Attempt{AttemptNo: "BILL-0001", OrderNo: "ORDER-1", Round: 1, Channel: "card", Amount: 1999, Currency: "CNY",
			State: order.AttemptOpen, StartedAt: noon.Add(time.Second), Deadline: noon.Add(10*time.Minute + time.Second)}
		if a != want {
			t.Errorf("%+v", a)
		}
		if !o.ExpireAt.Equal(noon.Add(time.Minute)) || !o.PayingUntil.Equal(a.Deadline) || o.Version != 2 || o.Status != order.Pending {
			t.Errorf("%+v", o)
		}
		b.expectRead(o)
		if found, err := b.at(0).Attempts(context.Background(), "ORDER-1"); err != nil || !reflect.DeepEqual(found, []order.Attempt{want}) {
			t.Errorf("%+v, %v", found, err)
		}
		entry := order.LogEntry{OrderNo: "ORDER-1", Version: 2, Round: 1, Event: order.EventPaymentStarted, Actor: "shop", At: noon.Add(time.Second), ExpireAt: o.ExpireAt}
		if got := b.lastEntry("ORDER-1"); got != entry {
			t.Errorf("log %+v", got)
		}
		if m := b.timeoutRow("ORDER-1"); m.Hop != 0 || !m.DueAt.Equal(o.ExpireAt) {
			t.Errorf("the time-out follows the attempt: %+v", m)
		}
	},
	"the same attempt number again is the same attempt, and nobody else's": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		first := b.attempt(0, "ORDER-1", "BILL-0001", 10*time.Minute)
		before := b.everything()
		again, o, err := b.at(30*time.Second).StartPayment(ctx, starting("ORDER-1", "BILL-0001", time.Hour))
		first.Repeated = true
		if err != nil || again != first || o.Version != 2 {
			t.Errorf("%+v, %+v, %v", again, o, err)
		}
		other := starting("ORDER-1", "BILL-0001", time.Hour)
		other.Channel = "wallet"
		for _, a := range []order.Attempting{other, starting("ORDER-2", "BILL-0001", time.Hour)} {
			_, _, err := b.at(0).StartPayment(ctx, a)
			b.expectRefused(before, err, order.Conflict, "attempt_no_taken")
		}
	},
	"a payment starts while its order is payable, to the millisecond": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"), draft("ORDER-paid"), draft("ORDER-gone"))
		b.pay(0, "P1", "ORDER-paid", order.Rules{})
		b.closeAt(time.Minute, "ORDER-gone")
		b.attempt(time.Minute-time.Millisecond, "ORDER-1", "BILL-0001", time.Second)
		before := b.everything()
		for _, c := range []struct {
			no, user string
			at       time.Duration
			kind     order.Kind
			code     string
		}{
			{"ORDER-1", "", time.Minute, order.Conflict, "not_payable"},
			{"ORDER-1", "u2", 0, order.NotFound, "order_not_found"},
			{"ORDER-nosuch", "", 0, order.NotFound, "order_not_found"},
			{"ORDER-paid", "", 0, order.Conflict, "state_conflict"},
			{"ORDER-gone", "", 0, order.Conflict, "state_conflict"},
		} {
			a := starting(c.no, "BILL-0002", time.Hour)
			a.UserID = c.user
			_, _, err := b.at(c.at).StartPayment(ctx, a)
			b.expectRefused(before, err, c.kind, c.code)
		}
	},
	"an order whose attempts have all failed is cancelled on time": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		for _, no := range []string{"BILL-0001", "BILL-0002"} {
			b.attempt(0, "ORDER-1", no, time.Hour)
		}
		for _, no := range []string{"BILL-0001", "BILL-0002"} {
			if _, err := b.at(time.Second).FailPayment(context.Background(), "ORDER-1", no); err != nil {
				t.Fatal(err)
			}
		}
		b.expectPaying("ORDER-1", 0)
		if batch := b.expire(time.Minute-time.Millisecond, "ORDER-1"); len(batch.Closed) != 0 {
			t.Error("a millisecond early")
		}
		if batch := b.expire(time.Minute, "ORDER-1"); len(batch.Closed) != 1 || batch.Doubtful != 0 {
			t.Errorf("%+v", batch)
		}
		b.expectStock("a", 1, 0, 0)
	},
	"an order waits for the last of its open attempts, whichever ends first": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.attempt(0, "ORDER-1", "BILL-short", 30*time.Second)
		b.attempt(0, "ORDER-1", "BILL-long", 20*time.Minute)
		b.attempt(0, "ORDER-1", "BILL-middle", 5*time.Minute)
		b.expectPaying("ORDER-1", 20*time.Minute)
		if _, err := b.at(time.Second).FailPayment(ctx, "ORDER-1", "BILL-long"); err != nil {
			t.Fatal(err)
		}
		b.expectPaying("ORDER-1", 5*time.Minute)
		if batch := b.expire(time.Minute, "ORDER-1"); batch.Doubtful != 1 { // the first has run out, the other has not
			t.Fatalf("%+v", batch)
		}
		v := b.claimOne(time.Minute)
		if len(v.Attempts) != 1 || v.Attempts[0].AttemptNo != "BILL-middle" {
			t.Errorf("asked about %+v", v.Attempts)
		}
	},
	"an order in doubt whose last attempt fails is decided at once": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		b.claimOne(time.Minute) // somebody asks just now, for whom it is over
		if _, err := b.at(time.Minute+time.Second).FailPayment(context.Background(), "ORDER-1", "BILL-0001"); err != nil {
			t.Fatal(err)
		}
		done := b.confirm(time.Minute+time.Second, b.claimOne(time.Minute+time.Second), order.ConfirmHold, order.ConfirmClosed)
		if done.Status != order.Cancelled || done.CancelReason != order.ReasonTimeout {
			t.Errorf("%+v", done.Order)
		}
		b.expectStock("a", 1, 0, 0)
	},
	"starting again and again postpones nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		for i := range 6 { // each as long as may be, the last a moment before the deadline
			b.attempt(time.Duration(i+1)*10*time.Second-time.Millisecond, "ORDER-1", fmt.Sprintf("BILL-%04d", i), time.Hour)
		}
		if batch := b.expire(time.Minute, "ORDER-1"); batch.Doubtful != 1 {
			t.Fatalf("%+v", batch)
		}
		_, _, err := b.at(time.Minute).StartPayment(ctx, starting("ORDER-1", "BILL-more", time.Hour))
		expectError(t, err, order.Conflict, "state_conflict")
		v := b.claimOne(time.Minute + patience)
		v.Failed = "no answer"
		b.confirm(time.Minute+patience, v, order.ConfirmCancel, order.ConfirmExpired)
		b.expectStock("a", 1, 0, 0)
	},
	"fifty who start to pay one order at once are twenty at most": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		stores := []*store.Store{b.at(0), b.at(0)}
		var started, refused atomic.Int32
		var payers []func()
		for i := range 50 {
			payers = append(payers, func() {
				_, _, err := stores[i%2].StartPayment(context.Background(), starting("ORDER-1", fmt.Sprintf("BILL-%04d", i), time.Hour))
				var e *order.Error
				switch {
				case err == nil:
					started.Add(1)
				case errors.As(err, &e) && e.Code == "too_many_attempts":
					refused.Add(1)
				default:
					t.Error(err)
				}
			})
		}
		together(payers...)
		if started.Load() != order.MaxAttempts || refused.Load() != 50-order.MaxAttempts {
			t.Errorf("%d started, %d were refused", started.Load(), refused.Load())
		}
		if n := b.count("SELECT COUNT(*) FROM t_payment_attempt"); n != order.MaxAttempts {
			t.Errorf("%d are recorded", n)
		}
		if e := b.lastEntry("ORDER-1"); e.Version != 1+order.MaxAttempts {
			t.Errorf("%+v", e)
		}
	},
	"one attempt that is started by many at once is one": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		stores := []*store.Store{b.at(0), b.at(0)}
		var first atomic.Int32
		var payers []func()
		for i := range 10 {
			payers = append(payers, func() {
				a, _, err := stores[i%2].StartPayment(context.Background(), starting("ORDER-1", "BILL-0001", time.Hour))
				if err != nil {
					t.Error(err)
				}
				if !a.Repeated {
					first.Add(1)
				}
			})
		}
		together(payers...)
		if n := b.count("SELECT COUNT(*) FROM t_payment_attempt"); n != 1 || first.Load() != 1 {
			t.Errorf("%d are recorded, %d were the first", n, first.Load())
		}
	},
	"an attempt that has ended stays as it is": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		b.attempt(0, "ORDER-1", "BILL-0001", time.Hour)
		b.attempt(0, "ORDER-2", "BILL-0002", time.Hour)
		failed, err := b.at(time.Second).FailPayment(ctx, "ORDER-1", "BILL-0001")
		if err != nil || failed.State != order.AttemptFailed || !failed.EndedAt.Equal(noon.Add(time.Second)) {
			t.Fatal(failed, err)
		}
		if got := b.story("ORDER-1"); got != "created→0 payment_started→0" {
			t.Errorf("a failed attempt is no transition of its order: %s", got)
		}
		b.pay(0, "P2", "ORDER-2", order.Rules{})
		before := b.everything()
		for orderNo, want := range map[string]order.Attempt{"ORDER-1": failed, "ORDER-2": {AttemptNo: "BILL-0002", State: order.AttemptPaid}} {
			a, err := b.at(time.Minute).FailPayment(ctx, orderNo, map[string]string{"ORDER-1": "BILL-0001", "ORDER-2": "BILL-0002"}[orderNo])
			if err != nil || a.State != want.State || b.everything() != before {
				t.Errorf("%+v, %v", a, err)
			}
		}
		for orderNo, code := range map[string]string{"ORDER-1": "attempt_not_found", "ORDER-nosuch": "order_not_found"} {
			_, err := b.at(0).FailPayment(ctx, orderNo, "BILL-0002") // another order's
			b.expectRefused(before, err, order.NotFound, code)
		}
	},
}
