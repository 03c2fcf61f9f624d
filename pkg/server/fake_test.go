package server

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"time"

	"lapse/pkg/order"
)

// memory is a small lifecycle in memory. It stands for the ports of this package only.
type memory struct {
	mu         sync.Mutex
	now        time.Time
	orders     map[string]order.Order
	drafts     []order.Draft // every draft that came in
	payments   map[string]order.PaymentResult
	refused    int      // payments that were refused
	unread     []string // bodies of notifications that could not be read
	stock      map[string]order.Resource
	adjusted   map[string]bool
	sweepError string        // how a sweep ended early; "" if it did not
	unrecorded error         // why a sweep could not be recorded
	fail       error         // answers every call, if set
	panics     bool          // panics in every call, if set
	hold       chan struct{} // every call waits until it is closed, if set
	entered    chan struct{} // told of every call that waits
}

func newMemory() *memory {
	return &memory{
		now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), orders: map[string]order.Order{},
		payments: map[string]order.PaymentResult{}, stock: map[string]order.Resource{}, adjusted: map[string]bool{},
		entered: make(chan struct{}, 1000),
	}
}

// enter locks m unless the call is to fail.
func (m *memory) enter(ctx context.Context) (leave func(), err error) {
	if m.panics {
		panic("deliberate panic with a secret")
	}
	if m.hold != nil {
		m.entered <- struct{}{}
		select {
		case <-m.hold:
		case <-ctx.Done():
			return func() {}, ctx.Err()
		}
	}
	if m.fail != nil {
		return func() {}, m.fail
	}
	m.mu.Lock()
	return m.mu.Unlock, nil
}

// writes counts what any call has changed.
func (m *memory) writes() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.drafts) + len(m.payments) + len(m.adjusted)
}

func (m *memory) lastDraft() order.Draft {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.drafts[len(m.drafts)-1]
}

func (m *memory) Create(ctx context.Context, d order.Draft) (order.Created, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.Created{}, err
	}
	m.drafts = append(m.drafts, d)
	d, err = order.Limits{}.Validate(d)
	if err != nil {
		return order.Created{}, err
	}
	if o, ok := m.orders[d.OrderNo]; ok {
		if o.RequestHash != d.Hash() {
			return order.Created{Err: order.Errorf(order.Conflict, "order_no_taken", "the number %q is taken", d.OrderNo)}, nil
		}
		return order.Created{Order: &o, Repeated: true}, nil
	}
	o := order.Order{
		OrderNo: d.OrderNo, Caller: d.Caller, RequestHash: d.Hash(), UserID: d.UserID, BizType: d.BizType, Items: d.Items,
		Amount: d.Amount, Currency: d.Currency, CreatedAt: m.now, ExpireAt: m.now.Add(d.Timeout), Round: 1, Version: 1,
	}
	m.orders[d.OrderNo] = o
	return order.Created{Order: &o}, nil
}

func (m *memory) find(orderNo string) (order.Order, error) {
	o, ok := m.orders[orderNo]
	if !ok {
		return o, order.Errorf(order.NotFound, "order_not_found", "order %s is not here", orderNo)
	}
	return o, nil
}

func (m *memory) Cancel(ctx context.Context, c order.Cancelling) (order.Order, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.Order{}, err
	}
	o, err := m.find(c.OrderNo)
	if err != nil {
		return o, err
	}
	if o.UserID != c.UserID {
		return order.Order{}, order.Errorf(order.NotFound, "not_yours", "the order of somebody else")
	}
	if o.Status == order.Cancelled {
		return o, nil
	}
	if _, err := order.Next(o.Status, order.EventCancelled); err != nil {
		return o, err
	}
	o.Status, o.CancelReason, o.CancelledAt, o.Version = order.Cancelled, c.Reason, m.now, o.Version+1
	m.orders[c.OrderNo] = o
	return o, nil
}

