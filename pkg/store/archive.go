package store

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// Archive closes a cancelled order that was cancelled at least retention ago; Conflict before, and when it is not cancelled. One
// that is archived already is returned as it is.
func (s *Store) Archive(ctx context.Context, orderNo string, retention time.Duration, act order.Act) (o order.Order, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		orders, err := t.lockOwned(ctx, orderNo, "")
		if err != nil {
			return err
		}
		if err := t.loadItems(ctx, orders); err != nil {
			return err
		}
		o = orders[0]
		if o.Status == order.Closed && !o.CancelledAt.IsZero() { // by an archive, not by a refund
			return nil
		}
		if o.Status == order.Cancelled && o.CancelledAt.After(t.now.Add(-retention)) {
			return order.Errorf(order.Conflict, "too_early_to_archive", "the order was cancelled at %s and may be restored until %s",
				o.CancelledAt.Format(time.RFC3339), o.CancelledAt.Add(retention).Format(time.RFC3339))
		}
		err = t.archive(ctx, orders, act)
		o = orders[0]
		return err
	})
	return o, err
}

// toArchiveSQL reads a page of a shard's cancelled orders without locks. Args: shard, deadline at the latest, the deadline
// that never comes, cancelled at the latest, limit.
const toArchiveSQL = `SELECT order_no FROM t_order
WHERE shard = ? AND status = 20 AND (expire_at <= ? OR expire_at = ?) AND cancelled_at <= ? ORDER BY expire_at LIMIT ?`

// lockCancelledSQL locks cancelled orders, passing over what others have locked. Args: numbers, cancelled at the latest.
const lockCancelledSQL = "SELECT " + orderColumns + ` FROM t_order
WHERE order_no IN (?*) AND status = 20 AND cancelled_at <= ? ORDER BY order_no {skip}`

// ArchiveDue closes up to limit of a shard's orders that were cancelled, and were due, at least retention ago. It returns
// their number.
func (s *Store) ArchiveDue(ctx context.Context, shard int, retention time.Duration, limit int, act order.Act) (archived int, err error) {
	var page []string
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		latest := q.now.Add(-retention)
		page, err = q.ids(ctx, toArchiveSQL, shard, latest, order.Never, latest, limit)
		return err
	})
	if err != nil || len(page) == 0 {
		return 0, err
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		orders, err := t.orders(ctx, lockCancelledSQL, page, t.now.Add(-retention))
		archived = len(orders)
		if err != nil || archived == 0 {
			return err
		}
		return t.archive(ctx, orders, act)
	})
	return archived, err
}

// archiveSQL closes cancelled orders. Args: new status, now, numbers. No row: it is not cancelled.
const archiveSQL = "UPDATE t_order SET status = ?, closed_at = ?, version = version + 1 WHERE order_no IN (?*) AND status = 20"

// archive closes locked orders and brings them up to date.
func (t tx) archive(ctx context.Context, orders []order.Order, act order.Act) error {
	next, err := order.Next(orders[0].Status, order.EventArchived)
	if err != nil {
		return err
	}
	if err := t.execAll(ctx, len(orders), archiveSQL, uint8(next.To), t.now, numbers(orders)); err != nil {
		return err
	}
	log := make([]order.LogEntry, len(orders))
	for i := range orders {
		o := &orders[i]
		o.Status, o.ClosedAt = next.To, t.now
		o.Version++
		log[i] = t.step(*o, next, "", act)
	}
	return t.log(ctx, log)
}
