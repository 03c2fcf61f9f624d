package lifecycle_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

var byAlice = order.Act{Actor: "alice", Note: "the customer called"}

func paymentOf(no, orderNo string) order.Payment {
	return order.Payment{PaymentNo: no, OrderNo: orderNo, Amount: 100, Currency: "CNY", PaidAt: time.Now()}
}

// cases is how many late-payment cases a policy has brought to a status.
func (w *world) cases(policy order.LatePolicy, status order.LateStatus) float64 {
	return testutil.ToFloat64(w.metrics.LatePayments.WithLabelValues(string(policy), string(status)))
}

// told waits until the broker has taken exactly these events about an order, in any sequence.
func (w *world) told(t *testing.T, orderNo string, want ...string) {
	t.Helper()
	eventually(t, "all is told of "+orderNo, func() bool { return len(w.types(orderNo)) >= len(want) })
	got := w.types(orderNo)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("told %v of %s, want %v", got, orderNo, want)
	}
}

func TestLateMoneyIsTreatedByThePolicyOfItsBusinessTypeAndTold(t *testing.T) {
	for _, c := range []struct {
		policy  order.LatePolicy
		outcome order.PaymentOutcome
		end     order.Status
		status  order.LateStatus
		told    []string
	}{
		{order.LateManual, order.PaymentLate, order.Cancelled, order.LateOpen, []string{order.TypeCancelled}},
		{order.LateRefund, order.PaymentLate, order.Cancelled, order.LateAsked, []string{order.TypeCancelled, order.TypeRefundRequested}},
		{order.LateReopen, order.PaymentAccepted, order.Paid, order.LateConsumed, []string{order.TypeCancelled, order.TypeRestored}},
	} {
		t.Run(string(c.policy), func(t *testing.T) {
			w := newWorld(t, lifecycle.RelayOptions{})
			w.terms.Rules.ByType = map[string]order.Rule{"retail": {Late: c.policy}}
			w.create(t, no1, time.Second)
			w.waitClosed(t, no1, order.ReasonTimeout)
			p := paymentOf("pay-1", no1)
			for i := range 3 {
				got, err := w.orders.Pay(t.Context(), p)
				if err != nil || got.Outcome != c.outcome || got.Repeated != (i > 0) || got.Order.Status != c.end {
					t.Errorf("report %d: %+v, %v", i, got, err)
				}
			}
			w.told(t, no1, c.told...)
			if n := w.cases(c.policy, c.status); n != 1 {
				t.Errorf("%v cases are counted", n)
			}
			w.holds(t)
		})
	}
}

func TestACaseIsDecidedAndItsRefundReported(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	for _, no := range []string{no1, no2} {
		w.create(t, no, time.Second)
		w.waitClosed(t, no, order.ReasonTimeout)
		if _, err := w.orders.Pay(t.Context(), paymentOf("pay-"+no, no)); err != nil {
			t.Fatal(err)
		}
	}
	l, err := w.orders.Decide(t.Context(), order.Deciding{PaymentNo: "pay-" + no1, Policy: order.LateReopen, Act: byAlice})
	if err != nil || l.Status != order.LateConsumed || w.get(t, no1).Status != order.Paid {
		t.Errorf("%+v, %v", l, err)
	}
	l, err = w.orders.Decide(t.Context(), order.Deciding{PaymentNo: "pay-" + no2, Policy: order.LateRefund, Act: byAlice})
	if err != nil || l.Status != order.LateAsked {
		t.Errorf("%+v, %v", l, err)
	}
	w.told(t, no1, order.TypeCancelled, order.TypeRestored)
	w.told(t, no2, order.TypeCancelled, order.TypeRefundRequested)
	for no, want := range map[string]order.Status{no1: order.Closed, no2: order.Cancelled} {
		for range 2 {
			o, err := w.orders.Refund(t.Context(), order.Refunding{PaymentNo: "pay-" + no, RefundNo: "refund-" + no, Act: byAlice})
			if err != nil || o.Status != want {
				t.Errorf("%s: %+v, %v", no, o, err)
			}
		}
	}
	if open, asked, consumed := w.cases(order.LateManual, order.LateOpen), w.cases(order.LateRefund, order.LateAsked), w.cases(order.LateReopen, order.LateConsumed); open != 2 || asked != 1 || consumed != 1 {
		t.Errorf("counted %v open, %v requested, %v consumed", open, asked, consumed)
	}
	if _, err := w.orders.Decide(t.Context(), order.Deciding{PaymentNo: "pay-" + no1, Policy: order.LateRefund, Act: byAlice}); order.KindOf(err) != order.Conflict {
		t.Errorf("a decided case was decided again: %v", err)
	}
	w.holds(t)
}

