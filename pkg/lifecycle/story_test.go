package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sync/errgroup"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// wire is a broker whose faults a test can choose. The database under the story is a real one.
type wire struct {
	mu        sync.Mutex
	down      bool                      // sends fail as in an outage
	deaf      order.MessageKind         // sends of this kind fail as in an outage
	refuse    func(order.Envelope) bool // sends are refused for good
	swallow   func(order.Envelope) bool // taken and never delivered
	hasty     bool                      // delivers at once, whatever was asked
	copies    int                       // how often each message is delivered
	impatient int                       // from this question on the broker cannot wait any more; 0: it always can
	asked     int
	notices   []order.Envelope
	timeouts  []order.Envelope
	deliver   func(context.Context, []order.Delivery) error
	consumers sync.WaitGroup
	ctx       context.Context
}

var errDown = order.Errorf(order.Unavailable, "down", "the broker is down")

func (w *wire) Step(now, due time.Time) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked++; w.impatient > 0 && w.asked >= w.impatient {
		return now
	}
	return due
}

func (w *wire) Send(_ context.Context, e order.Envelope) (order.Receipt, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down || e.Kind == w.deaf {
		return order.Receipt{}, errDown
	}
	if w.refuse != nil && w.refuse(e) {
		return order.Receipt{}, order.Errorf(order.Invalid, "refused", "too large")
	}
	if e.Kind == order.Notice {
		w.notices = append(w.notices, e)
		return order.Receipt{}, nil
	}
	w.timeouts = append(w.timeouts, e)
	if w.swallow == nil || !w.swallow(e) {
		wait := e.Delay
		if w.hasty {
			wait = 0
		}
		for range max(w.copies, 1) {
			w.consumers.Go(func() { w.carry(e, wait) })
		}
	}
	return order.Receipt{MessageID: e.MessageID}, nil
}

func (w *wire) carry(e order.Envelope, wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-w.ctx.Done():
		return
	}
	err := w.deliver(w.ctx, []order.Delivery{{Kind: e.Kind, OrderNo: e.OrderNo, Body: e.Body}})
	if err != nil && w.ctx.Err() == nil {
		panic(fmt.Sprintf("a delivery was handed back while everything runs: %v", err))
	}
}

func (w *wire) set(change func(*wire)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change(w)
}

func (w *wire) counts(orderNo string) (timeouts, notices int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.timeouts {
		if e.OrderNo == orderNo {
			timeouts++
		}
	}
	for _, e := range w.notices {
		if e.OrderNo == orderNo {
			notices++
		}
	}
	return timeouts, notices
}

// world is the whole story on SQLite with a wire for a broker.
type world struct {
	terms lifecycle.Terms
	*wire
	path    string // of the database
	store   *store.Store
	relay   *lifecycle.Relay
	orders  *lifecycle.Orders
	closer  *lifecycle.Closer
	sweeper *lifecycle.Sweeper
	metrics *lifecycle.Metrics
}

