package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// planted are damages made behind the store's back, with the kind under which the reconciler has to find them. Orders are
// those of populate.
var planted = []struct{ name, plant, kind string }{
	{"an order is due, and nobody closed it", "UPDATE t_order SET expire_at = created_at WHERE order_no = 'ORDER-open'", order.OverduePending},
	{"an order in doubt is beyond its deadline, and nobody asks", "UPDATE t_local_message SET state = 1 WHERE dedup_key = 'ORDER-doubt:timeout'", order.ConfirmingStuck},
	{"a pending order has lost its time-out row", "DELETE FROM t_local_message WHERE dedup_key = 'ORDER-open:timeout'", order.TimeoutMissing},
	{"an order in doubt has lost its time-out row", "DELETE FROM t_local_message WHERE dedup_key = 'ORDER-doubt:timeout'", order.TimeoutMissing},
	{"the ledger has lost a release", "DELETE FROM t_resource_log WHERE order_no = 'ORDER-closed' AND op = 'release'", order.ReleaseMissing},
	{"the ledger has a release of an order that is paid", "INSERT INTO t_resource_log (order_no, round, op, kind, ref, quantity, at) SELECT order_no, round, 'release', kind, ref, quantity, at FROM t_resource_log WHERE order_no = 'ORDER-open' AND op = 'reserve'", order.ReleaseWithoutCancel},
	{"the counters have lost a sale", "UPDATE t_resource SET sold = sold - 1 WHERE ref = 'a'", order.CountersDiffer},
	{"the counters have moved", "UPDATE t_resource SET available = available + 2, held = held - 1 WHERE ref = 'a'", order.CountersDiffer},
	{"an event was lost before it was sent", "DELETE FROM t_local_message WHERE dedup_key = 'ORDER-closed:1:cancelled'", order.EventMissing},
	{"an event of an earlier round was lost", "DELETE FROM t_local_message WHERE dedup_key = 'ORDER-restored:1:cancelled'", order.EventMissing},
	{"a remote service has not acknowledged", "UPDATE t_order_log SET event_sent_at = at WHERE order_no = 'ORDER-remote' AND to_status = 20", order.Unacknowledged},
	{"the broker refused a message", "UPDATE t_local_message SET state = 2 WHERE dedup_key = 'ORDER-open:timeout'", order.MessageStuck},
	{"a message is in nobody's hands", "UPDATE t_local_message SET next_at = due_at WHERE dedup_key = 'ORDER-closed:1:cancelled'", order.MessageStuck},
	{"a time-out row has outlived its order", "INSERT INTO t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, next_at, payload) SELECT 'ORDER-paid:timeout', 'timeout', 'ORDER-paid', 1, 'timeout', 0, due_at, next_at, payload FROM t_local_message WHERE dedup_key = 'ORDER-open:timeout'", order.MessageStuck},
	{"a case waits for a person", "", order.LateCaseOpen},
	{"a policy was not followed", "UPDATE t_late_payment SET policy = 'refund'", order.LateCaseOpen},
	{"a refund takes long", "UPDATE t_late_payment SET policy = 'refund', status = 'requested', changed_at = created_at", order.LateCaseOpen},
}

var reconcileTests = map[string]func(t *testing.T, b bed){
	"sound data has nothing to be mended": func(t *testing.T, b bed) {
		b.populateForReconcile()
		if found := b.reconcile(2*time.Minute, false); len(found) != 0 {
			t.Errorf("%+v", found)
		}
	},
	"one run at a time, and one that was broken off is gone on with": func(t *testing.T, b bed) {
		ctx := context.Background()
		run, err := b.at(0).BeginReconcile(ctx, "one", false, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.at(30*time.Second).BeginReconcile(ctx, "two", false, time.Minute)
		expectError(t, err, order.Conflict, "reconcile_running")
		run.Position, run.Looked, run.Found = order.Place{Walk: "cases", Key: "P1"}, 7, 1
		if err := b.at(40*time.Second).NoteReconcile(ctx, &run, []order.Finding{{Kind: order.MessageStuck, Subject: "x", Detail: "d", Action: "a", Mended: true}}, false); err != nil {
			t.Fatal(err)
		}
		_, err = b.at(99*time.Second).BeginReconcile(ctx, "two", false, time.Minute)
		expectError(t, err, order.Conflict, "reconcile_running")
		_, err = b.at(101*time.Second).BeginReconcile(ctx, "two", true, time.Minute)
		expectError(t, err, order.Conflict, "reconcile_unfinished")
		again, err := b.at(101*time.Second).BeginReconcile(ctx, "two", false, time.Minute)
		if err != nil || again.ID != run.ID || again.Position != run.Position || again.Looked != 7 || again.Found != 1 || !again.Started.Equal(noon) {
			t.Errorf("%+v, %v", again, err)
		}
		expectError(t, b.at(102*time.Second).NoteReconcile(ctx, &run, nil, false), order.Conflict, "reconcile_lost")
		if err := b.at(103*time.Second).NoteReconcile(ctx, &again, nil, true); err != nil || !again.Finished.Equal(noon.Add(103*time.Second)) {
			t.Error(again.Finished, err)
		}
		found, err := b.at(0).Findings(ctx, run.ID)
		if err != nil || len(found) != 1 || found[0].Subject != "x" || !found[0].Mended {
			t.Errorf("%+v, %v", found, err)
		}
		if began, now, err := b.at(time.Hour).LastReconcile(ctx); err != nil || !began.Equal(noon) || !now.Equal(noon.Add(time.Hour)) {
			t.Error(began, now, err)
		}
	},
	"pages are walked to their end": func(t *testing.T, b bed) {
		b.populateForReconcile()
		ctx, s := context.Background(), b.at(2*time.Minute)
		looked := 0
		for place := (order.Place{Walk: "orders"}); ; {
			w, err := s.Walk(ctx, place, 2, order.Mending{Patience: order.Patience{}.WithDefaults()}, leased)
			if err != nil || w.Looked > 2 {
				t.Fatal(w, err)
			}
			if looked += w.Looked; w.Last == "" {
				break
			}
			place.Key = w.Last
		}
		if n := b.count("SELECT COUNT(*) FROM t_order"); looked != n {
			t.Errorf("%d of %d", looked, n)
		}
	},
	"closing that is off is no damage": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		b.setMode(order.ModeOff)
		b.exec("DELETE FROM t_local_message") // it is not about them
		found := b.reconcile(time.Hour, false)
		if len(found) != 1 || found[0].Kind != order.TimeoutMissing || b.status("ORDER-1") != order.Pending {
			t.Errorf("%+v", found)
		}
		if found = b.reconcile(time.Hour, false); len(found) != 0 || b.status("ORDER-1") != order.Pending {
			t.Errorf("%+v", found)
		}
	},
}

