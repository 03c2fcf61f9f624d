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
	kept       []order.KeptPayment
	refused    int      // payments that were refused
	unread     []string // bodies of notifications that could not be read
	stock      map[string]order.Resource
	adjusted   map[string]bool
	attempts   []order.Attempt
	cases      []order.LatePayment
	acts       []order.Act // who did something by hand, and why
	extending  []order.Extending
	acked      []string
	braked     order.Brakes
	compared   order.Comparing // what was asked of the shadow report
	sweepError string          // how a sweep ended early; "" if it did not
	unrecorded error           // why a sweep could not be recorded
	fail       error           // answers every call, if set
	panics     bool            // panics in every call, if set
	hold       chan struct{}   // every call waits until it is closed, if set
	entered    chan struct{}   // told of every call that waits
}

func newMemory() *memory {
	return &memory{
		now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), orders: map[string]order.Order{},
		payments: map[string]order.PaymentResult{}, stock: map[string]order.Resource{}, adjusted: map[string]bool{},
		entered: make(chan struct{}, 1000), braked: order.Brakes{Mode: order.ModeEnforce, Percent: 100, Version: 1},
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
	return len(m.drafts) + len(m.payments) + len(m.adjusted) + len(m.attempts) + len(m.acts) + len(m.acked)
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
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return order.Order{}, err
	}
	o, err := m.find(c.OrderNo)
	if err != nil {
		return o, err
	}
	if c.UserID != "" && o.UserID != c.UserID {
		return order.Order{}, order.Errorf(order.NotFound, "not_yours", "the order of somebody else")
	}
	if o.Status == order.Cancelled {
		return o, nil
	}
	if o.InFlight(m.now) && !c.Force {
		o.Status, o.CancelReason, o.ConfirmUntil = order.Confirming, c.Reason, m.now.Add(10*time.Minute)
		m.orders[c.OrderNo] = o
		return o, nil
	}
	return m.change(c.OrderNo, order.EventCancelled, c.Act, func(o *order.Order) { o.CancelReason, o.CancelledAt = c.Reason, m.now })
}

// change applies an event to an order.
func (m *memory) change(orderNo string, event order.Event, act order.Act, set func(*order.Order)) (order.Order, error) {
	o, err := m.find(orderNo)
	if err != nil {
		return o, err
	}
	next, err := order.Next(o.Status, event)
	if err != nil {
		return o, err
	}
	o.Status, o.Version = next.To, o.Version+1
	set(&o)
	m.orders[orderNo] = o
	m.acts = append(m.acts, act)
	return o, nil
}

func (m *memory) StartPayment(ctx context.Context, a order.Attempting) (order.Attempt, order.Order, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if a.Lifetime == 0 {
		a.Lifetime = 5 * time.Minute
	}
	if err == nil {
		err = a.Validate(time.Hour)
	}
	if err != nil {
		return order.Attempt{}, order.Order{}, err
	}
	o, err := m.find(a.OrderNo)
	if err != nil || a.UserID != "" && a.UserID != o.UserID {
		return order.Attempt{}, order.Order{}, order.Errorf(order.NotFound, "order_not_found", "order %s is not here", a.OrderNo)
	}
	if i := slices.IndexFunc(m.attempts, func(old order.Attempt) bool { return old.AttemptNo == a.AttemptNo }); i >= 0 {
		again := m.attempts[i]
		again.Repeated = true
		return again, o, nil
	}
	if !o.Payable(m.now) {
		return order.Attempt{}, o, order.Errorf(order.Conflict, "not_payable", "it cannot be paid any more")
	}
	attempt := order.Attempt{
		AttemptNo: a.AttemptNo, OrderNo: a.OrderNo, Round: o.Round, Channel: a.Channel, Amount: o.Amount, Currency: o.Currency,
		State: order.AttemptOpen, StartedAt: m.now, Deadline: m.now.Add(a.Lifetime),
	}
	m.attempts = append(m.attempts, attempt)
	o, err = m.change(a.OrderNo, order.EventPaymentStarted, order.Act{Actor: a.Actor}, func(o *order.Order) { o.PayingUntil = attempt.Deadline })
	return attempt, o, err
}

