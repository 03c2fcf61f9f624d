package storetest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
)

const day = 24 * time.Hour

var houseTests = map[string]func(t *testing.T, b bed){
	"a cancelled order is archived after its retention, and not before": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"), draft("ORDER-2", "a"))
		b.closeAt(time.Minute, "ORDER-1", "ORDER-2")
		before := b.dump(businessTables...)
		_, err := b.at(10*day).Archive(ctx, "ORDER-1", 180*day, staff)
		expectError(t, err, order.Conflict, "too_early_to_archive")
		for shard := range order.Shards {
			if n, err := b.at(10*day).ArchiveDue(ctx, shard, 180*day, 10, staff); n != 0 || err != nil {
				t.Error(n, err)
			}
		}
		if b.dump(businessTables...) != before {
			t.Error("something changed")
		}
		o, err := b.at(181*day).Archive(ctx, "ORDER-1", 180*day, staff)
		if err != nil || o.Status != order.Closed || !o.ClosedAt.Equal(noon.Add(181*day)) || o.Version != 3 || len(o.Items) != 1 {
			t.Errorf("%+v, %v", o, err)
		}
		if again, err := b.at(182*day).Archive(ctx, "ORDER-1", 180*day, staff); err != nil || !again.ClosedAt.Equal(o.ClosedAt) {
			t.Errorf("%+v, %v", again, err)
		}
		archived := 0
		for shard := range order.Shards {
			n, err := b.at(181*day).ArchiveDue(ctx, shard, 180*day, 10, staff)
			if err != nil {
				t.Fatal(err)
			}
			archived += n
		}
		if archived != 1 || b.status("ORDER-2") != order.Closed {
			t.Errorf("%d archived, %v", archived, b.status("ORDER-2"))
		}
		_, err = b.at(182*day).Pay(ctx, payment("P1", "ORDER-1"), order.Rules{}, leased)
		if err != nil || b.count("SELECT COUNT(*) FROM t_late_payment WHERE state_then = 30") != 1 {
			t.Errorf("late money for a closed order: %v", err)
		}
	},
	"an order that was paid is not archived, nor is one that its refund has closed": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-paid"), draft("ORDER-refunded"), draft("ORDER-restored"))
		b.closeAt(time.Minute, "ORDER-restored")
		b.restore(time.Minute, order.Restoring{OrderNo: "ORDER-restored", Timeout: time.Hour, Act: staff})
		for _, no := range []string{"ORDER-paid", "ORDER-refunded", "ORDER-restored"} {
			b.pay(0, "PAY-"+no, no, order.Rules{})
			if no == "ORDER-paid" {
				continue
			}
			if _, err := b.at(time.Hour).Refund(ctx, order.Refunding{PaymentNo: "PAY-" + no, RefundNo: "R-" + no, Act: staff}, order.Rules{}); err != nil {
				t.Fatal(err)
			}
		}
		before := b.everything()
		for _, no := range []string{"ORDER-paid", "ORDER-refunded", "ORDER-restored"} {
			_, err := b.at(365*day).Archive(ctx, no, time.Minute, staff)
			b.expectRefused(before, err, order.Conflict, "state_conflict")
		}
	},
	"what ended long ago is deleted with all that belongs to it, and the counters stay what the ledger says": func(t *testing.T, b bed) {
		b.populate()
		ctx := context.Background()
		stock, err := b.at(0).Resource(ctx, "stock", "a")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // what was carried before is carried on
			b.purgeAll(401 * day)
			if b.count("SELECT COUNT(*) FROM t_order WHERE order_no IN ('ORDER-paid', 'ORDER-free', 'ORDER-refunded')") != 0 {
				t.Error("what was paid long ago is still there")
			}
			for _, table := range []string{"t_order_item", "t_order_log", "t_resource_log", "t_payment"} {
				if n := b.count("SELECT COUNT(*) FROM " + table + " WHERE order_no IN ('ORDER-paid', 'ORDER-free', 'ORDER-refunded')"); n != 0 {
					t.Errorf("%s keeps %d rows", table, n)
				}
			}
			paid := draft("ORDER-paid", "a")
			b.create(paid)
			if _, err := b.at(0).Pay(ctx, payment("P1", "ORDER-paid"), order.Rules{}, leased); err != nil {
				t.Fatal(err)
			}
		}
		now, err := b.at(0).Resource(ctx, "stock", "a")
		if err != nil || now.Available != stock.Available-2 || now.Sold != stock.Sold+2 || now.Held != stock.Held {
			t.Errorf("%+v, before %+v, %v", now, stock, err)
		}
		for _, kept := range []string{"ORDER-open", "ORDER-closed", "ORDER-doubt", "ORDER-restored"} {
			if b.count("SELECT COUNT(*) FROM t_order WHERE order_no = '"+kept+"'") != 1 {
				t.Errorf("%s is gone", kept)
			}
		}
	},
	"what ended a while ago, and what money or a message still needs, stays": func(t *testing.T, b bed) {
		b.populate()
		before := b.dump(businessTables...)
		b.purgeAll(399 * day)
		if b.dump(businessTables...) != before {
			t.Error("something changed")
		}
		b.exec("UPDATE t_order SET status = 30, closed_at = cancelled_at WHERE order_no = 'ORDER-closed'") // its late money waits for a person
		b.tolerated["an order's state is what its log says"] = true
		b.exec("DELETE FROM t_local_message WHERE order_no = 'ORDER-closed'")
		b.tolerated["each cancelled round has its event: still to be sent, or stamped as sent"] = true
		b.purgeAll(401 * day)
		if b.count("SELECT COUNT(*) FROM t_order WHERE order_no = 'ORDER-closed'") != 1 {
			t.Error("an order whose late money waits for a person is gone")
		}
	},
	"an order that may not go yet is in no other's way": func(t *testing.T, b bed) {
		ctx := context.Background()
		var drafts []order.Draft
		for _, no := range inShard(7, 8) {
			drafts = append(drafts, draft(no))
		}
		b.create(drafts...)
		for i, d := range drafts {
			b.pay(time.Second, fmt.Sprintf("P-%d", i), d.OrderNo, order.Rules{})
			if i < 4 { // paid twice, and nobody has decided yet
				b.pay(time.Second, fmt.Sprintf("P-%d-again", i), d.OrderNo, order.Rules{})
			}
		}
		pages, purged := 0, 0
		for from := (order.Cursor{}); ; pages++ {
			n, next, err := b.at(401*day).PurgeOrders(ctx, 7, order.Paid, 400*day, from, 2)
			if err != nil {
				t.Fatal(err)
			}
			purged += n
			if next == nil {
				break
			}
			from = *next
		}
		if purged != 4 || pages != 4 || b.count("SELECT COUNT(*) FROM t_order") != 4 {
			t.Errorf("%d are gone after %d pages", purged, pages)
		}
	},
	"an order of which something is still to be told stays until it is": func(t *testing.T, b bed) {
		ctx := context.Background()
		no := inShard(7, 1)[0]
		b.create(draft(no))
		told := b.closeAt(time.Minute, no).Messages
		if _, err := b.at(day).Archive(ctx, no, 0, staff); err != nil {
			t.Fatal(err)
		}
		for _, want := range []int{0, 1} {
			if n, _, err := b.at(500*day).PurgeOrders(ctx, 7, order.Closed, 400*day, order.Cursor{}, 10); n != want || err != nil {
				t.Errorf("%d are gone, want %d, %v", n, want, err)
			}
			if err := b.at(0).Settle(ctx, sent(told[0])); err != nil {
				t.Fatal(err)
			}
		}
	},
	"a purge at full rate, the relay and closers do not fail for each other": func(t *testing.T, b bed) {
		ctx := context.Background()
		const orders = 120
		b.stock("a", 3*orders)
		var old, due []order.Draft
		var nos []string
		for i := range orders {
			nos = append(nos, fmt.Sprintf("DUE-%04d", i))
			old, due = append(old, draft(fmt.Sprintf("OLD-%04d", i), "a")), append(due, draft(nos[i], "a"))
		}
		b.create(old...)
		for i, d := range old {
			b.pay(time.Second, fmt.Sprintf("P-%d", i), d.OrderNo, order.Rules{})
		}
		later := 500 * day
		b.createWith(b.at(later), unleased, due...)
		s := b.at(later + time.Minute)
		var purged, closed atomic.Int32
		purger := func(first int) func() {
			return func() {
				for i := range order.Shards {
					n, _, err := s.PurgeOrders(ctx, (first+i)%order.Shards, order.Paid, 400*day, order.Cursor{}, 200)
					if err != nil {
						t.Error(err)
					}
					purged.Add(int32(n))
				}
			}
		}
		relay := func() {
			for range 20 {
				rows, _, _, err := claimAll(ctx, s, 10, leaseTime)
				if err != nil {
					t.Error(err)
				}
				var taken []order.Sent
				for _, m := range rows {
					taken = append(taken, sent(m)...)
				}
				if err := s.Settle(ctx, taken); err != nil {
					t.Error(err)
				}
			}
		}
		closer := func() {
			for page := range slices.Chunk(nos, 7) {
				batch, err := s.CloseDue(ctx, order.Closing{OrderNos: page, Reason: order.ReasonTimeout}, leased)
				if err != nil {
					t.Error(err)
				}
				closed.Add(int32(len(batch.Closed)))
			}
		}
		together(purger(0), purger(order.Shards/2), relay, relay, closer, closer)
		closed.Add(int32(len(b.closeWith(s, nos...).Closed))) // what the other had locked
		if purged.Load() != orders || closed.Load() != orders {
			t.Errorf("%d of %d are gone, %d are closed", purged.Load(), orders, closed.Load())
		}
		b.expectStock("a", 2*orders, 0, orders)
	},
	"records of runs, decisions and refusals are deleted in pages": func(t *testing.T, b bed) {
		ctx := context.Background()
		for i := range 5 {
			s := b.at(time.Duration(i) * day)
			if _, err := s.StartRun(ctx, "sweeper", "round"); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Quarantine(ctx, order.Quarantined{Source: "payment", OrderNo: fmt.Sprint("x", i), Reason: "refused"}); err != nil {
				t.Fatal(err)
			}
			run, err := s.BeginReconcile(ctx, "r", false, 0, time.Minute)
			if err != nil {
				t.Fatal(err)
			}
			b.exec(fmt.Sprintf("INSERT INTO t_reconcile_finding (run_id, seq, kind, subject, detail, action, mended) VALUES (%d, 1, 'x', 'x', 'x', 'x', 1)", run.ID))
			if err := s.EndReconcile(ctx, &run); err != nil {
				t.Fatal(err)
			}
		}
		purged, err := b.at(10*day).PurgeRecords(ctx, 7*day, 2)
		if err != nil || fmt.Sprint(purged) != "map[quarantine:2 reconcile_findings:2 reconcile_runs:2 sweep_runs:2]" {
			t.Error(purged, err)
		}
		if purged, err = b.at(10*day).PurgeRecords(ctx, 7*day, 2); err != nil || purged["sweep_runs"] != 1 {
			t.Error(purged, err)
		}
		for _, table := range []string{"t_sweep_run", "t_quarantine", "t_reconcile_run", "t_reconcile_finding"} {
			if n := b.count("SELECT COUNT(*) FROM " + table); n != 2 {
				t.Errorf("%s has %d", table, n)
			}
		}
	},
}

// inShard makes numbers of orders that share a shard.
func inShard(shard, n int) (nos []string) {
	for i := 0; len(nos) < n; i++ {
		if no := fmt.Sprintf("ORDER-%d", i); order.ShardOf(no) == shard {
			nos = append(nos, no)
		}
	}
	return nos
}

// purgeAll purges all shards.
func (b bed) purgeAll(at time.Duration) {
	b.t.Helper()
	for shard := range order.Shards {
		for _, status := range []order.Status{order.Paid, order.Closed} {
			if _, _, err := b.at(at).PurgeOrders(context.Background(), shard, status, 400*day, order.Cursor{}, 10); err != nil {
				b.t.Fatal(err)
			}
		}
	}
}