// newWorld starts everything but the compensator's rounds: tests call sweeper.Now.
func newWorld(t *testing.T, options lifecycle.RelayOptions, wrap ...func(*store.Store) lifecycle.MessageStore) *world {
	t.Helper()
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lapse.db")
	db, err := store.Open(t.Context(), store.Options{Driver: "sqlite", DSN: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	log, metrics := zap.NewNop(), lifecycle.NewMetrics(prometheus.NewRegistry())
	w := &world{wire: &wire{ctx: ctx}, path: path, store: db, metrics: metrics}
	var messages lifecycle.MessageStore = db
	for _, f := range wrap {
		messages = f(db)
	}
	w.relay = lifecycle.NewRelay(messages, w.wire, func() lifecycle.RelayOptions { return options }, metrics, log)
	w.orders = lifecycle.NewOrders(db, w.relay, order.Limits{}, func() lifecycle.Terms { return w.terms }, func() lifecycle.CreateOptions { return lifecycle.CreateOptions{} }, metrics, log)
	w.closer = lifecycle.NewCloser(db, w.relay, func() lifecycle.CloseOptions { return lifecycle.CloseOptions{Confirm: time.Hour} }, metrics, log)
	w.sweeper = lifecycle.NewSweeper(db, w.relay, "test", func() lifecycle.SweepOptions { return lifecycle.SweepOptions{Confirm: time.Hour} }, metrics, log)
	w.deliver = w.closer.Handle
	var running errgroup.Group
	for _, run := range []func(context.Context) error{w.relay.Run, w.orders.Run, w.closer.Run} {
		running.Go(func() error { return run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		if err := running.Wait(); err != nil { // first: the relay starts consumers
			t.Error(err)
		}
		w.consumers.Wait()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	w.stock(t, "sku", 1000)
	return w
}

func (w *world) stock(t *testing.T, ref string, n int64) {
	t.Helper()
	a := order.Adjustment{ID: "fill-" + ref, Kind: "stock", Ref: ref, Delta: n}
	if _, err := w.orders.Adjust(t.Context(), a); err != nil {
		t.Fatal(err)
	}
}

func wanted(no string, timeout time.Duration) order.Draft {
	return order.Draft{OrderNo: no, Caller: "shop", UserID: "u1", BizType: "retail", Amount: 100, Currency: "CNY", Timeout: timeout,
		Items: []order.Item{{Kind: "stock", Ref: "sku", Quantity: 1}}}
}

func (w *world) create(t *testing.T, no string, timeout time.Duration) order.Order {
	t.Helper()
	made, err := w.orders.Create(t.Context(), wanted(no, timeout))
	if err != nil {
		t.Fatal(err)
	}
	return *made.Order
}

func (w *world) get(t *testing.T, no string) order.Order {
	t.Helper()
	o, _, err := w.store.Get(t.Context(), no)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// waitClosed waits until an order is cancelled, and checks that it was not early and told the world once.
func (w *world) waitClosed(t *testing.T, no string, reason order.Reason) order.Order {
	t.Helper()
	eventually(t, no+" is cancelled and announced", func() bool {
		_, notices := w.counts(no)
		return w.get(t, no).Status == order.Cancelled && notices > 0
	})
	o := w.get(t, no)
	if o.CancelledAt.Before(o.ExpireAt) {
		t.Errorf("%s was closed %v early", no, o.ExpireAt.Sub(o.CancelledAt))
	}
	if o.CancelReason != reason {
		t.Errorf("%s was closed for %s, want %s", no, o.CancelReason, reason)
	}
	return o
}

// holds checks I1 to I9 on what is stored.
func (w *world) holds(t *testing.T) {
	t.Helper()
	checks, err := w.store.Audit(t.Context(), store.AuditOptions{Overdue: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range checks {
		if !c.Holds() {
			t.Errorf("%s: %s: %d of %d do not, like %s", c.Invariant, c.Name, c.Violations, c.Checked, c.Example)
		}
	}
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not so within a minute: %s", what)
		}
	}
}

const (
	no1 = "ORDER-0001"
	no2 = "ORDER-0002"
)

func TestAnUnpaidOrderIsClosedOnceGivesBackAndTellsTheWorld(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.create(t, no1, time.Second)
	w.waitClosed(t, no1, order.ReasonTimeout)
	if timeouts, notices := w.counts(no1); timeouts != 1 || notices != 1 {
		t.Errorf("%d time-outs, %d events sent", timeouts, notices)
	}
	if r, err := w.store.Resource(t.Context(), "stock", "sku"); err != nil || r.Available != 1000 || r.Held != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	w.holds(t)
}

func TestAPaidOrderStaysPaidWhateverIsDelivered(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.copies = 3 })
	o := w.create(t, no1, time.Second)
	p := order.Payment{PaymentNo: "pay-1", OrderNo: no1, Amount: 100, Currency: "CNY", PaidAt: o.CreatedAt}
	if got, err := w.orders.Pay(t.Context(), p); err != nil || got.Outcome != order.PaymentAccepted {
		t.Fatalf("%+v, %v", got, err)
	}
	eventually(t, "all copies were handled", func() bool {
		return testutil.ToFloat64(w.metrics.Timeouts.WithLabelValues("final")) == 3
	})
	if got := w.get(t, no1); got.Status != order.Paid {
		t.Errorf("the order is %v", got.Status)
	}
	w.holds(t)
}

func TestALatePaymentIsOneCaseHoweverOftenItIsReported(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := w.create(t, no1, time.Second)
	w.waitClosed(t, no1, order.ReasonTimeout)
	p := order.Payment{PaymentNo: "pay-1", OrderNo: no1, Amount: 100, Currency: "CNY", PaidAt: o.CreatedAt}
	for i := range 3 {
		got, err := w.orders.Pay(t.Context(), p)
		if err != nil || got.Outcome != order.PaymentLate || got.Repeated != (i > 0) {
			t.Errorf("report %d: %+v, %v", i, got, err)
		}
	}
	w.holds(t)
}

func TestABrokerThatDoesNotDelayCostsOneMoreDeliveryAndNothingIsEarly(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.hasty, w.copies = true, 2 })
	w.create(t, no1, 3*time.Second)
	w.waitClosed(t, no1, order.ReasonTimeout)
	if timeouts, _ := w.counts(no1); timeouts != 2 {
		t.Errorf("%d time-out messages for one order", timeouts)
	}
	w.holds(t)
}

func TestAMessageALittleEarlyIsScheduledAgain(t *testing.T) {
	for _, early := range []time.Duration{time.Millisecond, 500 * time.Millisecond, time.Second} {
		t.Run(early.String(), func(t *testing.T) {
			w := newWorld(t, lifecycle.RelayOptions{})
			w.set(func(w *wire) { w.swallow = func(e order.Envelope) bool { return e.Hop == 0 } })
			o := w.create(t, no1, 2*time.Second)
			eventually(t, "the first message was taken", func() bool { n, _ := w.counts(no1); return n == 1 })
			body := order.TimeoutBody{Version: order.TimeoutVersion, OrderNo: no1, ExpireAt: o.ExpireAt, DeliverAt: o.ExpireAt}
			time.Sleep(time.Until(o.ExpireAt.Add(-early))) // the same clock, the point of the test
			if err := w.closer.Handle(t.Context(), []order.Delivery{{OrderNo: no1, Body: body.Encode()}}); err != nil {
				t.Fatal(err)
			}
			w.waitClosed(t, no1, order.ReasonTimeout)
			w.holds(t)
		})
	}
}

func TestOldForgedAndUnreadableMessagesChangeNothing(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := w.create(t, no1, time.Hour)
	forged := order.TimeoutBody{Version: order.TimeoutVersion, OrderNo: no1, Hop: 7, ExpireAt: o.CreatedAt, DeliverAt: o.CreatedAt}
	stranger := forged
	stranger.OrderNo = "NOBODY-KNOWS"
	future := forged
	future.Version = 99
	deliveries := []order.Delivery{{Body: forged.Encode()}, {Body: stranger.Encode()}, {OrderNo: "x", Body: future.Encode()}, {Body: []byte("\x78\x9c")}, {Body: nil}}
	for range 20 {
		if err := w.closer.Handle(t.Context(), deliveries); err != nil {
			t.Fatal(err)
		}
	}
	if got := w.get(t, no1); got.Status != order.Pending || got.Version != o.Version {
		t.Errorf("%+v", got)
	}
	if timeouts, _ := w.counts(no1); timeouts > 1 {
		t.Errorf("forged messages made %d sends", timeouts)
	}
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("timeout")); n != 41 {
		t.Errorf("%v set aside, want the one that names an order once, and the others each time", n)
	}
	w.holds(t)
}

func TestALostMessageIsMadeUpForByTheSweepAndCounted(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.swallow = func(order.Envelope) bool { return true } })
	o := w.create(t, no1, time.Second)
	w.create(t, no2, time.Hour)
	eventually(t, "the time-out was sent and settled", func() bool {
		_, scheduled, err := w.store.Timeline(t.Context(), no1)
		return err == nil && len(scheduled) == 1 && scheduled[0].State == order.AlreadySent
	})
	if run, err := w.sweeper.Now(t.Context()); err != nil || run.Closed != 0 {
		t.Fatalf("before the deadline: %+v, %v", run, err)
	}
	time.Sleep(time.Until(o.ExpireAt))
	run, err := w.sweeper.Now(t.Context())
	if err != nil || run.Closed != 1 || run.Shards != order.Shards || run.Started.Before(o.ExpireAt) || run.Finished.Before(run.Started) {
		t.Fatalf("%+v, %v", run, err)
	}
	w.waitClosed(t, no1, order.ReasonCompensate)
	if lost := testutil.ToFloat64(w.metrics.MessagesLost); lost != 1 {
		t.Errorf("%v messages counted as lost", lost)
	}
	if w.get(t, no2).Status != order.Pending {
		t.Error("an order that is not due was swept")
	}
	w.holds(t)
}

