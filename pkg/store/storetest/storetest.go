// Package storetest is the suite that every database behind package store passes.
package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// Bed is one empty database with the current schema.
type Bed struct {
	// Open opens a store on the database; its fields Driver and DSN are set by the bed. clock, if not zero, makes the
	// database's clock stand still there, for this store only. The bed closes it.
	Open func(t *testing.T, clock time.Time, o store.Options) *store.Store
	// DB is for planting damage and for looking where the store does not show.
	DB *sql.DB
}

// Locking is what a transaction waits for.
type Locking int

const (
	// RowLocks is what MySQL has: a transaction waits for single rows.
	RowLocks Locking = iota
	// OneWriter is what SQLite has: a transaction waits for the whole database.
	OneWriter
)

// Run runs the suite; newBed makes a bed that goes away with its test.
func Run(t *testing.T, locking Locking, newBed func(t *testing.T) Bed) {
	for name, tests := range map[string]map[string]func(t *testing.T, b bed){
		"create":    createTests,
		"attempt":   attemptTests,
		"pay":       payTests,
		"late":      lateTests,
		"refund":    refundTests,
		"restore":   restoreTests,
		"cancel":    cancelTests,
		"extend":    extendTests,
		"close":     closeTests,
		"due":       dueTests,
		"remind":    remindTests,
		"confirm":   confirmTests,
		"race":      raceTests,
		"resource":  resourceTests,
		"read":      readTests,
		"message":   messageTests,
		"sweep":     sweepTests,
		"audit":     auditTests,
		"paytime":   paytimeTests,
		"walk":      walkTests,
		"item":      itemTests,
		"brakes":    brakeTests,
		"house":     houseTests,
		"reconcile": reconcileTests,
		"learnt":    learntTests,
		"lock":      map[Locking]map[string]func(t *testing.T, b bed){RowLocks: rowLockTests, OneWriter: oneWriterTests}[locking],
	} {
		t.Run(name, func(t *testing.T) {
			for sentence, test := range tests {
				t.Run(sentence, func(t *testing.T) {
					b := bed{Bed: newBed(t), locking: locking, t: t, tolerated: map[string]bool{}}
					defer b.audit()
					test(t, b)
				})
			}
		})
	}
}

// noon is where the clocks of these tests begin.
var noon = time.Date(2026, 3, 29, 12, 0, 0, 123e6, time.UTC)

// bed is a Bed with short forms for what tests do most. After each test all invariants must hold.
type bed struct {
	Bed
	locking   Locking
	t         *testing.T
	tolerated map[string]bool // names of checks that the test broke on purpose
}

// at opens a store whose clock stands at noon + d.
func (b bed) at(d time.Duration) *store.Store {
	return b.Open(b.t, noon.Add(d), store.Options{})
}

// real opens a store with the real clock.
func (b bed) real() *store.Store { return b.Open(b.t, time.Time{}, store.Options{}) }

func (b bed) audit() {
	if b.t.Failed() {
		return
	}
	checks, err := b.at(0).Audit(context.Background(), store.AuditOptions{Overdue: 24 * time.Hour})
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range checks {
		if !c.Holds() && !b.tolerated[c.Name] {
			b.t.Errorf("afterwards %s does not hold: %s (%d of %d, like %s)", c.Invariant, c.Name, c.Violations, c.Checked, c.Example)
		}
	}
}

// exec changes data behind the store's back.
func (b bed) exec(text string) {
	b.t.Helper()
	res, err := b.DB.Exec(text)
	if err != nil {
		b.t.Fatalf("%s: %v", text, err)
	}
	if n, err := res.RowsAffected(); err != nil || n == 0 {
		b.t.Fatalf("%s: changed %d rows, %v", text, n, err)
	}
}

// count returns the one number that text selects.
func (b bed) count(text string) (n int) {
	b.t.Helper()
	if err := b.DB.QueryRow(text).Scan(&n); err != nil {
		b.t.Fatalf("%s: %v", text, err)
	}
	return n
}

// rows counts all rows that an order could leave.
func (b bed) rows() string {
	var counts []string
	for _, table := range []string{"t_order", "t_order_item", "t_order_log", "t_resource_log", "t_local_message", "t_payment", "t_late_payment"} {
		counts = append(counts, fmt.Sprintf("%s=%d", table, b.count("SELECT COUNT(*) FROM "+table)))
	}
	return strings.Join(counts, " ")
}

// stock makes n of resource ref.
func (b bed) stock(ref string, n int64) {
	b.t.Helper()
	if _, err := b.at(0).Adjust(context.Background(), order.Adjustment{ID: "init-" + ref, Kind: "stock", Ref: ref, Delta: n}); err != nil {
		b.t.Fatal(err)
	}
}

