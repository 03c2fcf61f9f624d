package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// planting is damage made behind the store's back that the reconciler has to find and to mend.
type planting struct {
	name  string
	plant []string
	finds string // kinds, in their order; what is found in consequence of a mending too
}

// plantings are about the orders of populateForReconcile.
var plantings = []planting{
	{"an order is due, and nobody closed it",
		[]string{"UPDATE t_order SET expire_at = created_at WHERE order_no = 'ORDER-open'"}, "overdue_pending"},
	{"an order is due, and neither its time-out row nor its ledger is whole",
		[]string{"UPDATE t_order SET expire_at = created_at WHERE order_no = 'ORDER-open'", "DELETE FROM t_local_message WHERE dedup_key = 'ORDER-open:timeout'", releaseOf("ORDER-open")},
		"release_without_cancel timeout_missing overdue_pending counters_differ"},
	{"an order in doubt is beyond its deadline, and its row is thought sent",
		[]string{"UPDATE t_local_message SET state = 1 WHERE dedup_key = 'ORDER-doubt:timeout'"}, "confirming_stuck"},
	{"an order in doubt is beyond its deadline, and its row waits for the relay",
		[]string{"UPDATE t_local_message SET state = 0 WHERE dedup_key = 'ORDER-doubt:timeout'"}, "confirming_stuck"},
	{"a pending order has lost its time-out row",
		[]string{"DELETE FROM t_local_message WHERE dedup_key = 'ORDER-open:timeout'"}, "timeout_missing"},
	{"an order in doubt has lost its time-out row",
		[]string{"DELETE FROM t_local_message WHERE dedup_key = 'ORDER-doubt:timeout'"}, "timeout_missing"},
	{"the ledger has lost a release",
		[]string{"DELETE FROM t_resource_log WHERE order_no = 'ORDER-closed' AND op = 'release'"}, "release_missing"},
	{"the ledger has lost a remote release",
		[]string{"DELETE FROM t_resource_log WHERE order_no = 'ORDER-remote' AND op = 'release'"}, "release_missing"},
	{"the ledger has lost the release of an earlier round",
		[]string{"DELETE FROM t_resource_log WHERE order_no = 'ORDER-restored' AND op = 'release'"}, "release_missing"},
	{"a cancelled order gave nothing back, and told nobody",
		[]string{"DELETE FROM t_resource_log WHERE order_no = 'ORDER-closed' AND op = 'release'", "UPDATE t_resource SET available = available - 1, held = held + 1 WHERE ref = 'a'",
			"DELETE FROM t_local_message WHERE dedup_key = 'ORDER-closed:1:cancelled'"}, "release_missing event_missing counters_differ"},
	{"a cancelled order gave back too little",
		[]string{"UPDATE t_resource_log SET quantity = 1 WHERE order_no = 'ORDER-two' AND op = 'release'", "UPDATE t_resource SET available = available - 1, held = held + 1 WHERE ref = 'b'"},
		"release_missing counters_differ"},
	{"a cancelled order gave back too much",
		[]string{"UPDATE t_resource_log SET quantity = 3 WHERE order_no = 'ORDER-two' AND op = 'release'", "UPDATE t_resource SET available = available + 1 WHERE ref = 'b'"},
		"release_without_cancel counters_differ"},
	{"a pending order gave back what it holds",
		[]string{releaseOf("ORDER-open"), "UPDATE t_resource SET available = available + 1, held = held - 1 WHERE ref = 'a'"}, "release_without_cancel"},
	{"the ledger says of a paid order that it gave back",
		[]string{releaseOf("ORDER-paid")}, "release_without_cancel counters_differ"},
	{"an order was cancelled by nothing but an update",
		[]string{"UPDATE t_order SET status = 20 WHERE order_no = 'ORDER-open'"}, "cancel_unlogged release_missing event_missing message_stuck counters_differ"},
	{"an order in doubt was cancelled by nothing but an update",
		[]string{"UPDATE t_order SET status = 20, version = version + 1, cancelled_at = confirm_until WHERE order_no = 'ORDER-doubt'"},
		"cancel_unlogged release_missing event_missing message_stuck counters_differ"},
	{"the counters have lost a sale",
		[]string{"UPDATE t_resource SET sold = sold - 1 WHERE ref = 'a'"}, "counters_differ"},
	{"the counters have moved",
		[]string{"UPDATE t_resource SET available = available + 2, held = held - 1 WHERE ref = 'a'", "UPDATE t_resource SET held = held + 3 WHERE ref = 'b'"}, "counters_differ counters_differ"},
	{"an event was lost before it was sent",
		[]string{"DELETE FROM t_local_message WHERE dedup_key = 'ORDER-closed:1:cancelled'"}, "event_missing"},
	{"an event of an earlier round was lost",
		[]string{"DELETE FROM t_local_message WHERE dedup_key = 'ORDER-restored:1:cancelled'"}, "event_missing"},
	{"an event of a later round was lost",
		[]string{"DELETE FROM t_local_message WHERE dedup_key = 'ORDER-twice:2:cancelled'"}, "event_missing"},
	{"the ledger has lost the release of a later round",
		[]string{"DELETE FROM t_resource_log WHERE order_no = 'ORDER-twice' AND op = 'release' AND round = 2"}, "release_missing"},
	{"a remote service has not acknowledged",
		[]string{"UPDATE t_order_log SET event_sent_at = at WHERE order_no = 'ORDER-remote' AND to_status = 20"}, "release_unacknowledged"},
	{"the broker refused a time-out",
		[]string{"UPDATE t_local_message SET state = 2 WHERE dedup_key = 'ORDER-open:timeout'"}, "message_stuck"},
	{"the broker refused an event",
		[]string{"UPDATE t_local_message SET state = 2, attempts = 16 WHERE dedup_key = 'ORDER-closed:1:cancelled'"}, "message_stuck"},
	{"nobody has looked at a message that is due",
		[]string{"UPDATE t_local_message SET next_at = due_at WHERE dedup_key = 'ORDER-closed:1:cancelled'"}, "message_stuck"},
	{"nobody will look at a message that is due",
		[]string{"UPDATE t_local_message SET next_at = (SELECT expire_at FROM t_order WHERE order_no = 'ORDER-open') WHERE dedup_key = 'ORDER-closed:1:cancelled'"}, "message_stuck"},
	{"nobody will ask about an order in doubt",
		[]string{"UPDATE t_local_message SET next_at = (SELECT expire_at FROM t_order WHERE order_no = 'ORDER-open') WHERE dedup_key = 'ORDER-doubt:timeout'"}, "message_stuck"},
	{"an event is marked as sent, and still there",
		[]string{"UPDATE t_local_message SET state = 1 WHERE dedup_key = 'ORDER-closed:1:cancelled'"}, "message_stuck"},
	{"a time-out row has outlived its order",
		[]string{"INSERT INTO t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, next_at, payload) SELECT 'ORDER-paid:timeout', 'timeout', 'ORDER-paid', 1, 'timeout', 0, due_at, next_at, payload FROM t_local_message WHERE dedup_key = 'ORDER-open:timeout'"},
		"message_stuck"},
	{"a time-out row has no order",
		[]string{"INSERT INTO t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, next_at, payload) SELECT 'ORDER-none:timeout', 'timeout', 'ORDER-none', 1, 'timeout', 0, due_at, next_at, payload FROM t_local_message WHERE dedup_key = 'ORDER-open:timeout'"},
		"message_stuck"},
	{"a case has waited for a person for long",
		[]string{"UPDATE t_late_payment SET created_at = (SELECT created_at FROM t_order WHERE order_no = 'ORDER-long-ago')"}, "late_case_open"},
	{"a policy to refund was not followed",
		[]string{"UPDATE t_late_payment SET policy = 'refund'"}, "late_case_open"},
	{"a policy to reopen was not followed",
		[]string{"UPDATE t_late_payment SET policy = 'reopen'"}, "late_case_open"},
	{"a policy to reopen was not followed, and what the order had is gone",
		[]string{"UPDATE t_late_payment SET policy = 'reopen'", "UPDATE t_resource_log SET quantity = quantity - 4 WHERE op = 'adjust' AND ref = 'a'", "UPDATE t_resource SET available = available - 4 WHERE ref = 'a'"}, "late_case_open"},
	{"a refund takes long",
		[]string{"UPDATE t_late_payment SET policy = 'refund', status = 'requested', changed_at = (SELECT created_at FROM t_order WHERE order_no = 'ORDER-long-ago')"}, "late_case_open"},
}

