package store

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// freeShardSQL is the plain look before a lease is taken, so that a busy shard's row is not waited for. Args: shard, now,
// end of the last pass at the latest.
const freeShardSQL = "SELECT COUNT(*) FROM t_lease WHERE shard = ? AND lease_until <= ? AND passed_at <= ?"

// acquireSQL takes a free lease. Args: owner, end, shard, now, end of the last pass at the latest. No row: somebody was
// faster.
const acquireSQL = `UPDATE t_lease SET owner = ?, token = token + 1, lease_until = ?
WHERE shard = ? AND lease_until <= ? AND passed_at <= ?`

const leaseTokenSQL = "SELECT token FROM t_lease WHERE shard = ?" //nolint:gosec // a fencing token is no credential

// AcquireShard takes a shard's lease if nobody holds it and its last pass ended at least interval ago.
func (s *Store) AcquireShard(ctx context.Context, shard int, owner string, lease, interval time.Duration) (l order.Lease, ok bool, err error) {
	free := 0
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		return q.QueryRowContext(ctx, freeShardSQL, shard, q.now, q.now.Add(-interval)).Scan(&free)
	})
	if err != nil || free == 0 {
		return order.Lease{}, false, err
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		l = order.Lease{Shard: shard, Owner: owner, Until: t.now.Add(lease).Truncate(time.Millisecond)}
		n, err := t.exec(ctx, acquireSQL, owner, l.Until, shard, t.now, t.now.Add(-interval))
		if ok = n == 1; err != nil || !ok {
			return err
		}
		return t.QueryRowContext(ctx, leaseTokenSQL, shard).Scan(&l.Token)
	})
	if err != nil || !ok {
		return order.Lease{}, false, err
	}
	return l, true, nil
}

// renewSQL prolongs a running lease. Args: end, shard, owner, token, now. No row: it is lost.
const renewSQL = "UPDATE t_lease SET lease_until = ? WHERE shard = ? AND owner = ? AND token = ? AND lease_until > ?"

// RenewLease prolongs a lease that still holds; false if it does not.
func (s *Store) RenewLease(ctx context.Context, l order.Lease, lease time.Duration) (renewed order.Lease, ok bool, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		renewed = l
		renewed.Until = t.now.Add(lease).Truncate(time.Millisecond)
		n, err := t.exec(ctx, renewSQL, renewed.Until, l.Shard, l.Owner, l.Token, t.now)
		ok = n == 1
		return err
	})
	if err != nil || !ok {
		return l, false, err
	}
	return renewed, true, nil
}

// releaseSQL ends a pass. Args: now, now, shard, owner, token, now. No row: the lease was lost, and is not ours to free.
const releaseSQL = `UPDATE t_lease SET owner = '', lease_until = ?, passed_at = ?
WHERE shard = ? AND owner = ? AND token = ? AND lease_until > ?`

// ReleaseShard ends a pass: the lease becomes free, and the next pass is due after the interval.
func (s *Store) ReleaseShard(ctx context.Context, l order.Lease) error {
	return s.write(ctx, func(ctx context.Context, t tx) error {
		_, err := t.exec(ctx, releaseSQL, t.now, t.now, l.Shard, l.Owner, l.Token, t.now)
		return err
	})
}

// scanDueSQL walks index (shard, status, expire_at), one status at a time. Args: shard, due at the latest, position
// (time twice, id), limit.
const scanDueSQL = `SELECT id, order_no, expire_at FROM t_order
WHERE shard = ? AND status = 0 AND expire_at <= ? AND expire_at >= ? AND (expire_at > ? OR id > ?) ORDER BY expire_at, id LIMIT ?`

// ScanDue reads up to limit pending orders of a shard that have been due for longer than overdue, after the cursor. The
// answer may come from a replica and be stale.
func (s *Store) ScanDue(ctx context.Context, shard int, overdue time.Duration, after order.Cursor, limit int) (due []order.DueOrder, err error) {
	if after.ExpireAt.IsZero() {
		after.ExpireAt = beginning
	}
	scan := func(ctx context.Context, q reader) error {
		due = nil
		return q.query(ctx, func(scan func(...any) error) error {
			var d order.DueOrder
			err := scan(&d.ID, &d.OrderNo, at(&d.ExpireAt))
			due = append(due, d)
			return err
		}, scanDueSQL, shard, q.now.Add(-overdue), after.ExpireAt, after.ExpireAt, after.ID, limit)
	}
	if s.ReplicaFresh() {
		if err = s.readFrom(ctx, s.replica, scan); err == nil {
			return due, nil
		}
		s.replicaFresh.Store(false)
	}
	err = s.read(ctx, scan)
	return due, err
}

// ReplicaFresh reports whether scans read the replica: it was found fresh by the last StartRun and has not failed since.
func (s *Store) ReplicaFresh() bool { return s.replicaFresh.Load() }

const startRunSQL = "INSERT INTO t_sweep_run (owner, kind, started_at) VALUES (?, ?, ?)"

// StartRun records the start of a run and returns it; it also decides whether the replica is fresh enough to scan.
func (s *Store) StartRun(ctx context.Context, owner, kind string) (run order.SweepRun, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		run = order.SweepRun{Owner: owner, Kind: kind, Started: t.now}
		res, err := t.ExecContext(ctx, startRunSQL, owner, kind, t.now)
		if err != nil {
			return err
		}
		run.ID, err = res.LastInsertId()
		return err
	})
	if err == nil {
		s.replicaFresh.Store(s.replica != nil && s.replicated(ctx, run.ID))
	}
	return run, err
}

const runSQL = "SELECT COUNT(*) FROM t_sweep_run WHERE id = ?"

// replicated waits for a run that was just recorded to appear on the replica, up to ReplicaMaxLag.
func (s *Store) replicated(ctx context.Context, id int64) bool {
	ctx, cancel := context.WithTimeout(ctx, s.options.ReplicaMaxLag)
	defer cancel()
	for ctx.Err() == nil {
		found := 0
		err := s.replica.QueryRowContext(ctx, runSQL, id).Scan(&found)
		if err == nil && found == 1 {
			return true
		}
		pause(ctx, s.options.ReplicaMaxLag/20)
	}
	return false
}

const finishRunSQL = "UPDATE t_sweep_run SET finished_at = ?, shards = ?, looked = ?, closed = ?, failed = ?, error = ? WHERE id = ?"

// FinishRun records the end of a run and sets it in r.
func (s *Store) FinishRun(ctx context.Context, r *order.SweepRun) error {
	return s.write(ctx, func(ctx context.Context, t tx) error {
		r.Finished = t.now
		return t.execAll(ctx, 1, finishRunSQL, t.now, r.Shards, r.Looked, r.Closed, r.Failed, clip(r.Error, maxErrorText), r.ID)
	})
}