func init() {
	for _, d := range planted {
		reconcileTests["it finds and mends that "+d.name+", once"] = func(t *testing.T, b bed) {
			b.populateForReconcile()
			at := time.Minute + 71*time.Hour // leases of populate's messages have long run out: they are sent
			if d.plant == "" || d.kind == order.LateCaseOpen {
				at = 80 * time.Hour
			}
			b.calm(at)
			if d.plant != "" {
				b.exec(d.plant)
			}
			before := b.dump(append(businessTables, "t_local_message")...)
			dry := b.reconcile(at, true)
			if b.dump(append(businessTables, "t_local_message")...) != before {
				t.Error("a dry run changed something")
			}
			found := b.reconcile(at, false)
			if len(found) == 0 || found[0].Kind != d.kind || !found[0].Mended || found[0].Detail == "" || found[0].Action == "" {
				t.Fatalf("%+v", found)
			}
			if len(dry) == 0 || dry[0].Kind != d.kind || dry[0].Mended {
				t.Errorf("dry run: %+v", dry)
			}
			if again := b.reconcile(at, false); len(again) != 0 {
				t.Errorf("found again: %+v", again)
			}
		}
	}
}

// populateForReconcile is populate and an order that another service holds something of.
func (b bed) populateForReconcile() {
	b.populate()
	d := draft("ORDER-remote")
	d.Items = []order.Item{{Kind: "cart", Ref: "basket", Quantity: 1, Remote: true}}
	b.create(d)
	if batch := b.closeAt(time.Minute, "ORDER-remote"); len(batch.Closed) != 1 {
		b.t.Fatal("not closed")
	}
}

// calm brings everything to rest at a time: nothing but what a test plants is to be found then.
func (b bed) calm(at time.Duration) {
	b.t.Helper()
	d := draft("ORDER-far")
	d.Amount = 0
	if made, err := b.at(at+24*time.Hour).Create(context.Background(), []order.Draft{d}, leased); err != nil || made[0].Err != nil {
		b.t.Fatal(err, made[0].Err)
	}
	for _, text := range []string{
		"UPDATE t_local_message SET next_at = (SELECT created_at FROM t_order WHERE order_no = 'ORDER-far')",
		"UPDATE t_order_log SET event_sent_at = (SELECT created_at FROM t_order WHERE order_no = 'ORDER-far') WHERE to_status = 20 AND order_no = 'ORDER-remote'",
		"DELETE FROM t_local_message WHERE dedup_key = 'ORDER-remote:1:cancelled'",
	} {
		b.exec(text)
	}
	for _, no := range []string{"ORDER-open", "ORDER-restored"} {
		e := order.Extending{OrderNo: no, Until: noon.Add(at + 24*time.Hour), Act: staff}
		if _, err := b.at(0).Extend(context.Background(), e, leased); err != nil {
			b.t.Fatal(err)
		}
	}
	b.exec("UPDATE t_local_message SET next_at = (SELECT created_at FROM t_order WHERE order_no = 'ORDER-far')")
}

// reconcile is a whole run.
func (b bed) reconcile(at time.Duration, dryRun bool) []order.Finding {
	b.t.Helper()
	ctx, s := context.Background(), b.at(at)
	m := order.Mending{DryRun: dryRun, Patience: order.Patience{}.WithDefaults(), Confirm: time.Minute, Actor: "reconciler"}
	var found []order.Finding
	for _, walk := range store.ReconcileWalks {
		for place := (order.Place{Walk: walk}); ; {
			w, err := s.Walk(ctx, place, 100, m, leased)
			if err != nil {
				b.t.Fatal(fmt.Errorf("%s: %w", walk, err))
			}
			found = append(found, w.Findings...)
			if w.Last == "" {
				break
			}
			place.Key = w.Last
		}
	}
	return slices.Clip(found)
}
