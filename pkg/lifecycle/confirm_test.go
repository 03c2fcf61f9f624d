package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// bank is a payment gateway that answers as a test says.
type bank struct {
	mu     sync.Mutex
	answer func(ctx context.Context, a order.Attempt, question string) (order.Bill, error)
	asked  map[string][]string // questions by attempt
	open   map[string]int      // questions without an answer, by channel
	most   map[string]int      // the most of them at a time
}

func (b *bank) ask(ctx context.Context, a order.Attempt, question string) (order.Bill, error) {
	b.mu.Lock()
	if b.asked == nil {
		b.asked, b.open, b.most = map[string][]string{}, map[string]int{}, map[string]int{}
	}
	b.asked[a.AttemptNo] = append(b.asked[a.AttemptNo], question)
	b.open[a.Channel]++
	b.most[a.Channel] = max(b.most[a.Channel], b.open[a.Channel])
	answer := b.answer
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.open[a.Channel]--
	}()
	return answer(ctx, a, question)
}

func (b *bank) Query(ctx context.Context, a order.Attempt) (order.Bill, error) {
	return b.ask(ctx, a, "query")
}

func (b *bank) Close(ctx context.Context, a order.Attempt) (order.Bill, error) {
	return b.ask(ctx, a, "close")
}

// questions are those that an attempt was asked about.
func (b *bank) questions(attemptNo string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked[attemptNo])
}

// becomes changes how the bank answers.
func (b *bank) becomes(answer func(context.Context, order.Attempt, string) (order.Bill, error)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = answer
}

func paidBill(a order.Attempt) order.Bill {
	return order.Bill{State: order.BillPaid, Payment: order.Payment{
		PaymentNo: "pay-" + a.AttemptNo, Amount: a.Amount, Currency: a.Currency, PaidAt: a.StartedAt,
	}}
}

// closes is a bank whose bills are all unpaid, and closed when it is asked to.
func closes(_ context.Context, _ order.Attempt, question string) (order.Bill, error) {
	if question == "close" {
		return order.Bill{State: order.BillClosed}, nil
	}
	return order.Bill{State: order.BillUnpaid}, nil
}

// hangs until it is given up.
func hangs(ctx context.Context, _ order.Attempt, _ string) (order.Bill, error) {
	<-ctx.Done()
	return order.Bill{}, order.Errorf(order.Unavailable, "gateway_unknown", "no answer").Wrap(ctx.Err())
}

// startConfirmer starts a confirmer; stop ends it and waits.
func (w *world) startConfirmer(t *testing.T, db lifecycle.ConfirmStore, b *bank, opts lifecycle.ConfirmOptions) (stop func()) {
	c := lifecycle.NewConfirmer(db, b, w.relay, func() lifecycle.ConfirmOptions { return opts }, w.metrics, zap.NewNop())
	return start(t, c.Run)
}

// paying starts a payment of an order.
func (w *world) paying(t *testing.T, orderNo, attemptNo, channel string) {
	t.Helper()
	a := order.Attempting{AttemptNo: attemptNo, OrderNo: orderNo, Channel: channel, Lifetime: time.Hour}
	if _, _, err := w.store.StartPayment(t.Context(), a); err != nil {
		t.Fatal(err)
	}
}

// doubt makes a confirming order: its user wants to leave while payments are in flight.
func (w *world) doubt(t *testing.T, orderNo, channel string, confirm time.Duration, attempts ...string) {
	t.Helper()
	w.create(t, orderNo, time.Hour)
	for _, a := range attempts {
		w.paying(t, orderNo, a, channel)
	}
	c := order.Cancelling{OrderNo: orderNo, UserID: "u1", Reason: order.ReasonUserCancel, Confirm: confirm}
	if o, _, err := w.store.Cancel(t.Context(), c, w.relay.Schedule); err != nil || o.Status != order.Confirming {
		t.Fatal(o, err)
	}
}

// becomes waits until an order has a status.
func (w *world) becomes(t *testing.T, orderNo string, want order.Status) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s is %v", orderNo, want), func() bool { return w.get(t, orderNo).Status == want })
}

func (w *world) confirms(result order.ConfirmResult) float64 {
	return testutil.ToFloat64(w.metrics.Confirms.WithLabelValues(string(result)))
}

