// Package services gives tests a database of their own, and a broker of their own to those that stop it.
//
// What the environment does not name is not there: the test is skipped, or fails if LAPSE_TEST_REQUIRED=1.
package services

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Need skips t unless every variable of the environment is set; where LAPSE_TEST_REQUIRED=1 it fails.
func Need(t testing.TB, variables ...string) {
	t.Helper()
	for _, name := range variables {
		switch {
		case os.Getenv(name) != "":
		case os.Getenv("LAPSE_TEST_REQUIRED") == "1":
			t.Fatalf("%s is not set, and LAPSE_TEST_REQUIRED=1", name)
		default:
			t.Skipf("%s is not set; scripts/with-services.sh sets it", name)
		}
	}
}

// Root is the project's directory.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// RandomHex is a secret, or a name that nobody else has, of n random bytes.
func RandomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// Database is an empty database that belongs to one test.
type Database struct {
	*sql.DB
	DSN     string // with the database's name, for who makes tables
	Service string // the same for services, which may only read and write rows, if the server has such a user
	Version string
}

// NewDatabase makes a database on the server at LAPSE_TEST_MYSQL_DSN and drops it when t ends.
func NewDatabase(t testing.TB) Database {
	t.Helper()
	Need(t, "LAPSE_TEST_MYSQL_DSN")
	return databaseAt(t, os.Getenv("LAPSE_TEST_MYSQL_DSN"))
}

func databaseAt(t testing.TB, dsn string) Database {
	t.Helper()
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		t.Fatalf("%q is no DSN: %v", dsn, err)
	}
	name := "lapse_test_" + RandomHex(6)
	server := open(t, config)
	if _, err := server.ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatalf("making a database: %v", err)
	}
	t.Cleanup(func() {
		if _, err := server.ExecContext(context.WithoutCancel(t.Context()), "DROP DATABASE "+name); err != nil {
			t.Errorf("dropping the database: %v", err)
		}
		server.Close()
	})
	programs := config.Clone()
	programs.DBName = name
	ours := programs.Clone()
	ours.ParseTime, ours.Loc = true, time.UTC
	ours.Params = map[string]string{"time_zone": "'+00:00'"}
	db := Database{DB: open(t, ours), DSN: programs.FormatDSN(), Version: version(t, server)}
	t.Cleanup(func() { db.Close() })
	db.Service = serviceDSN(t, programs)
	return db
}

// serviceDSN is the DSN of the user lapse_service, or the owner's where there is none.
func serviceDSN(t testing.TB, owner *mysql.Config) string {
	service := owner.Clone()
	service.User = "lapse_service"
	db := open(t, service)
	defer db.Close()
	if err := db.PingContext(t.Context()); err != nil {
		t.Logf("services run as the owner of the tables: %v", err)
		return owner.FormatDSN()
	}
	return service.FormatDSN()
}

func open(t testing.TB, config *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(config)
	if err != nil {
		t.Fatal(err)
	}
	return sql.OpenDB(connector)
}

func version(t testing.TB, db *sql.DB) (version string) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), "SELECT VERSION()").Scan(&version); err != nil {
		t.Fatalf("the database does not answer: %v", err)
	}
	return version
}

// Server is a MariaDB that belongs to one test, which may stop and start it.
type Server struct {
	Database
	Addr string
	dir  string
	port string
}

// NewServer starts a MariaDB by the project's script, with one database, and ends it with t.
func NewServer(t testing.TB) *Server {
	t.Helper()
	port := FreePort(t)
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), dir: t.TempDir(), port: fmt.Sprint(port)}
	if err := s.Start(t.Context()); err != nil {
		t.Fatalf("starting MariaDB: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("ending MariaDB: %v", err)
		}
	})
	s.Database = databaseAt(t, "lapse:lapse@tcp("+s.Addr+")/")
	return s
}

// Stop ends the server in order.
func (s *Server) Stop(ctx context.Context) error {
	return runScript(ctx, nil, s.dir, "mariadb.sh", "stop", s.dir, s.port)
}

// Kill ends the server by SIGKILL.
func (s *Server) Kill(context.Context) error {
	return Signal(filepath.Join(s.dir, "mariadb.pid"), syscall.SIGKILL)
}

// Start starts the server with its data, and returns when it answers.
func (s *Server) Start(ctx context.Context) error {
	return runScript(ctx, nil, s.dir, "mariadb.sh", "start", s.dir, s.port)
}

