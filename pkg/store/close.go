package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"

	"lapse/pkg/order"
)

// lockDueSQL locks those of the named orders that are pending and due, passing over what others have locked.
const lockDueSQL = "SELECT " + orderColumns + ` FROM t_order
WHERE order_no IN (?*) AND status = 0 AND expire_at <= ? ORDER BY order_no {skip}`

// closeDueSQL is the only statement that closes orders for their deadline: its WHERE is I1 and I2. Args: new status,
// now, reason, numbers, now. An order it does not touch was paid, closed or is not due yet.
const closeDueSQL = `UPDATE t_order SET status = ?, cancelled_at = ?, cancel_reason = ?, version = version + 1
WHERE order_no IN (?*) AND status = 0 AND expire_at <= ?`

// CloseDue cancels, in one transaction, those of c.OrderNos that are pending and due by the database's clock. What is
// not in the answer was not due, not pending, not there, or locked by others, or
// needs a resource that is.
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
	if c.Lease != nil {
		if err := t.holdLease(ctx, *c.Lease); err != nil {
			return batch, err
		}
	}
	due, err := t.orders(ctx, lockDueSQL, c.OrderNos, t.now)
	if err == nil {
		due, err = t.unblocked(ctx, due)
	}
	if err != nil || len(due) == 0 {
		return batch, err
	}
	how := ending{order.EventExpired, c.Reason, c.Actor}
	next, err := order.Next(order.Pending, how.event)
	if err != nil {
		return batch, err
	}
	lost, err := t.lostMessages(ctx, c, due)
	if err != nil {
		return batch, err
	}
	if err := t.execAll(ctx, len(due), closeDueSQL, uint8(next.To), t.now, string(how.reason), numbers(due), t.now); err != nil {
		return batch, err
	}
	if batch.Messages, err = t.dissolve(ctx, due, how, next, first); err != nil {
		return batch, err
	}
	for _, o := range due {
		batch.Closed = append(batch.Closed, order.Lapsed{Order: o, MessageLost: slices.Contains(lost, o.OrderNo)})
	}
	return batch, nil
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
