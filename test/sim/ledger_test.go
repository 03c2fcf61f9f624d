package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// ledger is the store as one part of a process reaches it: each call waits at the border.
type ledger struct {
	*store.Store
	border
}

// through is pass for calls that bring something.
func through[T any](l ledger, name, key string, do func() (T, error)) (v T, err error) {
	err = l.pass(name, key, func() error {
		v, err = do()
		return err
	})
	return v, err
}

// pair is what calls bring that bring two things.
type pair[A, B any] struct {
	a A
	b B
}

func both[A, B any](l ledger, name, key string, do func() (A, B, error)) (A, B, error) {
	p, err := through(l, name, key, func() (p pair[A, B], err error) {
		p.a, p.b, err = do()
		return p, err
	})
	return p.a, p.b, err
}

// list is a key made of many.
func list[T any](of []T, name func(T) string) string {
	names := make([]string, len(of))
	for i, v := range of {
		names[i] = name(v)
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

func (l ledger) Create(ctx context.Context, drafts []order.Draft, first order.Schedule) ([]order.Created, error) {
	return through(l, "Create", list(drafts, func(d order.Draft) string { return d.OrderNo }), func() ([]order.Created, error) {
		return l.Store.Create(ctx, drafts, first)
	})
}

func (l ledger) StartPayment(ctx context.Context, a order.Attempting) (order.Attempt, order.Order, error) {
	return both(l, "StartPayment", a.AttemptNo, func() (order.Attempt, order.Order, error) { return l.Store.StartPayment(ctx, a) })
}

func (l ledger) FailPayment(ctx context.Context, orderNo, attemptNo string) (order.Attempt, error) {
	return through(l, "FailPayment", attemptNo, func() (order.Attempt, error) { return l.Store.FailPayment(ctx, orderNo, attemptNo) })
}

func (l ledger) Pay(ctx context.Context, p order.Payment, rules order.Rules, first order.Schedule) (order.PaymentResult, error) {
	return through(l, "Pay", p.PaymentNo, func() (order.PaymentResult, error) { return l.Store.Pay(ctx, p, rules, first) })
}

func (l ledger) Cancel(ctx context.Context, c order.Cancelling, first order.Schedule) (order.Order, []order.Message, error) {
	return both(l, "Cancel", c.OrderNo, func() (order.Order, []order.Message, error) { return l.Store.Cancel(ctx, c, first) })
}

func (l ledger) Restore(ctx context.Context, r order.Restoring, first order.Schedule) (order.Restored, error) {
	return through(l, "Restore", r.OrderNo, func() (order.Restored, error) { return l.Store.Restore(ctx, r, first) })
}

func (l ledger) Extend(ctx context.Context, e order.Extending, first order.Schedule) (order.Extended, error) {
	return through(l, "Extend", e.OrderNo, func() (order.Extended, error) { return l.Store.Extend(ctx, e, first) })
}

func (l ledger) ExtendPage(ctx context.Context, e order.Extending, from order.Position, limit int, first order.Schedule) (order.Extended, error) {
	return through(l, "ExtendPage", e.BizType, func() (order.Extended, error) { return l.Store.ExtendPage(ctx, e, from, limit, first) })
}

func (l ledger) Decide(ctx context.Context, d order.Deciding, first order.Schedule) (order.LatePayment, []order.Message, error) {
	return both(l, "Decide", d.PaymentNo, func() (order.LatePayment, []order.Message, error) { return l.Store.Decide(ctx, d, first) })
}

func (l ledger) Refund(ctx context.Context, r order.Refunding, rules order.Rules) (order.Order, error) {
	return through(l, "Refund", r.PaymentNo, func() (order.Order, error) { return l.Store.Refund(ctx, r, rules) })
}

func (l ledger) Acknowledge(ctx context.Context, orderNo string, round int, kind string) error {
	return l.pass("Acknowledge", orderNo, func() error { return l.Store.Acknowledge(ctx, orderNo, round, kind) })
}

func (l ledger) Archive(ctx context.Context, orderNo string, retention time.Duration, act order.Act) (order.Order, error) {
	return through(l, "Archive", orderNo, func() (order.Order, error) { return l.Store.Archive(ctx, orderNo, retention, act) })
}

func (l ledger) Adjust(ctx context.Context, a order.Adjustment) (order.Resource, error) {
	return through(l, "Adjust", a.ID, func() (order.Resource, error) { return l.Store.Adjust(ctx, a) })
}

func (l ledger) ChangeBrakes(ctx context.Context, act order.Act, change func(order.Brakes) (order.Brakes, error)) (order.Brakes, error) {
	return through(l, "ChangeBrakes", act.Note, func() (order.Brakes, error) { return l.Store.ChangeBrakes(ctx, act, change) })
}

func (l ledger) CloseDue(ctx context.Context, c order.Closing, first order.Schedule) (order.ClosedBatch, error) {
	return through(l, "CloseDue", list(c.OrderNos, func(no string) string { return no }), func() (batch order.ClosedBatch, err error) {
		l.p.world.judge.closing(c.Lease, func() { batch, err = l.Store.CloseDue(ctx, c, first) })
		return batch, err
	})
}

func (l ledger) Look(ctx context.Context, nos []string) ([]order.Order, time.Time, error) {
	return both(l, "Look", list(nos, func(no string) string { return no }), func() ([]order.Order, time.Time, error) { return l.Store.Look(ctx, nos) })
}

func (l ledger) Remind(ctx context.Context, nos []string, next order.Schedule) ([]order.Message, error) {
	return through(l, "Remind", list(nos, func(no string) string { return no }), func() ([]order.Message, error) { return l.Store.Remind(ctx, nos, next) })
}

func (l ledger) Postpone(ctx context.Context, early []order.Early, next order.Schedule) ([]order.Message, error) {
	return through(l, "Postpone", list(early, func(e order.Early) string { return fmt.Sprintf("%s#%d", e.OrderNo, e.Hop) }), func() ([]order.Message, error) {
		return l.Store.Postpone(ctx, early, next)
	})
}

func (l ledger) Ripen(ctx context.Context, nos []string) (order.Ripened, error) {
	return through(l, "Ripen", list(nos, func(no string) string { return no }), func() (order.Ripened, error) { return l.Store.Ripen(ctx, nos) })
}

func (l ledger) Quarantine(ctx context.Context, q order.Quarantined) (bool, error) {
	return through(l, "Quarantine", q.Source+" "+q.OrderNo, func() (bool, error) { return l.Store.Quarantine(ctx, q) })
}

func (l ledger) ClaimDoubtful(ctx context.Context, limit int, lease time.Duration) (doubtful []order.InDoubt, now, wake time.Time, err error) {
	err = l.pass("ClaimDoubtful", "", func() error {
		doubtful, now, wake, err = l.Store.ClaimDoubtful(ctx, limit, lease)
		return err
	})
	return doubtful, now, wake, err
}

// Confirm takes the wait without the jitter that production adds to it.
func (l ledger) Confirm(ctx context.Context, v order.Verdict, end order.ConfirmEnd, wait time.Duration, rules order.Rules, first order.Schedule) (order.Confirmed, error) {
	return through(l, "Confirm", v.OrderNo, func() (done order.Confirmed, err error) {
		l.p.world.judge.confirming(v, func() { done, err = l.Store.Confirm(ctx, v, end, steady(wait), rules, first) })
		return done, err
	})
}

// steady is the wait of which up to a fifth was taken.
func steady(wait time.Duration) time.Duration {
	whole := time.Second
	for whole < wait && whole < 16*time.Second {
		whole *= 2
	}
	if wait > whole {
		return 30 * time.Second
	}
	return whole
}

func (l ledger) Claim(ctx context.Context, kind order.MessageKind, limit int, lease time.Duration) (rows []order.Message, now, wake time.Time, err error) {
	err = l.pass("Claim", string(kind), func() error {
		rows, now, wake, err = l.Store.Claim(ctx, kind, limit, lease)
		return err
	})
	return rows, now, wake, err
}

func (l ledger) Settle(ctx context.Context, sent []order.Sent) error {
	rows := make([]order.Message, len(sent))
	for i, s := range sent {
		rows[i] = s.Message
	}
	return l.pass("Settle", list(rows, messageName), func() (err error) {
		l.p.world.judge.settling(rows, func() { err = l.Store.Settle(ctx, sent) })
		return err
	})
}

func (l ledger) Defer(ctx context.Context, deferred []order.Deferred, maxAttempts int) (quarantined int, err error) {
	rows := make([]order.Message, len(deferred))
	for i, d := range deferred {
		rows[i] = d.Message
	}
	return through(l, "Defer", list(rows, messageName), func() (int, error) {
		l.p.world.judge.settling(rows, func() { quarantined, err = l.Store.Defer(ctx, deferred, maxAttempts) })
		return quarantined, err
	})
}

func messageName(m order.Message) string { return fmt.Sprintf("%s#%d", m.Key, m.Hop) }

func (l ledger) AcquireShard(ctx context.Context, shard int, owner string, lease, interval time.Duration) (order.Lease, bool, error) {
	return both(l, "AcquireShard", "", func() (order.Lease, bool, error) { return l.Store.AcquireShard(ctx, shard, owner, lease, interval) })
}

func (l ledger) RenewLease(ctx context.Context, lease order.Lease, length time.Duration) (order.Lease, bool, error) {
	return both(l, "RenewLease", "", func() (order.Lease, bool, error) { return l.Store.RenewLease(ctx, lease, length) })
}

func (l ledger) ReleaseShard(ctx context.Context, lease order.Lease) error {
	return l.pass("ReleaseShard", "", func() error { return l.Store.ReleaseShard(ctx, lease) })
}

// ScanDue: there are orders in one shard only, since a round goes through them in an order of its own.
func (l ledger) ScanDue(ctx context.Context, shard int, overdue time.Duration, after order.Cursor, limit int) ([]order.DueOrder, error) {
	if shard != l.p.world.terms.shard {
		return nil, nil
	}
	return through(l, "ScanDue", "", func() ([]order.DueOrder, error) { return l.Store.ScanDue(ctx, shard, overdue, after, limit) })
}

func (l ledger) StartRun(ctx context.Context, owner, kind string) (order.SweepRun, error) {
	return through(l, "StartRun", kind, func() (order.SweepRun, error) { return l.Store.StartRun(ctx, owner, kind) })
}

func (l ledger) FinishRun(ctx context.Context, r *order.SweepRun) error {
	return l.pass("FinishRun", "", func() error { return l.Store.FinishRun(ctx, r) })
}

func (l ledger) BeginReconcile(ctx context.Context, owner string, dryRun bool, every, stale time.Duration) (order.ReconcileRun, error) {
	return through(l, "BeginReconcile", "", func() (order.ReconcileRun, error) { return l.Store.BeginReconcile(ctx, owner, dryRun, every, stale) })
}

func (l ledger) Walk(ctx context.Context, place order.Place, limit int, m order.Mending, first order.Schedule) (order.Walked, error) {
	return through(l, "Walk", place.Walk, func() (page order.Walked, err error) {
		l.p.world.judge.closing(nil, func() { page, err = l.Store.Walk(ctx, place, limit, m, first) })
		l.p.world.judge.found(page)
		return page, err
	})
}

func (l ledger) NoteReconcile(ctx context.Context, run order.ReconcileRun) error {
	return l.pass("NoteReconcile", "", func() error { return l.Store.NoteReconcile(ctx, run) })
}

// KeepReconcile is never heard: runs that take long are taken over all the time.
func (l ledger) KeepReconcile(context.Context, order.ReconcileRun) error { return nil }

func (l ledger) EndReconcile(ctx context.Context, run *order.ReconcileRun) error {
	return l.pass("EndReconcile", "", func() error { return l.Store.EndReconcile(ctx, run) })
}

func (l ledger) LastReconcile(ctx context.Context) (time.Time, error) {
	return through(l, "LastReconcile", "", func() (time.Time, error) { return l.Store.LastReconcile(ctx) })
}