// expectStock compares the counters of resource ref.
func (b bed) expectStock(ref string, available, held, sold int64) {
	b.t.Helper()
	r, err := b.at(0).Resource(context.Background(), "stock", ref)
	if err != nil {
		b.t.Fatal(err)
	}
	if r.Available != available || r.Held != held || r.Sold != sold {
		b.t.Errorf("%s: %d available, %d held, %d sold; want %d, %d, %d", ref, r.Available, r.Held, r.Sold, available, held, sold)
	}
}

// draft is an order for a minute over 19.99 that wants one of each ref.
func draft(no string, refs ...string) order.Draft {
	d := order.Draft{OrderNo: no, Caller: "shop", UserID: "u1", BizType: "retail", Amount: 1999, Currency: "CNY", Timeout: time.Minute,
		TraceParent: "00-trace"}
	for _, ref := range refs {
		d.Items = append(d.Items, order.Item{Kind: "stock", Ref: ref, Quantity: 1})
	}
	d.Items = order.MergeItems(d.Items)
	return d
}

func payment(no, orderNo string) order.Payment {
	return order.Payment{PaymentNo: no, OrderNo: orderNo, Amount: 1999, Currency: "CNY", PaidAt: noon.Add(time.Second)}
}

const leaseTime = 30 * time.Second

// leased is the schedule of a creator that sends at once.
func leased(_ order.Message, now time.Time) time.Time { return now.Add(leaseTime) }

// unleased leaves rows to whoever polls.
func unleased(_ order.Message, now time.Time) time.Time { return now }

// create makes orders, all of which must succeed, at noon.
func (b bed) create(drafts ...order.Draft) []order.Created {
	b.t.Helper()
	return b.createWith(b.at(0), leased, drafts...)
}

func (b bed) createWith(s *store.Store, first order.Schedule, drafts ...order.Draft) []order.Created {
	b.t.Helper()
	answers, err := s.Create(context.Background(), drafts, first)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, a := range answers {
		if a.Err != nil || a.Order == nil {
			b.t.Fatalf("not created: %v", a.Err)
		}
	}
	return answers
}

// closeAt closes orders by a clock that stands at noon + d.
func (b bed) closeAt(d time.Duration, nos ...string) order.ClosedBatch {
	b.t.Helper()
	return b.closeWith(b.at(d), nos...)
}

func (b bed) closeWith(s *store.Store, nos ...string) order.ClosedBatch {
	b.t.Helper()
	batch, err := s.CloseDue(context.Background(), order.Closing{OrderNos: nos, Reason: order.ReasonTimeout, Actor: "closer-1"}, leased)
	if err != nil {
		b.t.Fatal(err)
	}
	return batch
}

// status reads an order's status.
func (b bed) status(no string) order.Status {
	b.t.Helper()
	o, _, err := b.at(0).Get(context.Background(), no)
	if err != nil {
		b.t.Fatal(err)
	}
	return o.Status
}

// expectError compares kind and code.
func expectError(t *testing.T, err error, kind order.Kind, code string) {
	t.Helper()
	var e *order.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Code != code {
		t.Errorf("error is %v, want kind %d, code %s", err, kind, code)
	}
}

// expectField wants an Invalid that names field.
func expectField(t *testing.T, err error, field string) {
	t.Helper()
	var e *order.Error
	if !errors.As(err, &e) || e.Kind != order.Invalid || len(e.Fields) != 1 || e.Fields[0].Name != field {
		t.Errorf("error is %v, want field %s refused", err, field)
	}
}

// wish is a user's wish to cancel an order.
func wish(orderNo, userID string) order.Cancelling {
	return order.Cancelling{OrderNo: orderNo, UserID: userID, Reason: order.ReasonUserCancel, Act: order.Act{Actor: "app"}}
}

// businessTables are the tables that say what the shop and its customers have.
var businessTables = []string{"t_order", "t_order_item", "t_order_log", "t_resource", "t_resource_log", "t_payment", "t_payment_attempt",
	"t_late_payment"}

// dump is all that tables hold, to be compared.
func (b bed) dump(tables ...string) string {
	b.t.Helper()
	var out []string
	for _, table := range tables {
		lines, err := b.lines(table)
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, lines...)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// lines are the rows of a table, each with its columns by name.
func (b bed) lines(table string) (lines []string, err error) {
	rows, err := b.DB.Query("SELECT * FROM " + table)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	values, into := make([]sql.RawBytes, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(into...); err != nil {
			return nil, err
		}
		line := table + ":"
		for i, v := range values {
			line += fmt.Sprintf(" %s=%s", columns[i], v)
		}
		lines = append(lines, line)
	}
	return lines, rows.Err()
}
