package adopt_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"lapse/pkg/adopt"
	"lapse/pkg/order"
	"lapse/pkg/store"
	"lapse/test/services"
)

func connect(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func migrated(t *testing.T, driver, dsn string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{Driver: driver, DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	if err := s.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// shop is how a shop's program uses its database, which Lapse finds at dsn.
type shop struct {
	driver, dsn string
	db          *sql.DB
	isolation   sql.IsolationLevel
}

// shops are set to whatever shops may be set to.
func shops() map[string]func(t *testing.T) shop {
	onMySQL := func(params string, isolation sql.IsolationLevel) func(t *testing.T) shop {
		return func(t *testing.T) shop {
			dsn := services.NewDatabase(t).DSN
			return shop{"mysql", dsn, connect(t, "mysql", dsn+params), isolation}
		}
	}
	onSQLite := func(params string) func(t *testing.T) shop {
		return func(t *testing.T) shop {
			path := filepath.Join(t.TempDir(), "shop.db")
			return shop{"sqlite", path, connect(t, "sqlite", "file:"+path+params), sql.LevelDefault}
		}
	}
	return map[string]func(t *testing.T) shop{
		"MySQL with nothing set":                  onMySQL("", sql.LevelDefault),
		"MySQL in Tokyo, with times":              onMySQL("?parseTime=true&loc=Asia%2FTokyo&time_zone=%27%2B09%3A00%27", sql.LevelReadCommitted),
		"MySQL in New York, serializable":         onMySQL("?loc=America%2FNew_York&time_zone=%27-05%3A00%27", sql.LevelSerializable),
		"MySQL in the modes of old and of others": onMySQL("?sql_mode=%27ANSI,NO_BACKSLASH_ESCAPES%27&interpolateParams=true", sql.LevelReadUncommitted),
		"MySQL with found rows and no mode":       onMySQL("?clientFoundRows=true&sql_mode=%27%27&sql_safe_updates=1", sql.LevelRepeatableRead),
		"SQLite with nothing set":                 onSQLite(""),
		"SQLite with times as text":               onSQLite("?_time_format=sqlite&_txlock=immediate"),
	}
}

func TestADeadlineIsTheSameInstantWhateverTheShopsSessionIsSetTo(t *testing.T) {
	zone := time.FixedZone("elsewhere", -7*3600)
	for name, open := range shops() {
		t.Run(name, func(t *testing.T) {
			shop := open(t)
			s := migrated(t, shop.driver, shop.dsn)
			timers, err := adopt.New(shop.driver)
			if err != nil {
				t.Fatal(err)
			}
			now, err := s.Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			it := adopt.Item{Kind: "booking", Ref: `B-1 ü '"\`, Deadline: now.Add(time.Hour).In(zone)}
			commit(t, shop.db, shop.isolation, func(tx *sql.Tx) error { return timers.Schedule(t.Context(), tx, it) })
			rows, _, _, err := s.Claim(t.Context(), order.Timeout, 10, time.Millisecond) // it is to be sent now, not in another zone's now
			if err != nil || len(rows) != 1 || !rows[0].DueAt.Equal(it.Deadline) {
				t.Fatalf("%+v, %v", rows, err)
			}
			it.Deadline = now.In(zone)
			commit(t, shop.db, shop.isolation, func(tx *sql.Tx) error { return timers.Schedule(t.Context(), tx, it) })
			if r, err := s.Ripen(t.Context(), []string{it.No()}); err != nil || len(r.Ripe) != 1 {
				t.Fatalf("%+v, %v", r, err)
			}
			ripe, _, _, err := s.ClaimRipe(t.Context(), 10, time.Hour)
			if err != nil || len(ripe) != 1 || ripe[0].Kind != it.Kind || ripe[0].Ref != it.Ref || !ripe[0].Deadline.Equal(now) {
				t.Errorf("%+v, %v", ripe, err)
			}
			commit(t, shop.db, shop.isolation, func(tx *sql.Tx) error { return timers.Forget(t.Context(), tx, it.Kind, it.Ref, "unknown") })
			for _, table := range []string{"t_item", "t_local_message"} {
				n := 0
				if err := shop.db.QueryRow("SELECT COUNT(*) FROM " + table).Scan(&n); err != nil || n != 0 {
					t.Errorf("%d rows are left in %s, %v", n, table, err)
				}
			}
		})
	}
}

func commit(t *testing.T, db *sql.DB, isolation sql.IsolationLevel, do func(tx *sql.Tx) error) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: isolation})
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
}

func TestShopsThatScheduleAtOnceWaitForNobodyElsesItems(t *testing.T) {
	dsn := services.NewDatabase(t).DSN
	migrated(t, "mysql", dsn)
	shop := connect(t, "mysql", dsn+"?innodb_lock_wait_timeout=1") // REPEATABLE READ, as most are
	timers, err := adopt.New("mysql")
	if err != nil {
		t.Fatal(err)
	}
	item := func(ref string) adopt.Item {
		return adopt.Item{Kind: "booking", Ref: ref, Deadline: time.Now().Add(time.Hour)}
	}
	for i := range 20 {
		commit(t, shop, sql.LevelDefault, func(tx *sql.Tx) error { return timers.Schedule(t.Context(), tx, item(fmt.Sprintf("old-%d", i))) })
	}
	open, err := shop.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Rollback()
	if err := errors.Join(timers.Schedule(t.Context(), open, item("new"), item("old-1")), timers.Forget(t.Context(), open, "booking", "old-2")); err != nil {
		t.Fatal(err)
	}
	for i := 3; i < 20; i++ {
		commit(t, shop, sql.LevelDefault, func(tx *sql.Tx) error {
			ref := fmt.Sprintf("old-%d", i)
			return errors.Join(timers.Schedule(t.Context(), tx, item("other"+ref), item(ref)), timers.Forget(t.Context(), tx, "booking", ref))
		})
	}
}

func TestAnItemThatCannotBeKeptIsRefusedAndNothingIsWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "shop.db")
	migrated(t, "sqlite", path)
	shop := connect(t, "sqlite", path)
	timers, err := adopt.New("sqlite")
	if err != nil {
		t.Fatal(err)
	}
	good := adopt.Item{Kind: "booking", Ref: "B-1", Deadline: time.Now()}
	for field, change := range map[string]func(*adopt.Item){
		"kind":     func(it *adopt.Item) { it.Kind = "" },
		"ref":      func(it *adopt.Item) { it.Ref = strings.Repeat("x", 65) },
		"deadline": func(it *adopt.Item) { it.Deadline = time.Time{} },
	} {
		bad := good
		change(&bad)
		commit(t, shop, sql.LevelDefault, func(tx *sql.Tx) error {
			err := timers.Schedule(t.Context(), tx, good, bad)
			var e *order.Error
			if !errors.As(err, &e) || e.Kind != order.Invalid || len(e.Fields) != 1 || e.Fields[0].Name != field {
				t.Errorf("%s: %v", field, err)
			}
			return nil
		})
	}
	n := 0
	if err := shop.QueryRow("SELECT COUNT(*) FROM t_item").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d rows, %v", n, err)
	}
}

func TestADatabaseWithoutLapsesTablesIsAnErrorThatSaysWhatToDo(t *testing.T) {
	shop := connect(t, "sqlite", filepath.Join(t.TempDir(), "shop.db"))
	timers, err := adopt.New("sqlite")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := shop.BeginTx(context.Background(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	for _, err := range []error{
		timers.Schedule(t.Context(), tx, adopt.Item{Kind: "booking", Ref: "B-1", Deadline: time.Now()}),
		timers.Forget(t.Context(), tx, "booking", "B-1"),
	} {
		if err == nil || !strings.Contains(err.Error(), "lapse migrate") {
			t.Error(err)
		}
	}
	if _, err := adopt.New("oracle"); order.KindOf(err) != order.Invalid {
		t.Error(err)
	}
}
