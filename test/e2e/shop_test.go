package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
)

// clients is how many customers' browsers there are at once: half of them speak gRPC, and of each half one
// half prefers the first producer.
const clients = 32

// shop creates, pays and cancels orders, and remembers every answer.
type shop struct {
	faces   [clients][2]face // the preferred producer first
	secrets secrets
	records []*record
	supply  sync.Map     // resource{kind, ref} → *atomic.Int64, what was put there
	again   atomic.Int64 // calls that had to be made again
	created chan *record // every order, once
}

type resource struct{ kind, ref string }

// record is all that one order's customer was told.
type record struct {
	plan
	client    int
	request   *lapsev1.CreateOrderRequest
	mu        sync.Mutex
	order     *lapsev1.Order   // the first answer
	refused   string           // or the refusal's code
	repeated  []*lapsev1.Order // the answers to the same create, made again
	reused    string           // code of the refusal of the key's second use
	payments  []told
	cancelled string // "cancelled", or the refusal's code; "" if not asked
}

// told is the answer to a payment notification.
type told struct {
	paymentNo, outcome string
	answered           time.Time
}

func newShop(addrs [2]string, s secrets, plans []plan) (*shop, error) {
	shop := &shop{secrets: s, created: make(chan *record, len(plans))}
	for i := range shop.faces {
		for j := range shop.faces[i] {
			addr := addrs[(i/2+j)%2]
			if i%2 == 0 {
				shop.faces[i][j] = overHTTP{"http://" + addr, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}, s}
				continue
			}
			conn, err := dial(addr)
			if err != nil {
				return nil, err
			}
			shop.faces[i][j] = newGRPCFace(conn, s)
		}
	}
	for i, p := range plans {
		shop.records = append(shop.records, &record{plan: p, client: i % clients, request: p.request()})
	}
	return shop, nil
}

func (p plan) request() *lapsev1.CreateOrderRequest {
	r := &lapsev1.CreateOrderRequest{
		OrderNo: p.orderNo, UserId: p.user, BizType: p.biz, Amount: &p.amount, Currency: "CNY", Timeout: durationpb.New(p.timeout),
	}
	for _, it := range p.items {
		r.Items = append(r.Items, &lapsev1.Item{Kind: it.kind, Ref: it.ref, Quantity: it.quantity})
	}
	return r
}

const (
	// patience is how long a client goes on asking when nobody answers.
	patience  = 2 * time.Minute
	askAgain  = 50 * time.Millisecond
	askSlower = time.Second

	// spare is how much more of a stock there is than all orders together ask for, so that none is refused while the
	// stock is changed from outside.
	spare = 100
)

// ask makes a call until it has a final answer, at one producer and the other in turn.
func ask[A any](ctx context.Context, s *shop, client int, call func(context.Context, face) (A, error)) (answer A, err error) {
	return persist(ctx, func(ctx context.Context, try int) (A, error) {
		if try > 0 {
			s.again.Add(1)
		}
		return call(ctx, s.faces[client][try%2])
	})
}

// persist makes a call until it has a final answer. call learns how often it was made before.
func persist[A any](ctx context.Context, call func(ctx context.Context, try int) (A, error)) (answer A, err error) {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for try, wait := 0, askAgain; ; try, wait = try+1, min(wait*2, askSlower) {
		if answer, err = call(bounded, try); final(err) {
			return answer, err
		}
		if !pause(bounded, wait) {
			return answer, fmt.Errorf("no answer within %v: %w", patience, err)
		}
	}
}