// releaseOf enters a release of what an order reserved.
func releaseOf(orderNo string) string {
	return "INSERT INTO t_resource_log (order_no, round, op, kind, ref, quantity, at) SELECT order_no, round, 'release', kind, ref, quantity, at FROM t_resource_log WHERE order_no = '" +
		orderNo + "' AND op = 'reserve'"
}

var reconcileTests = map[string]func(t *testing.T, b bed){
	"sound data has nothing to be mended": func(t *testing.T, b bed) {
		b.populateForReconcile()
		for _, d := range []time.Duration{2 * time.Minute, 30 * time.Minute} {
			b.restMessages(d)
			if found := b.reconcile(d, false); len(found) != 0 {
				t.Errorf("after %v: %+v", d, found)
			}
		}
	},
	"everything at once is mended, once": func(t *testing.T, b bed) {
		b.populateForReconcile()
		b.calm(reconcileAt)
		for _, text := range []string{
			"UPDATE t_order SET expire_at = created_at WHERE order_no = 'ORDER-open'", "DELETE FROM t_local_message", "UPDATE t_order_log SET event_sent_at = NULL",
			"DELETE FROM t_resource_log WHERE op = 'release'", releaseOf("ORDER-paid"), "UPDATE t_resource SET available = 5, held = 5, sold = 5",
			"UPDATE t_late_payment SET policy = 'refund'",
		} {
			b.exec(text)
		}
		kinds := map[string]int{}
		for _, f := range b.reconcile(reconcileAt, false) {
			if kinds[f.Kind]++; !f.Mended {
				t.Errorf("not mended: %+v", f)
			}
		}
		if want := "map[counters_differ:3 event_missing:8 late_case_open:1 overdue_pending:1 release_missing:8 release_without_cancel:1 timeout_missing:3]"; fmt.Sprint(kinds) != want {
			t.Errorf("found %v, want %s", kinds, want)
		}
		if again := b.reconcile(reconcileAt, false); len(again) != 0 {
			t.Errorf("found again: %+v", again)
		}
	},
	"an event that is told again has the same id and the same body": func(t *testing.T, b bed) {
		b.populateForReconcile()
		events := func() []string {
			return strings.Split(b.payloads("SELECT dedup_key, payload FROM t_local_message WHERE type = 'cancelled' ORDER BY dedup_key"), "\n")
		}
		before := events()
		if len(before) != 8 || !strings.Contains(strings.Join(before, ""), `"forfeited":true`) || !strings.Contains(strings.Join(before, ""), `"remote":true`) {
			t.Fatalf("%d events: %v", len(before), before)
		}
		b.exec("DELETE FROM t_local_message WHERE type = 'cancelled'")
		b.exec("DELETE FROM t_resource_log WHERE op IN ('release', 'forfeit')")
		b.reconcile(2*time.Minute, false)
		for i, now := range events() {
			if now != before[i] {
				t.Errorf("told\n%s\nbefore\n%s", now, before[i])
			}
		}
	},
	"what was given back without reason and taken by others is left to a person": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.exec(releaseOf("ORDER-1"))
		b.exec("UPDATE t_resource SET available = 1, held = 0")
		b.create(draft("ORDER-2", "a"))
		before := b.dump(businessTables...)
		for range 2 {
			found := b.reconcile(30*time.Second, false)
			if len(found) != 1 || found[0].Kind != order.ReleaseWithoutCancel || found[0].Mended || found[0].Action != "left to a person" {
				t.Errorf("%+v", found)
			}
		}
		if b.dump(businessTables...) != before {
			t.Error("something changed")
		}
		b.tolerated["what a round reserved was released once if it was cancelled, else not"] = true
	},
	"a paid order that an update cancelled is left to a person, and nobody is told": func(t *testing.T, b bed) {
		b.populateForReconcile()
		b.exec("UPDATE t_order SET status = 20 WHERE order_no = 'ORDER-paid'")
		before := b.dump(append(businessTables, "t_local_message")...)
		found := b.reconcile(2*time.Minute, false)
		if len(found) != 1 || found[0].Kind != order.CancelUnlogged || found[0].Mended {
			t.Errorf("%+v", found)
		}
		if b.dump(append(businessTables, "t_local_message")...) != before {
			t.Error("something changed")
		}
		b.exec("UPDATE t_order SET status = 10 WHERE order_no = 'ORDER-paid'")
	},
	"counters that cannot be what the ledger says are left to a person": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.exec("UPDATE t_resource_log SET quantity = -1")
		found := b.reconcile(0, false)
		if len(found) != 1 || found[0].Kind != order.CountersDiffer || found[0].Mended || !strings.HasPrefix(found[0].Action, "left to a person: ") {
			t.Errorf("%+v", found)
		}
		b.exec("UPDATE t_resource_log SET quantity = 1")
	},
	"what was purged is no damage": func(t *testing.T, b bed) {
		b.populateForReconcile()
		b.purgeAll(401 * day)
		if b.count("SELECT COUNT(*) FROM t_resource_log WHERE order_no = '~carried'") == 0 {
			t.Fatal("nothing was carried")
		}
		if found := b.reconcile(2*time.Minute, false); len(found) != 0 {
			t.Errorf("%+v", found)
		}
	},
	"closing that is off or in shadow is no damage": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		b.exec("DELETE FROM t_local_message") // it is not about them
		for i, mode := range []order.Mode{order.ModeOff, order.ModeShadow} {
			b.setMode(mode)
			at := time.Duration(i+1) * time.Hour
			if found := b.reconcile(at, false); i == 0 && (len(found) != 1 || found[0].Kind != order.TimeoutMissing) {
				t.Errorf("%s: %+v", mode, found)
			}
			b.restMessages(at)
			if found := b.reconcile(at, false); len(found) != 0 || b.status("ORDER-1") != order.Pending {
				t.Errorf("%s: %+v", mode, found)
			}
		}
	},
	"the overdue get their second chance, and payments in flight are waited for": func(t *testing.T, b bed) {
		patient, doubtful := draft("ORDER-1"), draft("ORDER-2")
		patient.Rule.SecondChance = 10 * time.Hour
		b.create(patient, doubtful)
		if _, _, err := b.at(0).StartPayment(context.Background(), order.Attempting{AttemptNo: "ATTEMPT-1", OrderNo: "ORDER-2", Channel: "card", Lifetime: time.Hour}); err != nil {
			t.Fatal(err)
		}
		b.restMessages(20 * time.Minute)
		found := b.reconcile(20*time.Minute, false)
		if len(found) != 2 || found[0].Action != "reminded" || found[1].Action != "confirming now: its payment is in flight" {
			t.Errorf("%+v", found)
		}
		if b.status("ORDER-1") != order.Pending || b.status("ORDER-2") != order.Confirming {
			t.Errorf("%v, %v", b.status("ORDER-1"), b.status("ORDER-2"))
		}
	},
	"a dry run counts and names, and keeps nothing else": func(t *testing.T, b bed) {
		b.populateForReconcile()
		b.exec("DELETE FROM t_local_message WHERE dedup_key = 'ORDER-open:timeout'")
		run := b.reconcileRun(2*time.Minute, true)
		if run.Found != 1 || run.Mended != 0 || len(run.Findings) != 1 || run.Findings[0].Mended || run.Findings[0].Action != "its time-out row was written again" || !run.DryRun {
			t.Errorf("%+v", run)
		}
		if run := b.reconcileRun(2*time.Minute, false); run.Found != 1 || run.Mended != 1 || !run.Findings[0].Mended {
			t.Errorf("%+v", run)
		}
	},
	"of very many findings the first are kept and all are counted": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.exec("UPDATE t_resource SET available = 0")
		var rows []string
		for i := range 1024 {
			rows = append(rows, fmt.Sprintf("('stock', 'b%d', 1, 0, 0)", i))
		}
		b.exec("INSERT INTO t_resource (kind, ref, available, held, sold) VALUES " + strings.Join(rows, ","))
		run := b.reconcileRun(0, false)
		if run.Found != 1025 || run.Mended != 1025 || len(run.Findings) != order.MaxFindings || run.Looked != 1025 {
			t.Errorf("%d found, %d mended, %d kept, %d looked at", run.Found, run.Mended, len(run.Findings), run.Looked)
		}
		if run := b.reconcileRun(0, false); run.Found != 0 {
			t.Errorf("%d found again", run.Found)
		}
	},
	"a live system is not mended for what it is doing, and counters that had parted from the ledger meet it again": func(t *testing.T, b bed) {
		const shops, orders = 4, 40
		ctx, s := context.Background(), b.real()
		b.stock("a", 1000)
		b.exec("UPDATE t_resource SET available = available - 30, held = held + 20, sold = sold + 10")
		var serial atomic.Int32
		shop := func() {
			for range orders {
				no := fmt.Sprintf("ORDER-%04d", serial.Add(1))
				made := b.createWith(s, leased, draft(no, "a"))
				_, err := s.Pay(ctx, payment("P-"+no, no), order.Rules{}, leased)
				if made[0].Order.ID%2 == 0 {
					no = fmt.Sprintf("ORDER-%04d", serial.Add(1))
					b.createWith(s, leased, draft(no, "a"))
					var rows []order.Message
					_, rows, err = s.Cancel(ctx, wish(no, "u1"), leased)
					for _, m := range rows {
						err = errors.Join(err, s.Settle(ctx, []order.Sent{{Message: m}}))
					}
				}
				if err != nil {
					t.Error(err)
				}
			}
		}
		var findings []order.Finding
		rounds := 0
		run, err := s.BeginReconcile(ctx, "one", false, 0, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		reconciler := func() {
			for serial.Load() < shops*orders {
				found, _, err := walkAll(s, run)
				if err != nil {
					t.Error(err)
				}
				findings = append(findings, found...)
				rounds++
			}
		}
		together(append(slices.Repeat([]func(){shop}, shops), reconciler)...)
		if len(findings) != 1 || findings[0].Kind != order.CountersDiffer || !findings[0].Mended {
			t.Errorf("%d rounds found %+v", rounds, findings)
		}
		t.Logf("%d rounds beside %d orders", rounds, serial.Load())
	},
	"pages are walked to their end": func(t *testing.T, b bed) {
		b.populateForReconcile()
		run := b.begin(2*time.Minute, false)
		for walk, table := range map[string]string{"orders": "t_order", "cases": "t_late_payment", "messages": "t_local_message", "resources": "t_resource"} {
			looked := 0
			for place := (order.Place{Walk: walk}); ; {
				w, err := b.at(2*time.Minute).Walk(context.Background(), place, 2, mendingOf(run), leased)
				if err != nil || w.Looked > 2 && walk != "resources" {
					t.Fatal(w, err)
				}
				if looked += w.Looked; w.Last == "" {
					break
				}
				place.Key = w.Last
			}
			if n := b.count("SELECT COUNT(*) FROM " + table); looked != n {
				t.Errorf("%s: %d of %d", walk, looked, n)
			}
		}
	},
	"one run at a time, and one that was broken off is gone on with": func(t *testing.T, b bed) {
		ctx := context.Background()
		run := b.begin(0, false)
		_, err := b.at(30*time.Second).BeginReconcile(ctx, "two", false, 0, time.Minute)
		expectError(t, err, order.Conflict, "reconcile_running")
		run.Position, run.Looked = order.Place{Walk: "cases", Key: "P:1"}, 7
		if err := b.at(40*time.Second).NoteReconcile(ctx, run); err != nil {
			t.Fatal(err)
		}
		if err := b.at(50*time.Second).KeepReconcile(ctx, run); err != nil {
			t.Fatal(err)
		}
		_, err = b.at(109*time.Second).BeginReconcile(ctx, "two", false, 0, time.Minute)
		expectError(t, err, order.Conflict, "reconcile_running")
		_, err = b.at(111*time.Second).BeginReconcile(ctx, "two", true, 0, time.Minute)
		expectError(t, err, order.Conflict, "reconcile_unfinished")
		again, err := b.at(111*time.Second).BeginReconcile(ctx, "one", false, time.Hour, time.Minute) // not due, but unfinished
		if err != nil || again.ID != run.ID || again.Position != run.Position || again.Looked != 7 || !again.Started.Equal(noon) {
			t.Errorf("%+v, %v", again, err)
		}
		expectError(t, b.at(112*time.Second).NoteReconcile(ctx, run), order.Conflict, "reconcile_lost")
		expectError(t, b.at(112*time.Second).KeepReconcile(ctx, run), order.Conflict, "reconcile_lost")
		expectError(t, b.at(112*time.Second).EndReconcile(ctx, &run), order.Conflict, "reconcile_lost")
		for range 2 { // the answer of the first may have been lost
			if err := b.at(113*time.Second).EndReconcile(ctx, &again); err != nil || !again.Finished.Equal(noon.Add(113*time.Second)) {
				t.Error(again.Finished, err)
			}
		}
		expectError(t, b.at(114*time.Second).NoteReconcile(ctx, again), order.Conflict, "reconcile_lost")
	},
	"whoever has lost the run mends nothing": func(t *testing.T, b bed) {
		b.populateForReconcile()
		at := 2 * time.Minute
		for _, text := range []string{"DELETE FROM t_local_message WHERE dedup_key = 'ORDER-open:timeout'", "UPDATE t_local_message SET state = 2 WHERE dedup_key = 'ORDER-closed:1:cancelled'",
			"UPDATE t_late_payment SET status = 'requested', changed_at = created_at", "UPDATE t_resource SET sold = sold + 1"} {
			b.exec(text)
		}
		run := b.begin(at, false)
		m := mendingOf(run)
		m.Patience.Case = time.Second
		if _, err := b.at(time.Hour).BeginReconcile(context.Background(), "reconciler", false, 0, time.Minute); err != nil {
			t.Fatal(err)
		}
		before := b.dump(append(businessTables, "t_local_message", "t_reconcile_run", "t_reconcile_finding")...)
		for _, walk := range store.ReconcileWalks {
			for _, dry := range []bool{false, true} {
				m.DryRun = dry
				_, err := b.at(at).Walk(context.Background(), order.Place{Walk: walk}, 100, m, leased)
				expectError(t, err, order.Conflict, "reconcile_lost")
			}
		}
		if b.dump(append(businessTables, "t_local_message", "t_reconcile_run", "t_reconcile_finding")...) != before {
			t.Error("something changed")
		}
		if found := b.reconcile(3*time.Hour, false); len(found) == 0 { // the other one was broken off too
			t.Error("nothing found")
		}
	},
	"a dry run that was broken off is in nobody's way": func(t *testing.T, b bed) {
		ctx := context.Background()
		dry := b.begin(0, true)
		_, err := b.at(59*time.Second).BeginReconcile(ctx, "two", false, 0, time.Minute)
		expectError(t, err, order.Conflict, "reconcile_running")
		run, err := b.at(time.Minute).BeginReconcile(ctx, "two", false, 0, time.Minute)
		if err != nil || run.ID == dry.ID || run.DryRun {
			t.Errorf("%+v, %v", run, err)
		}
		if b.count("SELECT COUNT(*) FROM t_reconcile_run WHERE error = 'broken off' AND finished_at IS NOT NULL") != 1 {
			t.Error("its record does not say so")
		}
	},
	"the next run is due by the database, whoever ran the last one": func(t *testing.T, b bed) {
		ctx := context.Background()
		if began, err := b.at(0).LastReconcile(ctx); err != nil || !began.IsZero() {
			t.Error(began, err)
		}
		run := b.begin(0, false)
		if err := b.at(time.Second).EndReconcile(ctx, &run); err != nil {
			t.Fatal(err)
		}
		dry := b.begin(time.Hour, true) // does not count
		if err := b.at(time.Hour).EndReconcile(ctx, &dry); err != nil {
			t.Fatal(err)
		}
		if began, err := b.at(0).LastReconcile(ctx); err != nil || !began.Equal(noon) {
			t.Error(began, err)
		}
		_, err := b.at(day-time.Second).BeginReconcile(ctx, "two", false, day, time.Minute)
		expectError(t, err, order.Conflict, "reconcile_not_due")
		if _, err := b.at(day).BeginReconcile(ctx, "two", false, day, time.Minute); err != nil {
			t.Error(err)
		}
	},
}