func TestAnOutageOfTheBrokerCostsTimeAndNoAttempts(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{Lease: time.Second, Poll: 50 * time.Millisecond, MaxAttempts: 1})
	w.set(func(w *wire) { w.down = true })
	for i := range 50 {
		w.create(t, fmt.Sprintf("DURING-OUTAGE-%02d", i), time.Second)
	}
	eventually(t, "the relay has tried more than once", func() bool {
		return testutil.ToFloat64(w.metrics.Sends.WithLabelValues("timeout", "failed")) > 1
	})
	w.set(func(w *wire) { w.down = false })
	for i := range 50 {
		w.waitClosed(t, fmt.Sprintf("DURING-OUTAGE-%02d", i), order.ReasonTimeout)
	}
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("relay")); n != 0 {
		t.Errorf("the outage quarantined %v rows", n)
	}
	w.holds(t)
}

func TestATopicThatCannotBeReachedDelaysNoOther(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{Lease: time.Hour}) // what is not sent at once does not come in time
	w.set(func(w *wire) { w.deaf = order.Notice })
	for i := range 10 {
		no := fmt.Sprintf("ORDER-%02d", i)
		w.create(t, no, time.Hour)
		if _, err := w.orders.Cancel(t.Context(), order.Cancelling{OrderNo: no, UserID: "u1", Reason: order.ReasonUserCancel}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the outage lasts", func() bool { return testutil.ToFloat64(w.metrics.Sends.WithLabelValues("event", "failed")) > 3 })
	for i := range 20 {
		w.create(t, fmt.Sprintf("LATER-%02d", i), time.Hour)
	}
	for i := range 20 {
		eventually(t, "time-outs are sent all the same", func() bool {
			timeouts, _ := w.counts(fmt.Sprintf("LATER-%02d", i))
			return timeouts == 1
		})
	}
}

func TestARowThatTheBrokerRefusesIsSetAsideAndDelaysNoOther(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{Lease: time.Second, Poll: 50 * time.Millisecond, MaxAttempts: 2})
	w.set(func(w *wire) { w.refuse = func(e order.Envelope) bool { return e.OrderNo == no1 } })
	w.create(t, no1, time.Hour)
	w.create(t, no2, time.Second)
	w.waitClosed(t, no2, order.ReasonTimeout)
	eventually(t, "the refused row is set aside", func() bool {
		_, scheduled, err := w.store.Timeline(t.Context(), no1)
		return err == nil && len(scheduled) == 1 && scheduled[0].State == order.SetAside && scheduled[0].LastError != ""
	})
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("relay")); n != 1 {
		t.Errorf("%v rows set aside", n)
	}
}