func TestAPaymentInFlightAtTheDeadlineIsAskedAboutAndPaysItsOrderOrLetsItGo(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	b := &bank{answer: func(ctx context.Context, a order.Attempt, question string) (order.Bill, error) {
		switch a.AttemptNo {
		case "BILL-PAID":
			return paidBill(a), nil
		case "BILL-CLOSED":
			return order.Bill{State: order.BillClosed}, nil
		}
		return closes(ctx, a, question)
	}}
	defer w.startConfirmer(t, w.store, b, lifecycle.ConfirmOptions{})()
	for _, name := range []string{"PAID", "UNPAID", "CLOSED"} {
		w.create(t, "ORDER-"+name, time.Second)
		w.paying(t, "ORDER-"+name, "BILL-"+name, "card")
	}
	w.becomes(t, "ORDER-PAID", order.Paid)
	w.waitClosed(t, "ORDER-UNPAID", order.ReasonTimeout)
	w.waitClosed(t, "ORDER-CLOSED", order.ReasonTimeout)
	for attempt, want := range map[string][]string{"BILL-PAID": {"query"}, "BILL-UNPAID": {"query", "close"}, "BILL-CLOSED": {"query"}} {
		if got := b.questions(attempt); !slices.Equal(got, want) {
			t.Errorf("%s: asked %v, want %v", attempt, got, want)
		}
	}
	if n := testutil.ToFloat64(w.metrics.Timeouts.WithLabelValues("confirming")); n != 3 {
		t.Errorf("%v messages led to an order in doubt", n)
	}
	eventually(t, "what came of it is counted", func() bool { return w.confirms(order.ConfirmPaid) == 1 && w.confirms(order.ConfirmClosed) == 2 })
	w.holds(t)
}

func TestTheCompensatorWaitsForPaymentsInFlightToo(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.swallow = func(order.Envelope) bool { return true } })
	o := w.create(t, no1, time.Second)
	w.paying(t, no1, "BILL-0001", "card")
	time.Sleep(time.Until(o.ExpireAt))
	if run, err := w.sweeper.Now(t.Context()); err != nil || run.Closed != 0 || run.Looked != 1 {
		t.Errorf("%+v, %v", run, err)
	}
	w.becomes(t, no1, order.Confirming)
	defer w.startConfirmer(t, w.store, &bank{answer: closes}, lifecycle.ConfirmOptions{})()
	w.waitClosed(t, no1, order.ReasonCompensate)
	w.holds(t)
}

func TestWhatIsNoExplicitAnswerNeitherPaysNorCancels(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	moods := map[string]func(context.Context, order.Attempt, string) (order.Bill, error){
		"any-error": func(context.Context, order.Attempt, string) (order.Bill, error) {
			return order.Bill{State: order.BillPaid}, errors.New("<html>502</html>")
		},
		"any-hang":       hangs,
		"any-panic":      func(context.Context, order.Attempt, string) (order.Bill, error) { panic("out of range") },
		"nothing-at-all": func(context.Context, order.Attempt, string) (order.Bill, error) { return order.Bill{}, nil },
		"any-word": func(context.Context, order.Attempt, string) (order.Bill, error) {
			return order.Bill{State: "PAID"}, nil
		},
		"money-without-a-number": func(_ context.Context, a order.Attempt, _ string) (order.Bill, error) {
			bill := paidBill(a)
			bill.Payment.PaymentNo = ""
			return bill, nil
		},
		"other-money": func(_ context.Context, a order.Attempt, _ string) (order.Bill, error) {
			bill := paidBill(a)
			bill.Payment.Amount++
			return bill, nil
		},
		"a-bill-that-will-not-close": func(context.Context, order.Attempt, string) (order.Bill, error) {
			return order.Bill{State: order.BillUnpaid}, nil
		},
		"an-error-on-closing": func(_ context.Context, _ order.Attempt, question string) (order.Bill, error) {
			if question == "close" {
				return order.Bill{State: order.BillClosed}, errors.New("timeout")
			}
			return order.Bill{State: order.BillUnpaid}, nil
		},
	}
	b := &bank{answer: func(ctx context.Context, a order.Attempt, question string) (order.Bill, error) {
		return moods[a.AttemptNo](ctx, a, question)
	}}
	for mood := range moods {
		w.doubt(t, mood, mood, time.Hour, mood)
	}
	defer w.startConfirmer(t, w.store, b, lifecycle.ConfirmOptions{Timeout: 50 * time.Millisecond})()
	for mood := range moods {
		eventually(t, mood+" was asked about again", func() bool {
			return len(slices.DeleteFunc(b.questions(mood), func(q string) bool { return q != "query" })) >= 2
		})
		if got := w.get(t, mood); got.Status != order.Confirming {
			t.Errorf("%s made the order %v", mood, got.Status)
		}
	}
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("payment")); n < 2 {
		t.Errorf("%v payments that were refused were kept", n)
	}
	b.becomes(closes)
	for mood := range moods {
		w.becomes(t, mood, order.Cancelled)
	}
	w.holds(t)
}