// reconcileAt is long after populate: leases have run out and deadlines have passed.
const reconcileAt = 71 * time.Hour

func init() {
	for _, d := range plantings {
		reconcileTests["it finds and mends that "+d.name+", once"] = func(t *testing.T, b bed) {
			b.populateForReconcile()
			b.calm(reconcileAt)
			for _, text := range d.plant {
				b.exec(text)
			}
			before := b.dump(append(businessTables, "t_local_message")...)
			dry := b.reconcile(reconcileAt, true)
			if b.dump(append(businessTables, "t_local_message")...) != before {
				t.Error("a dry run changed something")
			}
			if len(dry) == 0 || !strings.HasPrefix(d.finds, dry[0].Kind) || dry[0].Mended || dry[0].Action == "" {
				t.Errorf("dry run: %+v", dry)
			}
			found := b.reconcile(reconcileAt, false)
			kinds := make([]string, len(found))
			for i, f := range found {
				kinds[i] = f.Kind
				if !f.Mended || f.Subject == "" || f.Detail == "" || f.Action == "" {
					t.Errorf("%+v", f)
				}
			}
			if strings.Join(kinds, " ") != d.finds {
				t.Errorf("found %+v, want %s", found, d.finds)
			}
			if again := b.reconcile(reconcileAt, false); len(again) != 0 {
				t.Errorf("found again: %+v", again)
			}
			b.restMessages(0)
		}
	}
}

