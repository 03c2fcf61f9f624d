package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"lapse/pkg/order"
)

// reference is the plain way: one order a transaction. It writes the same rows as Lapse, with the same session
// settings, and is meant to be as good as that can be: every statement is prepared once on each of its
// connections, rows that others want are touched last so that they are locked shortest, in one fixed order,
// and nothing is read that need not be. Its times come from this process's clock where Lapse asks the
// database, which saves it a round trip.
type reference struct {
	db       *sql.DB
	sessions chan *session
}

// session is one connection with its statements.
type session struct {
	conn  *sql.Conn
	fixed map[string]*sql.Stmt
	multi map[string][mostSKUs + 1]*sql.Stmt // by number of rows
}

// Statements with one row, by whom they are used.
const (
	insertOrderSQL = `INSERT INTO t_order (order_no, caller, request_hash, user_id, biz_type, status, amount, currency, created_at, expire_at, shard)
VALUES (?, ?, ?, ?, ?, 0, ?, ?, ?, ?, ?)`
	insertBirthSQL = `INSERT INTO t_order_log (order_no, version, round, from_status, to_status, event, reason, actor, at)
VALUES (?, 1, 1, 0, 0, 'created', '', ?, ?)`
	insertTimeoutSQL = `INSERT INTO t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, next_at, payload)
VALUES (?, 'timeout', ?, 1, 'timeout', 0, ?, ?, ?)`
	reserveSQL = `UPDATE t_resource SET available = available - ?, held = held + ?
WHERE kind = ? AND ref = ? AND available >= ? AND owner IN ('', ?) AND (valid_until IS NULL OR valid_until > ?)`

	closeSQL = `UPDATE t_order SET status = 20, cancelled_at = UTC_TIMESTAMP(3), cancel_reason = 'TIMEOUT', version = version + 1
WHERE order_no = ? AND status = 0 AND expire_at <= UTC_TIMESTAMP(3)`
	readClosedSQL = `SELECT o.user_id, o.biz_type, o.amount, o.currency, o.expire_at, o.cancelled_at, o.version, i.kind, i.ref, i.quantity
FROM t_order o JOIN t_order_item i ON i.order_no = o.order_no WHERE o.order_no = ?`
	insertEndSQL = `INSERT INTO t_order_log (order_no, version, round, from_status, to_status, event, reason, actor, at)
VALUES (?, ?, 1, 0, 20, 'expired', 'TIMEOUT', 'consumer', ?)`
	insertEventSQL = `INSERT INTO t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, next_at, payload)
VALUES (?, 'event', ?, 1, 'cancelled', 0, ?, ?, ?)`
	deleteTimeoutSQL = "DELETE FROM t_local_message WHERE dedup_key = ?"
	releaseSQL       = "UPDATE t_resource SET available = available + ?, held = held - ? WHERE kind = ? AND ref = ? AND held >= ?"

	settleSQL = `UPDATE t_local_message SET state = 1, message_id = ?, offset_message_id = ?, failing_since = NULL, last_error = ''
WHERE dedup_key = ? AND state = 0 AND hop = ? AND next_at = ?`
)

// Statements with one to mostSKUs rows.
const (
	insertItemsSQL  = "INSERT INTO t_order_item (order_no, kind, ref, quantity) VALUES (?, ?, ?, ?)"
	insertLedgerSQL = "INSERT INTO t_resource_log (order_no, round, op, kind, ref, quantity, at) VALUES (?, 1, ?, ?, ?, ?, ?)"
)

// newReference opens its connections and prepares its statements.
func newReference(ctx context.Context, dsn string) (*reference, error) {
	db, err := plainPool(dsn)
	if err != nil {
		return nil, err
	}
	r := &reference{db: db, sessions: make(chan *session, connections)}
	for range connections {
		s, err := newSession(ctx, db)
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		r.sessions <- s
	}
	return r, nil
}

func newSession(ctx context.Context, db *sql.DB) (*session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ExecContext(ctx, "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
		return nil, err
	}
	s := &session{conn: conn, fixed: map[string]*sql.Stmt{}, multi: map[string][mostSKUs + 1]*sql.Stmt{}}
	for _, text := range []string{
		insertOrderSQL, insertBirthSQL, insertTimeoutSQL, reserveSQL,
		closeSQL, readClosedSQL, insertEndSQL, insertEventSQL, deleteTimeoutSQL, releaseSQL, settleSQL,
	} {
		if s.fixed[text], err = conn.PrepareContext(ctx, text); err != nil {
			return nil, err
		}
	}
	for _, text := range []string{insertItemsSQL, insertLedgerSQL} {
		var prepared [mostSKUs + 1]*sql.Stmt
		_, values, _ := strings.Cut(text, "VALUES ")
		for n := 1; n <= mostSKUs; n++ {
			if prepared[n], err = conn.PrepareContext(ctx, text+strings.Repeat(", "+values, n-1)); err != nil {
				return nil, err
			}
		}
		s.multi[text] = prepared
	}
	return s, nil
}

func (r *reference) Close() error { return r.db.Close() }

// transaction runs do on a session of its own.
func (r *reference) transaction(ctx context.Context, do func(*session) error) error {
	s := <-r.sessions
	defer func() { r.sessions <- s }()
	if _, err := s.conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
		return err
	}
	if err := do(s); err != nil {
		_, rollback := s.conn.ExecContext(ctx, "ROLLBACK")
		return errors.Join(err, rollback)
	}
	_, err := s.conn.ExecContext(ctx, "COMMIT")
	return err
}

