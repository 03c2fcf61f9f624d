package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/pressly/goose/v3"
	"modernc.org/sqlite"
	sqlitelib "modernc.org/sqlite/lib"
)

// dialect is all that differs between the databases.
//
// SQL texts are written once, with these marks: {update}, {skip} and {share} after a SELECT lock its rows (waiting for
// others, passing over what others have locked, or shared); SQLite needs none of them, since one transaction at a time
// writes there.
type dialect interface {
	open(o Options, dsn string) (*sql.DB, error)
	// clock reads the database's clock, UTC, cut to milliseconds.
	clock(ctx context.Context, q queryer) (time.Time, error)
	// nowSQL reads that clock inside a statement, whatever the session is set to.
	nowSQL() string
	// plainTime is t as an argument that neither the driver nor the session converts.
	plainTime(t time.Time) any
	// lock replaces the marks.
	lock(text string) string
	// spans replaces marks {seconds a b} by the whole seconds from a to b, rounded up, and {millis a b} by milliseconds.
	spans(text string) string
	// upsert ends an INSERT: where the key exists, columns are set to the new row's.
	upsert(columns ...string) string
	// addUp ends an INSERT: where the key exists, the new row's column is added to what is there.
	addUp(column string) string
	// failure classifies an error that came from the driver.
	failure(err error) failure
	versionSQL() string
	tableSQL() string // counts tables of a name
	settings(ctx context.Context, q queryer) (map[string]string, error)
	migrations() (goose.Dialect, string, []goose.ProviderOption)
}

// queryer is what *sql.DB and *sql.Tx have in common.
type queryer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

type mysqlDialect struct{}

var mysqlLocks = strings.NewReplacer("{update}", "FOR UPDATE", "{skip}", "FOR UPDATE SKIP LOCKED", "{share}", "LOCK IN SHARE MODE")

func (mysqlDialect) lock(text string) string { return mysqlLocks.Replace(text) }

var (
	secondsMark = regexp.MustCompile(`\{seconds (\S+) ([^}]+)\}`)
	millisMark  = regexp.MustCompile(`\{millis (\S+) ([^}]+)\}`)
)

func (mysqlDialect) spans(text string) string {
	text = millisMark.ReplaceAllString(text, "TIMESTAMPDIFF(MICROSECOND, $1, $2) DIV 1000")
	return secondsMark.ReplaceAllString(text, "CAST(CEIL(TIMESTAMPDIFF(MICROSECOND, $1, $2) / 1000000) AS SIGNED)")
}

func (mysqlDialect) addUp(column string) string {
	return " ON DUPLICATE KEY UPDATE " + column + " = " + column + " + VALUES(" + column + ")"
}

func (mysqlDialect) upsert(columns ...string) string {
	sets := make([]string, len(columns))
	for i, c := range columns {
		sets[i] = c + " = VALUES(" + c + ")"
	}
	return " ON DUPLICATE KEY UPDATE " + strings.Join(sets, ", ")
}

// open makes a pool whose every session has what the store relies on, whatever the address says.
//
// Affected rows are those that the WHERE matched (clientFoundRows), as in SQLite. Parameters are put into the text by
// the driver: the sizes of sets vary, so prepared statements would hardly ever be used twice. An idle session ends
// after 30 s, so that a client that was frozen inside a transaction does not hold its rows for long.
func (mysqlDialect) open(o Options, dsn string) (*sql.DB, error) {
	c, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	c.ParseTime, c.Loc = true, time.UTC
	c.ClientFoundRows = true
	c.InterpolateParams = true
	c.Logger = &mysql.NopLogger{} // it only repeats what is returned
	if c.Timeout == 0 {
		c.Timeout = 5 * time.Second
	}
	c.ReadTimeout, c.WriteTimeout = o.Timeout, o.Timeout // COMMIT obeys no context
	if c.Params == nil {
		c.Params = map[string]string{}
	}
	c.Params["time_zone"] = "'+00:00'"
	c.Params["sql_mode"] = "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'"
	c.Params["innodb_lock_wait_timeout"] = fmt.Sprint(max(1, int(o.LockWait/time.Second)))
	base, err := mysql.NewConnector(c)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(o.Wrap(session{base}))
	limit(db, o.MaxConns, 16)
	db.SetConnMaxIdleTime(20 * time.Second) // before the server ends them
	return db, nil
}