// populateForReconcile is populate and orders that hold more: of another service, two of a thing, and a coupon that had
// run out when its order was cancelled; and one that was cancelled twice.
func (b bed) populateForReconcile() {
	b.t.Helper()
	b.populate()
	b.stock("b", 5)
	coupon := order.Adjustment{ID: "coupon", Kind: "coupon", Ref: "c", Delta: 1, ValidUntil: noon.Add(30 * time.Second)}
	if _, err := b.at(0).Adjust(context.Background(), coupon); err != nil {
		b.t.Fatal(err)
	}
	remote, two, forfeit, twice := draft("ORDER-remote"), draft("ORDER-two"), draft("ORDER-forfeit"), draft("ORDER-twice", "b")
	remote.Items = []order.Item{{Kind: "cart", Ref: "basket", Quantity: 1, Remote: true}}
	two.Items = []order.Item{{Kind: "stock", Ref: "b", Quantity: 2}}
	forfeit.Items = []order.Item{{Kind: "coupon", Ref: "c", Quantity: 1}}
	b.create(remote, two, forfeit, twice)
	if batch := b.closeAt(time.Minute, "ORDER-remote", "ORDER-two", "ORDER-forfeit", "ORDER-twice"); len(batch.Closed) != 4 {
		b.t.Fatal("not closed")
	}
	again := order.Restoring{OrderNo: "ORDER-twice", Timeout: 10 * time.Second, Act: staff}
	if _, err := b.at(time.Minute).Restore(context.Background(), again, leased); err != nil {
		b.t.Fatal(err)
	}
	if batch := b.closeAt(70*time.Second, "ORDER-twice"); len(batch.Closed) != 1 {
		b.t.Fatal("not closed again")
	}
}

