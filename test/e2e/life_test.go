package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/test/process"
	"lapse/test/services"
)

// lifeRun is the scenario of the whole life: payments in flight, late money by every policy, and staff that interferes.
var lifeRun = scenario{
	name: "the whole life", broker: "5.5.0", delay: "timer",
	orders: 5_000, creating: 80 * time.Second, minTimeout: 3 * time.Second, maxTimeout: 15 * time.Second,
	faults: []fault{{25 * time.Second, "kill consumer-2", 5 * time.Second}, {40 * time.Second, "kill producer-2", 5 * time.Second}},
}

// lifeTypes are the business types, one for each rule.
const lifeTypes = `[
	{name: manual, late: manual}, {name: refund, late: refund}, {name: reopen, late: reopen},
	{name: at-payment, late: refund, stock_at_payment: true}, {name: restocking, late: refund, restock: true},
	{name: patient, late: reopen, remind_before: 2s, on_expiry: remind, second_chance: 4s}]`

var lifeTypeNames = []string{"manual", "refund", "reopen", "at-payment", "restocking", "patient"}

// fates are what happens to an order, with their weights.
var fates = []struct {
	name   string
	weight int
}{
	{"nothing", 15}, {"attempt in flight", 30}, {"attempt failed", 5}, {"paid", 12}, {"paid late", 12}, {"paid twice", 4},
	{"user cancels", 4}, {"staff cancels", 4}, {"user cancels in flight", 4}, {"extended at the deadline", 6}, {"restored", 10}, {"restored and paid late", 4},
}

// guest is one order of the whole-life run and what its customer did and was told.
type guest struct {
	no       int
	fate     string
	biz      string
	user     string
	temper   temper
	timeout  time.Duration
	start    time.Duration
	late     time.Duration // from the deadline, of what comes late
	items    []*lapsev1.Item
	attempt  string
	order    *lapsev1.Order
	payments []string // reported by notification
	refusals []string // codes of what was refused
}

// life is a run of the whole life.
type life struct {
	t       *testing.T
	sys     *system
	seed    uint64
	bank    *bank
	faces   [2]lifeFace
	guests  []*guest
	mu      sync.Mutex
	acked   map[string]bool // releases of remote kinds that were acknowledged, by event id
	refunds map[string]bool // payments whose refund was completed after its request
	events  *listener
}

// lifeFace is a producer by gRPC.
type lifeFace struct {
	orders   lapsev1.OrderServiceClient
	operator lapsev1.OperatorServiceClient
	face     overGRPC
}

func TestTheWholeLifeOfOrdersKeepsEveryPromise(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("minutes on a real database and broker")
	}
	services.Need(t, "LAPSE_TEST_MYSQL_DSN", "LAPSE_TEST_ROCKETMQ")
	s, err := lifeRun.sized(os.Getenv("LAPSE_E2E_ORDERS"))
	if err != nil {
		t.Fatal(err)
	}
	l := &life{t: t, seed: seedOfRun(t), bank: newBank(t), acked: map[string]bool{}, refunds: map[string]bool{}}
	s.env = []string{
		"LAPSE_GATEWAY_URL=" + l.bank.url, "LAPSE_GATEWAY_TOKEN=" + services.RandomHex(16), "LAPSE_GATEWAY_TIMEOUT=3s",
		"LAPSE_CONFIRM_FOR=12s", "LAPSE_CONFIRM_END=cancel",
		"LAPSE_ORDER_BIZ_TYPES=" + strings.Join(strings.Fields(lifeTypes), " "), "LAPSE_RESOURCE_REMOTE_KINDS=cart",
	}
	l.sys = startSystem(t, process.Build(t), s)
	l.play(s)
	l.judge(s)
}