func limit(db *sql.DB, conns, byDefault int) {
	if conns == 0 {
		conns = byDefault
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
}

// session sets up every new session by statements: the names of these variables differ between MySQL and MariaDB.
type session struct{ driver.Connector }

const (
	// readCommittedSQL: under REPEATABLE READ an open closer would block creates.
	readCommittedSQL = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
	// limitsSQL ends idle sessions (see open). MariaDB, which alone reads the comment, would make a join with a temporary
	// table of every IN with 1000 elements, and lock rows that are not in it.
	limitsSQL = "SET SESSION wait_timeout = 30 /*M!, SESSION in_predicate_conversion_threshold = 0 */"
)

func (s session) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	for _, text := range []string{readCommittedSQL, limitsSQL} {
		if _, err := conn.(driver.ExecerContext).ExecContext(ctx, text, nil); err != nil {
			return nil, errors.Join(err, conn.Close())
		}
	}
	return conn, nil
}

func (mysqlDialect) clock(ctx context.Context, q queryer) (now time.Time, err error) {
	const clockSQL = "SELECT UTC_TIMESTAMP(3)"
	err = q.QueryRowContext(ctx, clockSQL).Scan(&now)
	return now, err
}

func (mysqlDialect) nowSQL() string { return "UTC_TIMESTAMP(3)" }

func (mysqlDialect) plainTime(t time.Time) any { return t.UTC().Format("2006-01-02 15:04:05.000") }

// Error numbers of MySQL and MariaDB, https://dev.mysql.com/doc/mysql-errors/8.4/en/server-error-reference.html and
// https://mariadb.com/kb/en/mariadb-error-code-reference/.
var mysqlFailures = map[uint16]failure{
	1062: duplicate,
	1213: deadlock,
	1205: lockWait,
	1021: serverFull,   // disk full
	1114: serverFull,   // table full: mostly the disk
	1037: serverFull,   // out of memory
	1038: serverFull,   // out of sort memory
	1041: serverFull,   // out of memory
	1206: serverFull,   // lock table full
	1226: serverFull,   // this user's limit of resources
	1040: noConnection, // too many connections
	1044: noConnection, // no access to the database
	1045: noConnection, // access denied
	1049: noConnection, // unknown database: it may still be made
	1053: noConnection, // server shutdown
	1047: noConnection, // the node of a cluster is not ready
	3100: noConnection, // group replication: cannot replicate now
	3101: noConnection, // group replication: another node changed the same rows
	3168: noConnection, // server is not ready
	1129: noConnection, // host blocked after too many errors
	1203: noConnection, // too many connections of this user
	1290: noConnection, // --read-only: a fail-over is under way
	1317: noConnection, // query interrupted
	1792: noConnection, // transaction is read-only
	1836: noConnection, // read-only mode
	1927: noConnection, // connection killed
	3024: noConnection, // statement timed out
	1969: noConnection, // the same on MariaDB
	4031: noConnection, // idle session ended by the server
}

func (mysqlDialect) failure(err error) failure {
	var e *mysql.MySQLError
	if !errors.As(err, &e) {
		return noConnection // the driver or the network: whether it was done is not known
	}
	return mysqlFailures[e.Number]
}

func (mysqlDialect) versionSQL() string { return "SELECT VERSION()" }

func (mysqlDialect) tableSQL() string {
	return "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?"
}

func (mysqlDialect) settings(ctx context.Context, q queryer) (map[string]string, error) {
	const settingsSQL = "SHOW SESSION VARIABLES WHERE Variable_name IN ('time_zone', 'tx_isolation', 'transaction_isolation', 'version')"
	rows, err := q.QueryContext(ctx, settingsSQL)
	found := map[string]string{}
	err = each(rows, err, func(scan func(...any) error) error {
		var name, value string
		if err := scan(&name, &value); err != nil {
			return err
		}
		found[name] = value
		return nil
	})
	return found, err
}

