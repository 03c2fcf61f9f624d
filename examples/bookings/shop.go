package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "modernc.org/sqlite"

	"lapse/pkg/adopt"
	"lapse/pkg/order"
)

// kind is what Lapse knows bookings as.
const kind = "booking"

var (
	errNotFound = errors.New("there is no such booking")
	errTaken    = errors.New("there is a booking with this ref already")
	errTooLate  = errors.New("the booking has lapsed, or its time to pay is over")
)

// shop is the shop's database. Times are Unix milliseconds, so that this example runs on either.
type shop struct {
	db     *sql.DB
	timers *adopt.Timers
	now    string // reads the database's clock
}

type booking struct {
	ref, state string // open, paid or lapsed
	payBy      time.Time
}

// openShop opens the database and makes the shop's tables, which look as if they had always been there.
func openShop(ctx context.Context, driver, dsn string) (*shop, error) {
	timers, err := adopt.New(driver)
	if err != nil {
		return nil, err
	}
	s := &shop{timers: timers, now: "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"}
	id := "BIGINT AUTO_INCREMENT PRIMARY KEY"
	if driver == "sqlite" {
		s.now = "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"
		id = "INTEGER PRIMARY KEY"
		dsn = "file:" + dsn + "?_busy_timeout=5000&_journal_mode=WAL&_txlock=immediate"
	}
	if s.db, err = sql.Open(driver, dsn); err != nil {
		return nil, err
	}
	for _, text := range []string{
		"CREATE TABLE IF NOT EXISTS bookings (ref VARCHAR(64) PRIMARY KEY, state VARCHAR(8) NOT NULL, pay_by BIGINT NOT NULL)",
		"CREATE TABLE IF NOT EXISTS booking_log (id " + id + ", ref VARCHAR(64) NOT NULL, state VARCHAR(8) NOT NULL, at BIGINT NOT NULL)",
	} {
		if _, err := s.db.ExecContext(ctx, text); err != nil {
			return nil, errors.Join(err, s.db.Close())
		}
	}
	return s, nil
}

// inTx commits what do did, if it did.
func (s *shop) inTx(ctx context.Context, do func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// book makes a booking. Its deadline is committed with it.
func (s *shop) book(ctx context.Context, ref string, payWithin time.Duration) (b booking, err error) {
	if _, err := s.get(ctx, ref); err == nil {
		return b, errTaken
	}
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		var now int64
		if err := tx.QueryRowContext(ctx, "SELECT "+s.now).Scan(&now); err != nil {
			return err
		}
		b = booking{ref, "open", time.UnixMilli(now).Add(payWithin).UTC()}
		_, err := tx.ExecContext(ctx, "INSERT INTO bookings (ref, state, pay_by) VALUES (?, ?, ?)", b.ref, b.state, b.payBy.UnixMilli())
		if err != nil {
			return err
		}
		return s.timers.Schedule(ctx, tx, adopt.Item{Kind: kind, Ref: b.ref, Deadline: b.payBy}) // ← Lapse
	})
	return b, err
}

// pay pays an open booking in time. To pay one that is paid changes nothing.
func (s *shop) pay(ctx context.Context, ref string) (booking, error) {
	err := s.inTx(ctx, func(tx *sql.Tx) error {
		paid, err := s.end(ctx, tx, ref, "paid", "pay_by > "+s.now)
		if err != nil || !paid {
			return err
		}
		return s.timers.Forget(ctx, tx, kind, ref) // ← Lapse
	})
	if err != nil {
		return booking{}, err
	}
	b, err := s.get(ctx, ref)
	if err == nil && b.state != "paid" {
		err = errTooLate
	}
	return b, err
}

// end moves a booking out of open, if it still is and the condition holds, and logs it: once, whoever asks how often.
func (s *shop) end(ctx context.Context, tx *sql.Tx, ref, state, condition string) (ended bool, err error) {
	res, err := tx.ExecContext(ctx, "UPDATE bookings SET state = ? WHERE ref = ? AND state = 'open' AND "+condition, state, ref)
	if err != nil {
		return false, err
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		return false, err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO booking_log (ref, state, at) VALUES (?, ?, "+s.now+")", ref, state)
	return true, err
}

func (s *shop) get(ctx context.Context, ref string) (booking, error) {
	b, payBy := booking{ref: ref}, int64(0)
	err := s.db.QueryRowContext(ctx, "SELECT state, pay_by FROM bookings WHERE ref = ?", ref).Scan(&b.state, &payBy)
	if errors.Is(err, sql.ErrNoRows) {
		err = errNotFound
	}
	b.payBy = time.UnixMilli(payBy).UTC()
	return b, err
}

// Close is what Lapse calls when a deadline has passed, at least once: the condition makes it happen at most once.
func (s *shop) Close(ctx context.Context, a order.Adopted) (order.Answer, error) {
	lapsed := false
	err := s.inTx(ctx, func(tx *sql.Tx) (err error) {
		lapsed, err = s.end(ctx, tx, a.Ref, "lapsed", "pay_by <= "+s.now)
		return err
	})
	switch {
	case err != nil:
		return order.Answer{}, err // not known: Lapse calls again
	case lapsed:
		return order.Answer{Word: order.WordClosed}, nil
	}
	b, err := s.get(ctx, a.Ref)
	switch {
	case errors.Is(err, errNotFound):
		return order.Answer{Word: order.WordFinal}, nil
	case err != nil:
		return order.Answer{}, err
	case b.state == "open":
		return order.Answer{Word: order.WordLater, Deadline: b.payBy}, nil
	}
	return order.Answer{Word: order.WordFinal}, nil
}

// Due lists open bookings by deadline: Lapse's second path, for what it does not know of, and the source of its backfill.
// The cursor is the last booking's deadline and ref.
func (s *shop) Due(ctx context.Context, before time.Time, after string, limit int) (due []order.Adopted, next string, err error) {
	from, ref := int64(0), ""
	if after != "" {
		at, name, _ := strings.Cut(after, " ")
		if from, err = strconv.ParseInt(at, 10, 64); err != nil {
			return nil, "", fmt.Errorf("cursor %q: %w", after, err)
		}
		ref = name
	}
	rows, err := s.db.QueryContext(ctx, `SELECT ref, pay_by FROM bookings
WHERE state = 'open' AND pay_by < ? AND (pay_by > ? OR pay_by = ? AND ref > ?) ORDER BY pay_by, ref LIMIT ?`, before.UnixMilli(), from, from, ref, limit)
	if err != nil {
		return nil, "", err
	}
	defer rows.Close()
	for rows.Next() {
		var payBy int64
		if err := rows.Scan(&ref, &payBy); err != nil {
			return nil, "", err
		}
		due = append(due, order.Adopted{Kind: kind, Ref: ref, Deadline: time.UnixMilli(payBy)})
		next = fmt.Sprintf("%d %s", payBy, ref)
	}
	if len(due) < limit {
		next = ""
	}
	return due, next, rows.Err()
}
