package store

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"lapse/pkg/order"
)

// Foreign writes items in transactions of somebody else, in a database that has this package's tables.
//
// It takes a session as it is: the clock is read in UTC inside the statements, times are passed as text or numbers, so
// neither time zone, nor isolation, nor the driver's parseTime, loc and clientFoundRows matter, and affected rows are
// not looked at. Each statement names its rows by primary key, so it locks those and no others, at REPEATABLE READ, too.
type Foreign struct{ dialect dialect }

// NewForeign makes one for a driver: "mysql" or "sqlite".
func NewForeign(driver string) (Foreign, error) {
	switch driver {
	case "mysql":
		return Foreign{mysqlDialect{}}, nil
	case "sqlite":
		return Foreign{sqliteDialect{now: time.Now}}, nil
	}
	return Foreign{}, unknownDriver(driver)
}

const (
	scheduleItemSQL = "INSERT INTO t_item (item_no, kind, ref, deadline, created_at) VALUES (?, ?, ?, ?, {now})"
	// scheduleRowSQL writes a time-out row for the relay to look at now.
	scheduleRowSQL = `INSERT INTO t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, next_at, payload)
VALUES (?, 'timeout', ?, 0, 'item', 0, ?, {now}, '')`
	// nextHop goes after an upsert: a row that is there goes to its next hop, so that older messages are of no effect (I11).
	nextHop = ", hop = hop + 1, state = 0, attempts = 0, failing_since = NULL, last_error = ''"
)

// Schedule gives each item its deadline; one that had another has it no more (I13).
func (f Foreign) Schedule(ctx context.Context, dbtx *sql.Tx, items []order.Adopted) error {
	checked := make([]order.Adopted, len(items))
	for i, a := range items {
		var err error
		if checked[i], err = a.Validate(); err != nil {
			return err
		}
	}
	slices.SortFunc(checked, func(a, b order.Adopted) int { return strings.Compare(a.No(), b.No()) })
	for _, a := range checked {
		err := f.exec(ctx, dbtx, scheduleItemSQL+f.dialect.upsert("deadline"), a.No(), a.Kind, a.Ref, f.dialect.plainTime(a.Deadline))
		if err != nil {
			return err
		}
	}
	for _, a := range checked {
		text := scheduleRowSQL + f.dialect.upsert("due_at", "next_at") + nextHop
		if err := f.exec(ctx, dbtx, text, order.TimeoutKey(a.No()), a.No(), f.dialect.plainTime(a.Deadline)); err != nil {
			return err
		}
	}
	return nil
}

// Forget takes items out that have ended. One that is not scheduled is none.
func (f Foreign) Forget(ctx context.Context, dbtx *sql.Tx, nos []string) error {
	sorted := slices.Sorted(slices.Values(nos))
	for _, no := range sorted {
		if err := f.exec(ctx, dbtx, deleteItemSQL, no); err != nil {
			return err
		}
	}
	for _, no := range sorted {
		if err := f.exec(ctx, dbtx, deleteTimeoutSQL, order.TimeoutKey(no)); err != nil {
			return err
		}
	}
	return nil
}

func (f Foreign) exec(ctx context.Context, dbtx *sql.Tx, text string, args ...any) error {
	_, err := dbtx.ExecContext(ctx, strings.ReplaceAll(text, "{now}", f.dialect.nowSQL()), args...)
	if err != nil {
		return fmt.Errorf("writing a deadline of Lapse's (has `lapse migrate` made its tables in this database?): %w", err)
	}
	return nil
}
