package store

import (
	"context"
	"time"

	"lapse/pkg/order"
)

const attemptColumns = "attempt_no, order_no, round, channel, amount, currency, state, started_at, deadline, ended_at"

// attempts runs a query of attemptColumns.
func (t tx) attempts(ctx context.Context, text string, args ...any) (found []order.Attempt, err error) {
	err = t.query(ctx, func(scan func(...any) error) error {
		var a order.Attempt
		err := scan(&a.AttemptNo, &a.OrderNo, &a.Round, &a.Channel, &a.Amount, &a.Currency, &a.State, at(&a.StartedAt), at(&a.Deadline), at(&a.EndedAt))
		found = append(found, a)
		return err
	}, text, args...)
	return found, err
}

// StartPayment records an attempt, only while the order is payable; the same attempt number again is the same attempt.
func (s *Store) StartPayment(ctx context.Context, a order.Attempting) (attempt order.Attempt, o order.Order, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		attempt, o, err = t.startPayment(ctx, a)
		return err
	})
	return attempt, o, err
}

const (
	attemptSQL       = "SELECT " + attemptColumns + " FROM t_payment_attempt WHERE attempt_no = ?"
	countAttemptsSQL = "SELECT COUNT(*) FROM t_payment_attempt WHERE order_no = ? AND round = ?"
	// insertAttemptSQL: a number that another transaction has just used fails it; run again, it finds the number.
	insertAttemptSQL = `INSERT INTO t_payment_attempt (attempt_no, order_no, round, channel, amount, currency, state, started_at, deadline)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`
	// payingSQL makes a payable order wait for an attempt. Args: last deadline of its attempts, number, now. No row: it is not
	// payable.
	payingSQL = "UPDATE t_order SET paying_until = ?, version = version + 1 WHERE order_no = ? AND status = 0 AND expire_at > ?"
)

func (t tx) startPayment(ctx context.Context, a order.Attempting) (attempt order.Attempt, o order.Order, err error) {
	orders, err := t.lockOwned(ctx, a.OrderNo, a.UserID)
	if err != nil {
		return attempt, o, err
	}
	if err := t.loadItems(ctx, orders); err != nil {
		return attempt, o, err
	}
	o = orders[0]
	known, err := t.attempts(ctx, attemptSQL, a.AttemptNo)
	if err != nil {
		return attempt, o, err
	}
	if len(known) > 0 {
		if known[0].OrderNo != a.OrderNo || known[0].Channel != a.Channel || known[0].Round != o.Round {
			return attempt, o, order.Errorf(order.Conflict, "attempt_no_taken", "attempt %s belongs to another order, round or channel", a.AttemptNo).
				WithHint("Use a new number for each attempt.")
		}
		known[0].Repeated = true
		return known[0], o, nil
	}
	next, err := order.Next(o.Status, order.EventPaymentStarted)
	if err != nil {
		return attempt, o, err
	}
	if !o.Payable(t.now) {
		return attempt, o, order.Errorf(order.Conflict, "not_payable", "the order's time to pay has passed")
	}
	made := 0
	if err := t.QueryRowContext(ctx, countAttemptsSQL, o.OrderNo, o.Round).Scan(&made); err != nil {
		return attempt, o, err
	}
	if made >= order.MaxAttempts {
		return attempt, o, order.Errorf(order.Conflict, "too_many_attempts", "the order has had %d payment attempts, which is the most", made)
	}
	attempt = order.Attempt{
		AttemptNo: a.AttemptNo, OrderNo: o.OrderNo, Round: o.Round, Channel: a.Channel, Amount: o.Amount, Currency: o.Currency,
		State: order.AttemptOpen, StartedAt: t.now, Deadline: t.now.Add(a.Lifetime).Truncate(time.Millisecond),
	}
	if o.PayingUntil.Before(attempt.Deadline) {
		o.PayingUntil = attempt.Deadline
	}
	if err := t.execAll(ctx, 1, payingSQL, o.PayingUntil, o.OrderNo, t.now); err != nil {
		return attempt, o, err
	}
	o.Version++
	if _, err := t.exec(ctx, insertAttemptSQL, attempt.AttemptNo, attempt.OrderNo, attempt.Round, attempt.Channel, attempt.Amount, attempt.Currency,
		string(attempt.State), attempt.StartedAt, attempt.Deadline); err != nil {
		return attempt, o, err
	}
	return attempt, o, t.log(ctx, []order.LogEntry{t.step(o, next, "", order.Act{Actor: a.Actor})})
}