// breakable is a store whose closing fails as a test says.
type breakable struct {
	*store.Store
	fail func(order.Closing) error
}

func (b *breakable) CloseDue(ctx context.Context, c order.Closing, first order.Schedule) (order.ClosedBatch, error) {
	if err := b.fail(c); err != nil {
		return order.ClosedBatch{}, err
	}
	return b.Store.CloseDue(ctx, c, first)
}

func TestOneOrderThatCannotBeClosedCostsItsNeighboursNothing(t *testing.T) {
	for _, fault := range []string{"error", "panic"} {
		t.Run(fault, func(t *testing.T) {
			w := newWorld(t, lifecycle.RelayOptions{})
			w.set(func(w *wire) { w.swallow = func(order.Envelope) bool { return true } })
			sick := &breakable{w.store, func(c order.Closing) error {
				if !slices.Contains(c.OrderNos, "ORDER-13") {
					return nil
				}
				if fault == "panic" {
					panic("damaged")
				}
				return order.Errorf(order.Internal, "counter_damaged", "damaged")
			}}
			sweeper := lifecycle.NewSweeper(sick, w.relay, "test", func() lifecycle.SweepOptions { return lifecycle.SweepOptions{Limit: 7} }, w.metrics, zap.NewNop())
			var last order.Order
			for i := range 40 {
				last = w.create(t, fmt.Sprintf("ORDER-%02d", i), time.Second)
			}
			time.Sleep(time.Until(last.ExpireAt))
			run, err := sweeper.Now(t.Context())
			if err != nil || run.Closed != 39 || run.Failed != 1 {
				t.Errorf("%+v, %v", run, err)
			}
			if run, err := sweeper.Now(t.Context()); err != nil || run.Failed != 0 || run.Looked != 1 {
				t.Errorf("the sick order does not back off: %+v, %v", run, err)
			}
			sick.fail = func(order.Closing) error { return nil }
			if w.get(t, "ORDER-13").Status != order.Pending {
				t.Error("the sick order is gone")
			}
		})
	}
}