func (m *memory) Pay(ctx context.Context, p order.Payment) (order.PaymentResult, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.PaymentResult{}, err
	}
	o, err := m.find(p.OrderNo)
	if err == nil {
		err = p.Match(o)
	}
	if err != nil {
		m.refused++
		return order.PaymentResult{}, err
	}
	if result, ok := m.payments[p.PaymentNo]; ok {
		result.Repeated = true
		return result, nil
	}
	result := order.PaymentResult{Outcome: order.PaymentLate, Order: o}
	if o.Status == order.Pending {
		o.Status, o.PaidAt = order.Paid, m.now
		m.orders[o.OrderNo] = o
		result = order.PaymentResult{Outcome: order.PaymentAccepted, Order: o}
	}
	m.payments[p.PaymentNo] = result
	return result, nil
}

func (m *memory) KeepUnread(ctx context.Context, body []byte, cause error) error {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return err
	}
	m.unread = append(m.unread, string(body))
	return cause
}

func (m *memory) Get(ctx context.Context, orderNo string) (order.Order, time.Time, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.Order{}, time.Time{}, err
	}
	o, err := m.find(orderNo)
	return o, m.now, err
}

func (m *memory) List(ctx context.Context, userID string, size int, cursor string) ([]order.Order, string, time.Time, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return nil, "", time.Time{}, err
	}
	var all []order.Order
	for _, o := range m.orders {
		if o.UserID == userID {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b order.Order) int {
		return -order.CompareItems(order.Item{Ref: a.OrderNo}, order.Item{Ref: b.OrderNo})
	})
	from, _ := strconv.Atoi(cursor)
	to := min(from+size, len(all))
	next := ""
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	return all[from:to], next, m.now, nil
}

func (m *memory) Timeline(ctx context.Context, orderNo string) ([]order.LogEntry, []order.Scheduled, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return nil, nil, err
	}
	o, err := m.find(orderNo)
	if err != nil {
		return nil, nil, err
	}
	entry := order.LogEntry{OrderNo: orderNo, Version: 1, Round: 1, Event: order.EventCreated, Actor: o.Caller, At: o.CreatedAt}
	message := order.Message{Key: order.TimeoutKey(orderNo), Kind: order.Timeout, OrderNo: orderNo, Round: 1, Type: "timeout", Hop: 2, DueAt: o.ExpireAt}
	return []order.LogEntry{entry}, []order.Scheduled{{
		Message: message, State: order.AlreadySent, Receipt: order.Receipt{MessageID: "M1", OffsetMessageID: "O1"},
	}}, nil
}

func (m *memory) Adjust(ctx context.Context, a order.Adjustment) (order.Resource, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.Resource{}, err
	}
	if err := a.Validate(); err != nil {
		return order.Resource{}, err
	}
	r, ok := m.stock[a.Kind+"/"+a.Ref]
	if !ok {
		r = order.Resource{Kind: a.Kind, Ref: a.Ref, Owner: a.Owner, ValidUntil: a.ValidUntil}
	}
	if !m.adjusted[a.ID] {
		r.Available += a.Delta
		m.adjusted[a.ID] = true
	}
	m.stock[a.Kind+"/"+a.Ref] = r
	return r, nil
}

func (m *memory) Resource(ctx context.Context, kind, ref string) (order.Resource, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.Resource{}, err
	}
	r, ok := m.stock[kind+"/"+ref]
	if !ok {
		return r, order.Errorf(order.NotFound, "resource_not_found", "there is no %s %q", kind, ref)
	}
	return r, nil
}

// Now makes memory a Sweeper, too.
func (m *memory) Now(ctx context.Context) (order.SweepRun, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.SweepRun{}, err
	}
	run := order.SweepRun{
		ID: 7, Owner: "o1", Started: m.now, Finished: m.now.Add(1500 * time.Millisecond), Shards: 64, Looked: 5, Closed: 4, Failed: 1,
		Error: m.sweepError,
	}
	if run.Error != "" {
		return run, errors.New(run.Error)
	}
	return run, m.unrecorded
}