func TestAChannelThatHangsDelaysNoOther(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	const hung, asked = 300, 32 // more than may wait for one channel, and how many are asked about at once
	healed := make(chan struct{})
	b := &bank{answer: func(ctx context.Context, a order.Attempt, question string) (order.Bill, error) {
		if a.Channel == "hung" {
			<-healed
		}
		return closes(ctx, a, question)
	}}
	for i := range hung {
		w.doubt(t, fmt.Sprintf("HUNG-%03d", i), "hung", time.Hour, fmt.Sprintf("HUNG-BILL-%03d", i))
	}
	defer w.startConfirmer(t, w.store, b, lifecycle.ConfirmOptions{Timeout: time.Minute})()
	eventually(t, "all but those who are asked about and those who wait were put off", func() bool { return w.confirms(order.ConfirmUnasked) >= hung-asked-256 })
	for i := range 10 {
		w.doubt(t, fmt.Sprintf("OTHER-%02d", i), "card", time.Hour, fmt.Sprintf("OTHER-BILL-%02d", i))
	}
	for i := range 10 {
		w.becomes(t, fmt.Sprintf("OTHER-%02d", i), order.Cancelled)
	}
	w.create(t, no1, time.Second)
	w.waitClosed(t, no1, order.ReasonTimeout)
	if n := w.confirms(order.ConfirmClosed); n != 10 {
		t.Errorf("%v orders were decided while one channel hangs", n)
	}
	close(healed)
	for i := range hung {
		w.becomes(t, fmt.Sprintf("HUNG-%03d", i), order.Cancelled)
	}
	if b.most["hung"] != asked {
		t.Errorf("a channel was asked %d questions at once", b.most["hung"])
	}
	w.holds(t)
}

func TestAtItsConfirmDeadlineAnOrderInDoubtEndsAsConfigured(t *testing.T) {
	for end, want := range map[order.ConfirmEnd]order.ConfirmResult{"": order.ConfirmExpired, order.ConfirmHold: order.ConfirmHeld} {
		t.Run(string(want), func(t *testing.T) {
			w := newWorld(t, lifecycle.RelayOptions{})
			w.doubt(t, no1, "card", 1500*time.Millisecond, "BILL-0001")
			until := w.get(t, no1).ConfirmUntil
			b := &bank{answer: func(context.Context, order.Attempt, string) (order.Bill, error) { return order.Bill{}, errDown }}
			defer w.startConfirmer(t, w.store, b, lifecycle.ConfirmOptions{End: end})()
			eventually(t, "it has ended", func() bool { return w.confirms(want) == 1 })
			o := w.get(t, no1)
			if want == order.ConfirmExpired {
				if o.Status != order.Cancelled || o.CancelledAt.Before(until) || o.CancelReason != order.ReasonUserCancel {
					t.Errorf("%+v", o)
				}
			} else {
				if o.Status != order.Confirming || testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("confirm")) != 1 {
					t.Errorf("%+v", o)
				}
				p := order.Payment{PaymentNo: "pay-1", OrderNo: no1, Amount: 100, Currency: "CNY", PaidAt: o.CreatedAt}
				if got, err := w.orders.Pay(t.Context(), p); err != nil || got.Outcome != order.PaymentAccepted {
					t.Errorf("money for an order that waits for a person: %+v, %v", got, err)
				}
			}
			w.holds(t)
		})
	}
}