// pause waits for d; false if ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// stock fills the resources that the plans need, some twice with the same adjustment.
func (s *shop) stock(ctx context.Context) error {
	need := map[resource]int64{}
	owner := map[resource]string{}
	for _, r := range s.records {
		for _, it := range r.items {
			at := resource{it.kind, it.ref}
			need[at] += it.quantity
			if it.kind == "coupon" || it.kind == "points" {
				owner[at] = r.user
			}
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	n := 0
	for at, quantity := range need {
		switch at.kind {
		case "gift":
			quantity = giftsEach
		case "stock":
			quantity += spare
		}
		n++
		id := n
		group.Go(func() error {
			for range 1 + id%2 { // the second time changes nothing
				if err := s.adjust(ctx, id%clients, fmt.Sprintf("fill-%d", id), at, quantity, owner[at]); err != nil {
					return err
				}
			}
			s.supplied(at, quantity)
			return nil
		})
	}
	return group.Wait()
}

func (s *shop) adjust(ctx context.Context, client int, id string, at resource, delta int64, owner string) error {
	_, err := ask(ctx, s, client, func(ctx context.Context, f face) (*lapsev1.Resource, error) {
		return f.adjust(ctx, &lapsev1.AdjustResourceRequest{AdjustmentId: id, Kind: at.kind, Ref: at.ref, Delta: delta, Owner: owner})
	})
	if err != nil {
		return fmt.Errorf("adjusting %v: %w", at, err)
	}
	return nil
}

func (s *shop) supplied(at resource, delta int64) {
	n, _ := s.supply.LoadOrStore(at, &atomic.Int64{})
	n.(*atomic.Int64).Add(delta)
}

func (s *shop) putIn(at resource) int64 {
	n, ok := s.supply.Load(at)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// restock goes on changing the hot stocks from outside until ctx ends.
func (s *shop) restock(ctx context.Context) error {
	for n := 0; pause(ctx, 300*time.Millisecond); n++ {
		at, delta := resource{"stock", fmt.Sprintf("sku-%d", n%hotSKUs)}, []int64{4, -1, 2}[n%3]
		// What was begun is finished, so that the record is exact.
		if err := s.adjust(context.WithoutCancel(ctx), n%clients, fmt.Sprintf("restock-%d", n), at, delta, ""); err != nil {
			return err
		}
		s.supplied(at, delta)
	}
	return nil
}

// trade makes all orders as planned and returns when every customer has had all answers.
func (s *shop) trade(ctx context.Context) error {
	begin := time.Now()
	var group errgroup.Group
	for client := range clients {
		group.Go(func() error { return s.serve(ctx, client, begin) })
	}
	defer close(s.created)
	return group.Wait()
}

// serve is one client: it creates its orders one after the other, while what follows on each goes on.
func (s *shop) serve(ctx context.Context, client int, begin time.Time) error {
	var follow errgroup.Group
	for i := client; i < len(s.records); i += clients {
		r := s.records[i]
		if !pause(ctx, time.Until(begin.Add(r.start))) {
			return ctx.Err()
		}
		if err := s.create(ctx, r); err != nil {
			return errors.Join(err, follow.Wait())
		}
		if r.order != nil {
			s.created <- r
			s.follow(ctx, r, &follow)
		}
	}
	return follow.Wait()
}

// create asks for the order, and if it has a twin for that at the same time, at the other producer.
func (s *shop) create(ctx context.Context, r *record) error {
	var twin errgroup.Group
	if r.twin {
		twin.Go(func() error { return s.createAgain(ctx, r, r.client+2) }) // speaks the same protocol, prefers the other producer
	}
	answer, err := s.askCreate(ctx, r, r.client)
	err = errors.Join(err, twin.Wait())
	var no refusal
	if errors.As(err, &no) {
		r.refused = no.code
		return nil
	}
	if err != nil {
		return fmt.Errorf("creating order %d: %w", r.no, err)
	}
	r.order = answer
	return nil
}

func (s *shop) askCreate(ctx context.Context, r *record, client int) (*lapsev1.Order, error) {
	return ask(ctx, s, client%clients, func(ctx context.Context, f face) (*lapsev1.Order, error) { return f.create(ctx, r.key, r.request) })
}

// createAgain makes the same create call as before.
func (s *shop) createAgain(ctx context.Context, r *record, client int) error {
	answer, err := s.askCreate(ctx, r, client)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.repeated = append(r.repeated, answer)
	return nil
}

// follow starts what happens to an order after its create.
func (s *shop) follow(ctx context.Context, r *record, group *errgroup.Group) {
	created, deadline := time.Now(), r.order.ExpireAt.AsTime()
	at := func(when time.Time, what string, do func(context.Context) error) {
		group.Go(func() error {
			if !pause(ctx, time.Until(when)) {
				return ctx.Err()
			}
			if err := do(ctx); err != nil {
				return fmt.Errorf("order %s: %s: %w", r.order.OrderNo, what, err)
			}
			return nil
		})
	}
	if r.repeat != nil {
		at(created.Add(*r.repeat), "creating it again", func(ctx context.Context) error { return s.createAgain(ctx, r, r.client) })
	}
	if r.reuse {
		at(created, "using its key again", func(ctx context.Context) error { return s.useKeyAgain(ctx, r) })
	}
	for i, pay := range r.pays {
		paymentNo := fmt.Sprintf("pay-%d-%d", r.no, i)
		at(deadline.Add(pay.at), "paying", func(ctx context.Context) error { return s.pay(ctx, r, paymentNo, pay.again) })
	}
	if r.cancel != nil {
		at(deadline.Add(*r.cancel), "cancelling", func(ctx context.Context) error { return s.cancel(ctx, r) })
	}
}

// useKeyAgain creates another order with the same key.
func (s *shop) useKeyAgain(ctx context.Context, r *record) error {
	other := r.plan
	other.amount++
	_, err := ask(ctx, s, r.client, func(ctx context.Context, f face) (*lapsev1.Order, error) {
		return f.create(ctx, r.key, other.request())
	})
	var no refusal
	switch {
	case err == nil:
		return errors.New("it was not refused")
	case !errors.As(err, &no):
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reused = no.code
	return nil
}

// pay reports one captured payment, to one producer and by one protocol or the other.
func (s *shop) pay(ctx context.Context, r *record, paymentNo string, again bool) error {
	body, err := jsonForm.Marshal(&lapsev1.PaymentNotification{
		PaymentNo: paymentNo, OrderNo: r.order.OrderNo, Amount: r.amount, Currency: "CNY", PaidAt: timestamppb.Now(),
	})
	if err != nil {
		return err
	}
	calls := 1
	if again {
		calls = 2
	}
	for i := range calls {
		answer, err := ask(ctx, s, (r.client+i)%clients, func(ctx context.Context, f face) (*lapsev1.NotifyPaymentResponse, error) {
			now := time.Now().Unix()
			return f.notify(ctx, &lapsev1.NotifyPaymentRequest{Body: body, Timestamp: now, Signature: sign(s.secrets.payment, now, body)})
		})
		if err != nil {
			return err
		}
		r.mu.Lock()
		r.payments = append(r.payments, told{paymentNo, answer.Outcome, time.Now()})
		r.mu.Unlock()
	}
	return nil
}

func (s *shop) cancel(ctx context.Context, r *record) error {
	answer, err := ask(ctx, s, r.client, func(ctx context.Context, f face) (*lapsev1.Order, error) {
		return f.cancel(ctx, &lapsev1.CancelOrderRequest{OrderNo: r.order.OrderNo, UserId: r.user})
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	var no refusal
	switch {
	case errors.As(err, &no):
		r.cancelled = no.code
	case err != nil:
		return err
	default:
		r.cancelled = answer.Status
	}
	return nil
}