func TestABatchOfMessagesIsBisectedToTheOrderAtFault(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.swallow = func(order.Envelope) bool { return true } })
	sick := &breakable{w.store, func(c order.Closing) error {
		if slices.Contains(c.OrderNos, "ORDER-13") {
			return order.Errorf(order.Internal, "counter_damaged", "damaged")
		}
		return nil
	}}
	closer := lifecycle.NewCloser(sick, w.relay, func() lifecycle.CloseOptions { return lifecycle.CloseOptions{} }, w.metrics, zap.NewNop())
	stop := start(t, closer.Run)
	defer stop()
	var deliveries []order.Delivery
	var last order.Order
	for i := range 40 {
		last = w.create(t, fmt.Sprintf("ORDER-%02d", i), time.Second)
		body := order.TimeoutBody{Version: order.TimeoutVersion, OrderNo: last.OrderNo, ExpireAt: last.ExpireAt, DeliverAt: last.ExpireAt}
		deliveries = append(deliveries, order.Delivery{OrderNo: last.OrderNo, Body: body.Encode()})
	}
	time.Sleep(time.Until(last.ExpireAt))
	if err := closer.Handle(t.Context(), deliveries); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		no := fmt.Sprintf("ORDER-%02d", i)
		if got := w.get(t, no).Status; (got == order.Pending) != (i == 13) {
			t.Errorf("%s is %v", no, got)
		}
	}
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("close")); n != 1 {
		t.Errorf("%v orders set aside", n)
	}
}

// damaged is a store one of whose steps fails for a defect whenever a certain order is among others.
type damaged struct {
	*store.Store
	step, no string
}

func (d *damaged) fails(step string, nos ...string) error {
	if step == d.step && slices.Contains(nos, d.no) {
		return order.Errorf(order.Internal, "data_damaged", "damaged")
	}
	return nil
}

func (d *damaged) Look(ctx context.Context, nos []string) ([]order.Order, time.Time, error) {
	if err := d.fails("look", nos...); err != nil {
		return nil, time.Time{}, err
	}
	return d.Store.Look(ctx, nos)
}

func (d *damaged) Ripen(ctx context.Context, nos []string) (order.Ripened, error) {
	if err := d.fails("ripen", nos...); err != nil {
		return order.Ripened{}, err
	}
	return d.Store.Ripen(ctx, nos)
}

func (d *damaged) Postpone(ctx context.Context, early []order.Early, next order.Schedule) ([]order.Message, error) {
	for _, e := range early {
		if err := d.fails("postpone", e.OrderNo); err != nil {
			return nil, err
		}
	}
	return d.Store.Postpone(ctx, early, next)
}

func (d *damaged) Remind(ctx context.Context, nos []string, first order.Schedule) ([]order.Message, error) {
	if err := d.fails("remind", nos...); err != nil {
		return nil, err
	}
	return d.Store.Remind(ctx, nos, first)
}

func (d *damaged) Quarantine(ctx context.Context, q order.Quarantined) (bool, error) {
	if err := d.fails("quarantine", q.OrderNo); err != nil {
		return false, err
	}
	return d.Store.Quarantine(ctx, q)
}

func TestAnEarlyMessageThatCannotBeHandledIsSetAsideAndCostsItsNeighboursNothing(t *testing.T) {
	for _, step := range []string{"look", "ripen", "postpone", "remind"} {
		t.Run(step, func(t *testing.T) {
			w := newWorld(t, lifecycle.RelayOptions{})
			w.set(func(w *wire) { w.swallow = func(order.Envelope) bool { return true } })
			closer := lifecycle.NewCloser(&damaged{w.store, step, "ORDER-13"}, w.relay, func() lifecycle.CloseOptions { return lifecycle.CloseOptions{} }, w.metrics, zap.NewNop())
			defer start(t, closer.Run)()
			var deliveries []order.Delivery
			for i := range 40 {
				no := fmt.Sprintf("ORDER-%02d", i)
				switch {
				case step == "ripen" && i == 13: // not an order
				case step == "remind":
					w.createBy(t, no, time.Hour, order.Rule{RemindLead: time.Hour})
				default:
					w.create(t, no, time.Hour)
				}
				body := order.TimeoutBody{Version: order.TimeoutVersion, OrderNo: no}
				deliveries = append(deliveries, order.Delivery{OrderNo: no, Body: body.Encode()})
			}
			if err := closer.Handle(t.Context(), deliveries); err != nil {
				t.Fatal(err)
			}
			if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("close")); n != 1 {
				t.Errorf("%v messages set aside", n)
			}
			handled := testutil.ToFloat64(w.metrics.Timeouts.WithLabelValues("early")) + testutil.ToFloat64(w.metrics.Timeouts.WithLabelValues("nearing"))
			if handled != 39 {
				t.Errorf("%v neighbours were handled", handled)
			}
		})
	}
}

