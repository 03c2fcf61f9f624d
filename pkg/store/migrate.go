package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/pressly/goose/v3"

	"lapse/pkg/order"
	migrations "lapse/sql"
)

const versionTable = "t_schema_version"

// Migrate brings the schema to the version that this program knows. Two at once do not collide.
func (s *Store) Migrate(ctx context.Context) error {
	db, err := s.slow()
	if err != nil {
		return badDSN(err)
	}
	defer db.Close()
	p, err := s.provider(db)
	if err != nil {
		return err
	}
	err = s.patiently(ctx, func(bool) error {
		_, err := p.Up(ctx)
		if err == nil {
			return nil
		}
		// SQLite has no lock to wait at: another process may have been faster.
		if pending, perr := p.HasPending(ctx); perr == nil && !pending {
			return nil
		}
		return err
	})
	if err != nil && order.KindOf(err) == order.Internal {
		return order.Errorf(order.Internal, "migration_failed", "the schema could not be migrated").Wrap(err)
	}
	return err
}

// slow is a small pool of its own whose statements may take as long as they need. The caller closes it.
func (s *Store) slow() (*sql.DB, error) {
	o := s.options
	o.Timeout, o.MaxConns = 0, 2
	return s.dialect.open(o, o.DSN)
}

func (s *Store) provider(db *sql.DB) (*goose.Provider, error) {
	dialect, folder, options := s.dialect.migrations()
	files, err := fs.Sub(migrations.Migrations, folder)
	if err != nil {
		return nil, err
	}
	options = append(options, goose.WithTableName(versionTable), goose.WithDisableGlobalRegistry(true))
	return goose.NewProvider(dialect, db, files, options...)
}

// namedLock lets one migration run at a time on a MySQL server; its name is that of the database.
type namedLock struct{}

const (
	migrateLockSQL   = "SELECT COALESCE(GET_LOCK(CONCAT('lapse_', LEFT(DATABASE(), 50)), 600), 0)"
	migrateUnlockSQL = "SELECT RELEASE_LOCK(CONCAT('lapse_', LEFT(DATABASE(), 50)))"
)

func (namedLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	got := 0
	if err := conn.QueryRowContext(ctx, migrateLockSQL).Scan(&got); err != nil {
		return err
	}
	if got != 1 {
		return errors.New("another migration has been running for 10 minutes")
	}
	return nil
}

func (namedLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	var released sql.NullInt64
	return conn.QueryRowContext(ctx, migrateUnlockSQL).Scan(&released)
}

const schemaVersionSQL = "SELECT COALESCE(MAX(version_id), 0) FROM " + versionTable + " WHERE is_applied = 1"

// SchemaVersion returns the version of the database's schema, 0 if there is none, and the version that this program knows.
func (s *Store) SchemaVersion(ctx context.Context) (have, want int64, err error) {
	p, err := s.provider(s.primary)
	if err != nil {
		return 0, 0, err
	}
	for _, source := range p.ListSources() {
		want = max(want, source.Version)
	}
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		tables := 0
		if err := q.QueryRowContext(ctx, s.dialect.tableSQL(), versionTable).Scan(&tables); err != nil || tables == 0 {
			return err
		}
		return q.QueryRowContext(ctx, schemaVersionSQL).Scan(&have)
	})
	return have, want, err
}

// Check tells whether the database is as this program needs it; the error says what to do. Unavailable means that it
// did not answer; anything else stays wrong until somebody acts.
func (s *Store) Check(ctx context.Context) error {
	have, want, err := s.SchemaVersion(ctx)
	if err != nil {
		return err
	}
	switch {
	case have < want:
		return order.Errorf(order.Conflict, "schema_too_old", "the schema has version %d, this program needs %d", have, want).
			WithHint("Run `lapse migrate`.")
	case have > want:
		if err := s.checkFloor(ctx, have, want); err != nil {
			return err
		}
	}
	return s.checkSession(ctx)
}

// floorSQL is the lowest version of the schema that a program must know to work with this one.
const floorSQL = "SELECT value FROM t_counter WHERE name = 'schema_floor'"

// checkFloor lets a program work with a newer schema that only adds to what it knows, so that versions can be upgraded
// one process after the other. A schema that does not say so is only for those that know it.
func (s *Store) checkFloor(ctx context.Context, have, want int64) error {
	floor := have
	err := s.read(ctx, func(ctx context.Context, q reader) error {
		err := q.QueryRowContext(ctx, floorSQL).Scan(&floor)
		if errors.Is(err, sql.ErrNoRows) {
			err = nil
		}
		return err
	})
	if err != nil || floor <= want {
		return err
	}
	return order.Errorf(order.Conflict, "schema_too_new", "the schema has version %d and needs programs that know %d, this one knows only %d", have, floor, want).
		WithHint("Upgrade this program.")
}

// checkSession looks at what a session really has. A proxy between us and the server may undo what open asks for.
func (s *Store) checkSession(ctx context.Context) error {
	var settings map[string]string
	err := s.read(ctx, func(ctx context.Context, q reader) (err error) {
		settings, err = s.dialect.settings(ctx, q)
		return err
	})
	if err != nil {
		return err
	}
	for name, value := range settings {
		switch name {
		case "tx_isolation", "transaction_isolation":
			if value != "READ-COMMITTED" {
				return order.Errorf(order.Conflict, "wrong_isolation", "sessions run at %s, not READ-COMMITTED", value).
					WithHint("Look for a proxy or an init_connect that sets it.")
			}
		case "time_zone":
			if value != "+00:00" {
				return order.Errorf(order.Conflict, "wrong_time_zone", "sessions run in time zone %s, not +00:00", value).
					WithHint("Look for a proxy or an init_connect that sets it.")
			}
		case "version":
			if err := checkVersion(value); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkVersion refuses servers without SKIP LOCKED and enforced CHECKs.
func checkVersion(version string) error {
	var major, minor, patch int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &major, &minor, &patch); err != nil {
		return order.Errorf(order.Conflict, "unknown_server", "the server calls its version %q", version)
	}
	need, needs := 80016, "MySQL 8.0.16"
	if strings.Contains(version, "MariaDB") {
		need, needs = 100600, "MariaDB 10.6"
	}
	if major*10000+minor*100+patch < need {
		return order.Errorf(order.Conflict, "server_too_old", "the server is version %s", version).WithHint("Use " + needs + " or newer.")
	}
	return nil
}
