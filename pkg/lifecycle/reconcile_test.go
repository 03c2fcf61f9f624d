package lifecycle_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// reconciler is one of the world's, with what a test puts between it and the store.
func (w *world) reconciler(owner string, s lifecycle.ReconcileStore, m *lifecycle.Metrics) *lifecycle.Reconciler {
	return lifecycle.NewReconciler(s, w.relay, owner, store.ReconcileWalks, func() lifecycle.ReconcileOptions { return lifecycle.ReconcileOptions{} }, m, zap.NewNop())
}

// damage changes data behind everybody's back.
func (w *world) damage(t *testing.T, texts ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+w.path+"?_busy_timeout=5000")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for _, text := range texts {
		res, err := db.Exec(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if n, err := res.RowsAffected(); n == 0 || err != nil {
			t.Fatalf("%s: %d rows, %v", text, n, err)
		}
	}
}

// spoiled is a world with one order that gave back and told, and one that is pending, both damaged since.
func spoiled(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, lifecycle.RelayOptions{})
	w.create(t, no1, time.Second)
	w.create(t, no2, time.Hour)
	w.waitClosed(t, no1, order.ReasonTimeout)
	eventually(t, "the event is settled", func() bool {
		log, _, err := w.store.Timeline(t.Context(), no1)
		return err == nil && !log[len(log)-1].EventSentAt.IsZero()
	})
	w.damage(t, "UPDATE t_order_log SET event_sent_at = NULL WHERE order_no = '"+no1+"'", "DELETE FROM t_resource_log WHERE op = 'release'",
		"DELETE FROM t_local_message WHERE order_no = '"+no2+"'", "UPDATE t_resource SET sold = 7")
	return w
}

var allSpoiled = []string{order.ReleaseMissing, order.EventMissing, order.TimeoutMissing, order.CountersDiffer}

func kindsOf(run order.ReconcileRun) (kinds []string) {
	for _, f := range run.Findings {
		kinds = append(kinds, f.Kind)
	}
	return kinds
}

func TestDamageIsFoundThenMendedAndTheWorldIsToldTheSameAgain(t *testing.T) {
	w := spoiled(t)
	r := w.reconciler("one", w.store, w.metrics)
	dry, err := r.Now(t.Context(), true)
	if err != nil || !slices.Equal(kindsOf(dry), allSpoiled) || dry.Mended != 0 || !dry.DryRun || dry.Finished.IsZero() {
		t.Errorf("dry run: %+v, %v", dry, err)
	}
	if _, notices := w.counts(no1); notices != 1 {
		t.Errorf("a dry run told: %d events", notices)
	}
	run, err := r.Now(t.Context(), false)
	if err != nil || run.Found != 4 || run.Mended != 4 || !slices.Equal(kindsOf(run), allSpoiled) || run.Looked < 3 || run.Error != "" {
		t.Errorf("%+v, %v", run, err)
	}
	eventually(t, "the event is told again", func() bool { _, notices := w.counts(no1); return notices == 2 })
	w.set(func(w *wire) {
		if first, second := string(w.notices[0].Body), string(w.notices[1].Body); first != second {
			t.Errorf("told\n%s\nthen\n%s", first, second)
		}
	})
	eventually(t, "the time-out is scheduled again", func() bool {
		_, scheduled, err := w.store.Timeline(t.Context(), no2)
		return err == nil && len(scheduled) == 1 && scheduled[0].State == order.AlreadySent
	})
	again, err := r.Now(t.Context(), false)
	if err != nil || again.Found != 0 || len(again.Findings) != 0 || again.ID == run.ID {
		t.Errorf("again: %+v, %v", again, err)
	}
	for _, kind := range allSpoiled {
		if got := testutil.ToFloat64(w.metrics.Findings.WithLabelValues(kind)); got != 2 { // dry runs count
			t.Errorf("%v findings of %s are counted", got, kind)
		}
	}
	if n := testutil.ToFloat64(w.metrics.ReconcileRuns.WithLabelValues("ok")); n != 3 {
		t.Errorf("%v runs are counted", n)
	}
	w.holds(t)
}

// broken is a store that a test breaks, and whose run another process may take at once.
type broken struct {
	*store.Store
	stale time.Duration
	fail  func(walk string) error
	mu    sync.Mutex
	walks []string
}

func (b *broken) BeginReconcile(ctx context.Context, owner string, dryRun bool, every, _ time.Duration) (order.ReconcileRun, error) {
	return b.Store.BeginReconcile(ctx, owner, dryRun, every, b.stale)
}

