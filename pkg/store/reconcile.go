package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"lapse/pkg/order"
)

// A reconciliation walks through tables in the order of their keys, a page at a time and without locks. What looks wrong is
// looked at again in a transaction of its own that locks it, so that a live system is never mended for what it was about to
// do itself. A dry run does the same, and takes it back.

// lockRunsSQL lets one process at a time begin a run.
const lockRunsSQL = "SELECT value FROM t_counter WHERE name = 'reconcile_runs' {update}"

const runColumns = "id, owner, dry_run, started_at, position, looked, found, mended"

const (
	unfinishedSQL = "SELECT " + runColumns + ", alive_at FROM t_reconcile_run WHERE finished_at IS NULL ORDER BY id DESC LIMIT 1"
	takeOverSQL   = "UPDATE t_reconcile_run SET owner = ?, alive_at = ? WHERE id = ?"
	beginRunSQL   = "INSERT INTO t_reconcile_run (owner, dry_run, started_at, alive_at) VALUES (?, ?, ?, ?)"
)

// BeginReconcile begins a run, or goes on with one whose owner has given no sign of life for stale. Conflict while one is
// under way.
func (s *Store) BeginReconcile(ctx context.Context, owner string, dryRun bool, stale time.Duration) (run order.ReconcileRun, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		run, err = t.beginReconcile(ctx, owner, dryRun, stale)
		return err
	})
	return run, err
}

func (t tx) beginReconcile(ctx context.Context, owner string, dryRun bool, stale time.Duration) (run order.ReconcileRun, err error) {
	var ignored int64
	if err := t.QueryRowContext(ctx, t.dialect.lock(lockRunsSQL)).Scan(&ignored); err != nil {
		return run, err
	}
	var position string
	var alive time.Time
	err = t.QueryRowContext(ctx, unfinishedSQL).Scan(&run.ID, &run.Owner, &run.DryRun, at(&run.Started), &position, &run.Looked, &run.Found, &run.Mended, at(&alive))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		run = order.ReconcileRun{Owner: owner, DryRun: dryRun, Started: t.now}
		res, err := t.ExecContext(ctx, beginRunSQL, owner, dryRun, t.now, t.now)
		if err == nil {
			run.ID, err = res.LastInsertId()
		}
		return run, err
	case err != nil:
		return run, err
	case alive.After(t.now.Add(-stale)):
		return run, order.Errorf(order.Conflict, "reconcile_running", "%s has been reconciling since %s", run.Owner, run.Started.Format(time.RFC3339)).
			WithHint("Wait for its end.")
	case run.DryRun != dryRun:
		return run, order.Errorf(order.Conflict, "reconcile_unfinished", "a run of %s that was broken off has to be finished first", run.Owner).
			WithHint(fmt.Sprintf("Repeat it with dry_run = %v.", run.DryRun))
	}
	run.Owner = owner
	run.Position.Walk, run.Position.Key, _ = strings.Cut(position, ":")
	return run, t.execAll(ctx, 1, takeOverSQL, owner, t.now, run.ID)
}

// lastRunSQL is when the last run that mended was begun.
const lastRunSQL = "SELECT MAX(started_at) FROM t_reconcile_run WHERE dry_run = 0"

// LastReconcile is when the last run that was no dry run began, finished or not, and now; zero if there was none.
func (s *Store) LastReconcile(ctx context.Context) (began, now time.Time, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		return q.QueryRowContext(ctx, lastRunSQL).Scan(at(&began))
	})
	return began, now, err
}

const (
	// progressSQL notes where a run stands. Args: now, place, figures, run, owner. No row: another process has taken it over.
	progressSQL = `UPDATE t_reconcile_run SET alive_at = ?, position = ?, looked = ?, found = ?, mended = ? WHERE id = ? AND owner = ? AND finished_at IS NULL`
	endRunSQL   = "UPDATE t_reconcile_run SET finished_at = ?, error = ? WHERE id = ? AND owner = ?"
	findingSQL  = "INSERT INTO t_reconcile_finding (run_id, seq, kind, subject, detail, action, mended) VALUES "
	findingsSQL = "SELECT kind, subject, detail, action, mended FROM t_reconcile_finding WHERE run_id = ? ORDER BY seq"
)

// NoteReconcile keeps what a page has brought and where the run stands, and ends it if ended. Conflict if another process
// has taken it over.
func (s *Store) NoteReconcile(ctx context.Context, run *order.ReconcileRun, findings []order.Finding, ended bool) error {
	return s.write(ctx, func(ctx context.Context, t tx) error {
		n, err := t.exec(ctx, progressSQL, t.now, run.Position.Walk+":"+run.Position.Key, run.Looked, run.Found, run.Mended, run.ID, run.Owner)
		if err != nil {
			return err
		}
		if n == 0 {
			return order.Errorf(order.Conflict, "reconcile_lost", "another process goes on with run %d", run.ID)
		}
		var rows [][]any
		for i, f := range findings {
			if seq := run.Found - int64(len(findings)-i); seq < order.MaxFindings {
				rows = append(rows, []any{run.ID, seq, f.Kind, clip(f.Subject, 160), clip(f.Detail, maxErrorText), clip(f.Action, maxErrorText), f.Mended})
			}
		}
		if err := t.insert(ctx, findingSQL, rows, ""); err != nil || !ended {
			return err
		}
		run.Finished = t.now
		return t.execAll(ctx, 1, endRunSQL, t.now, clip(run.Error, maxErrorText), run.ID, run.Owner)
	})
}

// Findings returns what a run has found.
func (s *Store) Findings(ctx context.Context, runID int64) (found []order.Finding, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		found = nil
		return q.query(ctx, func(scan func(...any) error) error {
			var f order.Finding
			err := scan(&f.Kind, &f.Subject, &f.Detail, &f.Action, &f.Mended)
			found = append(found, f)
			return err
		}, findingsSQL, runID)
	})
	return found, err
}

// ReconcileWalks are the walks of a run, in their order: what is owed to orders is mended before counters are compared.
var ReconcileWalks = []string{"orders", "cases", "messages", "resources"}

// Walk looks at a page of at most limit rows after a key, and mends what it finds.
func (s *Store) Walk(ctx context.Context, place order.Place, limit int, m order.Mending, first order.Schedule) (order.Walked, error) {
	switch place.Walk {
	case "orders":
		return s.walkOrders(ctx, place.Key, limit, m, first)
	case "cases":
		return s.walkCases(ctx, place.Key, limit, m, first)
	case "messages":
		return s.walkMessages(ctx, place.Key, limit, m, first)
	}
	return s.walkResources(ctx, m)
}

// errTakenBack ends the transaction of a dry run.
var errTakenBack = order.Errorf(order.Internal, "dry_run", "a dry run takes everything back")

// mend runs do as one transaction; that of a dry run is taken back. What fails is a finding that was not mended.
func (s *Store) mend(ctx context.Context, m order.Mending, kind, subject string, do func(ctx context.Context, t tx) ([]order.Finding, []order.Message, error)) (found []order.Finding, rows []order.Message, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		found, rows, err = do(ctx, t)
		if err == nil && m.DryRun {
			err = errTakenBack
		}
		return err
	})
	switch {
	case errors.Is(err, errTakenBack):
		for i := range found {
			found[i].Mended = false
		}
		return found, nil, nil
	case err != nil && order.KindOf(err) == order.Unavailable:
		return nil, nil, err
	case err != nil:
		return []order.Finding{{Kind: kind, Subject: subject, Detail: "it could not be mended", Action: err.Error()}}, nil, nil
	}
	return found, rows, nil
}