func TestWhatCanNeitherBeHandledNorBeSetAsideIsHandedBack(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	closer := lifecycle.NewCloser(&damaged{w.store, "quarantine", no1}, w.relay, func() lifecycle.CloseOptions { return lifecycle.CloseOptions{} }, w.metrics, zap.NewNop())
	defer start(t, closer.Run)()
	err := closer.Handle(t.Context(), []order.Delivery{{OrderNo: no1, Body: []byte("{")}})
	if order.KindOf(err) != order.Internal {
		t.Errorf("handed back for %v", err)
	}
}

func start(t *testing.T, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func TestAnOutageOfTheDatabaseIsWaitedOutInPlaceAndHandedBackOnlyAtTheEnd(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	var tries atomic.Int32
	down := errors.New("connection refused")
	sick := &breakable{w.store, func(order.Closing) error {
		if tries.Add(1) <= 3 {
			return order.Errorf(order.Unavailable, "database_unavailable", "the database cannot be reached").Wrap(down)
		}
		return nil
	}}
	closer := lifecycle.NewCloser(sick, w.relay, func() lifecycle.CloseOptions { return lifecycle.CloseOptions{} }, w.metrics, zap.NewNop())
	stop := start(t, closer.Run)
	body := order.TimeoutBody{Version: order.TimeoutVersion, OrderNo: "NOBODY-KNOWS"}
	deliveries := []order.Delivery{{Body: body.Encode()}}
	if err := closer.Handle(t.Context(), deliveries); err != nil || tries.Load() != 4 {
		t.Errorf("%v after %d tries", err, tries.Load())
	}
	tries.Store(-1_000_000)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := closer.Handle(ctx, deliveries); !errors.Is(err, down) && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("at shutdown the message was not handed back: %v", err)
	}
	stop()
	if err := closer.Handle(t.Context(), deliveries); err == nil {
		t.Error("a stopped closer acknowledged a message")
	}
}

func TestAPanicInARunOfTheCompensatorDoesNotEndIt(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	sick := &panicky{Store: w.store}
	sick.panics.Store(true)
	sweeper := lifecycle.NewSweeper(sick, w.relay, "test", func() lifecycle.SweepOptions {
		return lifecycle.SweepOptions{Interval: 20 * time.Millisecond}
	}, w.metrics, zap.NewNop())
	defer start(t, sweeper.Run)()
	runs := func(outcome string) float64 {
		return testutil.ToFloat64(w.metrics.SweepRuns.WithLabelValues(outcome))
	}
	eventually(t, "two runs failed and were counted", func() bool { return runs("failed") >= 2 })
	sick.panics.Store(false)
	eventually(t, "a run went well", func() bool { return runs("ok") >= 1 })
}

type panicky struct {
	*store.Store
	panics atomic.Bool
}

func (p *panicky) ScanDue(ctx context.Context, shard int, overdue time.Duration, after order.Cursor, limit int) ([]order.DueOrder, error) {
	if p.panics.Load() {
		panic("damaged")
	}
	return p.Store.ScanDue(ctx, shard, overdue, after, limit)
}

func TestAPaymentThatFitsNoOrderIsRefusedAndKept(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	o := w.create(t, no1, time.Hour)
	good := order.Payment{PaymentNo: "pay-1", OrderNo: no1, Amount: 100, Currency: "CNY", PaidAt: o.CreatedAt}
	for name, change := range map[string]func(*order.Payment){
		"amount":   func(p *order.Payment) { p.Amount++ },
		"currency": func(p *order.Payment) { p.Currency = "EUR" },
		"order":    func(p *order.Payment) { p.OrderNo = "NOBODY-KNOWS" },
	} {
		p := good
		change(&p)
		if _, err := w.orders.Pay(t.Context(), p); err == nil {
			t.Errorf("another %s was taken", name)
		}
	}
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("payment")); n != 3 {
		t.Errorf("%v payments kept, want 3", n)
	}
	if _, err := w.orders.Pay(t.Context(), order.Payment{}); order.KindOf(err) != order.Invalid {
		t.Errorf("an empty payment: %v", err)
	}
	cause := order.Errorf(order.Invalid, "malformed_json", "the body is not JSON")
	if err := w.orders.KeepUnread(t.Context(), []byte("{"), cause); !errors.Is(err, cause) {
		t.Errorf("a notification that cannot be read: %v", err)
	}
	if n := testutil.ToFloat64(w.metrics.Quarantined.WithLabelValues("payment")); n != 4 {
		t.Errorf("%v notifications kept, want 4", n)
	}
	if got := w.get(t, no1); got.Status != order.Pending {
		t.Errorf("the order is %v", got.Status)
	}
}

