package sim

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"modernc.org/sqlite"

	"lapse/pkg/store"
)

// disk is the database of a world: SQLite in memory, over one connection, which can be disturbed.
type disk struct {
	driver.Connector
	image   []byte
	conn    sqliteConn
	known   map[string]sqliteStmt // compiled statements
	trouble disturbance
	inTx    bool
	said    int // statements of this transaction
}

// sqliteConn is what the driver's connections can do.
type sqliteConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ExecerContext
	driver.QueryerContext
	Deserialize([]byte) error
}

type sqliteStmt interface {
	driver.StmtExecContext
	driver.StmtQueryContext
}

// disturbance is what goes wrong with the transactions of one call.
type disturbance struct {
	kind      string
	statement int  // this statement of a transaction fails; 0: none
	refused   bool // its commit fails and is not done
	lost      bool // its commit is done, but an error is returned
	times     int  // so many transactions in a row fail so
	away      bool // then the database cannot be reached
	err       error
}

// disturbances are what may go wrong. The store tries again after the first four of them.
var disturbances = []func(*rand.Rand) disturbance{
	func(r *rand.Rand) disturbance {
		return disturbance{kind: "deadlock", statement: 1 + r.IntN(12), times: 1 + r.IntN(2), err: deadlocked}
	},
	func(r *rand.Rand) disturbance {
		return disturbance{kind: "connection lost", statement: 1 + r.IntN(12), times: 1, err: errCut}
	},
	func(*rand.Rand) disturbance {
		return disturbance{kind: "commit of unknown outcome, not done", refused: true, times: 1, err: errCut}
	},
	func(*rand.Rand) disturbance {
		return disturbance{kind: "commit of unknown outcome, done", lost: true, times: 1, err: errCut}
	},
	func(*rand.Rand) disturbance { return disturbance{kind: "away", away: true, err: errCut} },
	func(*rand.Rand) disturbance {
		return disturbance{kind: "away after a commit of unknown outcome, done", lost: true, times: 1, away: true, err: errCut}
	},
}

var errCut = errors.New("the connection was cut")

// deadlocked is SQLite's own word for a transaction that has to be run again.
var deadlocked error

// prepared makes, once, the image of an empty database, and deadlocked.
var prepared = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "lapse-sim")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "empty.db")
	ctx := context.Background()
	s, err := store.Open(ctx, store.Options{Driver: "sqlite", DSN: path})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(s.Migrate(ctx), s.Close()); err != nil {
		return nil, err
	}
	if err := provoke(ctx, path); err != nil {
		return nil, err
	}
	image, err := os.ReadFile(path)
	if err == nil {
		image[18], image[19] = 1, 1 // in memory there is no write-ahead log
	}
	return image, err
})

// provoke lets two connections write at once.
func provoke(ctx context.Context, path string) error {
	var conns [2]*sql.Conn
	for i := range conns {
		db, err := sql.Open("sqlite", path)
		if err != nil {
			return err
		}
		defer db.Close()
		if conns[i], err = db.Conn(ctx); err != nil {
			return err
		}
		defer conns[i].Close()
		_, deadlocked = conns[i].ExecContext(ctx, "BEGIN IMMEDIATE")
	}
	var e *sqlite.Error
	if !errors.As(deadlocked, &e) {
		return fmt.Errorf("two transactions wrote at once: %w", deadlocked)
	}
	_, err := conns[0].ExecContext(ctx, "ROLLBACK")
	return err
}

func newDisk(t testing.TB) *disk {
	t.Helper()
	image, err := prepared()
	if err != nil {
		t.Fatal(err)
	}
	return &disk{image: image, known: map[string]sqliteStmt{}}
}

// disturb says what goes wrong from now on.
func (d *disk) disturb(what disturbance) { d.trouble = what }

// Connect gives the one connection, to the store and to the judge.
func (d *disk) Connect(ctx context.Context) (driver.Conn, error) {
	if d.conn == nil {
		conn, err := d.Connector.Connect(ctx)
		if err != nil {
			return nil, err
		}
		d.conn = conn.(sqliteConn)
		if err := d.conn.Deserialize(d.image); err != nil {
			return nil, err
		}
	}
	return shaky{d}, nil
}

// quiet is a connection that is not disturbed, for the judge.
func (d *disk) quiet() *sql.DB { return sql.OpenDB(calm{d}) }

type calm struct{ *disk }

func (c calm) Connect(ctx context.Context) (driver.Conn, error) {
	if _, err := c.disk.Connect(ctx); err != nil {
		return nil, err
	}
	return still{c.conn}, nil
}

// still leaves the connection open: it is everybody's.
type still struct{ sqliteConn }

func (still) Close() error { return nil }

// shaky is the connection as the store has it. Contexts are not passed on: nothing waits in memory.
type shaky struct{ *disk }

func (shaky) Close() error                                { return nil }
func (s shaky) Prepare(query string) (driver.Stmt, error) { return s.conn.Prepare(query) }
func (s shaky) Begin() (driver.Tx, error)                 { return nil, errors.New("not without a context") }

func (s shaky) BeginTx(_ context.Context, o driver.TxOptions) (driver.Tx, error) {
	if s.gone() {
		return nil, s.trouble.err
	}
	tx, err := s.conn.BeginTx(context.Background(), o)
	s.inTx, s.said = err == nil, 0
	return shakyTx{tx, s.disk}, err
}

func (s shaky) ExecContext(_ context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	if err := s.statement(); err != nil {
		return nil, err
	}
	stmt, err := s.compiled(query)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(context.Background(), args)
}

func (s shaky) QueryContext(_ context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.statement(); err != nil {
		return nil, err
	}
	stmt, err := s.compiled(query)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(context.Background(), args)
}

// compiled keeps statements: half of a world's time would go into their compilation.
func (d *disk) compiled(query string) (sqliteStmt, error) {
	if stmt, ok := d.known[query]; ok {
		return stmt, nil
	}
	stmt, err := d.conn.Prepare(query)
	if err != nil {
		return nil, err
	}
	d.known[query] = stmt.(sqliteStmt)
	return d.known[query], nil
}

// gone reports whether the database cannot be reached: at once, or after the commits that it has still answered.
func (d *disk) gone() bool { return d.trouble.away && d.trouble.times == 0 }

func (d *disk) statement() error {
	d.said++
	switch {
	case d.gone():
		return d.trouble.err
	case d.inTx && d.trouble.times > 0 && d.said == d.trouble.statement:
		d.trouble.times--
		return d.trouble.err
	}
	return nil
}

type shakyTx struct {
	driver.Tx
	disk *disk
}

func (t shakyTx) Rollback() error {
	t.disk.inTx = false
	return t.Tx.Rollback()
}

func (t shakyTx) Commit() error {
	d := t.disk
	d.inTx = false
	if !d.trouble.refused && !d.trouble.lost || d.trouble.times == 0 {
		return t.Tx.Commit()
	}
	d.trouble.times--
	if d.trouble.refused {
		return errors.Join(d.trouble.err, t.Tx.Rollback())
	}
	return errors.Join(d.trouble.err, t.Tx.Commit())
}