// one runs a statement that has to change one row.
func (s *session) one(ctx context.Context, text string, args ...any) error {
	res, err := s.fixed[text].ExecContext(ctx, args...)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("%d rows changed by %s: %w", n, text, errors.Join(err, errNotOne))
	}
	return nil
}

var errNotOne = errors.New("one row should have changed")

// Create makes one order. lease is how long its time-out row belongs to its creator.
func (r *reference) Create(ctx context.Context, d order.Draft, lease time.Duration) (order.Order, order.Message, error) {
	now := time.Now().UTC().Truncate(time.Millisecond)
	o := order.Order{
		OrderNo: d.OrderNo, Caller: d.Caller, RequestHash: d.Hash(), UserID: d.UserID, BizType: d.BizType, Items: d.Items, Amount: d.Amount,
		Currency: d.Currency, CreatedAt: now, ExpireAt: now.Add(d.Timeout), Round: 1, Version: 1,
	}
	m := order.Message{
		Key: order.TimeoutKey(o.OrderNo), Kind: order.Timeout, OrderNo: o.OrderNo, Round: 1, Type: "timeout",
		DueAt: o.ExpireAt, NextAt: now.Add(lease), Payload: []byte(d.TraceParent),
	}
	err := r.transaction(ctx, func(s *session) error {
		if err := s.one(ctx, insertOrderSQL, o.OrderNo, o.Caller, o.RequestHash, o.UserID, o.BizType, o.Amount, o.Currency,
			o.CreatedAt, o.ExpireAt, order.ShardOf(o.OrderNo)); err != nil {
			return err
		}
		if err := s.one(ctx, insertBirthSQL, o.OrderNo, o.Caller, now); err != nil {
			return err
		}
		if err := s.one(ctx, insertTimeoutSQL, m.Key, m.OrderNo, m.DueAt, m.NextAt, m.Payload); err != nil {
			return err
		}
		if err := s.items(ctx, o); err != nil {
			return err
		}
		if err := s.ledger(ctx, o, order.OpReserve, now); err != nil {
			return err
		}
		for _, it := range o.Items {
			if err := s.one(ctx, reserveSQL, it.Quantity, it.Quantity, it.Kind, it.Ref, it.Quantity, o.UserID, now); err != nil {
				return err
			}
		}
		return nil
	})
	return o, m, err
}

func (s *session) items(ctx context.Context, o order.Order) error {
	args := make([]any, 0, 4*len(o.Items))
	for _, it := range o.Items {
		args = append(args, o.OrderNo, it.Kind, it.Ref, it.Quantity)
	}
	_, err := s.multi[insertItemsSQL][len(o.Items)].ExecContext(ctx, args...)
	return err
}

func (s *session) ledger(ctx context.Context, o order.Order, op order.Op, at time.Time) error {
	args := make([]any, 0, 6*len(o.Items))
	for _, it := range o.Items {
		args = append(args, o.OrderNo, string(op), it.Kind, it.Ref, it.Quantity, at)
	}
	_, err := s.multi[insertLedgerSQL][len(o.Items)].ExecContext(ctx, args...)
	return err
}

// CloseDue closes one order, which has to be due.
func (r *reference) CloseDue(ctx context.Context, no string) error {
	return r.transaction(ctx, func(s *session) error {
		if err := s.one(ctx, closeSQL, no); err != nil {
			return err
		}
		o, err := s.closed(ctx, no)
		if err != nil {
			return err
		}
		if err := s.one(ctx, insertEndSQL, no, o.Version, o.CancelledAt); err != nil {
			return err
		}
		m := order.CancelledMessage(o)
		if err := s.one(ctx, insertEventSQL, m.Key, m.OrderNo, m.DueAt, m.DueAt, m.Payload); err != nil {
			return err
		}
		if err := s.one(ctx, deleteTimeoutSQL, order.TimeoutKey(no)); err != nil {
			return err
		}
		if err := s.ledger(ctx, o, order.OpRelease, o.CancelledAt); err != nil {
			return err
		}
		for _, it := range o.Items {
			if err := s.one(ctx, releaseSQL, it.Quantity, it.Quantity, it.Kind, it.Ref, it.Quantity); err != nil {
				return err
			}
		}
		return nil
	})
}

// closed reads what the event of a closed order says.
func (s *session) closed(ctx context.Context, no string) (order.Order, error) {
	o := order.Order{OrderNo: no, Status: order.Cancelled, CancelReason: order.ReasonTimeout, Round: 1}
	rows, err := s.fixed[readClosedSQL].QueryContext(ctx, no)
	if err != nil {
		return o, err
	}
	defer rows.Close()
	for rows.Next() {
		var it order.Item
		if err := rows.Scan(&o.UserID, &o.BizType, &o.Amount, &o.Currency, &o.ExpireAt, &o.CancelledAt, &o.Version, &it.Kind, &it.Ref, &it.Quantity); err != nil {
			return o, err
		}
		o.Items = append(o.Items, it)
	}
	return o, rows.Err()
}

// Settle marks one time-out row as sent, in a transaction of its own.
func (r *reference) Settle(ctx context.Context, sent order.Sent) error {
	s := <-r.sessions
	defer func() { r.sessions <- s }()
	_, err := s.fixed[settleSQL].ExecContext(ctx, sent.Receipt.MessageID, sent.Receipt.OffsetMessageID, sent.Key, sent.Hop, sent.NextAt)
	return err
}
