package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"lapse/pkg/order"
)

// failure is a class of database errors that pass: the same transaction is run again. That is right even where it is
// not known whether the first one was committed, since its keys and conditions collide with what that left and decide.
type failure struct {
	name string
	cost int           // share of the patience
	wait time.Duration // before the next attempt, times the attempts, with jitter
}

// patience is what one call spends on failures before it answers Unavailable.
const patience = 12

var (
	deadlock     = failure{"deadlock", 1, 4 * time.Millisecond}
	duplicate    = failure{"duplicate", 2, time.Millisecond} // somebody else committed the same key in between
	noConnection = failure{"connection", 3, 100 * time.Millisecond}
	serverFull   = failure{"server_full", 3, 100 * time.Millisecond}
	lockWait     = failure{"lock_wait", 6, time.Millisecond} // has waited long already
	busy         = failure{"busy", 3, 50 * time.Millisecond} // the same on SQLite, which may not have waited at all
)

// tx is one attempt of a transaction.
type tx struct {
	runner
	now time.Time // the database's clock at its start
	// blocked: an earlier attempt waited in vain for a row. Now what others have locked is passed over, so that
	// one counter that somebody holds stops only those who need it.
	blocked bool
}

// reader is one read outside of a transaction.
type reader = tx

// runner runs SQL texts: with the dialect's locks, and with sets as arguments (see bind).
type runner struct {
	queryer
	dialect dialect
}

// write runs do as one transaction, again if it fails for a reason that passes. An *order.Error from do is final.
func (s *Store) write(ctx context.Context, do func(ctx context.Context, t tx) error) error {
	return s.patiently(ctx, func(blocked bool) error { return s.attempt(ctx, blocked, do) })
}

// patiently calls try until it succeeds, answers, or has used up the patience. It tells try whether an earlier attempt
// waited in vain for a row.
func (s *Store) patiently(ctx context.Context, try func(blocked bool) error) error {
	left, blocked := patience, false
	for attempt := 1; ; attempt++ {
		err := try(blocked)
		if err == nil || isAnswer(err) {
			return err
		}
		f := s.dialect.failure(err)
		left -= f.cost
		if f.cost == 0 || left < 0 || ctx.Err() != nil {
			return s.answer(err)
		}
		blocked = blocked || f == lockWait
		s.options.OnRetry(f.name)
		pause(ctx, rand.N(f.wait*time.Duration(attempt))+time.Millisecond)
	}
}

