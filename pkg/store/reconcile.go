package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"strings"
	"time"

	"lapse/pkg/order"
)

// A reconciliation walks through tables in the order of their keys, a page at a time and without locks. What looks wrong is
// looked at again in a transaction of its own that locks it, so that a live system is never mended for what it was about to
// do itself. What that transaction did stands in the run's record with it, and only while the run is its owner's (I10). A
// dry run does the same, and takes it back.

// lockRunsSQL lets one process at a time begin a run.
const lockRunsSQL = "SELECT value FROM t_counter WHERE name = 'reconcile_runs' {update}"

const (
	unfinishedSQL = `SELECT id, owner, dry_run, started_at, alive_at, position, looked, found, mended FROM t_reconcile_run
WHERE finished_at IS NULL ORDER BY id DESC LIMIT 1`
	// lastBegunSQL is when the last run that mends was begun; NULL if there was none.
	lastBegunSQL = "SELECT MAX(started_at) FROM t_reconcile_run WHERE dry_run = 0"
	takeOverSQL  = "UPDATE t_reconcile_run SET owner = ?, alive_at = ? WHERE id = ?"
	beginRunSQL  = "INSERT INTO t_reconcile_run (owner, dry_run, started_at, alive_at) VALUES (?, ?, ?, ?)"
)

// BeginReconcile begins a run if the last one was begun at least every ago, or goes on with one that mends and whose owner
// has given no sign of life for stale. Conflict if none is due, or one is under way.
func (s *Store) BeginReconcile(ctx context.Context, owner string, dryRun bool, every, stale time.Duration) (run order.ReconcileRun, err error) {
	owner += "/" + rand.Text()[:8] // a process may lose a run to itself
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		run, err = t.beginReconcile(ctx, owner, dryRun, every, stale)
		return err
	})
	return run, err
}

func (t tx) beginReconcile(ctx context.Context, owner string, dryRun bool, every, stale time.Duration) (run order.ReconcileRun, err error) {
	var ignored int64
	if err := t.QueryRowContext(ctx, t.dialect.lock(lockRunsSQL)).Scan(&ignored); err != nil {
		return run, err
	}
	var position string
	var alive time.Time
	err = t.QueryRowContext(ctx, unfinishedSQL).Scan(&run.ID, &run.Owner, &run.DryRun, at(&run.Started), at(&alive), &position, &run.Looked, &run.Found, &run.Mended)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return t.newReconcile(ctx, owner, dryRun, every)
	case err != nil || run.Owner == owner: // begun by a commit whose answer was lost
		return run, err
	case alive.After(t.now.Add(-stale)):
		return run, order.Errorf(order.Conflict, "reconcile_running", "%s has been reconciling since %s", run.Owner, run.Started.Format(time.RFC3339)).
			WithHint("Wait for its end.")
	case run.DryRun: // whoever wanted to know has gone
		run.Error = "broken off"
		if err := t.endReconcile(ctx, &run); err != nil {
			return run, err
		}
		return t.newReconcile(ctx, owner, dryRun, every)
	case dryRun:
		return run, order.Errorf(order.Conflict, "reconcile_unfinished", "a run of %s that was broken off has to be finished first", run.Owner).
			WithHint("A compensator goes on with it, or whoever runs one that mends.")
	}
	run.Owner = owner
	run.Position.Walk, run.Position.Key, _ = strings.Cut(position, ":")
	return run, t.execAll(ctx, 1, takeOverSQL, owner, t.now, run.ID)
}

func (t tx) newReconcile(ctx context.Context, owner string, dryRun bool, every time.Duration) (order.ReconcileRun, error) {
	run := order.ReconcileRun{Owner: owner, DryRun: dryRun, Started: t.now}
	if every > 0 {
		var began time.Time
		if err := t.QueryRowContext(ctx, lastBegunSQL).Scan(at(&began)); err != nil {
			return run, err
		}
		if t.now.Sub(began) < every {
			return run, order.Errorf(order.Conflict, "reconcile_not_due", "the last reconciliation was begun less than %s ago", every)
		}
	}
	res, err := t.ExecContext(ctx, beginRunSQL, owner, dryRun, t.now, t.now)
	if err == nil {
		run.ID, err = res.LastInsertId()
	}
	return run, err
}

// LastReconcile is when the last run that mends was begun; zero if there was none.
func (s *Store) LastReconcile(ctx context.Context) (began time.Time, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		return q.QueryRowContext(ctx, lastBegunSQL).Scan(at(&began))
	})
	return began, err
}

const (
	// progressSQL notes where a run stands. Args: now, place, rows, run, owner. No row: the run is not the caller's.
	progressSQL = "UPDATE t_reconcile_run SET alive_at = ?, position = ?, looked = ? WHERE id = ? AND owner = ? AND finished_at IS NULL"
	// aliveSQL is a sign of life. Args and meaning as above.
	aliveSQL = "UPDATE t_reconcile_run SET alive_at = ? WHERE id = ? AND owner = ? AND finished_at IS NULL"
	// endRunSQL may end a run again. Args: now, error, run, owner. No row: it is not the caller's.
	endRunSQL = "UPDATE t_reconcile_run SET finished_at = ?, error = ? WHERE id = ? AND owner = ?"
)

const runLost = "reconcile_lost"

// isLost reports whether another process goes on with the run, or it has ended.
func isLost(err error) bool {
	var e *order.Error
	return errors.As(err, &e) && e.Code == runLost
}

