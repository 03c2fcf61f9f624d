package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"time"

	"lapse/pkg/order"
)

// lockDueSQL locks those of the named orders that are pending and due, passing over what others have locked.
const lockDueSQL = "SELECT " + orderColumns + ` FROM t_order
WHERE order_no IN (?*) AND status = 0 AND expire_at <= ? ORDER BY order_no {skip}`

// closeDueSQL is the only statement that closes orders for their deadline: its WHERE is I1 and I2. Args: new status,
// now, reason, numbers, now, end of the attempts that do not count. An order it does not touch was paid, closed or is not
// due yet, has a second chance, or a payment in flight.
const closeDueSQL = `UPDATE t_order SET status = ?, cancelled_at = ?, cancel_reason = ?, paying_until = NULL, version = version + 1
WHERE order_no IN (?*) AND status = 0 AND expire_at <= ? AND second_ms = 0 AND (paying_until IS NULL OR paying_until <= ?)`

// CloseDue ends, in one transaction, those of c.OrderNos that are pending and due by the database's clock: it cancels
// them, reminds those with a second chance, and makes the others with a payment in flight confirming, unless the brakes
// keep them. What is not in the answer was not due, not pending, not there, or locked by others, or needs a resource that is.
func (s *Store) CloseDue(ctx context.Context, c order.Closing, first order.Schedule) (batch order.ClosedBatch, err error) {
	if len(c.OrderNos) == 0 {
		batch.Now, err = s.Now(ctx)
		return batch, err
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		batch, err = t.closeDue(ctx, c, first)
		return err
	})
	return batch, err
}

func (t tx) closeDue(ctx context.Context, c order.Closing, first order.Schedule) (order.ClosedBatch, error) {
	batch := order.ClosedBatch{Now: t.now}
	brakes, err := t.brakes(ctx)
	if err != nil {
		return batch, err
	}
	batch.Off = brakes.Off()
	if c.Lease != nil {
		if err := t.holdLease(ctx, *c.Lease); err != nil {
			return batch, err
		}
	}
	locked, err := t.orders(ctx, lockDueSQL, c.OrderNos, t.now)
	if err != nil || len(locked) == 0 {
		return batch, err
	}
	due := t.sort(locked, brakes, c)
	how := ending{order.EventExpired, c.Reason, order.Act{Actor: c.Actor}}
	if due.closing, err = t.unblocked(ctx, due.closing); err != nil {
		return batch, err
	}
	if err := t.cancelDue(ctx, c, due.closing, how, first, &batch); err != nil {
		return batch, err
	}
	if len(due.doubtful) > 0 {
		batch.Doubtful = len(due.doubtful)
		if err := t.doubt(ctx, due.doubtful, how, t.now, c.Confirm); err != nil {
			return batch, err
		}
	}
	if len(due.patient) > 0 {
		batch.Reminded = len(due.patient)
		rows, err := t.giveChance(ctx, due.patient, how, first)
		if err != nil {
			return batch, err
		}
		batch.Messages = append(batch.Messages, rows...)
	}
	if len(due.noted) > 0 {
		if err := t.shadow(ctx, due.noted, c.Reason); err != nil {
			return batch, err
		}
	}
	batch.Braked = slices.Concat(numbers(due.noted), numbers(due.kept))
	return batch, nil
}

// fallenDue are orders by what is to be done with them.
type fallenDue struct {
	closing  []order.Order
	patient  []order.Order // have a second chance
	doubtful []order.Order // a payment is in flight
	noted    []order.Order // would have been ended, but closing is in shadow for them
	kept     []order.Order // stay as they are, since closing is off
}

func (t tx) sort(locked []order.Order, brakes order.Brakes, c order.Closing) (due fallenDue) {
	for _, o := range locked {
		switch braking := brakes.On(o); {
		case braking == order.Wait:
			due.kept = append(due.kept, o)
		case braking == order.Record:
			due.noted = append(due.noted, o)
		case o.SecondChance != 0: // a payment in flight goes on: the order stays payable
			due.patient = append(due.patient, o)
		case c.Confirm > 0 && o.InFlight(t.now):
			due.doubtful = append(due.doubtful, o)
		default:
			due.closing = append(due.closing, o)
		}
	}
	return due
}

// cancelDue cancels locked orders that are due.
func (t tx) cancelDue(ctx context.Context, c order.Closing, due []order.Order, how ending, first order.Schedule, batch *order.ClosedBatch) error {
	if len(due) == 0 {
		return nil
	}
	next, err := order.Next(order.Pending, how.event)
	if err != nil {
		return err
	}
	lost, err := t.lostMessages(ctx, c, due)
	if err != nil {
		return err
	}
	counts := t.now // attempts that end by then do not count
	if c.Confirm == 0 {
		counts = order.Never
	}
	if err := t.execAll(ctx, len(due), closeDueSQL, uint8(next.To), t.now, string(how.reason), numbers(due), t.now, counts); err != nil {
		return err
	}
	if batch.Messages, err = t.dissolve(ctx, due, how, next, first); err != nil {
		return err
	}
	for _, o := range due {
		batch.Closed = append(batch.Closed, order.Lapsed{Order: o, MessageLost: slices.Contains(lost, o.OrderNo)})
	}
	return nil
}

// chanceSQL gives due orders their second chance. Args: branches, numbers, now. An order it does not touch was paid, closed,
// has had its chance, or is not due.
const chanceSQL = `UPDATE t_order SET expire_at = CASE order_no WHEN* END, second_ms = 0, remind_ms = 0, version = version + 1
WHERE order_no IN (?*) AND status = 0 AND second_ms <> 0 AND expire_at <= ?`