func (m *memory) FailPayment(ctx context.Context, orderNo, attemptNo string) (order.Attempt, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.Attempt{}, err
	}
	for i, a := range m.attempts {
		if a.OrderNo == orderNo && a.AttemptNo == attemptNo {
			m.attempts[i].State, m.attempts[i].EndedAt = order.AttemptFailed, m.now
			return m.attempts[i], nil
		}
	}
	return order.Attempt{}, order.Errorf(order.NotFound, "attempt_not_found", "order %s has no attempt %s", orderNo, attemptNo)
}

func (m *memory) Attempts(ctx context.Context, orderNo string) (found []order.Attempt, err error) {
	leave, err := m.enter(ctx)
	defer leave()
	for _, a := range m.attempts {
		if a.OrderNo == orderNo {
			found = append(found, a)
		}
	}
	return found, err
}

func (m *memory) Acknowledge(ctx context.Context, orderNo string, round int, kind string) error {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return err
	}
	if o, err := m.find(orderNo); err != nil || o.Round != round || o.Status != order.Cancelled {
		return order.Errorf(order.NotFound, "release_not_found", "there is no such release")
	}
	m.acked = append(m.acked, kind)
	return nil
}

func (m *memory) Restore(ctx context.Context, r order.Restoring) (order.Order, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err == nil {
		r, err = order.Limits{}.ValidateRestoring(r)
	}
	if err != nil {
		return order.Order{}, err
	}
	return m.change(r.OrderNo, order.EventRestored, r.Act, func(o *order.Order) {
		o.Round++
		o.ExpireAt, o.CancelledAt, o.CancelReason = m.now.Add(r.Timeout), time.Time{}, ""
	})
}

func (m *memory) Extend(ctx context.Context, e order.Extending) (order.Extended, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err == nil {
		err = e.Validate()
	}
	if err != nil {
		return order.Extended{}, err
	}
	m.extending = append(m.extending, e)
	var done order.Extended
	for no, o := range m.orders {
		if e.OrderNo == no || e.UserID == o.UserID || e.BizType == o.BizType {
			o, err = m.change(no, order.EventExtended, e.Act, func(o *order.Order) { o.ExpireAt, err = e.Deadline(*o, m.now) })
			if err != nil {
				return order.Extended{}, err
			}
			done.Order = &o
			done.Extended++
		}
	}
	return done, nil
}

func (m *memory) Archive(ctx context.Context, orderNo string, act order.Act) (order.Order, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err == nil {
		err = act.Validate()
	}
	if err != nil {
		return order.Order{}, err
	}
	return m.change(orderNo, order.EventArchived, act, func(o *order.Order) { o.ClosedAt = m.now })
}

func (m *memory) LatePayments(ctx context.Context, status order.LateStatus, size int, cursor string) (found []order.LatePayment, next string, err error) {
	leave, err := m.enter(ctx)
	defer leave()
	from, _ := strconv.Atoi(cursor)
	for i, l := range m.cases {
		if i < from || status != "" && l.Status != status {
			continue
		}
		if len(found) == size {
			return found, strconv.Itoa(i), err
		}
		found = append(found, l)
	}
	return found, "", err
}

func (m *memory) Decide(ctx context.Context, d order.Deciding) (order.LatePayment, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err == nil {
		err = d.Validate()
	}
	if err != nil {
		return order.LatePayment{}, err
	}
	i := slices.IndexFunc(m.cases, func(l order.LatePayment) bool { return l.PaymentNo == d.PaymentNo })
	if i < 0 {
		return order.LatePayment{}, order.Errorf(order.NotFound, "late_payment_not_found", "there is no such case")
	}
	l := &m.cases[i]
	if l.Status != order.LateOpen {
		return *l, order.Errorf(order.Conflict, "late_payment_settled", "the case is %s", l.Status)
	}
	l.Policy, l.Status, l.ChangedAt, l.Actor, l.Note = d.Policy, order.LateAsked, m.now, d.Actor, d.Note
	m.acts = append(m.acts, d.Act)
	return *l, nil
}