func (s *Store) attempt(ctx context.Context, blocked bool, do func(ctx context.Context, t tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	if s.writer != nil {
		select {
		case s.writer <- struct{}{}:
			defer func() { <-s.writer }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	dbtx, err := s.primary.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer dbtx.Rollback() // a no-op after Commit
	now, err := s.dialect.clock(ctx, dbtx)
	if err != nil {
		return err
	}
	if err := do(ctx, tx{runner{dbtx, s.dialect}, now, blocked}); err != nil {
		return err
	}
	return dbtx.Commit()
}

// read runs do without a transaction; every statement sees what is committed when it starts.
func (s *Store) read(ctx context.Context, do func(ctx context.Context, q reader) error) error {
	return s.readFrom(ctx, s.primary, do)
}

func (s *Store) readFrom(ctx context.Context, db *sql.DB, do func(ctx context.Context, q reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, s.options.Timeout)
	defer cancel()
	now, err := s.dialect.clock(ctx, db)
	if err == nil {
		err = do(ctx, reader{runner: runner{db, s.dialect}, now: now})
	}
	return s.answer(err)
}

func isAnswer(err error) bool {
	var e *order.Error
	return errors.As(err, &e)
}

// answer makes an *order.Error of a driver's error.
func (s *Store) answer(err error) error {
	if err == nil || isAnswer(err) {
		return err
	}
	f := s.dialect.failure(err)
	if f.cost == 0 || f == duplicate {
		return order.Errorf(order.Internal, "database_error", "the database refused a statement").Wrap(err)
	}
	return order.Errorf(order.Unavailable, "database_unavailable", "the database could not answer (%s)", f.name).Wrap(err).
		WithHint("Try again. If it stays, look at the database and at database.dsn.")
}

// pause waits, or not if ctx ends first.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// exec runs a statement and returns how many rows its WHERE matched.
func (r runner) exec(ctx context.Context, text string, args ...any) (int, error) {
	text, args = bind(text, args)
	res, err := r.ExecContext(ctx, r.dialect.lock(text), args...)
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// execAll is exec for a statement that must touch exactly want rows: they were locked before.
func (r runner) execAll(ctx context.Context, want int, text string, args ...any) error {
	got, err := r.exec(ctx, text, args...)
	if err == nil && got != want {
		return damaged("%d rows changed where %d were locked: %s", got, want, text)
	}
	return err
}

// query runs text and calls row with the scan function of each row.
func (r runner) query(ctx context.Context, row func(scan func(...any) error) error, text string, args ...any) error {
	text, args = bind(text, args)
	rows, err := r.QueryContext(ctx, r.dialect.lock(text), args...)
	return each(rows, err, row)
}

func each(rows *sql.Rows, err error, row func(scan func(...any) error) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// Texts may have marks for sets, filled from arguments of these types in turn:
//
//	?*     as many placeholders as []string has elements
//	WHEN*  a branch "WHEN ? THEN ?" for each of cases
//	KEYS*  a range of dedup_key for each of keysOf
type cases []branch

type branch struct{ when, then any }

// keysOf are the keys of all local messages of orders: they begin with the order's number and a colon; a semicolon comes
// next to it.
type keysOf []string

// bind spreads the arguments that are sets, and gives each mark of the text its placeholders. Only placeholders ever
// go into the text.
func bind(text string, args []any) (string, []any) {
	flat := make([]any, 0, len(args))
	for _, arg := range args {
		switch set := arg.(type) {
		case []string:
			text = strings.Replace(text, "?*", placeholders(len(set)), 1)
			for _, v := range set {
				flat = append(flat, v)
			}
		case cases:
			text = strings.Replace(text, "WHEN*", strings.Repeat("WHEN ? THEN ? ", len(set)), 1)
			for _, b := range set {
				flat = append(flat, b.when, b.then)
			}
		case keysOf:
			text = strings.Replace(text, "KEYS*", strings.TrimSuffix(strings.Repeat("dedup_key > ? AND dedup_key < ? OR ", len(set)), " OR "), 1)
			for _, no := range set {
				flat = append(flat, no+":", no+";")
			}
		default:
			flat = append(flat, arg)
		}
	}
	return text, flat
}

func placeholders(n int) string { return strings.TrimSuffix(strings.Repeat("?,", n), ",") }

const (
	// maxParams is how many placeholders one statement has at most; SQLite takes 32,766.
	maxParams = 16_000
	// maxBytes is how much text one statement carries, about: servers take 16 MiB by default (max_allowed_packet).
	maxBytes = 4 << 20
)

// fitting is how many of rows fit into one statement.
func fitting(rows [][]any) int {
	most, size := min(len(rows), maxParams/len(rows[0])), 0
	for i, row := range rows[:most] {
		for _, v := range row {
			switch v := v.(type) {
			case string:
				size += len(v)
			case []byte:
				size += 2 * len(v) // it may have to be escaped
			}
		}
		if size > maxBytes && i > 0 {
			return i
		}
	}
	return most
}

// insert adds rows of equal width after head ("INSERT INTO t (…) VALUES "), ended by tail, in as few statements as
// their limits allow.
func (r runner) insert(ctx context.Context, head string, rows [][]any, tail string) error {
	for len(rows) > 0 {
		width, n := len(rows[0]), fitting(rows)
		row := "(" + placeholders(width) + ")"
		text := head + row + strings.Repeat(","+row, n-1) + tail
		args := make([]any, 0, width*n)
		for _, values := range rows[:n] {
			args = append(args, values...)
		}
		if _, err := r.ExecContext(ctx, text, args...); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// at scans a time column into t: MySQL gives a time, SQLite unix milliseconds; NULL becomes the zero time.
func at(t *time.Time) sql.Scanner { return instant{t} }

type instant struct{ t *time.Time }

func (i instant) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*i.t = time.Time{}
	case time.Time:
		*i.t = v.UTC()
	case int64:
		*i.t = time.UnixMilli(v).UTC()
	default:
		return fmt.Errorf("a time column gave a %T", src)
	}
	return nil
}

// ms scans a column of milliseconds into d; -1 stays -1 (order.Forever).
func ms(d *time.Duration) sql.Scanner { return span{d} }

type span struct{ d *time.Duration }

func (s span) Scan(src any) error {
	n, ok := src.(int64)
	if !ok {
		return fmt.Errorf("a column of milliseconds gave a %T", src)
	}
	if n < 0 {
		*s.d = time.Duration(n)
	} else {
		*s.d = time.Duration(n) * time.Millisecond
	}
	return nil
}

// inMs is d as an argument for such a column.
func inMs(d time.Duration) int64 {
	if d < 0 {
		return int64(d)
	}
	return d.Milliseconds()
}

// orNull is t as an argument, NULL for the zero time.
func orNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t
}

// clip cuts s to what a text column of n characters takes.
func clip(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}