// Signal sends a signal to the process whose id is in a file.
func Signal(pidFile string, signal syscall.Signal) error {
	raw, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return err
	}
	return syscall.Kill(pid, signal)
}

// Broker is a RocketMQ that belongs to one test, which may stop and start it.
type Broker struct {
	Addr    string // of the name server
	Version string
	dir     string
	port    string
	env     []string // what scripts/rocketmq.sh is told
}

// brokerPorts are those that scripts/rocketmq.sh takes, from its PORT on.
var brokerPorts = []int{0, 8, 10, 11}

// NewBroker starts a RocketMQ by the project's script, which env may steer, and ends it with t.
func NewBroker(t testing.TB, version string, env ...string) *Broker {
	t.Helper()
	// The broker's name for its data has to be short: it goes into paths of its own.
	dir, err := os.MkdirTemp("", "lapse-mq-")
	if err != nil {
		t.Fatal(err)
	}
	port := FreePort(t, brokerPorts...)
	b := &Broker{Addr: fmt.Sprintf("127.0.0.1:%d", port), Version: version, dir: dir, port: fmt.Sprint(port), env: env}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the broker's last words:\n%s", lastWords(dir))
		}
		err := b.script(context.WithoutCancel(t.Context()), "kill")
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			t.Errorf("ending the broker: %v", err)
		}
	})
	if err := b.script(t.Context(), "start"); err != nil {
		t.Fatalf("starting RocketMQ %s: %v", version, err)
	}
	return b
}

// Stop ends the broker in order; the name server stays.
func (b *Broker) Stop(ctx context.Context) error { return b.script(ctx, "broker-stop") }

// Kill ends the broker by SIGKILL; the name server stays.
func (b *Broker) Kill(ctx context.Context) error { return b.script(ctx, "broker-kill") }

// Start starts a broker that was ended, with its data, and returns when clients can find it.
func (b *Broker) Start(ctx context.Context) error { return b.script(ctx, "broker-start") }

// Freeze stops the broker by SIGSTOP, and Thaw lets it go on.
func (b *Broker) Freeze(context.Context) error {
	return Signal(filepath.Join(b.dir, "broker.pid"), syscall.SIGSTOP)
}

// Thaw lets a frozen broker go on.
func (b *Broker) Thaw(context.Context) error {
	return Signal(filepath.Join(b.dir, "broker.pid"), syscall.SIGCONT)
}

// Admin runs RocketMQ's own admin tool.
func (b *Broker) Admin(ctx context.Context, args ...string) error {
	return b.script(ctx, "admin", args...)
}

func (b *Broker) script(ctx context.Context, action string, args ...string) error {
	return runScript(ctx, b.env, b.dir, "rocketmq.sh", append([]string{action, b.Version, b.dir, b.port}, args...)...)
}

// runScript runs one of the project's scripts. What it starts inherits a file, not a pipe, so that waiting for the script
// does not wait for that.
func runScript(ctx context.Context, env []string, dir, name string, args ...string) error {
	said, err := os.CreateTemp(dir, "said-")
	if err != nil {
		return err
	}
	defer said.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(Root(), "scripts", name), args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Run(); err != nil {
		raw, _ := os.ReadFile(said.Name())
		return fmt.Errorf("scripts/%s %s: %w\n%s", name, args[0], err, raw)
	}
	return nil
}

func lastWords(dir string) string {
	var b strings.Builder
	for _, name := range []string{"broker.out", "namesrv.out"} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			fmt.Fprintf(&b, "%s: %s\n", name, raw[max(0, len(raw)-2000):])
		}
	}
	return b.String()
}

// given are the ports that were found before: what is to listen there may not do so yet.
var given sync.Map

// FreePort finds a port p such that p+offset is free for every offset (just p if there is none), below the
// range from which the kernel gives ports to clients, and gives each only once.
func FreePort(t testing.TB, offsets ...int) int {
	t.Helper()
	const first, count = 10_000, 9_900
	if len(offsets) == 0 {
		offsets = []int{0}
	}
	for range 1000 {
		n, err := rand.Int(rand.Reader, big.NewInt(count))
		if err != nil {
			t.Fatal(err)
		}
		if port := first + int(n.Int64()); allFree(port, offsets) {
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

func allFree(port int, offsets []int) bool {
	for _, offset := range offsets {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+offset))
		if err != nil {
			return false
		}
		l.Close()
		if _, before := given.LoadOrStore(port+offset, true); before {
			return false
		}
	}
	return true
}