func TestAPaymentOfAnAttemptThatNobodyHasStartedIsTakenAndSaid(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	core, said := observer.New(zap.WarnLevel)
	orders := lifecycle.NewOrders(w.store, w.relay, order.Limits{}, func() lifecycle.Terms { return w.terms }, func() lifecycle.CreateOptions { return lifecycle.CreateOptions{} }, w.metrics, zap.New(core))
	for attempt, warnings := range map[string]int{"": 0, "TRY-UNKNOWN": 1} {
		no := no1
		if attempt != "" {
			no = no2
		}
		o := w.create(t, no, time.Hour)
		p := order.Payment{PaymentNo: "pay-" + no, OrderNo: no, AttemptNo: attempt, Amount: 100, Currency: "CNY", PaidAt: o.CreatedAt}
		if got, err := orders.Pay(t.Context(), p); err != nil || got.Outcome != order.PaymentAccepted {
			t.Errorf("attempt %q: %+v, %v", attempt, got, err)
		}
		if lines := said.FilterField(zap.String("attempt_no", attempt)).Len(); lines != warnings {
			t.Errorf("attempt %q: %d warnings", attempt, lines)
		}
	}
}

// cashier is a store whose payments fail as a test says, and which remembers what was set aside.
type cashier struct {
	*store.Store
	fail error
	kept []order.Quarantined
	full error // why nothing can be set aside
}

func (c *cashier) Pay(context.Context, order.Payment, order.Rules, order.Schedule) (order.PaymentResult, error) {
	return order.PaymentResult{}, c.fail
}

func (c *cashier) Quarantine(_ context.Context, q order.Quarantined) (bool, error) {
	c.kept = append(c.kept, q)
	return true, c.full
}

func TestAPaymentIsKeptUnlessReportingItAgainMayHelp(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	p := order.Payment{PaymentNo: "pay-1", OrderNo: no1, Amount: 100, Currency: "CNY", PaidAt: time.Now()}
	for kind, kept := range map[order.Kind]int{order.Internal: 1, order.Invalid: 1, order.NotFound: 1, order.Conflict: 1, order.Exhausted: 0, order.Unavailable: 0} {
		sick := &cashier{Store: w.store, fail: order.Errorf(kind, "failed", "it failed")}
		orders := lifecycle.NewOrders(sick, w.relay, order.Limits{}, func() lifecycle.Terms { return w.terms }, func() lifecycle.CreateOptions { return lifecycle.CreateOptions{} }, w.metrics, zap.NewNop())
		if _, err := orders.Pay(t.Context(), p); !errors.Is(err, sick.fail) {
			t.Errorf("kind %v: answered %v", kind, err)
		}
		if len(sick.kept) != kept {
			t.Errorf("kind %v: kept %v, want %d", kind, sick.kept, kept)
		}
		sick.full = errors.New("connection refused")
		if err := orders.KeepUnread(t.Context(), []byte("{"), sick.fail); order.KindOf(err) != order.Unavailable {
			t.Errorf("what could not be kept was answered %v", err)
		}
	}
}

func TestOrdersWithFarDeadlinesWaitInTheTable(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{Horizon: 2 * time.Second, Poll: 50 * time.Millisecond})
	o := w.create(t, no1, 4*time.Second)
	eventually(t, "the message was sent", func() bool { n, _ := w.counts(no1); return n == 1 })
	if ahead := time.Until(o.ExpireAt); ahead > 2*time.Second {
		t.Errorf("sent %v before the deadline, the horizon is 2 s", ahead)
	}
	w.waitClosed(t, no1, order.ReasonTimeout)
}

func TestARowThatMeanwhileIsTooNearForTheBrokerToWaitIsGivenBackAtOnce(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{Poll: 50 * time.Millisecond, Lease: 10 * time.Minute})
	w.set(func(w *wire) { w.impatient = 2 }) // asked when the row is written it can wait, asked when it is to be sent it cannot
	w.create(t, no1, 1500*time.Millisecond)
	w.waitClosed(t, no1, order.ReasonTimeout)
	w.holds(t)
}