func (mysqlDialect) migrations() (goose.Dialect, string, []goose.ProviderOption) {
	return goose.DialectMySQL, "mysql", []goose.ProviderOption{goose.WithSessionLocker(namedLock{})}
}

type sqliteDialect struct{ now func() time.Time }

var sqliteLocks = strings.NewReplacer("{update}", "", "{skip}", "", "{share}", "")

func (sqliteDialect) lock(text string) string { return sqliteLocks.Replace(text) }

func (sqliteDialect) spans(text string) string {
	text = millisMark.ReplaceAllString(text, "($2 - $1)")
	return secondsMark.ReplaceAllString(text, "(($2 - $1 + 999) / 1000)")
}

func (sqliteDialect) addUp(column string) string {
	return " ON CONFLICT DO UPDATE SET " + column + " = " + column + " + excluded." + column
}

func (sqliteDialect) upsert(columns ...string) string {
	sets := make([]string, len(columns))
	for i, c := range columns {
		sets[i] = c + " = excluded." + c
	}
	return " ON CONFLICT DO UPDATE SET " + strings.Join(sets, ", ")
}

// open makes a pool on the file at path dsn. Times are written as unix milliseconds.
func (sqliteDialect) open(o Options, dsn string) (*sql.DB, error) {
	if dsn == "" {
		return nil, errors.New("the path of the SQLite file is empty")
	}
	settings := url.Values{
		"_txlock":              {"immediate"},
		"_journal_mode":        {"WAL"},
		"_synchronous":         {"FULL"},
		"_foreign_keys":        {"1"},
		"_busy_timeout":        {fmt.Sprint(o.LockWait.Milliseconds())}, // other processes; our own queue at writer
		"_time_integer_format": {"unix_milli"},
	}
	path := (&url.URL{Path: dsn}).EscapedPath()
	base, err := sqlite.NewConnector("file:" + path + "?" + settings.Encode())
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(o.Wrap(base))
	limit(db, o.MaxConns, 4)
	return db, nil
}

func (d sqliteDialect) clock(context.Context, queryer) (time.Time, error) {
	return d.now().UTC().Truncate(time.Millisecond), nil
}

func (sqliteDialect) nowSQL() string {
	return "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)" // 2440587.5 is 1970-01-01
}

func (sqliteDialect) plainTime(t time.Time) any { return t.UnixMilli() }

// Result codes of SQLite, https://www.sqlite.org/rescode.html.
var sqliteFailures = map[int]failure{
	sqlitelib.SQLITE_CONSTRAINT_UNIQUE:     duplicate,
	sqlitelib.SQLITE_CONSTRAINT_PRIMARYKEY: duplicate,
	sqlitelib.SQLITE_BUSY:                  busy,
	sqlitelib.SQLITE_LOCKED:                busy,
	sqlitelib.SQLITE_INTERRUPT:             noConnection,
	sqlitelib.SQLITE_IOERR:                 noConnection,
	sqlitelib.SQLITE_FULL:                  noConnection,
	sqlitelib.SQLITE_CANTOPEN:              noConnection,
}

func (sqliteDialect) failure(err error) failure {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return noConnection
	}
	if f, ok := sqliteFailures[e.Code()]; ok {
		return f
	}
	const primaryCode = 0xff // the rest of an extended code says where, not what
	return sqliteFailures[e.Code()&primaryCode]
}

func (sqliteDialect) versionSQL() string { return "SELECT 'SQLite ' || sqlite_version()" }

func (sqliteDialect) tableSQL() string {
	return "SELECT COUNT(*) FROM sqlite_master WHERE type = 'table' AND name = ?"
}

func (sqliteDialect) settings(context.Context, queryer) (map[string]string, error) { return nil, nil }

func (sqliteDialect) migrations() (goose.Dialect, string, []goose.ProviderOption) {
	return goose.DialectSQLite3, "sqlite", nil
}
