// Package store keeps orders, resources, local messages and leases. It is the only place with SQL.
//
// One implementation serves MySQL (8.0 or newer), MariaDB (10.6 or newer) and SQLite; what differs stands in
// dialect.go. Every method is one whole transaction. Rules come from package order and are applied to rows that the
// transaction has locked; the decisive condition stands in the SQL as well, and affected rows are checked.
//
//	I1, I2  closeDueSQL, payOrderSQL and cancelOrderSQL are the only statements that end an order, and say when.
//	I4, I5  resource.go moves counters and ledger together, in one fixed lock order.
//	I6, I8  an order's belongings and its messages are written with it or not at all.
//	I9, I10 message.go and sweep.go fence by hop, lease and the database's clock.
//
// Lock order, everywhere: lease, order rows by number, resources by (kind, ref), messages by key. The database's clock
// is read once at the start of a transaction and decides for all of it.
//
// It does not decide when anything runs, sends nothing, and never reads the application's clock, but for SQLite, whose
// clock that is.
package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"sync/atomic"
	"time"

	"lapse/pkg/order"
)

// Options say where the data is. The zero value of every field but Driver and DSN is safe.
type Options struct {
	Driver string // "mysql" or "sqlite"
	// DSN: mysql as of github.com/go-sql-driver/mysql, with a database name; what the store relies on (UTC,
	// READ COMMITTED, …) it sets itself. sqlite: the path of the file.
	DSN           string
	ReplicaDSN    string               // a replica that sweeps may scan; "" for none
	ReplicaMaxLag time.Duration        // how late the replica may be to be used; 0 means 1 s
	MaxConns      int                  // open connections; 0 means 16, for sqlite 4
	LockWait      time.Duration        // wait for a lock, on mysql in whole seconds; 0 means 3 s
	Timeout       time.Duration        // one attempt of a transaction, and one read; 0 means 30 s
	Now           func() time.Time     // clock of a sqlite database; nil means the machine's
	OnRetry       func(failure string) // told of each transaction that is run again; nil for nobody
	// Wrap is put around the driver, as to trace what it does or to disturb it; nil for nothing.
	Wrap func(driver.Connector) driver.Connector
}

func (o Options) withDefaults() Options {
	if o.ReplicaMaxLag == 0 {
		o.ReplicaMaxLag = time.Second
	}
	if o.LockWait == 0 {
		o.LockWait = 3 * time.Second
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Wrap == nil {
		o.Wrap = func(c driver.Connector) driver.Connector { return c }
	}
	if o.OnRetry == nil {
		o.OnRetry = func(string) {}
	}
	return o
}

// Store is safe for concurrent use.
type Store struct {
	options Options
	dialect dialect
	primary *sql.DB
	replica *sql.DB // nil without one
	// replicaFresh: the last StartRun found the replica fresh, and no scan of it has failed since.
	replicaFresh atomic.Bool
	writer       chan struct{} // sqlite: held by the one transaction that may write; nil for no limit
}

// Open makes a store. It needs no network: the first use connects.
func Open(_ context.Context, o Options) (*Store, error) {
	o = o.withDefaults()
	s := &Store{options: o}
	switch o.Driver {
	case "mysql":
		s.dialect = mysqlDialect{}
	case "sqlite":
		s.dialect = sqliteDialect{now: o.Now}
		s.writer = make(chan struct{}, 1)
	default:
		return nil, unknownDriver(o.Driver)
	}
	var err error
	if s.primary, err = s.dialect.open(o, o.DSN); err != nil {
		return nil, badDSN(err)
	}
	if o.ReplicaDSN != "" {
		if s.replica, err = s.dialect.open(o, o.ReplicaDSN); err != nil {
			return nil, badDSN(err)
		}
	}
	return s, nil
}

func unknownDriver(driver string) error {
	return order.Errorf(order.Invalid, "unknown_driver", "database driver %q is not known", driver).
		WithHint(`Use "mysql" (also for MariaDB) or "sqlite".`)
}

func badDSN(err error) error {
	return order.Errorf(order.Invalid, "invalid_dsn", "the database address cannot be used").Wrap(err)
}

// Close closes all connections.
func (s *Store) Close() error {
	err := s.primary.Close()
	if s.replica != nil {
		if rerr := s.replica.Close(); err == nil {
			err = rerr
		}
	}
	return err
}

// Now reads the database's clock.
func (s *Store) Now(ctx context.Context) (now time.Time, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		return nil
	})
	return now, err
}

// ServerVersion names the database and its version, like "10.11.6-MariaDB" or "SQLite 3.50.4".
func (s *Store) ServerVersion(ctx context.Context) (version string, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		return q.QueryRowContext(ctx, s.dialect.versionSQL()).Scan(&version)
	})
	return version, err
}

// damaged is the error for data that contradicts itself.
func damaged(format string, args ...any) error {
	return order.Errorf(order.Internal, "data_damaged", "%s", fmt.Sprintf(format, args...)).
		WithHint("Run the audit; the named rows need a human.")
}