// play makes the run.
func (l *life) play(s scenario) {
	ctx := l.t.Context()
	for i, addr := range l.sys.apis() {
		conn, err := dial(addr)
		if err != nil {
			l.t.Fatal(err)
		}
		l.faces[i] = lifeFace{lapsev1.NewOrderServiceClient(conn), lapsev1.NewOperatorServiceClient(conn), newGRPCFace(conn, l.sys.secrets)}
	}
	l.guests = makeGuests(s, l.seed)
	if err := l.stock(ctx); err != nil {
		l.t.Fatal(err)
	}
	out := newSender(l.t, l.sys.broker.Addr)
	l.events = listen(l.t, l.sys.broker.Addr, eventTopic, nil)
	all, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	aside, enough := context.WithCancel(all)
	defer enough()
	trade, beside := crew{ctx: all, fail: fail}, crew{ctx: aside, fail: fail}
	trade.do("trading", l.trade)
	beside.do("serving as another service", l.otherServices)
	err := func() error {
		if _, err := l.sys.trouble(all, s.faults); err != nil {
			return err
		}
		if err := trade.Wait(); err != nil {
			return err
		}
		if err := l.settled(all); err != nil {
			return err
		}
		if err := l.bankReports(all); err != nil {
			return err
		}
		if err := l.decideAll(all); err != nil {
			return err
		}
		if err := l.settled(all); err != nil {
			return err
		}
		return l.events.drained(all, out)
	}()
	if err != nil {
		fail(err)
	} else if err := l.otherWork(all); err != nil { // what was heard last
		fail(err)
	}
	enough()
	_, _ = trade.Wait(), beside.Wait()
	if err := context.Cause(all); err != nil {
		l.t.Fatal(err)
	}
}

func makeGuests(s scenario, seed uint64) []*guest {
	r := dice{rand.New(rand.NewPCG(seed, 2))}
	total := 0
	for _, f := range fates {
		total += f.weight
	}
	guests := make([]*guest, s.orders)
	for i := range guests {
		n := r.IntN(total)
		fate := slices.IndexFunc(fates, func(f struct {
			name   string
			weight int
		}) bool {
			n -= f.weight
			return n < 0
		})
		g := &guest{
			no: i, fate: fates[fate].name, biz: lifeTypeNames[r.IntN(len(lifeTypeNames))], user: fmt.Sprintf("user-%d", r.IntN(users)),
			temper: tempers[r.IntN(len(tempers))], timeout: r.between(s.minTimeout, s.maxTimeout),
			start: s.creating * time.Duration(i) / time.Duration(s.orders), late: r.between(-300*time.Millisecond, 8*time.Second),
			attempt: fmt.Sprintf("ATT-%05d", i),
		}
		g.items = []*lapsev1.Item{{Kind: "stock", Ref: fmt.Sprintf("sku-%d", r.IntN(20)), Quantity: 1 + r.Int64N(3)}}
		if r.yes(.1) {
			g.items = append(g.items, &lapsev1.Item{Kind: "stock", Ref: "rare", Quantity: 1})
		}
		if r.yes(.1) {
			g.items = append(g.items, &lapsev1.Item{Kind: "coupon", Ref: fmt.Sprintf("coupon-%d", i), Quantity: 1})
		}
		if r.yes(.2) {
			g.items = append(g.items, &lapsev1.Item{Kind: "cart", Ref: fmt.Sprintf("cart-%d", i), Quantity: 1})
		}
		guests[i] = g
	}
	return guests
}

// rare is how much there is of what not everybody can have.
const rare = 150

func (l *life) stock(ctx context.Context) error {
	need := map[resource]int64{{"stock", "rare"}: rare}
	owner := map[resource]string{}
	for _, g := range l.guests {
		for _, it := range g.items {
			at := resource{it.Kind, it.Ref}
			switch {
			case it.Kind == "coupon":
				need[at], owner[at] = 1, g.user
			case it.Ref != "rare" && it.Kind == "stock":
				need[at] += 4 * it.Quantity
			}
		}
	}
	n := 0
	for at, quantity := range need {
		n++
		adjustment := &lapsev1.AdjustResourceRequest{AdjustmentId: fmt.Sprintf("fill-%d", n), Kind: at.kind, Ref: at.ref, Delta: quantity, Owner: owner[at]}
		if at.kind == "coupon" && n%3 == 0 {
			adjustment.ValidUntil = timestamppb.New(time.Now().Add(time.Duration(20+n%60) * time.Second)) // runs out in the middle
		}
		if _, err := l.faces[n%2].face.adjust(ctx, adjustment); err != nil {
			return err
		}
	}
	return nil
}

