package store

import (
	"context"
	"slices"
	"time"

	"lapse/pkg/order"
)

// toPurgeSQL reads a page of a shard's orders that ended long ago, without locks. Those that were payable for ever stand at
// the end of the index. Args: shard, status, deadline at the latest, the deadline that never comes, position (time twice,
// id), ended at the latest, limit.
const toPurgeSQL = `SELECT id, order_no, expire_at FROM t_order WHERE shard = ? AND status = ? AND (expire_at <= ? OR expire_at = ?)
AND expire_at >= ? AND (expire_at > ? OR id > ?) AND COALESCE(closed_at, paid_at) <= ? ORDER BY expire_at, id LIMIT ?`

// lockEndedSQL locks orders that ended long ago and whose money is where it belongs, passing over what others have locked.
// Args: numbers, ended at the latest.
const lockEndedSQL = "SELECT " + orderColumns + ` FROM t_order WHERE order_no IN (?*) AND status IN (10, 30) AND COALESCE(closed_at, paid_at) <= ?
AND NOT EXISTS (SELECT 1 FROM t_late_payment l WHERE l.order_no = t_order.order_no AND l.status IN ('open', 'requested')) ORDER BY order_no {skip}`

// PurgeOrders deletes those of a page of at most limit of a shard's orders that ended, and were due, at least retention ago,
// with all that belongs to them. What they did to counters is carried on. It returns their number and where the next page
// goes on, nil at the end: an order that may not go yet is passed over, so that it is in no other's way.
func (s *Store) PurgeOrders(ctx context.Context, shard int, status order.Status, retention time.Duration, from order.Cursor, limit int) (purged int, next *order.Cursor, err error) {
	page, next, err := s.endedPage(ctx, shard, status, retention, from, limit)
	if err != nil || len(page) == 0 {
		return 0, nil, err
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		purged = 0
		orders, err := t.orders(ctx, lockEndedSQL, page, t.now.Add(-retention))
		if err != nil || len(orders) == 0 {
			return err
		}
		nos, err := t.allTold(ctx, numbers(orders))
		if err != nil || len(nos) == 0 {
			return err
		}
		purged = len(nos)
		return t.purge(ctx, nos)
	})
	return purged, next, err
}

func (s *Store) endedPage(ctx context.Context, shard int, status order.Status, retention time.Duration, from order.Cursor, limit int) (page []string, next *order.Cursor, err error) {
	if from.ExpireAt.IsZero() {
		from.ExpireAt = beginning
	}
	last := from
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		page = nil
		latest := q.now.Add(-retention)
		return q.query(ctx, func(scan func(...any) error) error {
			var no string
			err := scan(&last.ID, &no, at(&last.ExpireAt))
			page = append(page, no)
			return err
		}, toPurgeSQL, shard, uint8(status), latest, order.Never, from.ExpireAt, from.ExpireAt, from.ID, latest, limit)
	})
	if len(page) == limit {
		next = &last
	}
	return page, next, err
}

// untoldSQL finds the local messages of orders by their keys: there is no other index. Args: order numbers.
const untoldSQL = "SELECT DISTINCT order_no FROM t_local_message WHERE KEYS*"

// allTold are those of locked orders of which nothing is left to be told.
func (t tx) allTold(ctx context.Context, nos []string) ([]string, error) {
	untold, err := t.ids(ctx, untoldSQL, keysOf(nos))
	return slices.DeleteFunc(nos, func(no string) bool { return slices.Contains(untold, no) }), err
}

// belongings are what goes with its order. Each text deletes by order numbers.
var belongings = []string{
	"DELETE FROM t_order_item WHERE order_no IN (?*)",
	"DELETE FROM t_order_log WHERE order_no IN (?*)",
	"DELETE FROM t_resource_log WHERE order_no IN (?*) AND round > 0",
	"DELETE FROM t_payment_attempt WHERE order_no IN (?*)",
	"DELETE FROM t_late_payment WHERE order_no IN (?*)",
	"DELETE FROM t_payment WHERE order_no IN (?*)",
	"DELETE FROM t_shadow WHERE order_no IN (?*)",
	"DELETE FROM t_order WHERE order_no IN (?*)",
}

func (t tx) purge(ctx context.Context, nos []string) error {
	if err := t.carry(ctx, nos); err != nil {
		return err
	}
	for _, text := range belongings {
		if _, err := t.exec(ctx, text, nos); err != nil {
			return err
		}
	}
	return nil
}

// carried is the number under which the ledger keeps the sums of what was purged. It is no adjustment's.
const carried = "~carried"

// sumsSQL adds up what orders did, in the order in which its sums are written.
const sumsSQL = `SELECT op, kind, ref, SUM(quantity) FROM t_resource_log
WHERE order_no IN (?*) AND round > 0 AND remote = 0 GROUP BY op, kind, ref ORDER BY op, kind, ref`

// carry adds what orders did to the sums that stay, so that the counters go on being what the ledger says (I4). Others may
// do so at the same time: sums are added to, never replaced.
func (t tx) carry(ctx context.Context, nos []string) error {
	var rows [][]any
	err := t.query(ctx, func(scan func(...any) error) error {
		var op, kind, ref string
		var n int64
		err := scan(&op, &kind, &ref, &n)
		rows = append(rows, []any{carried, 0, op, kind, ref, n, t.now, false})
		return err
	}, sumsSQL, nos)
	if err != nil {
		return err
	}
	return t.insert(ctx, enterSQL, rows, t.dialect.addUp("quantity"))
}

// records are what is kept of work that is over. Each has a text that reads the oldest ids, with args time and limit, and
// one that deletes them.
var records = []struct{ name, old, remove string }{
	{"sweep_runs", "SELECT id FROM t_sweep_run WHERE started_at < ? ORDER BY id LIMIT ?", "DELETE FROM t_sweep_run WHERE id IN (?*)"},
	{"reconcile_findings", "SELECT run_id FROM t_reconcile_finding WHERE run_id IN (SELECT id FROM t_reconcile_run WHERE started_at < ?) ORDER BY run_id LIMIT ?",
		"DELETE FROM t_reconcile_finding WHERE run_id IN (?*)"},
	{"reconcile_runs", "SELECT id FROM t_reconcile_run WHERE started_at < ? ORDER BY id LIMIT ?", "DELETE FROM t_reconcile_run WHERE id IN (?*)"},
	{"shadow", "SELECT order_no FROM t_shadow WHERE decided_at < ? ORDER BY decided_at LIMIT ?", "DELETE FROM t_shadow WHERE order_no IN (?*)"},
	{"quarantine", "SELECT id FROM t_quarantine WHERE at < ? ORDER BY id LIMIT ?", "DELETE FROM t_quarantine WHERE id IN (?*)"},
}

// PurgeRecords deletes up to limit records of each kind that are older than retention, and returns their numbers.
func (s *Store) PurgeRecords(ctx context.Context, retention time.Duration, limit int) (map[string]int, error) {
	purged := map[string]int{}
	for _, r := range records {
		err := s.write(ctx, func(ctx context.Context, t tx) error {
			old, err := t.ids(ctx, r.old, t.now.Add(-retention), limit)
			if err != nil || len(old) == 0 {
				return err
			}
			purged[r.name], err = t.exec(ctx, r.remove, old)
			return err
		})
		if err != nil {
			return purged, err
		}
	}
	return purged, nil
}