// calm brings everything to rest at a time: nothing but what a test plants is to be found then.
func (b bed) calm(at time.Duration) {
	b.t.Helper()
	ago := draft("ORDER-long-ago")
	ago.Amount = 0
	b.createWith(b.at(at-100*day), leased, ago)
	for _, no := range []string{"ORDER-open", "ORDER-restored"} {
		e := order.Extending{OrderNo: no, Until: noon.Add(at + 24*time.Hour), Act: staff}
		if _, err := b.at(0).Extend(context.Background(), e, leased); err != nil {
			b.t.Fatal(err)
		}
	}
	b.restMessages(at)
	b.exec("UPDATE t_order_log SET event_sent_at = (SELECT created_at FROM t_order WHERE order_no = '" + b.moment(at) + "') WHERE to_status = 20 AND order_no = 'ORDER-remote'")
	b.exec("DELETE FROM t_local_message WHERE dedup_key = 'ORDER-remote:1:cancelled'")
}

// restMessages lets somebody have looked at all messages just now.
func (b bed) restMessages(at time.Duration) {
	b.t.Helper()
	b.exec("UPDATE t_local_message SET next_at = (SELECT created_at FROM t_order WHERE order_no = '" + b.moment(at) + "')")
}

// moment is an order that was created, with nothing to pay, at a time: for texts that set times in either database's form.
func (b bed) moment(at time.Duration) string {
	b.t.Helper()
	d := draft(fmt.Sprintf("MOMENT-%d", at.Milliseconds()))
	d.Amount = 0
	b.createWith(b.at(at), leased, d)
	return d.OrderNo
}

