package store

import (
	"context"
	"slices"
	"time"

	"lapse/pkg/order"
)

// Extend moves the deadline of the order that e names; Conflict when it is not pending.
func (s *Store) Extend(ctx context.Context, e order.Extending, first order.Schedule) (done order.Extended, err error) {
	var tried tries
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		orders, err := t.lockOwned(ctx, e.OrderNo, "")
		if err != nil {
			return err
		}
		if err := t.loadItems(ctx, orders); err != nil {
			return err
		}
		if done.Extended, err = t.extendedBefore(ctx, e, numbers(orders), &tried); err == nil && done.Extended == 0 {
			done, err = t.extend(ctx, e, orders, first)
		}
		if err != nil {
			return err
		}
		done.Order = &orders[0]
		return nil
	})
	return done, err
}

// tries are the times at which the same extension was tried before. One whose commit was of unknown outcome is run again,
// and "later by so much" must not be added twice.
type tries []time.Time

// triedSQL finds what a try of an extension has written. Args: numbers, actor, note, its time.
const triedSQL = "SELECT order_no FROM t_order_log WHERE order_no IN (?*) AND event = 'extended' AND actor = ? AND note = ? AND at = ?"

// extendedBefore is how many orders an earlier try has moved after all: each try moves all or nothing.
func (t tx) extendedBefore(ctx context.Context, e order.Extending, nos []string, tried *tries) (int, error) {
	for _, try := range *tried {
		if moved, err := t.ids(ctx, triedSQL, nos, e.Actor, e.Note, try); err != nil || len(moved) > 0 {
			return len(moved), err
		}
	}
	*tried = append(*tried, t.now)
	return 0, nil
}

// userPendingSQL and bizPendingSQL read a page of pending orders without locks, the latest deadline first. Args: shard and
// business type, or user; position (time twice, id), size.
const (
	bizPendingSQL = `SELECT id, order_no, expire_at FROM t_order
WHERE shard = ? AND status = 0 AND expire_at <= ? AND (expire_at < ? OR id < ?) AND biz_type = ? ORDER BY expire_at DESC, id DESC LIMIT ?`
	userPendingSQL = `SELECT id, order_no, expire_at FROM t_order
WHERE user_id = ? AND status = 0 AND expire_at <= ? AND (expire_at < ? OR id < ?) ORDER BY expire_at DESC, id DESC LIMIT ?`
)

// lockPendingSQL locks those of a page that are still pending. It waits for what others have locked: who starts to pay just
// now is to have more time, too.
const lockPendingSQL = "SELECT " + orderColumns + " FROM t_order WHERE order_no IN (?*) AND status = 0 ORDER BY order_no {update}"

// ExtendPage moves the deadlines of a page of at most limit of the pending orders that e is about, from a position on.
func (s *Store) ExtendPage(ctx context.Context, e order.Extending, from order.Position, limit int, first order.Schedule) (done order.Extended, err error) {
	page, next, err := s.pendingPage(ctx, e, from, limit)
	if err != nil || len(page) == 0 {
		return order.Extended{Next: next}, err
	}
	var tried tries
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		orders, err := t.orders(ctx, lockPendingSQL, page)
		if err != nil {
			return err
		}
		if done.Extended, err = t.extendedBefore(ctx, e, page, &tried); err != nil || done.Extended > 0 {
			return err
		}
		orders = slices.DeleteFunc(orders, func(o order.Order) bool {
			_, err := e.Deadline(o, t.now)
			return err != nil
		})
		done, err = t.extend(ctx, e, orders, first)
		return err
	})
	done.Next = next
	return done, err
}

func (s *Store) pendingPage(ctx context.Context, e order.Extending, from order.Position, limit int) (page []string, next *order.Position, err error) {
	text, args := userPendingSQL, []any{e.UserID, from.ExpireAt, from.ExpireAt, from.ID, limit}
	if e.BizType != "" {
		text, args = bizPendingSQL, []any{from.Shard, from.ExpireAt, from.ExpireAt, from.ID, e.BizType, limit}
	}
	last := from
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		page, last = nil, from
		return q.query(ctx, func(scan func(...any) error) error {
			var no string
			err := scan(&last.ID, &no, at(&last.ExpireAt))
			page = append(page, no)
			return err
		}, text, args...)
	})
	switch {
	case err != nil:
		return nil, nil, err
	case len(page) == limit:
		return page, &last, nil
	case e.BizType != "" && from.Shard+1 < order.Shards:
		after := order.Foremost()
		after.Shard = from.Shard + 1
		return page, &after, nil
	}
	return page, nil, nil
}

// extendSQL moves the deadlines of locked orders. Args: branches, numbers. No row: it is not pending.
const extendSQL = "UPDATE t_order SET expire_at = CASE order_no WHEN* END, version = version + 1 WHERE order_no IN (?*) AND status = 0"

// extend moves the deadlines of locked orders and brings those up to date. One that stays where it is, is left alone.
func (t tx) extend(ctx context.Context, e order.Extending, orders []order.Order, first order.Schedule) (done order.Extended, err error) {
	var moved []order.Order
	var log []order.LogEntry
	var until cases
	for i := range orders {
		o := &orders[i]
		next, err := order.Next(o.Status, order.EventExtended)
		if err != nil {
			return done, err
		}
		deadline, err := e.Deadline(*o, t.now)
		if err != nil {
			return done, err
		}
		if deadline.Equal(o.ExpireAt) {
			continue
		}
		o.ExpireAt = deadline
		o.Version++
		moved, log, until = append(moved, *o), append(log, t.step(*o, next, "", e.Act)), append(until, branch{o.OrderNo, deadline})
	}
	for from := 0; from < len(moved); from += branchesAtOnce {
		to := min(from+branchesAtOnce, len(moved))
		if err := t.execAll(ctx, to-from, extendSQL, until[from:to], numbers(moved[from:to])); err != nil {
			return done, err
		}
	}
	if err := t.log(ctx, log); err != nil {
		return done, err
	}
	if len(moved) > 0 {
		done.Messages, err = t.reschedule(ctx, moved, first)
	}
	done.Extended = len(moved)
	return done, err
}