// trade lets every guest live through its fate.
func (l *life) trade(ctx context.Context) error {
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for _, g := range l.guests {
		group.Go(func() error {
			if !pause(ctx, time.Until(begin.Add(g.start))) {
				return ctx.Err()
			}
			if err := l.live(ctx, g); err != nil {
				return fmt.Errorf("order %d (%s): %w", g.no, g.fate, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// tell makes a call until it is answered, at both producers in turn. What is refused is kept with the guest. A token of
// "" leaves the credential to call.
func tell[A any](ctx context.Context, l *life, g *guest, token string, call func(context.Context, lifeFace) (A, error)) (answer A, refused bool, err error) {
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+token)
	}
	answer, err = persist(ctx, func(ctx context.Context, try int) (A, error) { return call(ctx, l.faces[(g.no+try)%2]) })
	var no refusal
	if errors.As(err, &no) {
		g.refusals = append(g.refusals, no.code)
		return answer, true, nil
	}
	return answer, false, err
}

// byShop and byStaff are tell with the one token or the other.
func byShop[Q, A any](ctx context.Context, l *life, g *guest, method func(lifeFace) method[Q, A], q *Q) (*A, bool, error) {
	return tell(ctx, l, g, l.sys.secrets.shop, func(ctx context.Context, f lifeFace) (*A, error) { return invoke(ctx, method(f), q) })
}

func byStaff[Q, A any](ctx context.Context, l *life, g *guest, method func(lifeFace) method[Q, A], q *Q) (*A, bool, error) {
	return tell(ctx, l, g, l.sys.secrets.staff, func(ctx context.Context, f lifeFace) (*A, error) { return invoke(ctx, method(f), q) })
}

func (l *life) live(ctx context.Context, g *guest) error {
	amount := int64(100 + g.no)
	order, refused, err := byShop(ctx, l, g, func(f lifeFace) method[lapsev1.CreateOrderRequest, lapsev1.Order] { return f.orders.CreateOrder },
		&lapsev1.CreateOrderRequest{RequestId: fmt.Sprintf("life-%d", g.no), UserId: g.user, BizType: g.biz, Items: g.items, Amount: &amount, Currency: "CNY", Timeout: durationpb.New(g.timeout)})
	if err != nil || refused {
		return err
	}
	g.order = order
	deadline := order.ExpireAt.AsTime()
	before := func(d time.Duration) bool { return pause(ctx, time.Until(deadline.Add(-d))) }
	after := func(d time.Duration) bool { return pause(ctx, time.Until(deadline.Add(d))) }
	switch g.fate {
	case "attempt in flight":
		before(g.timeout / 2)
		if err := l.startPayment(ctx, g, time.Minute); err != nil {
			return err
		}
		after(3 * time.Second)
		if g.no%2 == 0 && (g.temper == tellsPaid || g.temper == paidAtClose) { // the notification comes as well, out of order
			return l.notifyBank(ctx, g)
		}
	case "attempt failed":
		before(g.timeout / 2)
		if err := l.startPayment(ctx, g, time.Minute); err != nil {
			return err
		}
		_, _, err = byShop(ctx, l, g, func(f lifeFace) method[lapsev1.FailPaymentRequest, lapsev1.PaymentAttempt] {
			return f.orders.FailPayment
		},
			&lapsev1.FailPaymentRequest{OrderNo: order.OrderNo, AttemptNo: g.attempt})
	case "paid":
		before(time.Second)
		err = l.pay(ctx, g, "pay", 2)
	case "paid late":
		after(g.late)
		err = l.pay(ctx, g, "late", 3)
	case "paid twice":
		before(time.Second)
		err = errors.Join(l.pay(ctx, g, "first", 1), l.pay(ctx, g, "second", 1))
	case "user cancels", "user cancels in flight":
		before(g.timeout / 2)
		if g.fate == "user cancels in flight" {
			if err := l.startPayment(ctx, g, time.Minute); err != nil {
				return err
			}
		}
		_, _, err = byShop(ctx, l, g, cancelOrder, &lapsev1.CancelOrderRequest{OrderNo: order.OrderNo, UserId: g.user})
	case "staff cancels":
		before(g.timeout / 3)
		_, _, err = byStaff(ctx, l, g, cancelOrder, &lapsev1.CancelOrderRequest{OrderNo: order.OrderNo, Reason: "wrong price"})
	case "extended at the deadline":
		after(g.late / 20)
		_, _, err = byStaff(ctx, l, g, func(f lifeFace) method[lapsev1.ExtendOrderRequest, lapsev1.Order] { return f.orders.ExtendOrder },
			&lapsev1.ExtendOrderRequest{OrderNo: order.OrderNo, Reason: "asked on the phone", By: durationpb.New(3 * time.Second)})
	case "restored", "restored and paid late":
		after(2*time.Second + g.late)
		if g.fate == "restored and paid late" {
			if err := l.pay(ctx, g, "late", 1); err != nil {
				return err
			}
		}
		for range 2 { // asked twice, as people do
			_, _, err = byStaff(ctx, l, g, func(f lifeFace) method[lapsev1.RestoreOrderRequest, lapsev1.Order] { return f.orders.RestoreOrder },
				&lapsev1.RestoreOrderRequest{OrderNo: order.OrderNo, Reason: "a good customer", Round: 1, Timeout: durationpb.New(4 * time.Second)})
			if err != nil {
				return err
			}
		}
		if g.no%3 == 0 {
			err = l.pay(ctx, g, "again", 1)
		}
	}
	return err
}

func cancelOrder(f lifeFace) method[lapsev1.CancelOrderRequest, lapsev1.Order] {
	return f.orders.CancelOrder
}

func (l *life) startPayment(ctx context.Context, g *guest, lifetime time.Duration) error {
	l.bank.open(g.attempt, g.temper)
	_, _, err := byShop(ctx, l, g, func(f lifeFace) method[lapsev1.StartPaymentRequest, lapsev1.StartPaymentResponse] {
		return f.orders.StartPayment
	},
		&lapsev1.StartPaymentRequest{OrderNo: g.order.OrderNo, UserId: g.user, AttemptNo: g.attempt, Channel: "bank " + string(g.temper), Lifetime: durationpb.New(lifetime)})
	return err
}

// pay reports a captured payment so many times.
func (l *life) pay(ctx context.Context, g *guest, what string, times int) error {
	paymentNo := fmt.Sprintf("%s-%d", what, g.no)
	g.payments = append(g.payments, paymentNo)
	for range times {
		if err := l.notify(ctx, g, paymentNo, ""); err != nil {
			return err
		}
	}
	return nil
}

// notifyBank reports what the bank has captured, if it has, by its own number.
func (l *life) notifyBank(ctx context.Context, g *guest) error {
	paymentNo := "bank-" + g.attempt
	if _, captured := l.bank.captured()[paymentNo]; !captured {
		return nil
	}
	return l.notify(ctx, g, paymentNo, g.attempt)
}

// bankReports lets the bank notify of all that it has captured, as it does in any case: it may have answered a question whose
// asker had been killed, and that the order did not outlive. It is an error if there are more of those than a kill explains.
func (l *life) bankReports(ctx context.Context) error {
	recorded, err := names(ctx, l.sys.db.DB, "SELECT payment_no FROM t_payment WHERE payment_no LIKE 'bank-%'")
	if err != nil {
		return err
	}
	unheard := len(l.bank.captured()) - len(recorded)
	l.t.Logf("the bank has captured %d payments, and was not heard about %d", len(recorded)+unheard, unheard)
	if unheard > 10 {
		return fmt.Errorf("the bank was not heard about %d payments", unheard)
	}
	for _, g := range l.guests {
		if g.order == nil {
			continue
		}
		if err := l.notifyBank(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) notify(ctx context.Context, g *guest, paymentNo, attemptNo string) error {
	body, err := jsonForm.Marshal(&lapsev1.PaymentNotification{
		PaymentNo: paymentNo, OrderNo: g.order.OrderNo, Amount: g.order.Amount, Currency: "CNY", PaidAt: timestamppb.Now(), AttemptNo: attemptNo,
	})
	if err != nil {
		return err
	}
	_, refused, err := tell(ctx, l, g, "", func(ctx context.Context, f lifeFace) (*lapsev1.NotifyPaymentResponse, error) {
		now := time.Now().Unix()
		return f.face.notify(ctx, &lapsev1.NotifyPaymentRequest{Body: body, Timestamp: now, Signature: sign(l.sys.secrets.payment, now, body)})
	})
	if refused {
		return fmt.Errorf("payment %s was refused: %v", paymentNo, g.refusals)
	}
	return err
}

// settled waits until nothing is pending, in doubt, or to be sent.
func (l *life) settled(ctx context.Context) error {
	const left = "SELECT (SELECT COUNT(*) FROM t_order WHERE status IN (0, 5)), (SELECT COUNT(*) FROM t_local_message)"
	var orders, messages int
	err := await(ctx, lifeRun.maxTimeout+grace+2*bound, "nothing is due", func(ctx context.Context) (bool, error) {
		err := l.sys.db.QueryRowContext(ctx, left).Scan(&orders, &messages)
		return orders+messages == 0, err
	})
	if err != nil {
		return fmt.Errorf("%w: %d orders not ended, %d messages left", err, orders, messages)
	}
	return nil
}

// decideAll is staff at the end of the day: every other open case is refunded, the others are reopened where that can be.
func (l *life) decideAll(ctx context.Context) error {
	open, err := names(ctx, l.sys.db.DB, "SELECT payment_no FROM t_late_payment WHERE status = 'open' ORDER BY payment_no")
	if err != nil {
		return err
	}
	clerk := &guest{}
	for i, no := range open {
		for _, decision := range []string{[]string{"refund", "reopen"}[i%2], "refund"} { // what cannot be reopened is refunded
			_, refused, err := byStaff(ctx, l, clerk, func(f lifeFace) method[lapsev1.DecideLatePaymentRequest, lapsev1.LatePayment] {
				return f.operator.DecideLatePayment
			}, &lapsev1.DecideLatePaymentRequest{PaymentNo: no, Decision: decision, Reason: "end of the day"})
			if err != nil {
				return err
			}
			if !refused {
				break
			}
		}
	}
	return nil
}

// otherServices are the payment service that refunds when asked to, and the cart that gives back when an order is
// cancelled, until ctx ends.
func (l *life) otherServices(ctx context.Context) error {
	for pause(ctx, time.Second) {
		if err := l.otherWork(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// toldEvent is an event as a subscriber reads it.
type toldEvent struct {
	ID   string
	Type string
	Data struct {
		OrderNo   string `json:"order_no"`
		PaymentNo string `json:"payment_no"`
		Round     int32
		Items     []struct {
			Kind   string
			Remote bool
		}
	}
}

// otherWork does once what the events that were heard ask for.
func (l *life) otherWork(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	heard, _ := l.events.messages()
	clerk := &guest{}
	for _, m := range heard {
		var e toldEvent
		if json.Unmarshal([]byte(m.body), &e) != nil || e.ID == "" {
			continue
		}
		switch {
		case e.Type == "refund_requested" && !l.refunds[e.Data.PaymentNo]:
			_, refused, err := byStaff(ctx, l, clerk, func(f lifeFace) method[lapsev1.CompleteRefundRequest, lapsev1.Order] {
				return f.operator.CompleteRefund
			},
				&lapsev1.CompleteRefundRequest{PaymentNo: e.Data.PaymentNo, RefundNo: "refund-" + e.Data.PaymentNo, Reason: "the bank has confirmed"})
			if err != nil || refused {
				return fmt.Errorf("refund of %s: refused %v, %w", e.Data.PaymentNo, clerk.refusals, err)
			}
			l.refunds[e.Data.PaymentNo] = true
		case e.Type == "cancelled" && !l.acked[e.ID] && slices.ContainsFunc(e.Data.Items, func(it struct {
			Kind   string
			Remote bool
		}) bool {
			return it.Remote
		}):
			_, refused, err := byShop(ctx, l, clerk, func(f lifeFace) method[lapsev1.AcknowledgeReleaseRequest, lapsev1.AcknowledgeReleaseResponse] {
				return f.orders.AcknowledgeRelease
			}, &lapsev1.AcknowledgeReleaseRequest{OrderNo: e.Data.OrderNo, Round: e.Data.Round, Kind: "cart"})
			if err != nil || refused {
				return fmt.Errorf("acknowledging %s: refused %v, %w", e.ID, clerk.refusals, err)
			}
			l.acked[e.ID] = true
		}
	}
	return nil
}