// ofRun runs a statement about a run that has to be its owner's.
func (t tx) ofRun(ctx context.Context, run int64, text string, args ...any) error {
	n, err := t.exec(ctx, text, args...)
	if err == nil && n == 0 {
		err = order.Errorf(order.Conflict, runLost, "run %d belongs to another process, or has ended", run)
	}
	return err
}

// NoteReconcile keeps where a run stands. Conflict if another process has taken it over.
func (s *Store) NoteReconcile(ctx context.Context, run order.ReconcileRun) error {
	return s.write(ctx, func(ctx context.Context, t tx) error {
		return t.ofRun(ctx, run.ID, progressSQL, t.now, run.Position.Walk+":"+run.Position.Key, run.Looked, run.ID, run.Owner)
	})
}

// KeepReconcile gives a sign of life of a run. Conflict if another process has taken it over.
func (s *Store) KeepReconcile(ctx context.Context, run order.ReconcileRun) error {
	return s.write(ctx, func(ctx context.Context, t tx) error {
		return t.ofRun(ctx, run.ID, aliveSQL, t.now, run.ID, run.Owner)
	})
}

const (
	figuresSQL  = "SELECT found, mended FROM t_reconcile_run WHERE id = ?"
	findingsSQL = "SELECT kind, subject, detail, action, mended FROM t_reconcile_finding WHERE run_id = ? ORDER BY seq"
)

// EndReconcile ends a run, for run.Error if it ended early, and fills in what it has found. Conflict if another process has
// taken it over.
func (s *Store) EndReconcile(ctx context.Context, run *order.ReconcileRun) error {
	return s.write(ctx, func(ctx context.Context, t tx) error {
		if err := t.endReconcile(ctx, run); err != nil {
			return err
		}
		run.Findings = nil
		return t.query(ctx, func(scan func(...any) error) error {
			var f order.Finding
			err := scan(&f.Kind, &f.Subject, &f.Detail, &f.Action, &f.Mended)
			run.Findings = append(run.Findings, f)
			return err
		}, findingsSQL, run.ID)
	})
}

func (t tx) endReconcile(ctx context.Context, run *order.ReconcileRun) error {
	if err := t.ofRun(ctx, run.ID, endRunSQL, t.now, clip(run.Error, maxErrorText), run.ID, run.Owner); err != nil {
		return err
	}
	run.Finished = t.now
	return t.QueryRowContext(ctx, figuresSQL, run.ID).Scan(&run.Found, &run.Mended)
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
	return s.walkResources(ctx, place.Key, m)
}

const (
	// countFindingSQL counts a finding, and keeps the run from being taken over until the transaction ends. Args: now, mended,
	// run, owner. No row: the run is not the caller's.
	countFindingSQL = `UPDATE t_reconcile_run SET alive_at = ?, found = found + 1, mended = mended + ? WHERE id = ? AND owner = ? AND finished_at IS NULL`
	findingSQL      = "INSERT INTO t_reconcile_finding (run_id, seq, kind, subject, detail, action, mended) VALUES "
)

// report keeps a finding.
func (t tx) report(ctx context.Context, m order.Mending, f order.Finding) error {
	mended := 0
	if f.Mended {
		mended = 1
	}
	if err := t.ofRun(ctx, m.Run, countFindingSQL, t.now, mended, m.Run, m.Owner); err != nil {
		return err
	}
	var found, ignored int64
	if err := t.QueryRowContext(ctx, figuresSQL, m.Run).Scan(&found, &ignored); err != nil || found > order.MaxFindings {
		return err
	}
	row := []any{m.Run, found, f.Kind, clip(f.Subject, 160), clip(f.Detail, maxErrorText), clip(f.Action, maxErrorText), f.Mended}
	return t.insert(ctx, findingSQL, [][]any{row}, "")
}

// errTakenBack ends the transaction of a dry run.
var errTakenBack = order.Errorf(order.Internal, "dry_run", "a dry run takes everything back")

// leftToAPerson is the action for what cannot be mended without knowing more.
const leftToAPerson = "left to a person"

// mending looks again at a suspect that f names, mends what is still wrong, says in f what it did, and returns rows to be
// sent. It leaves f.Action empty if nothing is wrong any more.
type mending func(ctx context.Context, t tx, f *order.Finding) ([]order.Message, error)

// mend does one mending as one transaction, and adds what came of it to w. That of a dry run is taken back, and what cannot
// be mended is left to a person: both are recorded afterwards. An error ends the walk: an outage, or a run that is lost.
func (s *Store) mend(ctx context.Context, m order.Mending, w *order.Walked, suspect order.Finding, do mending) error {
	var f order.Finding
	var rows []order.Message
	err := s.write(ctx, func(ctx context.Context, t tx) error {
		var err error
		f = suspect
		if rows, err = do(ctx, t, &f); err != nil || f.Action == "" {
			return err
		}
		if m.DryRun {
			return errTakenBack
		}
		f.Mended = f.Action != leftToAPerson
		return t.report(ctx, m, f)
	})
	switch {
	case err == nil && f.Action == "":
		return nil
	case err == nil:
		w.Findings, w.Messages = append(w.Findings, f), append(w.Messages, rows...)
		return nil
	case errors.Is(err, errTakenBack):
	case order.KindOf(err) == order.Unavailable || isLost(err):
		return err
	default:
		f = suspect
		f.Action = leftToAPerson + ": " + err.Error()
	}
	w.Findings = append(w.Findings, f)
	return s.write(ctx, func(ctx context.Context, t tx) error { return t.report(ctx, m, f) })
}
