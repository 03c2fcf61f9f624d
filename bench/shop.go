package main

import (
	"bufio"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// connections is what each contestant may open to the database.
const connections = 16

// shop is a database of its own with Lapse's schema.
type shop struct {
	name string
	dsn  string
	db   *sql.DB
	*store.Store
}

// open makes a database with all resources in stock.
func (l *lab) open(ctx context.Context, name string) (*shop, error) {
	s := &shop{name: "lapse_bench_" + l.run + "_" + name}
	if err := l.admin(ctx, "CREATE DATABASE "+s.name); err != nil {
		return nil, err
	}
	s.dsn = l.dsn + s.name
	if err := s.connect(ctx); err != nil {
		return nil, errors.Join(err, l.close(s))
	}
	return s, nil
}

func (s *shop) connect(ctx context.Context) (err error) {
	if s.Store, err = store.Open(ctx, store.Options{Driver: "mysql", DSN: s.dsn, MaxConns: connections}); err != nil {
		return err
	}
	if err := s.Migrate(ctx); err != nil {
		return err
	}
	if s.db, err = plainPool(s.dsn); err != nil {
		return err
	}
	return s.stock(ctx)
}

// plainPool opens a pool with the session settings of Lapse's own: READ COMMITTED, UTC.
func plainPool(dsn string) (*sql.DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	c.ParseTime, c.Loc = true, time.UTC
	c.Params = map[string]string{"time_zone": "'+00:00'"}
	connector, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(connector)
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// close drops the database.
func (l *lab) close(s *shop) error {
	if s.db != nil {
		s.db.Close()
	}
	if s.Store != nil {
		s.Store.Close()
	}
	return l.admin(context.Background(), "DROP DATABASE "+s.name)
}

// admin runs one statement outside of any database.
func (l *lab) admin(ctx context.Context, statement string) error {
	db, err := plainPool(l.dsn)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(ctx, statement)
	return err
}

// stock makes all resources, with their rows of the ledger.
func (s *shop) stock(ctx context.Context) error {
	if err := s.fill(ctx, "t_resource (kind, ref, available, held, sold)", len(skus), func(w *strings.Builder, i int) {
		line(w, "stock", skus[i], stock, 0, 0)
	}); err != nil {
		return err
	}
	return s.fill(ctx, "t_resource_log (order_no, round, op, kind, ref, quantity, at)", len(skus), func(w *strings.Builder, i int) {
		line(w, "stock-"+skus[i], 0, order.OpAdjust, "stock", skus[i], stock, utc(time.Now()))
	})
}

// load writes a batch with everything that belongs to its orders, as Lapse would have written it.
func (s *shop) load(ctx context.Context, b batch) error {
	parts := []struct {
		into  string
		lines func(*strings.Builder, row)
	}{
		{"t_order (order_no, caller, request_hash, user_id, biz_type, status, amount, currency, created_at, expire_at, paid_at, cancelled_at, " +
			"cancel_reason, version, shard)", orderLine},
		{"t_order_item (order_no, kind, ref, quantity)", itemLines},
		{"t_resource_log (order_no, round, op, kind, ref, quantity, at)", ledgerLines},
		{"t_order_log (order_no, version, round, from_status, to_status, event, reason, actor, at, event_sent_at)", logLines},
		{"t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, state, next_at, payload)", messageLine},
	}
	for _, part := range parts {
		if err := s.fill(ctx, part.into, b.orders, func(w *strings.Builder, i int) { part.lines(w, b.row(i)) }); err != nil {
			return err
		}
	}
	return s.hold(ctx, b)
}

// hold moves the counters by what the orders of a batch hold and have sold.
func (s *shop) hold(ctx context.Context, b batch) error {
	type moved struct{ held, sold int64 }
	moves := map[string]moved{}
	for i := range b.orders {
		r := b.row(i)
		for _, it := range r.Items {
			m := moves[it.Ref]
			switch r.status {
			case order.Pending:
				m.held += it.Quantity
			case order.Paid:
				m.sold += it.Quantity
			}
			moves[it.Ref] = m
		}
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	const holdSQL = "UPDATE t_resource SET available = available - ? - ?, held = held + ?, sold = sold + ? WHERE kind = 'stock' AND ref = ?"
	for ref, m := range moves {
		if _, err := tx.ExecContext(ctx, holdSQL, m.held, m.sold, m.held, m.sold, ref); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// fill loads n times lines into a table.
func (s *shop) fill(ctx context.Context, into string, n int, lines func(w *strings.Builder, i int)) error {
	from, to := io.Pipe()
	name := s.name + "-" + into
	mysql.RegisterReaderHandler(name, func() io.Reader { return from })
	defer mysql.DeregisterReaderHandler(name)
	go func() {
		w := bufio.NewWriterSize(to, 1<<20)
		var text strings.Builder
		for i := range n {
			text.Reset()
			lines(&text, i)
			if _, err := w.WriteString(text.String()); err != nil {
				return // the reader has gone
			}
		}
		to.CloseWithError(w.Flush())
	}()
	defer from.Close()
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	tableName, columns, _ := strings.Cut(into, " ")
	for _, statement := range []string{
		"SET SESSION unique_checks = 0, foreign_key_checks = 0",
		"LOAD DATA LOCAL INFILE 'Reader::" + name + "' INTO TABLE " + tableName + " CHARACTER SET utf8mb4 " + columns,
		"SET SESSION unique_checks = 1, foreign_key_checks = 1",
	} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("loading %s (the server has to allow local_infile): %w", tableName, err)
		}
	}
	return nil
}

// count runs a query that answers one number.
func (s *shop) count(ctx context.Context, query string, args ...any) (n int, err error) {
	err = s.db.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

// audited fails if any invariant of the store does not hold, or if not exactly want orders stand in status.
func (s *shop) audited(ctx context.Context, status order.Status, want int) error {
	got, err := s.count(ctx, "SELECT COUNT(*) FROM t_order WHERE status = ?", uint8(status))
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("%d orders are %s, and not %d", got, status, want)
	}
	checks, err := s.Audit(ctx, store.AuditOptions{Overdue: 24 * time.Hour}) // of some shops the messages are never sent
	if err != nil {
		return err
	}
	for _, c := range checks {
		if !c.Holds() {
			return fmt.Errorf("%s does not hold: %s: %d of %d, such as %s", c.Invariant, c.Name, c.Violations, c.Checked, c.Example)
		}
	}
	return nil
}

// drained waits until the relay has sent and settled everything.
func (s *shop) drained(ctx context.Context) error {
	var failed error
	return errors.Join(until(ctx, "relay", func() int64 {
		left, err := s.count(ctx, "SELECT COUNT(*) FROM t_local_message WHERE state = 0")
		failed = err
		sleep(ctx, 50*time.Millisecond)
		return -int64(left)
	}, 0), failed)
}