func TestARestoredOrderLapsesAgainAtItsNewDeadline(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.copies = 2 })
	w.create(t, no1, time.Second)
	w.waitClosed(t, no1, order.ReasonTimeout)
	r := order.Restoring{OrderNo: no1, Round: 1, Timeout: time.Second, Act: byAlice}
	o, err := w.orders.Restore(t.Context(), r)
	if err != nil || o.Status != order.Pending || o.Round != 2 {
		t.Fatal(o, err)
	}
	w.told(t, no1, order.TypeCancelled, order.TypeRestored, order.TypeCancelled)
	if again := w.waitClosed(t, no1, order.ReasonTimeout); again.Round != 2 || !again.ExpireAt.Equal(o.ExpireAt) {
		t.Errorf("%+v", again)
	}
	if same, err := w.orders.Restore(t.Context(), r); err != nil || same.Round != 2 || same.Status != order.Cancelled {
		t.Errorf("the same wish again: %+v, %v", same, err)
	}
	if r, err := w.store.Resource(t.Context(), "stock", "sku"); err != nil || r.Available != 1000 || r.Held != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	w.holds(t)
}

func TestACaseThatPaysForARestoreIsCounted(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.create(t, no1, time.Hour)
	if _, err := w.orders.Cancel(t.Context(), order.Cancelling{OrderNo: no1, UserID: "u1", Reason: order.ReasonUserCancel}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.orders.Pay(t.Context(), paymentOf("pay-1", no1)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if o, err := w.orders.Restore(t.Context(), order.Restoring{OrderNo: no1, Round: 1, Act: byAlice}); err != nil || o.Status != order.Paid {
			t.Errorf("%+v, %v", o, err)
		}
	}
	if open, consumed := w.cases(order.LateManual, order.LateOpen), w.cases(order.LateManual, order.LateConsumed); open != 1 || consumed != 1 {
		t.Errorf("counted %v open, %v consumed", open, consumed)
	}
	w.holds(t)
}

func TestAPaymentNumberIsOnePaymentAndAnythingElseUnderItIsRefusedAndKept(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.create(t, no1, time.Hour)
	w.create(t, no2, time.Hour)
	good := paymentOf("pay-1", no1)
	if _, err := w.orders.Pay(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*order.Payment){
		"amount":   func(p *order.Payment) { p.Amount-- },
		"currency": func(p *order.Payment) { p.Currency = "EUR" },
		"order":    func(p *order.Payment) { p.OrderNo = no2 },
	} {
		p := good
		change(&p)
		if _, err := w.orders.Pay(t.Context(), p); order.KindOf(err) != order.Invalid && order.KindOf(err) != order.Conflict {
			t.Errorf("the same number with another %s: %v", name, err)
		}
	}
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("payment")); n != 3 {
		t.Errorf("%v were kept", n)
	}
	if o := w.get(t, no2); o.Status != order.Pending {
		t.Errorf("the other order is %v", o.Status)
	}
	if got, err := w.orders.Pay(t.Context(), good); err != nil || !got.Repeated || got.Outcome != order.PaymentAccepted {
		t.Errorf("%+v, %v", got, err)
	}
	w.holds(t)
}

func TestWhatStaffAsksForIsCheckedBeforeAnythingIsTouched(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	ctx := t.Context()
	silent := order.Act{Actor: "alice"}
	for name, call := range map[string]func(context.Context) error{
		"a restore without a reason": func(ctx context.Context) error {
			_, err := w.orders.Restore(ctx, order.Restoring{OrderNo: no1, Act: silent})
			return err
		},
		"a restore for a year": func(ctx context.Context) error {
			_, err := w.orders.Restore(ctx, order.Restoring{OrderNo: no1, Timeout: 365 * 24 * time.Hour, Act: byAlice})
			return err
		},
		"a decision without a reason": func(ctx context.Context) error {
			_, err := w.orders.Decide(ctx, order.Deciding{PaymentNo: "pay-1", Policy: order.LateRefund, Act: silent})
			return err
		},
		"a decision to decide later": func(ctx context.Context) error {
			_, err := w.orders.Decide(ctx, order.Deciding{PaymentNo: "pay-1", Policy: order.LateManual, Act: byAlice})
			return err
		},
		"a refund without its number": func(ctx context.Context) error {
			_, err := w.orders.Refund(ctx, order.Refunding{PaymentNo: "pay-1", Act: byAlice})
			return err
		},
	} {
		var refusal *order.Error
		if err := call(ctx); !errors.As(err, &refusal) || refusal.Kind != order.Invalid || len(refusal.Fields) != 1 {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := w.orders.Restore(ctx, order.Restoring{OrderNo: no1, Act: byAlice})
	if order.KindOf(err) != order.NotFound {
		t.Errorf("an unknown order: %v", err)
	}
}
