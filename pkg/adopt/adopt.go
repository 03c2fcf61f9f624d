// Package adopt lets a shop that has tables of its own use Lapse without giving up its rows.
//
// Inside the transaction that makes, moves or ends a row of its own, the shop writes the row's deadline:
//
//	timers, err := adopt.New("mysql")
//	…
//	err = timers.Schedule(ctx, tx, adopt.Item{Kind: "booking", Ref: "B-17", Deadline: payBy})
//
// The deadline is committed with the shop's row or not at all (I8). When it has passed, by the clock of the database that
// both share, Lapse calls the shop's hook (package hook), which closes the row by a conditional update. docs/adopt.md
// tells the whole story.
//
// It needs Lapse's tables in the same database (`lapse migrate`), and of the session nothing: whatever its time zone,
// isolation level, SQL mode, and the driver's parseTime, loc and clientFoundRows. Only Kinds and Refs that are not ASCII
// ask for a connection in UTF-8, which is the driver's default.
//
// It does not read, lock or write rows of the shop's, and calls nobody.
package adopt

import (
	"context"
	"database/sql"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// Item is a thing that lapses: its kind and reference are the shop's own names, 1 to 64 bytes of printable text each.
type Item = order.Adopted

// Timers writes deadlines. It is safe for concurrent use.
type Timers struct{ rows store.Foreign }

// New makes timers for a database driver: "mysql" (also for MariaDB) or "sqlite".
func New(driver string) (*Timers, error) {
	rows, err := store.NewForeign(driver)
	if err != nil {
		return nil, err
	}
	return &Timers{rows}, nil
}

// Schedule gives items their deadlines, in the caller's transaction: new ones are scheduled, and those that were are moved
// (I13). Fractions of a millisecond make a deadline later. Errors of kind order.Invalid name what is wrong with an item;
// any other is the database's, and the transaction should be rolled back.
func (t *Timers) Schedule(ctx context.Context, tx *sql.Tx, items ...Item) error {
	return t.rows.Schedule(ctx, tx, items)
}

// Forget takes items of a kind out that have ended, in the caller's transaction: paid, cancelled, done. Those that are not
// scheduled are passed over. Not calling it does no harm: the hook is called in vain, and says final.
func (t *Timers) Forget(ctx context.Context, tx *sql.Tx, kind string, refs ...string) error {
	nos := make([]string, len(refs))
	for i, ref := range refs {
		nos[i] = Item{Kind: kind, Ref: ref}.No()
	}
	return t.rows.Forget(ctx, tx, nos)
}