// giveChance lets locked orders that are due be paid for a while longer, and tells it.
func (t tx) giveChance(ctx context.Context, orders []order.Order, how ending, first order.Schedule) ([]order.Message, error) {
	next, err := order.Next(order.Pending, order.EventReminded)
	if err != nil {
		return nil, err
	}
	if err := t.loadItems(ctx, orders); err != nil {
		return nil, err
	}
	log, events := make([]order.LogEntry, len(orders)), make([]order.Message, len(orders))
	until := make(cases, len(orders))
	for i := range orders {
		o := &orders[i]
		o.ExpireAt = secondDeadline(*o, t.now)
		o.SecondChance, o.RemindLead = 0, 0
		o.Version++
		until[i] = branch{o.OrderNo, o.ExpireAt}
		log[i] = t.step(*o, next, how.reason, how.Act)
		events[i] = order.NoticeOf(order.OrderEvent(order.TypeExpired, *o, t.now), o.Round)
		events[i].NextAt = first(events[i], t.now)
	}
	for at := 0; at < len(orders); at += branchesAtOnce {
		chunk := orders[at:min(at+branchesAtOnce, len(orders))]
		if err := t.execAll(ctx, len(chunk), chanceSQL, until[at:at+len(chunk)], numbers(chunk), t.now); err != nil {
			return nil, err
		}
	}
	if err := t.log(ctx, log); err != nil {
		return nil, err
	}
	timeouts, err := t.reschedule(ctx, orders, first)
	if err != nil {
		return nil, err
	}
	written, err := t.insertMessages(ctx, events)
	return append(timeouts, written...), err
}

// secondDeadline counts from the first one, or from now if nobody could look before, as while closing was off.
func secondDeadline(o order.Order, now time.Time) time.Time {
	switch {
	case o.SecondChance == order.Forever:
		return order.Never
	case o.ExpireAt.Add(o.SecondChance).After(now):
		return o.ExpireAt.Add(o.SecondChance)
	}
	return now.Add(o.SecondChance)
}

// lockTimeoutsSQL locks time-out rows by key, whatever their state.
const lockTimeoutsSQL = "SELECT " + messageColumns + " FROM t_local_message WHERE dedup_key IN (?*) ORDER BY dedup_key {update}"

// rescheduleSQL takes locked time-out rows to their next hop, with a new time. Args: branches, branches, keys.
const rescheduleSQL = `UPDATE t_local_message SET hop = hop + 1, state = 0, attempts = 0, failing_since = NULL, last_error = '',
due_at = CASE dedup_key WHEN* END, next_at = CASE dedup_key WHEN* END WHERE dedup_key IN (?*)`

// reschedule lets the time-out rows of locked orders follow them to the time at which they are to be looked at next. It
// returns the rows; messages that are under way carry the hop before and are of no effect (I11, I13).
func (t tx) reschedule(ctx context.Context, orders []order.Order, next order.Schedule) ([]order.Message, error) {
	wake := make(map[string]time.Time, len(orders))
	for _, o := range orders {
		wake[order.TimeoutKey(o.OrderNo)] = o.WakeAt()
	}
	rows, err := t.messages(ctx, lockTimeoutsSQL, timeoutKeys(numbers(orders)))
	if err != nil {
		return nil, err
	}
	for chunk := range slices.Chunk(rows, branchesAtOnce) {
		keys, due, at := make([]string, len(chunk)), make(cases, len(chunk)), make(cases, len(chunk))
		for i := range chunk {
			m := &chunk[i]
			m.Hop++
			m.DueAt, m.Attempts = wake[m.Key], 0
			m.NextAt = next(*m, t.now).Truncate(time.Millisecond)
			keys[i], due[i], at[i] = m.Key, branch{m.Key, m.DueAt}, branch{m.Key, m.NextAt}
		}
		if err := t.execAll(ctx, len(chunk), rescheduleSQL, due, at, keys); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// holdLeaseSQL keeps a running lease from being taken until the transaction ends. Args: shard, owner, token, now.
const holdLeaseSQL = "SELECT shard FROM t_lease WHERE shard = ? AND owner = ? AND token = ? AND lease_until > ? {share}"

func (t tx) holdLease(ctx context.Context, l order.Lease) error {
	var shard int
	err := t.QueryRowContext(ctx, t.dialect.lock(holdLeaseSQL), l.Shard, l.Owner, l.Token, t.now).Scan(&shard)
	if errors.Is(err, sql.ErrNoRows) {
		return order.Errorf(order.Conflict, "lease_lost", "the lease of shard %d has run out or is held by another", l.Shard)
	}
	return err
}

// lostMessagesSQL finds time-out rows that were sent. Of orders that are due and still pending, the broker lost them.
const lostMessagesSQL = "SELECT order_no FROM t_local_message WHERE dedup_key IN (?*) AND state = 1"

// lostMessages is asked for on the compensator's path only: elsewhere the message is what brought us here.
func (t tx) lostMessages(ctx context.Context, c order.Closing, due []order.Order) (lost []string, err error) {
	if c.Lease == nil {
		return nil, nil
	}
	err = t.query(ctx, func(scan func(...any) error) error {
		var no string
		err := scan(&no)
		lost = append(lost, no)
		return err
	}, lostMessagesSQL, timeoutKeys(numbers(due)))
	return lost, err
}