func TestAnAdjustmentThatIsNotValidChangesNothing(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	good := order.Adjustment{ID: "more", Kind: "stock", Ref: "sku", Delta: 5}
	for name, change := range map[string]func(*order.Adjustment){
		"no id": func(a *order.Adjustment) { a.ID = "" }, "spaces": func(a *order.Adjustment) { a.ID = "a b" },
		"nothing": func(a *order.Adjustment) { a.Delta = 0 }, "too much": func(a *order.Adjustment) { a.Delta = 1 << 62 },
	} {
		a := good
		change(&a)
		if _, err := w.orders.Adjust(t.Context(), a); order.KindOf(err) != order.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	if r, err := w.orders.Adjust(t.Context(), good); err != nil || r.Available != 1005 {
		t.Errorf("%+v, %v", r, err)
	}
}

// unsettled is a store in which one message cannot be settled.
type unsettled struct {
	*store.Store
	bad string
}

func (u *unsettled) Settle(ctx context.Context, sent []order.Sent) error {
	if slices.ContainsFunc(sent, func(s order.Sent) bool { return s.OrderNo == u.bad }) {
		return order.Errorf(order.Internal, "data_damaged", "damaged")
	}
	return u.Store.Settle(ctx, sent)
}

func TestAMessageThatCannotBeSettledDoesNotKeepOthersFromIt(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{}, func(s *store.Store) lifecycle.MessageStore { return &unsettled{s, "ORDER-13"} })
	var callers sync.WaitGroup
	for i := range 20 {
		callers.Go(func() {
			if _, err := w.orders.Create(t.Context(), wanted(fmt.Sprintf("ORDER-%02d", i), time.Hour)); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	for i := range 20 {
		no := fmt.Sprintf("ORDER-%02d", i)
		eventually(t, no+" is settled unless it is the bad one", func() bool {
			_, scheduled, err := w.store.Timeline(t.Context(), no)
			return err == nil && len(scheduled) == 1 && (i == 13 || scheduled[0].State == order.AlreadySent)
		})
	}
	eventually(t, "the bad one was tried", func() bool {
		return testutil.ToFloat64(w.metrics.Retries.WithLabelValues("settle")) > 0
	})
}

// watched is a store that shows the events of closed orders as they were written.
type watched struct {
	*store.Store
	events []order.Message
}

func (s *watched) CloseDue(ctx context.Context, c order.Closing, first order.Schedule) (order.ClosedBatch, error) {
	batch, err := s.Store.CloseDue(ctx, c, first)
	s.events = append(s.events, batch.Messages...)
	return batch, err
}

func TestManyOrdersDueAtOnceAreGivenBackBeforeAnybodyIsTold(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.swallow = func(order.Envelope) bool { return true } })
	idle := lifecycle.NewRelay(w.store, w.wire, func() lifecycle.RelayOptions { return lifecycle.RelayOptions{Lease: 3 * time.Second} }, w.metrics, zap.NewNop())
	for i, c := range []struct {
		name  string
		batch int
		waits time.Duration // of the event, until a relay may take it from the table
	}{
		{"more than half a batch", 1, 2 * time.Second},
		{"half a batch: the event is leased to the closer's relay", 2, 3 * time.Second},
	} {
		no := fmt.Sprintf("ORDER-%04d", i)
		o := w.create(t, no, time.Second)
		time.Sleep(time.Until(o.ExpireAt))
		db := &watched{Store: w.store}
		closer := lifecycle.NewCloser(db, idle, func() lifecycle.CloseOptions { return lifecycle.CloseOptions{BatchSize: c.batch} }, w.metrics, zap.NewNop())
		ctx, stop := context.WithCancel(t.Context())
		var running errgroup.Group
		running.Go(func() error { return closer.Run(ctx) })
		body := order.TimeoutBody{Version: order.TimeoutVersion, OrderNo: no}.Encode()
		if err := closer.Handle(ctx, []order.Delivery{{Kind: order.Timeout, OrderNo: no, Body: body}}); err != nil {
			t.Fatal(err)
		}
		stop()
		if err := running.Wait(); err != nil {
			t.Error(err)
		}
		if waits := db.events[0].NextAt.Sub(db.events[0].DueAt); len(db.events) != 1 || waits != c.waits {
			t.Errorf("%s: %d events, the first waits %v, want %v", c.name, len(db.events), waits, c.waits)
		}
		w.waitClosed(t, no, order.ReasonTimeout)
	}
	w.holds(t)
}