func TestTwoConfirmersDecideEachOrderOnce(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	const orders = 40
	for i := range orders {
		w.doubt(t, fmt.Sprintf("ORDER-%02d", i), "card", time.Hour, fmt.Sprintf("BILL-00%02d", i))
	}
	first, second := &bank{answer: closes}, &bank{answer: closes}
	defer w.startConfirmer(t, w.store, first, lifecycle.ConfirmOptions{})()
	defer w.startConfirmer(t, w.store, second, lifecycle.ConfirmOptions{})()
	for i := range orders {
		no := fmt.Sprintf("ORDER-%02d", i)
		eventually(t, no+" is cancelled and announced", func() bool { _, notices := w.counts(no); return notices > 0 })
		bill := fmt.Sprintf("BILL-00%02d", i)
		if n := len(first.questions(bill)) + len(second.questions(bill)); n != 2 {
			t.Errorf("%s was asked about %d times", bill, n)
		}
	}
	eventually(t, "all are counted", func() bool { return w.confirms(order.ConfirmClosed) == orders })
	w.holds(t)
}

func TestMoneyThatIsRefusedIsKeptAndCostsOtherMoneyNothing(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	b := &bank{answer: func(_ context.Context, a order.Attempt, _ string) (order.Bill, error) {
		bill := paidBill(a)
		if a.AttemptNo == "BILL-0001" {
			bill.Payment.Currency = "EUR"
		}
		return bill, nil
	}}
	w.doubt(t, no1, "card", time.Hour, "BILL-0001", "BILL-0002", "BILL-0003")
	defer w.startConfirmer(t, w.store, b, lifecycle.ConfirmOptions{})()
	w.becomes(t, no1, order.Paid)
	eventually(t, "the second one is a case", func() bool {
		cases, _, err := w.store.LatePayments(t.Context(), "", 10, "")
		return err == nil && len(cases) == 1 && cases[0].PaymentNo == "pay-BILL-0003"
	})
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("payment")); n != 1 {
		t.Errorf("%v payments were kept for a human", n)
	}
	w.holds(t)
}

func TestMoneyThatIsRefusedIsKeptOnceHoweverOftenTheGatewayTellsOfIt(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	b := &bank{answer: func(_ context.Context, a order.Attempt, _ string) (order.Bill, error) {
		bill := paidBill(a)
		bill.Payment.Amount++
		return bill, nil
	}}
	w.doubt(t, no1, "card", time.Hour, "BILL-0001")
	defer w.startConfirmer(t, w.store, b, lifecycle.ConfirmOptions{})()
	eventually(t, "it is asked about again", func() bool { return len(b.questions("BILL-0001")) > 1 })
	if left, err := w.store.Backlog(t.Context()); err != nil || left.Quarantined != 1 {
		t.Errorf("%+v, %v", left, err)
	}
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("payment")); n != 1 {
		t.Errorf("%v were counted", n)
	}
}

func TestAConfirmerThatStopsWritesDownWhatItWasToldAndAsksNoMore(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.doubt(t, no1, "card", time.Hour, "BILL-0001", "BILL-0002")
	told := make(chan struct{})
	b := &bank{answer: func(context.Context, order.Attempt, string) (order.Bill, error) {
		<-told
		return order.Bill{State: order.BillClosed}, nil
	}}
	c := lifecycle.NewConfirmer(w.store, b, w.relay, func() lifecycle.ConfirmOptions { return lifecycle.ConfirmOptions{Timeout: time.Minute} }, w.metrics, zap.NewNop())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	eventually(t, "the first question is open", func() bool { return len(b.questions("BILL-0001")) == 1 })
	stop()
	close(told)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	attempts, err := w.store.Attempts(t.Context(), no1)
	if err != nil || len(attempts) != 2 || attempts[0].State != order.AttemptClosed || attempts[1].State != order.AttemptOpen {
		t.Errorf("%+v, %v", attempts, err)
	}
	if n := len(b.questions("BILL-0002")); n != 0 {
		t.Errorf("%d more questions after the end", n)
	}
	if got := w.get(t, no1); got.Status != order.Confirming {
		t.Errorf("the order is %v", got.Status)
	}
	w.holds(t)
}

