package store

import (
	"context"
	"slices"
	"time"

	"lapse/pkg/order"
)

// doubtSQL lets pending orders wait for the gateway. Args: new status, end, reason, numbers, latest deadline, now. An order
// it does not touch has ended, is not due, or has no payment in flight.
const doubtSQL = `UPDATE t_order SET status = ?, confirm_until = ?, cancel_reason = ?, version = version + 1
WHERE order_no IN (?*) AND status = 0 AND expire_at <= ? AND paying_until > ?`

// toAskSQL makes time-out rows the confirmer's. Args: due, due, keys.
const toAskSQL = `UPDATE t_local_message SET state = 3, hop = hop + 1, attempts = 0, failing_since = NULL, last_error = '', due_at = ?, next_at = ?
WHERE dedup_key IN (?*)`

// doubt makes locked pending orders with a payment in flight confirming, to be asked about at once. Latest is how late
// their deadline may be: now for those that are due, order.Never for those that somebody cancels.
func (t tx) doubt(ctx context.Context, orders []order.Order, how ending, latest time.Time, wait time.Duration) error {
	next, err := order.Next(order.Pending, order.EventConfirming)
	if err != nil {
		return err
	}
	until := t.now.Add(wait).Truncate(time.Millisecond)
	err = t.execAll(ctx, len(orders), doubtSQL, uint8(next.To), until, string(how.reason), numbers(orders), latest, t.now)
	if err != nil {
		return err
	}
	log := make([]order.LogEntry, len(orders))
	for i := range orders {
		o := &orders[i]
		o.Status, o.ConfirmUntil, o.CancelReason = next.To, until, how.reason
		o.Version++
		log[i] = t.step(*o, next, how.reason, how.Act)
	}
	if err := t.log(ctx, log); err != nil {
		return err
	}
	_, err = t.exec(ctx, toAskSQL, t.now, t.now, timeoutKeys(numbers(orders))) // one that is missing the audit names
	return err
}

const inFlightSQL = "SELECT " + attemptColumns + ` FROM t_payment_attempt
WHERE order_no IN (?*) AND state = 'open' AND deadline > ? ORDER BY order_no, started_at, attempt_no`

// ClaimDoubtful leases up to limit confirming orders that are to be asked about, with their attempts in flight. wake is
// when the next one is to be asked about; zero if there is none.
func (s *Store) ClaimDoubtful(ctx context.Context, limit int, lease time.Duration) (doubtful []order.InDoubt, now, wake time.Time, err error) {
	now, wake, err = s.claim(ctx, order.ToAsk, order.Timeout, limit, lease, func(ctx context.Context, t tx, rows []order.Message) error {
		doubtful, err = t.inDoubt(ctx, rows)
		return err
	})
	return doubtful, now, wake, err
}

func (t tx) inDoubt(ctx context.Context, rows []order.Message) ([]order.InDoubt, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	nos := make([]string, len(rows))
	for i, m := range rows {
		nos[i] = m.OrderNo
	}
	orders, err := t.orders(ctx, lookSQL, nos)
	if err != nil {
		return nil, err
	}
	attempts, err := t.attempts(ctx, inFlightSQL, nos, t.now)
	if err != nil {
		return nil, err
	}
	doubtful := make([]order.InDoubt, 0, len(rows))
	for _, m := range rows {
		i := slices.IndexFunc(orders, func(o order.Order) bool { return o.OrderNo == m.OrderNo })
		if i < 0 {
			continue // the audit names it
		}
		d := order.InDoubt{Order: orders[i], Message: m}
		for _, a := range attempts {
			if a.OrderNo == m.OrderNo && a.Round == d.Round {
				d.Attempts = append(d.Attempts, a)
			}
		}
		doubtful = append(doubtful, d)
	}
	return doubtful, nil
}

// Confirm applies what the gateway has shown, in one transaction. Captured money is taken like any payment. The rest is
// fenced by the row's lease (I10): without an attempt in flight the order is cancelled, unless the brakes keep it (I15);
// at its confirm deadline it ends as end says, if all was asked; else it is asked about again after wait, or sooner if that
// can end it.
func (s *Store) Confirm(ctx context.Context, v order.Verdict, end order.ConfirmEnd, wait time.Duration, rules order.Rules, first order.Schedule) (done order.Confirmed, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		done, err = t.confirm(ctx, v, end, wait, rules, first)
		return err
	})
	return done, err
}

func (t tx) confirm(ctx context.Context, v order.Verdict, end order.ConfirmEnd, wait time.Duration, rules order.Rules, first order.Schedule) (done order.Confirmed, err error) {
	brakes, err := t.brakes(ctx)
	if err != nil {
		return done, err
	}
	if done.Order, err = t.lockOrder(ctx, v.OrderNo); err != nil {
		return done, err
	}
	done.Result = order.ConfirmGone
	open := done.Status == order.Confirming
	for _, p := range v.Captured {
		taken, err := t.takeOnce(ctx, p, done.Order, rules, first)
		if err != nil {
			return done, err
		}
		done.Order, done.Messages = taken.Order, append(done.Messages, taken.Messages...)
		if taken.Case != nil {
			done.Cases = append(done.Cases, *taken.Case)
		}
	}
	if done.Status != order.Confirming {
		if open {
			done.Result = order.ConfirmPaid
		}
		return done, nil
	}
	own, err := t.lockAsked(ctx, v.Message)
	if err != nil || !own {
		return done, err
	}
	if err := t.endAttempts(ctx, &done.Order, v.Closed, order.AttemptClosed); err != nil {
		return done, err
	}
	return done, t.conclude(ctx, &done, v, end, wait, brakes, first)
}

