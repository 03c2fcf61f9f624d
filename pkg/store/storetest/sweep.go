package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

var sweepTests = map[string]func(t *testing.T, b bed){
	"a lease is taken, renewed, released, and due again after the interval": func(t *testing.T, b bed) {
		ctx := context.Background()
		acquire := func(at time.Duration, owner string, interval time.Duration) (order.Lease, bool) {
			l, ok, err := b.at(at).AcquireShard(ctx, 5, owner, time.Minute, interval)
			if err != nil {
				t.Fatal(err)
			}
			return l, ok
		}
		l, ok := acquire(0, "one", time.Hour)
		if want := (order.Lease{Shard: 5, Owner: "one", Token: 1, Until: noon.Add(time.Minute)}); !ok || l != want {
			t.Fatalf("%+v, %v", l, ok)
		}
		if _, ok := acquire(time.Minute-time.Millisecond, "two", 0); ok {
			t.Error("taken from its holder")
		}
		renewed, ok, err := b.at(30*time.Second).RenewLease(ctx, l, time.Minute)
		if err != nil || !ok || renewed.Token != 1 || !renewed.Until.Equal(noon.Add(90*time.Second)) {
			t.Errorf("%+v, %v, %v", renewed, ok, err)
		}
		if _, ok := acquire(time.Minute, "two", 0); ok {
			t.Error("taken although it was renewed")
		}
		if err := b.at(80*time.Second).ReleaseShard(ctx, renewed); err != nil {
			t.Error(err)
		}
		if _, ok := acquire(80*time.Second+time.Minute-time.Millisecond, "two", time.Minute); ok {
			t.Error("taken before the interval was over")
		}
		if l, ok := acquire(80*time.Second, "burst", 0); !ok || l.Token != 2 {
			t.Errorf("a burst does not wait for the interval: %+v", l)
		}
	},
	"a lease that ran out is taken by another, and no use to its holder": func(t *testing.T, b bed) {
		ctx := context.Background()
		lost, _, err := b.at(0).AcquireShard(ctx, 5, "one", time.Minute, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok, err := b.at(time.Minute).RenewLease(ctx, lost, time.Minute); err != nil || ok {
			t.Error("renewed after it ran out:", err)
		}
		if err := b.at(time.Minute).ReleaseShard(ctx, lost); err != nil {
			t.Error(err)
		}
		l, ok, err := b.at(time.Minute).AcquireShard(ctx, 5, "one", time.Minute, time.Hour)
		if err != nil || !ok || l.Token != 2 {
			t.Fatal("a holder that died must not cost an interval:", l, ok, err)
		}
		if err := b.at(time.Minute).ReleaseShard(ctx, lost); err != nil {
			t.Error(err)
		}
		if renewed, ok, err := b.at(time.Minute+time.Second).RenewLease(ctx, l, time.Minute); err != nil || !ok || renewed.Token != 2 {
			t.Error("the former holder's release took it away:", err)
		}
	},
	"a shard that does not exist has no lease": func(t *testing.T, b bed) {
		if _, ok, err := b.at(0).AcquireShard(context.Background(), order.Shards, "one", time.Minute, 0); err != nil || ok {
			t.Error(ok, err)
		}
	},
	"a scan walks what is overdue in its shard, oldest first, from where it stopped": func(t *testing.T, b bed) {
		ctx := context.Background()
		want := map[int][]string{}
		for second := range 6 {
			var drafts []order.Draft
			for i := range 30 {
				d := draft(fmt.Sprintf("ORDER-%d-%02d", second, i))
				drafts = append(drafts, d)
				if second < 5 {
					want[order.ShardOf(d.OrderNo)] = append(want[order.ShardOf(d.OrderNo)], d.OrderNo)
				}
			}
			b.createWith(b.at(time.Duration(second)*time.Second), leased, drafts...)
		}
		s := b.at(time.Minute + 4*time.Second + 30*time.Second) // those of second 5 are not overdue
		if _, err := s.Pay(ctx, payment("P1", "ORDER-0-00"), order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		paid := order.ShardOf("ORDER-0-00")
		want[paid] = want[paid][1:]
		for shard := range order.Shards {
			var got []string
			var cursor order.Cursor
			for {
				page, err := s.ScanDue(ctx, shard, 30*time.Second, cursor, 2)
				if err != nil {
					t.Fatal(err)
				}
				if len(page) == 0 {
					break
				}
				for _, d := range page {
					got = append(got, d.OrderNo)
				}
				cursor = page[len(page)-1].Cursor
			}
			if fmt.Sprint(got) != fmt.Sprint(want[shard]) {
				t.Errorf("shard %d: %v\nwant %v", shard, got, want[shard])
			}
		}
	},
	"a run is recorded with what it did": func(t *testing.T, b bed) {
		ctx := context.Background()
		run, err := b.at(0).StartRun(ctx, "sweeper-1", "now")
		if err != nil {
			t.Fatal(err)
		}
		err = b.at(time.Second).FinishRun(ctx, &order.SweepRun{ID: run.ID, Shards: 64, Looked: 5, Closed: 3, Failed: 2, Error: "one failed"})
		if err != nil {
			t.Fatal(err)
		}
		n := b.count(`SELECT COUNT(*) FROM t_sweep_run WHERE owner = 'sweeper-1' AND kind = 'now' AND finished_at > started_at
			AND shards = 64 AND looked = 5 AND closed = 3 AND failed = 2 AND error = 'one failed'`)
		if n != 1 {
			t.Errorf("%d", n)
		}
		expectError(t, b.at(0).FinishRun(ctx, &order.SweepRun{ID: run.ID + 1}), order.Internal, "data_damaged")
	},
	"without a replica scans read the primary": func(t *testing.T, b bed) {
		s := b.at(0)
		if _, err := s.StartRun(context.Background(), "sweeper-1", "round"); err != nil || s.ReplicaFresh() {
			t.Error(s.ReplicaFresh(), err)
		}
	},
}

// damages are what an audit must find: the check that must fail, by its name, after a change behind the store's back.
var damages = []struct{ check, plant string }{
	{"no round leaves pending twice", "UPDATE t_order_log SET to_status = 20 WHERE order_no = 'ORDER-paid' AND version = 1"},
	{"no order is both paid and cancelled", "UPDATE t_order SET paid_at = cancelled_at WHERE order_no = 'ORDER-closed'"},
	{"no order is both paid and cancelled", "UPDATE t_payment SET order_no = 'ORDER-closed' WHERE outcome = 'paid'"},
	{"an order's state is what its log says", "UPDATE t_order SET status = 0 WHERE order_no = 'ORDER-closed'"},
	{"no round ends twice, so none holds both a payment and a cancellation", "INSERT INTO t_order_log (order_no, version, round, from_status, to_status, event, reason, actor, at) SELECT order_no, 9, round, 0, 20, event, reason, actor, at FROM t_order_log WHERE order_no = 'ORDER-paid' AND version = 2"},
	{"final states change only by restore, refund and archive", "INSERT INTO t_order_log (order_no, version, round, from_status, to_status, event, reason, actor, at) SELECT order_no, 9, round, 20, 0, 'paid', reason, actor, at FROM t_order_log WHERE order_no = 'ORDER-closed' AND version = 2"},
	{"no round was ended or doubted by a time-out before its deadline", "UPDATE t_order_log SET at = (SELECT created_at FROM t_order WHERE order_no = 'ORDER-closed') WHERE to_status = 20"},
	{"an order waits for exactly its open payment attempts", "UPDATE t_payment_attempt SET state = 'failed'"},
	{"no order is confirming beyond the bound but for a person to decide, while closing is enforced", "UPDATE t_order SET confirm_until = (SELECT passed_at FROM t_lease WHERE shard = 0) WHERE status = 5"},
	{"each payment is in one place: its paid order, its refunded order, or one late-payment case", "UPDATE t_payment SET outcome = 'paid' WHERE outcome = 'refunded'"},
	{"nothing was both released and sold", "INSERT INTO t_resource_log (order_no, round, op, kind, ref, quantity, at) SELECT order_no, round, 'sell', kind, ref, quantity, at FROM t_resource_log WHERE op = 'release' AND order_no = 'ORDER-closed'"},
	{"no order was cancelled before its deadline", "UPDATE t_order SET cancelled_at = created_at WHERE order_no = 'ORDER-closed'"},
	{"no order is pending beyond the bound, while closing is enforced", "UPDATE t_order SET expire_at = (SELECT passed_at FROM t_lease WHERE shard = 0) WHERE order_no = 'ORDER-open'"},
	{"counters equal the ledger", "UPDATE t_resource SET held = held - 1, sold = sold + 1 WHERE ref = 'a'"},
	{"all that was put in, and did not run out, is available, held or sold", "UPDATE t_resource SET available = available + 1 WHERE ref = 'a'"},
	{"the ledger names no unknown resource", "DELETE FROM t_resource WHERE ref = 'a'"},
	{"what a round reserved was released once if it was cancelled, else not", "DELETE FROM t_resource_log WHERE op = 'release'"},
	{"what a round reserved was released once if it was cancelled, else not", "UPDATE t_resource_log SET quantity = 2 WHERE op = 'release'"},
	{"what a round reserved was released once if it was cancelled, else not", "UPDATE t_resource_log SET op = 'release' WHERE op = 'sell'"},
	{"nothing was released, sold or forfeited that was not reserved", "DELETE FROM t_resource_log WHERE op = 'reserve'"},
	{"each cancelled round has its event: still to be sent, or stamped as sent", "DELETE FROM t_local_message WHERE kind = 'event'"},
	{"no cancelled event without a cancelled round", "DELETE FROM t_order_log WHERE to_status = 20"},
	{"each payment is in one place: its paid order, its refunded order, or one late-payment case", "DELETE FROM t_late_payment"},
	{"each payment is in one place: its paid order, its refunded order, or one late-payment case", "UPDATE t_payment SET order_no = 'ORDER-X' WHERE outcome = 'paid'"},
	{"each order that was paid was paid once, and those with nothing to pay were not", "DELETE FROM t_payment WHERE outcome = 'paid'"},
	{"each late-payment case has its payment", "DELETE FROM t_payment WHERE outcome = 'late'"},
	{"each item of an order was reserved, or waits for the payment that takes it", "UPDATE t_order_item SET quantity = 2 WHERE order_no = 'ORDER-open'"},
	{"each item of an order was reserved, or waits for the payment that takes it", "DELETE FROM t_order WHERE order_no = 'ORDER-open'"},
	{"each reservation is of an item of an order", "DELETE FROM t_order_item WHERE order_no = 'ORDER-open'"},
	{"each order has its whole log", "DELETE FROM t_order_log WHERE order_no = 'ORDER-paid' AND version = 1"},
	{"each pending or confirming order has one time-out row", "DELETE FROM t_local_message WHERE kind = 'timeout'"},
	{"each time-out row has a pending or confirming order, or an item", "UPDATE t_local_message SET order_no = 'ORDER-paid' WHERE kind = 'timeout'"},
	{"no message is stuck", "UPDATE t_local_message SET next_at = (SELECT passed_at FROM t_lease WHERE shard = 0)"},
	{"no message is stuck", "UPDATE t_local_message SET failing_since = (SELECT passed_at FROM t_lease WHERE shard = 0)"},
}

var auditTests = map[string]func(t *testing.T, b bed){
	"an audit of sound data holds, and says how much it looked at": func(t *testing.T, b bed) {
		b.populate()
		checks, err := b.at(time.Minute).Audit(context.Background(), store.AuditOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, c := range checks {
			seen[c.Invariant] = true
			if !c.Holds() || c.Checked == 0 || c.Example != "" || c.Name == "" {
				t.Errorf("%+v", c)
			}
		}
		for i := 1; i <= 9; i++ {
			if !seen[fmt.Sprint("I", i)] {
				t.Errorf("I%d is not looked at", i)
			}
		}
	},
	"an audit of an empty database holds": func(t *testing.T, b bed) {
		checks, err := b.at(0).Audit(context.Background(), store.AuditOptions{})
		if err != nil || len(checks) == 0 {
			t.Error(checks, err)
		}
	},
}

func init() {
	for i, d := range damages {
		auditTests[fmt.Sprintf("an audit finds damage %d, %s", i, d.check)] = func(t *testing.T, b bed) {
			b.populate()
			b.exec(d.plant)
			checks, err := b.at(time.Minute).Audit(context.Background(), store.AuditOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range checks {
				b.tolerated[c.Name] = true
				if c.Name == d.check && (c.Holds() || c.Example == "" || c.Violations > c.Checked) {
					t.Errorf("not found: %+v", c)
				}
			}
			if !b.tolerated[d.check] {
				t.Error("there is no such check")
			}
		}
	}
}

// populateLater makes orders whose story goes on after their deadline.
func (b bed) populateLater(ctx context.Context) {
	attempt := order.Attempting{AttemptNo: "ATTEMPT-doubt", OrderNo: "ORDER-doubt", Channel: "card", Lifetime: 10 * time.Minute}
	if _, _, err := b.at(0).StartPayment(ctx, attempt); err != nil {
		b.t.Fatal(err)
	}
	closing := order.Closing{OrderNos: []string{"ORDER-doubt"}, Reason: order.ReasonTimeout, Confirm: 10 * time.Minute}
	if batch, err := b.at(time.Minute).CloseDue(ctx, closing, leased); err != nil || batch.Doubtful != 1 {
		b.t.Fatal(batch, err)
	}
	again := order.Restoring{OrderNo: "ORDER-restored", Timeout: time.Hour, Act: order.Act{Actor: "staff", Note: "a good customer"}}
	if _, err := b.at(time.Minute).Restore(ctx, again, leased); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.at(0).Pay(ctx, payment("P3", "ORDER-refunded"), order.Rules{}, leased); err != nil {
		b.t.Fatal(err)
	}
	back := order.Refunding{PaymentNo: "P3", RefundNo: "R3", Act: order.Act{Actor: "staff", Note: "sent back"}}
	if _, err := b.at(time.Minute).Refund(ctx, back, order.Rules{}); err != nil {
		b.t.Fatal(err)
	}
}

// populate makes an order of every fate.
func (b bed) populate() {
	ctx := context.Background()
	b.stock("a", 10)
	free := draft("ORDER-free", "a")
	free.Amount = 0
	open := draft("ORDER-open", "a")
	open.Timeout = time.Hour
	b.create(free, open, draft("ORDER-paid", "a"), draft("ORDER-closed", "a"), draft("ORDER-cancelled", "a"),
		draft("ORDER-doubt", "a"), draft("ORDER-restored", "a"), draft("ORDER-refunded", "a"))
	if _, err := b.at(0).Pay(ctx, payment("P1", "ORDER-paid"), order.Rules{}, leased); err != nil {
		b.t.Fatal(err)
	}
	if _, _, err := b.at(0).Cancel(ctx, wish("ORDER-cancelled", "u1"), leased); err != nil {
		b.t.Fatal(err)
	}
	if batch := b.closeAt(time.Minute, "ORDER-closed", "ORDER-restored"); len(batch.Closed) != 2 {
		b.t.Fatal("not closed")
	}
	b.populateLater(ctx)
	if got, err := b.at(time.Minute).Pay(ctx, payment("P2", "ORDER-closed"), order.Rules{}, leased); err != nil || got.Outcome != order.PaymentLate {
		b.t.Fatal(got, err)
	}
}