func TestNoOrderEndsInDoubtWithoutAQuestion(t *testing.T) {
	const orders = 400 // more than a channel's places and those who wait for one
	crowd := func(t *testing.T, w *world) (nos []string) {
		for i := range orders {
			no := fmt.Sprintf("CROWD-%04d", i)
			w.doubt(t, no, "bank", time.Millisecond, "BILL-"+no)
			nos = append(nos, no)
		}
		return nos
	}
	// unasked are the orders that ended without a question.
	unasked := func(t *testing.T, w *world, b *bank, nos []string) (n int) {
		for _, no := range nos {
			if w.get(t, no).Status != order.Confirming && len(b.questions("BILL-"+no)) == 0 {
				n++
			}
		}
		return n
	}
	t.Run("in a crowd", func(t *testing.T) {
		w := newWorld(t, lifecycle.RelayOptions{})
		nos := crowd(t, w)
		told := make(chan struct{})
		tell := sync.OnceFunc(func() { close(told) })
		b := &bank{answer: func(_ context.Context, a order.Attempt, _ string) (order.Bill, error) {
			<-told
			return paidBill(a), nil
		}}
		defer w.startConfirmer(t, w.store, b, lifecycle.ConfirmOptions{Timeout: time.Minute})()
		defer tell()
		eventually(t, "there is no room for all of them", func() bool { return w.confirms(order.ConfirmUnasked) > 0 })
		tell()
		for _, no := range nos {
			w.becomes(t, no, order.Paid)
		}
		w.holds(t)
	})
	t.Run("when the process stops", func(t *testing.T) {
		w := newWorld(t, lifecycle.RelayOptions{})
		nos := crowd(t, w)
		asked, told := make(chan struct{}, orders), make(chan struct{})
		b := &bank{answer: func(_ context.Context, a order.Attempt, _ string) (order.Bill, error) {
			asked <- struct{}{}
			<-told
			return paidBill(a), nil
		}}
		stop := w.startConfirmer(t, w.store, b, lifecycle.ConfirmOptions{Timeout: time.Minute})
		<-asked
		time.AfterFunc(50*time.Millisecond, func() { close(told) })
		stop()
		if n := unasked(t, w, b, nos); n > 0 {
			t.Errorf("%d orders were cancelled and nobody had asked", n)
		}
		if w.confirms(order.ConfirmUnasked) == 0 {
			t.Error("all had been asked about, so nothing is shown")
		}
		w.holds(t)
	})
}

// ailing is a store that fails the first calls.
type ailing struct {
	*store.Store
	claims, verdicts, notes atomic.Int32 // so many fail
	fault                   func() error
}

func (a *ailing) ClaimDoubtful(ctx context.Context, limit int, lease time.Duration) ([]order.InDoubt, time.Time, time.Time, error) {
	if a.claims.Add(-1) >= 0 {
		return nil, time.Time{}, time.Time{}, errDown
	}
	return a.Store.ClaimDoubtful(ctx, limit, lease)
}

func (a *ailing) Confirm(ctx context.Context, v order.Verdict, end order.ConfirmEnd, wait time.Duration, rules order.Rules, first order.Schedule) (order.Confirmed, error) {
	if a.verdicts.Add(-1) >= 0 {
		return order.Confirmed{}, a.fault()
	}
	return a.Store.Confirm(ctx, v, end, wait, rules, first)
}

func (a *ailing) Quarantine(ctx context.Context, q order.Quarantined) (bool, error) {
	if a.notes.Add(-1) >= 0 {
		return false, errDown
	}
	return a.Store.Quarantine(ctx, q)
}

func TestAnOutageOfTheDatabaseIsWaitedOutAndLosesNoAnswer(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	sick := &ailing{Store: w.store, fault: func() error { return errDown }}
	sick.claims.Store(2)
	sick.verdicts.Store(2)
	sick.notes.Store(2)
	b := &bank{answer: func(_ context.Context, a order.Attempt, _ string) (order.Bill, error) {
		bill := paidBill(a)
		if a.AttemptNo == "BILL-0001" {
			bill.Payment.Amount++
		}
		return bill, nil
	}}
	w.doubt(t, no1, "card", time.Hour, "BILL-0001", "BILL-0002")
	defer w.startConfirmer(t, sick, b, lifecycle.ConfirmOptions{})()
	w.becomes(t, no1, order.Paid)
	if n := testutil.ToFloat64(w.metrics.Retries.WithLabelValues("confirm")); n != 6 {
		t.Errorf("%v tries failed", n)
	}
	for _, attempt := range []string{"BILL-0001", "BILL-0002"} {
		if got := b.questions(attempt); len(got) != 1 {
			t.Errorf("%s: asked %v for one verdict", attempt, got)
		}
	}
	w.holds(t)
}

