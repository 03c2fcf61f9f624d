package storetest

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// learntTests are what was once wrong.
var learntTests = map[string]func(t *testing.T, b bed){
	"an attempt that fails after its order has ended does not haunt the next round": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		b.attempt(0, "ORDER-1", "BILL-0001", 5*time.Hour)
		b.attempt(0, "ORDER-1", "BILL-0002", 5*time.Hour)
		b.closeAt(time.Minute, "ORDER-1") // or: cancelled at its confirm deadline
		if _, err := b.at(2*time.Minute).FailPayment(ctx, "ORDER-1", "BILL-0001"); err != nil {
			t.Fatal(err)
		}
		b.restore(3*time.Minute, restoring("ORDER-1", 1))
		batch := b.expire(8*time.Minute, "ORDER-1")
		if batch.Doubtful != 0 || len(batch.Closed) != 1 {
			t.Errorf("round 2 has no attempt but is doubted: %+v", batch)
		}
	},
	"what was payable for ever is archived and purged some day": func(t *testing.T, b bed) {
		ctx := context.Background()
		paid, gone := draft("ORDER-1"), draft("ORDER-2")
		paid.Rule.SecondChance, gone.Rule.SecondChance = order.Forever, order.Forever
		b.create(paid, gone)
		b.closeAt(time.Minute, "ORDER-1", "ORDER-2")
		b.pay(2*time.Minute, "P1", "ORDER-1", order.Rules{})
		if _, _, err := b.at(3*time.Minute).Cancel(ctx, wish("ORDER-2", "u1"), leased); err != nil {
			t.Fatal(err)
		}
		b.exec("DELETE FROM t_local_message")
		years := 10 * 365 * day
		for shard := range order.Shards {
			if _, err := b.at(years).ArchiveDue(ctx, shard, 180*day, 10, staff); err != nil {
				t.Fatal(err)
			}
		}
		b.purgeAll(2 * years)
		if n := b.count("SELECT COUNT(*) FROM t_order"); n != 0 {
			t.Errorf("after twenty years %d orders are still there, %v %v", n, b.status("ORDER-1"), b.status("ORDER-2"))
		}
		b.tolerated["each cancelled round has its event: still to be sent, or stamped as sent"] = true
	},
	"purges at once carry all sums on": func(t *testing.T, b bed) {
		ctx := context.Background()
		const rounds = 20
		for r := range rounds {
			b.stock(fmt.Sprintf("r%02d", r), 10)
		}
		// two orders in different shards that sold the same things
		d1, d2 := draft("ORDER-1"), draft("ORDER-2")
		for r := range rounds {
			it := order.Item{Kind: "stock", Ref: fmt.Sprintf("r%02d", r), Quantity: 1}
			d1.Items, d2.Items = append(d1.Items, it), append(d2.Items, it)
		}
		b.create(d1, d2)
		nos := []string{"ORDER-1", "ORDER-2"}
		for i, no := range nos {
			b.pay(time.Second, fmt.Sprintf("P%d", i), no, order.Rules{})
		}
		s1, s2 := b.at(500*day), b.at(500*day)
		var wg sync.WaitGroup
		for i, s := range []*store.Store{s1, s2} {
			wg.Go(func() {
				n, _, err := s.PurgeOrders(ctx, order.ShardOf(nos[i]), order.Paid, 400*day, order.Cursor{}, 200)
				if n != 1 || err != nil {
					t.Error(n, err)
				}
			})
		}
		wg.Wait()
		n := b.count("SELECT COALESCE(SUM(quantity), 0) FROM t_resource_log WHERE order_no = '~carried' AND op = 'sell'")
		if n != 2*rounds {
			t.Errorf("%d of %d sales were carried", n, 2*rounds)
		}
		if found := b.reconcile(501*day, true); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	},
	"an attempt's number is used in one round only": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		b.attempt(0, "ORDER-1", "BILL-0001", 5*time.Hour)
		b.closeAt(time.Minute, "ORDER-1")
		b.restore(3*time.Minute, restoring("ORDER-1", 1))
		a := order.Attempting{AttemptNo: "BILL-0001", OrderNo: "ORDER-1", Channel: "card", Lifetime: time.Hour}
		_, _, err := b.at(4*time.Minute).StartPayment(context.Background(), a)
		expectError(t, err, order.Conflict, "attempt_no_taken")
	},
	"a second chance that comes late is one": func(t *testing.T, b bed) {
		d := draft("ORDER-1")
		d.Rule.SecondChance = time.Hour
		b.create(d)
		b.closeAt(3*time.Hour, "ORDER-1") // closing had been off
		o, _, err := b.at(3*time.Hour).Get(context.Background(), "ORDER-1")
		if err != nil {
			t.Fatal(err)
		}
		if !o.Payable(noon.Add(3 * time.Hour)) {
			t.Error("it was told to be payable again, but is not")
		}
	},
	"a list that was read before a deadline was moved calls no owner early": func(t *testing.T, b bed) {
		ctx := context.Background()
		a := order.Adopted{Kind: "booking", Ref: "B-1", Deadline: noon}
		b.backfilled(a)
		listed := []order.Adopted{a} // GET /due answers: overdue
		moved := a
		moved.Deadline = noon.Add(24 * time.Hour)
		b.inTx(true, func(tx *sql.Tx) error { // and then the shop moves it
			return foreign(t, b).Schedule(ctx, tx, []order.Adopted{moved})
		})
		if _, err := b.at(time.Minute).Overdue(ctx, listed); err != nil {
			t.Fatal(err)
		}
		for _, r := range b.claimRipe(2 * time.Minute) {
			t.Errorf("called about %s with deadline %s, though it was moved to %s", r.Ref, r.Deadline, moved.Deadline)
		}
	},
	"an order that was left to a person goes on when its last attempt fails": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.inDoubt("ORDER-1", "BILL-0001")
		v := b.claimOne(12 * time.Minute)
		b.confirm(12*time.Minute, v, order.ConfirmHold, order.ConfirmHeld)
		if _, err := b.at(13*time.Minute).FailPayment(context.Background(), "ORDER-1", "BILL-0001"); err != nil {
			t.Fatal(err)
		}
		for _, d := range []time.Duration{14 * time.Minute, time.Hour, 100 * time.Hour} {
			for _, w := range b.claim(d) {
				b.confirm(d, order.Verdict{InDoubt: w}, order.ConfirmHold, order.ConfirmClosed)
			}
		}
		if s := b.status("ORDER-1"); s != order.Cancelled {
			t.Errorf("no attempt is in flight any more, but 100 h later it is %v", s)
		}
	},
}