func (b *broken) Walk(ctx context.Context, place order.Place, limit int, m order.Mending, first order.Schedule) (order.Walked, error) {
	b.mu.Lock()
	b.walks = append(b.walks, place.Walk)
	b.mu.Unlock()
	if err := b.fail(place.Walk); err != nil {
		return order.Walked{}, err
	}
	return b.Store.Walk(ctx, place, limit, m, first)
}

func at(walk string, err error) func(string) error {
	return func(w string) error {
		if w == walk {
			return err
		}
		return nil
	}
}

func TestARunThatTheDatabaseBrokeOffIsGoneOnWithWhereItStood(t *testing.T) {
	w := spoiled(t)
	outage := order.Errorf(order.Unavailable, "database_unavailable", "no connection")
	first := &broken{Store: w.store, fail: at("messages", outage)}
	run, err := w.reconciler("one", first, w.metrics).Now(t.Context(), false)
	if !errors.Is(err, outage) || !run.Finished.IsZero() {
		t.Errorf("%+v, %v", run, err)
	}
	if _, err := w.reconciler("two", w.store, w.metrics).Now(t.Context(), false); order.KindOf(err) != order.Conflict {
		t.Errorf("its owner may still come back, but %v", err)
	}
	second := &broken{Store: w.store, fail: at("", nil)} // stale at once
	rest, err := w.reconciler("two", second, w.metrics).Now(t.Context(), false)
	if err != nil || rest.ID != run.ID || rest.Found != 4 || !slices.Equal(kindsOf(rest), allSpoiled) {
		t.Errorf("%+v, %v", rest, err)
	}
	if !slices.Equal(second.walks, []string{"cases", "messages", "resources"}) { // the last page that was noted is looked at again
		t.Errorf("it walked %v", second.walks)
	}
	if n := testutil.ToFloat64(w.metrics.ReconcileRuns.WithLabelValues("unfinished")); n != 1 {
		t.Errorf("%v unfinished runs are counted", n)
	}
	w.holds(t)
}

func TestARunThatFailsSaysWhyAndIsOver(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	boom := order.Errorf(order.Internal, "database_error", "no such table")
	for name, c := range map[string]struct {
		fail func(string) error
		dry  bool
		says string
	}{
		"an error":                   {at("cases", boom), false, "no such table"},
		"a panic":                    {func(string) error { panic("out of range") }, false, "panic: out of range"},
		"an outage during a dry run": {at("cases", order.Errorf(order.Unavailable, "down", "no connection")), true, "no connection"},
	} {
		run, err := w.reconciler("one", &broken{Store: w.store, fail: c.fail}, w.metrics).Now(t.Context(), c.dry)
		if err == nil || run.Error != c.says || run.Finished.IsZero() {
			t.Errorf("%s: %+v, %v", name, run, err)
		}
	}
	if n := testutil.ToFloat64(w.metrics.ReconcileRuns.WithLabelValues("failed")); n != 3 {
		t.Errorf("%v failed runs are counted", n)
	}
	if _, err := w.reconciler("one", w.store, w.metrics).Now(t.Context(), false); err != nil {
		t.Errorf("the next one: %v", err)
	}
}

func TestWhoeverHangsUpLeavesAMendingRunToOthersAndEndsADryRun(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	for _, dry := range []bool{true, false} {
		ctx, hangUp := context.WithCancel(t.Context())
		s := &broken{Store: w.store, fail: func(walk string) error {
			if walk == "cases" {
				hangUp()
			}
			return nil
		}}
		run, err := w.reconciler("one", s, w.metrics).Now(ctx, dry)
		if err == nil || run.Finished.IsZero() == dry {
			t.Errorf("dry %v: %+v, %v", dry, run, err)
		}
	}
	if run, err := w.reconciler("two", &broken{Store: w.store, fail: at("", nil)}, w.metrics).Now(t.Context(), false); err != nil || run.Position.Walk != "resources" {
		t.Errorf("%+v, %v", run, err)
	}
}

