package store_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
	"lapse/pkg/store/storetest"
	"lapse/test/services"
)

var (
	_ lifecycle.OrderStore   = (*store.Store)(nil)
	_ lifecycle.MessageStore = (*store.Store)(nil)
	_ lifecycle.SweepStore   = (*store.Store)(nil)
)

func open(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func migrated(t *testing.T, o store.Options) *store.Store {
	t.Helper()
	s := open(t, o)
	if err := s.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func rawDB(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func sqliteBed(t *testing.T) storetest.Bed {
	path := filepath.Join(t.TempDir(), "a ?#%20.db")
	migrated(t, store.Options{Driver: "sqlite", DSN: path})
	return storetest.Bed{
		Open: func(t *testing.T, clock time.Time, o store.Options) *store.Store {
			o.Driver, o.DSN = "sqlite", path
			if !clock.IsZero() {
				o.Now = func() time.Time { return clock }
			}
			return open(t, o)
		},
		DB: rawDB(t, "sqlite", "file:"+strings.NewReplacer("%", "%25", "?", "%3f", "#", "%23", " ", "%20").Replace(path)+"?_busy_timeout=5000"),
	}
}

func mysqlBed(t *testing.T) storetest.Bed {
	dsn := services.NewDatabase(t).DSN
	migrated(t, store.Options{Driver: "mysql", DSN: dsn})
	return storetest.Bed{
		Open: func(t *testing.T, clock time.Time, o store.Options) *store.Store {
			o.Driver, o.DSN = "mysql", dsn
			if !clock.IsZero() {
				c, err := mysql.ParseDSN(dsn)
				if err != nil {
					t.Fatal(err)
				}
				c.Params = map[string]string{"timestamp": fmt.Sprintf("%d.%03d", clock.Unix(), clock.Nanosecond()/1e6)}
				o.DSN = c.FormatDSN()
			}
			return open(t, o)
		},
		DB: rawDB(t, "mysql", dsn),
	}
}

func TestSQLite(t *testing.T) { storetest.Run(t, storetest.OneWriter, sqliteBed) }

func TestMySQL(t *testing.T) { storetest.Run(t, storetest.RowLocks, mysqlBed) }

// databases runs test on an empty database of each kind.
func databases(t *testing.T, test func(t *testing.T, o store.Options, db *sql.DB)) {
	t.Run("sqlite", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "lapse.db")
		test(t, store.Options{Driver: "sqlite", DSN: path}, rawDB(t, "sqlite", path))
	})
	t.Run("mysql", func(t *testing.T) {
		dsn := services.NewDatabase(t).DSN
		test(t, store.Options{Driver: "mysql", DSN: dsn}, rawDB(t, "mysql", dsn))
	})
}

func expect(t *testing.T, err error, kind order.Kind, code, hint string) {
	t.Helper()
	var e *order.Error
	if !errors.As(err, &e) || e.Kind != kind || e.Code != code || !strings.Contains(e.Hint, hint) {
		t.Errorf("error is %+v, want kind %d, code %s, a hint of %q", err, kind, code, hint)
	}
}

func TestTheSchemaMustBeOneThatTheProgramCanWorkWith(t *testing.T) {
	databases(t, func(t *testing.T, o store.Options, db *sql.DB) {
		ctx, s := context.Background(), open(t, o)
		expect(t, s.Check(ctx), order.Conflict, "schema_too_old", "lapse migrate")
		if have, want, err := s.SchemaVersion(ctx); have != 0 || want == 0 || err != nil {
			t.Error(have, want, err)
		}
		for range 2 {
			if err := s.Migrate(ctx); err != nil {
				t.Fatal(err)
			}
			if err := s.Check(ctx); err != nil {
				t.Error(err)
			}
		}
		exec := func(text string) {
			if _, err := db.Exec(text); err != nil {
				t.Fatal(err)
			}
		}
		exec("INSERT INTO t_schema_version (version_id, is_applied) VALUES (9999, 1)")
		if err := s.Check(ctx); err != nil {
			t.Errorf("a newer schema that only adds: %v", err)
		}
		_, known, err := s.SchemaVersion(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, floor := range []struct {
			says string
			code string
		}{
			{fmt.Sprintf("UPDATE t_counter SET value = %d WHERE name = 'schema_floor'", known), ""},
			{fmt.Sprintf("UPDATE t_counter SET value = %d WHERE name = 'schema_floor'", known+1), "schema_too_new"},
			{"DELETE FROM t_counter WHERE name = 'schema_floor'", "schema_too_new"},
		} {
			exec(floor.says)
			if err := s.Check(ctx); floor.code == "" && err != nil {
				t.Errorf("after %s: %v", floor.says, err)
			} else if floor.code != "" {
				expect(t, err, order.Conflict, floor.code, "Upgrade")
			}
		}
	})
}

func TestMigrationsAtOnceDoNotCollide(t *testing.T) {
	databases(t, func(t *testing.T, o store.Options, _ *sql.DB) {
		var wg sync.WaitGroup
		for range 4 {
			s := open(t, o)
			wg.Go(func() {
				if err := s.Migrate(context.Background()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if err := open(t, o).Check(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

func TestAMigrationThatFailsSaysSo(t *testing.T) {
	databases(t, func(t *testing.T, o store.Options, db *sql.DB) {
		if _, err := db.Exec("CREATE TABLE t_order (id INTEGER)"); err != nil {
			t.Fatal(err)
		}
		s := open(t, o)
		expect(t, s.Migrate(context.Background()), order.Internal, "migration_failed", "")
		expect(t, s.Check(context.Background()), order.Conflict, "schema_too_old", "lapse migrate")
	})
}

func TestAWrongAddressIsRefusedAtOnceAnUnreachableOneWhenUsed(t *testing.T) {
	ctx := context.Background()
	for _, c := range []struct {
		code string
		o    store.Options
	}{
		{"invalid_dsn", store.Options{Driver: "mysql", DSN: "no slash"}},
		{"invalid_dsn", store.Options{Driver: "mysql", DSN: "tcp(x)/lapse", ReplicaDSN: "no slash"}},
		{"invalid_dsn", store.Options{Driver: "sqlite"}},
		{"unknown_driver", store.Options{Driver: "oracle"}},
	} {
		_, err := store.Open(ctx, c.o)
		expect(t, err, order.Invalid, c.code, "")
	}
	for name, o := range map[string]store.Options{
		"no server": {Driver: "mysql", DSN: "lapse:lapse@tcp(127.0.0.1:1)/lapse"},
		"no folder": {Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "no", "such", "folder.db")},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, o)
			expect(t, s.Check(ctx), order.Unavailable, "database_unavailable", "database")
			expect(t, s.Migrate(ctx), order.Unavailable, "database_unavailable", "database")
			_, err := s.Create(ctx, []order.Draft{{OrderNo: "ORDER-1"}}, nil)
			expect(t, err, order.Unavailable, "database_unavailable", "database")
			_, err = s.Audit(ctx, store.AuditOptions{})
			expect(t, err, order.Unavailable, "database_unavailable", "database")
		})
	}
}

func TestACallThatWasGivenUpIsUnavailable(t *testing.T) {
	databases(t, func(t *testing.T, o store.Options, _ *sql.DB) {
		s := migrated(t, o)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, err := s.Create(ctx, []order.Draft{{OrderNo: "ORDER-1", Amount: 1}}, atOnce)
		expect(t, err, order.Unavailable, "database_unavailable", "")
		_, _, err = s.Get(ctx, "ORDER-1")
		expect(t, err, order.Unavailable, "database_unavailable", "")
	})
}

func atOnce(_ order.Message, now time.Time) time.Time { return now }

func TestSQLiteKeepsWhatItAnswered(t *testing.T) {
	ctx, o := context.Background(), store.Options{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "lapse.db")}
	s := migrated(t, o)
	d := order.Draft{OrderNo: "ORDER-1", UserID: "u1", Amount: 1, Currency: "CNY", Timeout: time.Hour}
	if _, err := s.Create(ctx, []order.Draft{d}, atOnce); err != nil {
		t.Fatal(err)
	}
	before, _, err := s.Get(ctx, "ORDER-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	after, _, err := open(t, o).Get(ctx, "ORDER-1")
	if err != nil || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("%+v, %v\nbefore %+v", after, err, before)
	}
}

// A replica is played by a database of its own: it has what the primary has, or it has not.
func TestScansReadTheReplicaOnlyWhileItIsFresh(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	o := store.Options{Driver: "sqlite", DSN: filepath.Join(dir, "primary.db"), ReplicaMaxLag: 200 * time.Millisecond}
	migrated(t, o)
	other := store.Options{Driver: "sqlite", DSN: filepath.Join(dir, "lagging.db")}
	migrated(t, other)
	for name, c := range map[string]struct {
		replica string
		fresh   bool
	}{
		"fresh":       {o.DSN, true},
		"lagging":     {other.DSN, false},
		"unreachable": {filepath.Join(dir, "no", "such.db"), false},
	} {
		t.Run(name, func(t *testing.T) {
			o := o
			o.ReplicaDSN = c.replica
			s := open(t, o)
			if _, err := s.StartRun(ctx, "sweeper-1", "round"); err != nil || s.ReplicaFresh() != c.fresh {
				t.Fatal(s.ReplicaFresh(), err)
			}
			if _, err := s.ScanDue(ctx, 0, 0, order.Cursor{}, 10); err != nil || s.ReplicaFresh() != c.fresh {
				t.Error(s.ReplicaFresh(), err)
			}
		})
	}
}

func TestAScanGoesToThePrimaryWhenTheReplicaFails(t *testing.T) {
	ctx, dir := context.Background(), t.TempDir()
	o := store.Options{Driver: "sqlite", DSN: filepath.Join(dir, "primary.db")}
	migrated(t, o)
	copied := filepath.Join(dir, "replica.db")
	db := rawDB(t, "sqlite", o.DSN)
	o.ReplicaDSN = copied
	s := open(t, o)
	d := order.Draft{OrderNo: "ORDER-1", UserID: "u1", Amount: 1, Currency: "CNY", Timeout: time.Millisecond}
	if _, err := s.Create(ctx, []order.Draft{d}, atOnce); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec("INSERT INTO t_sweep_run (id, owner, kind, started_at) VALUES (41, '', '', 0)"); err != nil {
		t.Fatal(err)
	}
	replica := rawDB(t, "sqlite", copied)
	for _, text := range []string{"CREATE TABLE t_sweep_run (id INTEGER)", "INSERT INTO t_sweep_run VALUES (42)"} {
		if _, err := replica.Exec(text); err != nil { // a replica without t_order: scans of it fail
			t.Fatal(err)
		}
	}
	if run, err := s.StartRun(ctx, "sweeper-1", "round"); err != nil || run.ID != 42 || !s.ReplicaFresh() {
		t.Fatal(run.ID, s.ReplicaFresh(), err)
	}
	due, err := s.ScanDue(ctx, order.ShardOf("ORDER-1"), -time.Hour, order.Cursor{}, 10)
	if err != nil || len(due) != 1 || s.ReplicaFresh() {
		t.Error(due, s.ReplicaFresh(), err)
	}
}