// conclude decides what becomes of a confirming order whose row is the caller's.
func (t tx) conclude(ctx context.Context, done *order.Confirmed, v order.Verdict, end order.ConfirmEnd, wait time.Duration, brakes order.Brakes, first order.Schedule) error {
	o := &done.Order
	undecided, late := o.InFlight(t.now), !o.ConfirmUntil.After(t.now)
	byTime := o.CancelReason == order.ReasonTimeout || o.CancelReason == order.ReasonCompensate
	switch {
	case undecided && v.Unasked:
		done.Result = order.ConfirmUnasked
		v.Message.Attempts-- // this was none
		return t.askAgain(ctx, *o, v.Message, wait, v.Failed)
	case undecided && !late:
		if done.Result = order.ConfirmUnpaid; v.Failed != "" {
			done.Result = order.ConfirmUnknown
		}
		return t.askAgain(ctx, *o, v.Message, wait, v.Failed)
	case undecided && end == order.ConfirmHold:
		done.Result = order.ConfirmHeld
		return t.handOver(ctx, v)
	case byTime && brakes.On(*o) != order.Go:
		done.Result = order.ConfirmBraked
		return t.keepInDoubt(ctx, *o, v.Message, brakes.On(*o), wait)
	}
	if done.Result = order.ConfirmClosed; undecided {
		done.Result = order.ConfirmExpired
	}
	rows, err := t.cancelDoubted(ctx, o, byTime, first)
	done.Messages = append(done.Messages, rows...)
	return err
}

// keepInDoubt does what the brakes say with an order that would be cancelled.
func (t tx) keepInDoubt(ctx context.Context, o order.Order, m order.Message, braking order.Braking, wait time.Duration) error {
	if braking == order.Record {
		if err := t.shadow(ctx, []order.Order{o}, o.CancelReason); err != nil {
			return err
		}
	}
	return t.askAgain(ctx, o, m, wait, "closing is not enforced")
}

// confirmedSQL cancels a confirming order that nothing can pay any more. Args: new status, now, number, now, now. No row: it
// is not confirming, or its gateway and its confirm deadline still have a say.
const confirmedSQL = `UPDATE t_order SET status = ?, cancelled_at = ?, confirm_until = NULL, paying_until = NULL, version = version + 1
WHERE order_no = ? AND status = 5 AND (paying_until IS NULL OR paying_until <= ? OR confirm_until <= ?)`

func (t tx) cancelDoubted(ctx context.Context, o *order.Order, byTime bool, first order.Schedule) ([]order.Message, error) {
	how := ending{order.EventCancelled, o.CancelReason, order.Act{Actor: "confirmer"}}
	if byTime {
		how.event = order.EventExpired
	}
	next, err := order.Next(o.Status, how.event)
	if err != nil {
		return nil, err
	}
	if err := t.execAll(ctx, 1, confirmedSQL, uint8(next.To), t.now, o.OrderNo, t.now, t.now); err != nil {
		return nil, err
	}
	orders := []order.Order{*o}
	rows, err := t.dissolve(ctx, orders, how, next, first)
	*o = orders[0]
	return rows, err
}

// lockAskedSQL locks a row whose lease still runs. Args: key, now.
const lockAskedSQL = "SELECT dedup_key, hop, next_at FROM t_local_message WHERE dedup_key = ? AND state IN (3, 4) AND next_at > ? {update}"

// lockAsked reports whether a row that is asked about is still the caller's, and locks it: before the resources, as its
// order's lock allows, since nobody waits for it who holds any.
func (t tx) lockAsked(ctx context.Context, m order.Message) (own bool, err error) {
	err = t.query(ctx, func(scan func(...any) error) error {
		var found order.Message
		err := scan(&found.Key, &found.Hop, at(&found.NextAt))
		own = fenceOf(found) == fenceOf(m)
		return err
	}, lockAskedSQL, m.Key, t.now)
	return own, err
}

// askAgainSQL puts a locked row off. Args: next time, attempts, error, key.
const askAgainSQL = "UPDATE t_local_message SET next_at = ?, attempts = ?, last_error = ? WHERE dedup_key = ?"

// askAgain puts an order off: by wait, or until a deadline of its own that comes before.
func (t tx) askAgain(ctx context.Context, o order.Order, m order.Message, wait time.Duration, why string) error {
	next := t.now.Add(wait).Truncate(time.Millisecond)
	for _, deadline := range []time.Time{o.ConfirmUntil, o.PayingUntil} {
		if deadline.After(t.now) && deadline.Before(next) {
			next = deadline
		}
	}
	return t.execAll(ctx, 1, askAgainSQL, next, m.Attempts+1, clip(why, maxErrorText), m.Key)
}

// setAsideSQL takes a locked row out of the work. Args: error, key.
const setAsideSQL = "UPDATE t_local_message SET state = 2, last_error = ? WHERE dedup_key = ?"

// handOver leaves an order that could not be decided to a person. Money may still pay it.
func (t tx) handOver(ctx context.Context, v order.Verdict) error {
	q := order.Quarantined{Source: "confirm", OrderNo: v.OrderNo, Reason: "not decided by its confirm deadline: " + v.Failed}
	if _, err := t.quarantine(ctx, q); err != nil {
		return err
	}
	return t.execAll(ctx, 1, setAsideSQL, clip(q.Reason, maxErrorText), v.Message.Key)
}