func TestTwoCompensatorsReconcileOnceAnInterval(t *testing.T) {
	w := spoiled(t)
	metrics := []*lifecycle.Metrics{lifecycle.NewMetrics(prometheus.NewRegistry()), lifecycle.NewMetrics(prometheus.NewRegistry())}
	for i, m := range metrics {
		defer start(t, w.reconciler(fmt.Sprint(i), w.store, m).Run)()
	}
	eventually(t, "both have seen that it was begun", func() bool {
		return testutil.ToFloat64(metrics[0].ReconcileBegan) > 0 && testutil.ToFloat64(metrics[1].ReconcileBegan) > 0
	})
	eventually(t, "it is over", func() bool {
		return testutil.ToFloat64(metrics[0].ReconcileRuns.WithLabelValues("ok"))+testutil.ToFloat64(metrics[1].ReconcileRuns.WithLabelValues("ok")) > 0
	})
	runs, found := 0.0, 0.0
	for _, m := range metrics {
		runs += testutil.ToFloat64(m.ReconcileRuns.WithLabelValues("ok"))
		for _, kind := range order.FindingKinds {
			found += testutil.ToFloat64(m.Findings.WithLabelValues(kind))
		}
		if every := testutil.ToFloat64(m.ReconcileEvery); every != 24*60*60 {
			t.Errorf("the interval is told as %vs", every)
		}
	}
	if runs != 1 || found != 4 {
		t.Errorf("%v runs found %v", runs, found)
	}
}

// ledger is a store in memory that only keeps the record of runs.
type ledger struct {
	lifecycle.ReconcileStore
	begun, kept, pages int
	lost               bool
	walk               func(ctx context.Context) (order.Walked, error)
}

func (l *ledger) BeginReconcile(context.Context, string, bool, time.Duration, time.Duration) (order.ReconcileRun, error) {
	l.begun++
	return order.ReconcileRun{ID: 1, Owner: "one"}, nil
}

func (l *ledger) Walk(ctx context.Context, _ order.Place, _ int, _ order.Mending, _ order.Schedule) (order.Walked, error) {
	l.pages++
	return l.walk(ctx)
}

func (l *ledger) KeepReconcile(context.Context, order.ReconcileRun) error {
	if l.kept++; l.lost {
		return order.Errorf(order.Conflict, "reconcile_lost", "somebody else has it")
	}
	return nil
}

func (l *ledger) NoteReconcile(context.Context, order.ReconcileRun) error { return nil }
func (l *ledger) EndReconcile(context.Context, *order.ReconcileRun) error { return nil }
func (l *ledger) LastReconcile(context.Context) (time.Time, error)        { return time.Now(), nil }

func onLedger(l *ledger, o lifecycle.ReconcileOptions) *lifecycle.Reconciler {
	m := lifecycle.NewMetrics(prometheus.NewRegistry())
	relay := lifecycle.NewRelay(nil, nil, func() lifecycle.RelayOptions { return lifecycle.RelayOptions{} }, m, zap.NewNop())
	return lifecycle.NewReconciler(l, relay, "one", []string{"all"}, func() lifecycle.ReconcileOptions { return o }, m, zap.NewNop())
}

func TestAReconciliationLooksAtNoMoreRowsASecondThanItMay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left := 1000
		l := &ledger{walk: func(context.Context) (w order.Walked, err error) {
			if left -= 200; left > 0 {
				w.Last = "more"
			}
			w.Looked = 200
			return w, nil
		}}
		began := time.Now()
		if run, err := onLedger(l, lifecycle.ReconcileOptions{Rate: 100}).Now(t.Context(), false); err != nil || run.Looked != 1000 {
			t.Errorf("%+v, %v", run, err)
		}
		if took := time.Since(began); took != 8*time.Second || l.pages != 5 { // nothing waits for the last page
			t.Errorf("%d pages took %v", l.pages, took)
		}
	})
}

func TestALongLookGivesSignsOfLifeAndEndsWhenTheRunIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{walk: func(ctx context.Context) (order.Walked, error) {
			select {
			case <-time.After(time.Hour):
				return order.Walked{}, nil
			case <-ctx.Done():
				return order.Walked{}, ctx.Err()
			}
		}}
		if _, err := onLedger(l, lifecycle.ReconcileOptions{}).Now(t.Context(), false); err != nil || l.kept < 59 {
			t.Errorf("%d signs of life in an hour, %v", l.kept, err)
		}
		l.lost = true
		began := time.Now()
		_, err := onLedger(l, lifecycle.ReconcileOptions{}).Now(t.Context(), false)
		if order.KindOf(err) != order.Conflict || time.Since(began) > 5*time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

func TestWhetherAReconciliationIsDueIsAskedAllTheTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{walk: func(context.Context) (order.Walked, error) { panic("every time") }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := onLedger(l, lifecycle.ReconcileOptions{}).Run(ctx); err != nil || l.begun < 60 || l.begun > 70 {
			t.Errorf("asked %d times in an hour, %v", l.begun, err)
		}
	})
}