// FailPayment ends an open attempt that brought no money; one that has ended already is returned as it is.
func (s *Store) FailPayment(ctx context.Context, orderNo, attemptNo string) (attempt order.Attempt, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		attempt, err = t.failPayment(ctx, orderNo, attemptNo)
		return err
	})
	return attempt, err
}

func (t tx) failPayment(ctx context.Context, orderNo, attemptNo string) (order.Attempt, error) {
	o, err := t.lockOrder(ctx, orderNo)
	if err != nil {
		return order.Attempt{}, err
	}
	found, err := t.attempts(ctx, attemptSQL, attemptNo)
	if err != nil {
		return order.Attempt{}, err
	}
	if len(found) == 0 || found[0].OrderNo != orderNo {
		return order.Attempt{}, order.Errorf(order.NotFound, "attempt_not_found", "order %s has no attempt %s", orderNo, attemptNo)
	}
	a := found[0]
	if a.State != order.AttemptOpen {
		return a, nil
	}
	a.State, a.EndedAt = order.AttemptFailed, t.now
	if err := t.endAttempts(ctx, &o, []string{attemptNo}, order.AttemptFailed); err != nil {
		return a, err
	}
	if o.Status == order.Confirming && !o.InFlight(t.now) { // there is nothing more to ask: it is decided at once
		_, err = t.exec(ctx, toAskSQL, t.now, t.now, timeoutKeys([]string{orderNo}))
	}
	return a, err
}

// endAttemptsSQL ends attempts of a locked order. Args: state, now, order, numbers. Those that have ended stay as they are.
const endAttemptsSQL = "UPDATE t_payment_attempt SET state = ?, ended_at = ? WHERE order_no = ? AND attempt_no IN (?*) AND state = 'open'"

const (
	lastDeadlineSQL = "SELECT MAX(deadline) FROM t_payment_attempt WHERE order_no = ? AND round = ? AND state = 'open'"
	// payingUntilSQL: an order that has ended waits for nothing any more.
	payingUntilSQL = "UPDATE t_order SET paying_until = ? WHERE order_no = ? AND status IN (0, 5)"
)

// endAttempts ends attempts and lets the order wait only for those that are left.
func (t tx) endAttempts(ctx context.Context, o *order.Order, attemptNos []string, state order.AttemptState) error {
	if len(attemptNos) == 0 {
		return nil
	}
	if _, err := t.exec(ctx, endAttemptsSQL, string(state), t.now, o.OrderNo, attemptNos); err != nil {
		return err
	}
	return t.waitForAttempts(ctx, o)
}

// waitForAttempts lets a locked order wait for exactly its open attempts; one that has ended waits for none.
func (t tx) waitForAttempts(ctx context.Context, o *order.Order) error {
	if o.Status.Final() {
		return nil
	}
	if err := t.QueryRowContext(ctx, lastDeadlineSQL, o.OrderNo, o.Round).Scan(at(&o.PayingUntil)); err != nil {
		return err
	}
	return t.execAll(ctx, 1, payingUntilSQL, orNull(o.PayingUntil), o.OrderNo)
}

// paidAttemptSQL marks the attempt that brought the money, whatever was thought of it. Args: now, order, number.
const paidAttemptSQL = "UPDATE t_payment_attempt SET state = 'paid', ended_at = ? WHERE order_no = ? AND attempt_no = ?"

// newestAttemptSQL is the attempt that a payment without a number most likely belongs to.
const newestAttemptSQL = "SELECT " + attemptColumns + ` FROM t_payment_attempt
WHERE order_no = ? AND state = 'open' ORDER BY started_at DESC, attempt_no DESC LIMIT 1`

// attemptPaid marks the attempt of a payment: the one that it names, else the newest open one.
func (t tx) attemptPaid(ctx context.Context, p order.Payment) error {
	if p.AttemptNo == "" {
		newest, err := t.attempts(ctx, newestAttemptSQL, p.OrderNo)
		if err != nil || len(newest) == 0 {
			return err
		}
		p.AttemptNo = newest[0].AttemptNo
	}
	_, err := t.exec(ctx, paidAttemptSQL, t.now, p.OrderNo, p.AttemptNo)
	return err
}

const attemptsOfSQL = "SELECT " + attemptColumns + " FROM t_payment_attempt WHERE order_no IN (?*) ORDER BY order_no, started_at, attempt_no"

// Attempts returns an order's payment attempts, oldest first.
func (s *Store) Attempts(ctx context.Context, orderNo string) (found []order.Attempt, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		found, err = q.attempts(ctx, attemptsOfSQL, []string{orderNo})
		return err
	})
	return found, err
}