func TestAnOrderInDoubtThatCannotBeDecidedCostsItsNeighboursNothing(t *testing.T) {
	for name, fault := range map[string]func() error{
		"error": func() error { return order.Errorf(order.Internal, "data_damaged", "damaged") },
		"panic": func() error { panic("damaged") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, lifecycle.RelayOptions{})
			w.doubt(t, no1, "card", time.Hour, "BILL-0001")
			w.doubt(t, no2, "card", time.Hour, "BILL-0002")
			sick := &ailing{Store: w.store, fault: fault}
			sick.verdicts.Store(1) // of either
			defer w.startConfirmer(t, sick, &bank{answer: closes}, lifecycle.ConfirmOptions{})()
			eventually(t, "one failed and the other was decided", func() bool {
				return testutil.ToFloat64(w.metrics.Retries.WithLabelValues("confirm")) == 1 && w.confirms(order.ConfirmClosed) == 1
			})
			if first, second := w.get(t, no1).Status, w.get(t, no2).Status; min(first, second) != order.Confirming || max(first, second) != order.Cancelled {
				t.Errorf("they are %v and %v", first, second)
			}
			w.holds(t)
		})
	}
}

// types are the events about an order that the broker took.
func (w *world) types(orderNo string) (types []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.notices {
		if e.OrderNo == orderNo {
			types = append(types, e.Type)
		}
	}
	return types
}

// createBy makes an order that is treated by a rule.
func (w *world) createBy(t *testing.T, no string, timeout time.Duration, rule order.Rule) order.Order {
	t.Helper()
	d := wanted(no, timeout)
	d.Rule = rule
	made, err := w.store.Create(t.Context(), []order.Draft{d}, w.relay.Schedule)
	if err != nil || made[0].Err != nil {
		t.Fatal(made, err)
	}
	w.relay.Offer(*made[0].Message)
	return *made[0].Order
}

func TestAReminderComesBeforeTheDeadlineAndTheOrderIsClosedAtIt(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.copies = 2 })
	w.createBy(t, no1, 2*time.Second, order.Rule{RemindLead: time.Second})
	w.waitClosed(t, no1, order.ReasonTimeout)
	eventually(t, "the world was told", func() bool { return len(w.types(no1)) == 2 })
	if got := w.types(no1); !slices.Equal(got, []string{order.TypeExpiringSoon, order.TypeCancelled}) {
		t.Errorf("told %v", got)
	}
	if timeouts, _ := w.counts(no1); timeouts != 2 {
		t.Errorf("%d time-out messages", timeouts)
	}
	w.holds(t)
}

func TestASecondChanceIsToldAndEndsByItself(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.copies = 2 })
	o := w.createBy(t, no1, time.Second, order.Rule{SecondChance: time.Second})
	closed := w.waitClosed(t, no1, order.ReasonTimeout)
	if !closed.ExpireAt.Equal(o.ExpireAt.Add(time.Second)) {
		t.Errorf("its last deadline was %v, the first %v", closed.ExpireAt, o.ExpireAt)
	}
	eventually(t, "the world was told", func() bool { return len(w.types(no1)) == 2 })
	if got := w.types(no1); !slices.Equal(got, []string{order.TypeExpired, order.TypeCancelled}) {
		t.Errorf("told %v", got)
	}
	if n := testutil.ToFloat64(w.metrics.Timeouts.WithLabelValues("reminded")); n != 1 {
		t.Errorf("%v messages led to a second chance", n)
	}
	w.holds(t)
}

func TestMessagesOfOrdersThatBrakesKeepAreAcknowledgedAndTheirRowsStay(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	off := func(b order.Brakes) (order.Brakes, error) {
		b.Mode = order.ModeOff
		return b, nil
	}
	if _, err := w.store.ChangeBrakes(t.Context(), order.Act{Actor: "test", Note: "off"}, off); err != nil {
		t.Fatal(err)
	}
	w.create(t, no1, time.Second)
	eventually(t, "its message was handled", func() bool {
		return testutil.ToFloat64(w.metrics.Timeouts.WithLabelValues("braked")) == 1
	})
	_, scheduled, err := w.store.Timeline(t.Context(), no1)
	if err != nil || len(scheduled) != 1 || w.get(t, no1).Status != order.Pending {
		t.Errorf("%+v, %v", scheduled, err)
	}
	w.holds(t)
}