func (m *memory) Refund(ctx context.Context, r order.Refunding) (order.Order, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err == nil {
		err = r.Validate()
	}
	if err != nil {
		return order.Order{}, err
	}
	paid, ok := m.payments[r.PaymentNo]
	if !ok {
		return order.Order{}, order.Errorf(order.NotFound, "payment_not_found", "there is no payment %q", r.PaymentNo)
	}
	return m.change(paid.Order.OrderNo, order.EventRefunded, r.Act, func(o *order.Order) { o.ClosedAt = m.now })
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
	if result.Outcome == order.PaymentLate {
		m.cases = append(m.cases, order.LatePayment{
			Payment: p, StateThen: o.Status, RoundThen: o.Round, Why: "too late", Policy: order.LateManual, Status: order.LateOpen, CreatedAt: m.now,
		})
	}
	m.payments[p.PaymentNo] = result
	m.kept = append(m.kept, order.KeptPayment{Payment: p, Outcome: result.Outcome, CreatedAt: m.now})
	return result, nil
}

func (m *memory) Payments(ctx context.Context, orderNo string) (payments []order.KeptPayment, cases []order.LatePayment, err error) {
	leave, err := m.enter(ctx)
	defer leave()
	for _, p := range m.kept {
		if p.OrderNo == orderNo {
			payments = append(payments, p)
		}
	}
	for _, l := range m.cases {
		if l.OrderNo == orderNo {
			cases = append(cases, l)
		}
	}
	return payments, cases, err
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

// reconciler is memory as a Reconciler.
type reconciler struct{ *memory }

func (m reconciler) Now(ctx context.Context, dryRun bool) (order.ReconcileRun, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.ReconcileRun{}, err
	}
	run := order.ReconcileRun{
		ID: 8, Owner: "o1", DryRun: dryRun, Started: m.now, Finished: m.now.Add(time.Second), Looked: 9, Found: 1, Error: m.sweepError,
		Findings: []order.Finding{{Kind: "message_stuck", Subject: "order-1:timeout", Detail: "quarantined", Action: "send it again", Mended: !dryRun}},
	}
	if !dryRun {
		run.Mended = 1
	}
	if run.Error != "" {
		return run, errors.New(run.Error)
	}
	return run, m.unrecorded
}

// brakes is memory as Brakes.
type brakes struct{ *memory }

func (m brakes) Get(ctx context.Context) (order.Brakes, error) {
	leave, err := m.enter(ctx)
	defer leave()
	return m.braked, err
}

func (m brakes) Set(ctx context.Context, c order.BrakeChange) (order.Brakes, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return order.Brakes{}, err
	}
	after, err := c.Apply(m.braked)
	if err != nil {
		return order.Brakes{}, err
	}
	m.braked = after
	m.braked.Version++
	m.acts = append(m.acts, c.Act)
	return m.braked, nil
}

func (m brakes) ShadowReport(ctx context.Context, c order.Comparing) (order.ShadowReport, error) {
	leave, err := m.enter(ctx)
	defer leave()
	m.compared = c
	return order.ShadowReport{
		Decided: 8, Closed: 7, Agreed: 3, Early: 1, Late: 2, Missed: 1, Wrong: 1, Coverage: 0.5,
		Examples: []order.ShadowCase{{OrderNo: "order-1", Kind: "missed", ExpireAt: m.now, DecidedAt: m.now.Add(time.Second)}},
	}, err
}

// Now makes memory a Sweeper, too.
func (m *memory) Now(ctx context.Context) (order.SweepRun, error) {
	leave, err := m.enter(ctx)
	defer leave()
	if err != nil {
		return order.SweepRun{}, err
	}
	run := order.SweepRun{
		ID: 7, Owner: "o1", Started: m.now, Finished: m.now.Add(1500 * time.Millisecond), Shards: 64, Looked: 7, Closed: 4, Failed: 1, Braked: 2,
		Error: m.sweepError,
	}
	if run.Error != "" {
		return run, errors.New(run.Error)
	}
	return run, m.unrecorded
}