// payloads are two columns of text.
func (b bed) payloads(text string) string {
	b.t.Helper()
	rows, err := b.DB.Query(text)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		var key string
		var payload []byte
		if err := rows.Scan(&key, &payload); err != nil {
			b.t.Fatal(err)
		}
		lines = append(lines, key+" "+string(payload))
	}
	if err := rows.Err(); err != nil {
		b.t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func (b bed) begin(at time.Duration, dryRun bool) order.ReconcileRun {
	b.t.Helper()
	run, err := b.at(at).BeginReconcile(context.Background(), "one", dryRun, 0, time.Minute)
	if err != nil {
		b.t.Fatal(err)
	}
	return run
}

func mendingOf(run order.ReconcileRun) order.Mending {
	return order.Mending{Run: run.ID, Owner: run.Owner, DryRun: run.DryRun, Patience: order.Patience{}.WithDefaults(), Confirm: time.Minute, Actor: "reconciler"}
}

// walkAll takes all walks of a run.
func walkAll(s *store.Store, run order.ReconcileRun) (found []order.Finding, looked int64, err error) {
	for _, walk := range store.ReconcileWalks {
		for place := (order.Place{Walk: walk}); ; {
			w, err := s.Walk(context.Background(), place, 100, mendingOf(run), leased)
			if err != nil {
				return found, looked, fmt.Errorf("%s: %w", walk, err)
			}
			found = append(found, w.Findings...)
			looked += int64(w.Looked)
			if w.Last == "" {
				break
			}
			place.Key = w.Last
		}
	}
	return found, looked, nil
}

// reconcileRun is a whole run.
func (b bed) reconcileRun(at time.Duration, dryRun bool) order.ReconcileRun {
	b.t.Helper()
	s, run := b.at(at), b.begin(at, dryRun)
	found, looked, err := walkAll(s, run)
	if err != nil {
		b.t.Fatal(err)
	}
	run.Looked = looked
	if err := s.EndReconcile(context.Background(), &run); err != nil {
		b.t.Fatal(err)
	}
	if kept := found[:min(len(found), order.MaxFindings)]; !slices.Equal(run.Findings, kept) || run.Found != int64(len(found)) {
		b.t.Errorf("the record has %d: %+v, but found were %+v", run.Found, run.Findings, found)
	}
	return run
}

func (b bed) reconcile(at time.Duration, dryRun bool) []order.Finding {
	b.t.Helper()
	return b.reconcileRun(at, dryRun).Findings
}
