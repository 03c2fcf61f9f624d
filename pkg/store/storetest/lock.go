package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// rowLockTests are about transactions that wait for single rows.
var rowLockTests = map[string]func(t *testing.T, b bed){
	"a row that others have locked is passed over": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		release := b.hold("SELECT id FROM t_order WHERE order_no = 'ORDER-1' FOR UPDATE")
		defer release()
		s := b.Open(t, noon.Add(time.Minute), store.Options{})
		if batch := b.closeWith(s, "ORDER-1", "ORDER-2"); len(batch.Closed) != 1 || batch.Closed[0].OrderNo != "ORDER-2" {
			t.Errorf("%+v", batch.Closed)
		}
		release()
		if batch := b.closeWith(s, "ORDER-1", "ORDER-2"); len(batch.Closed) != 1 || batch.Closed[0].OrderNo != "ORDER-1" {
			t.Errorf("%+v", batch.Closed)
		}
	},
	"a counter that others hold stops only those who need it": func(t *testing.T, b bed) {
		b.stock("free", 10)
		b.stock("held", 10)
		b.create(draft("ORDER-1", "free"), draft("ORDER-2", "held"), draft("ORDER-3", "free"))
		release := b.hold("SELECT ref FROM t_resource WHERE kind = 'stock' AND ref = 'held' FOR UPDATE")
		defer release()
		s := b.Open(t, noon.Add(time.Minute), store.Options{LockWait: time.Second})
		if batch := b.closeWith(s, "ORDER-1", "ORDER-2", "ORDER-3"); len(batch.Closed) != 2 {
			t.Errorf("%+v", batch.Closed)
		}
		answers, err := s.Create(context.Background(), []order.Draft{draft("ORDER-4", "held"), draft("ORDER-5", "free")}, leased)
		if err != nil || answers[1].Err != nil {
			t.Fatal(answers, err)
		}
		expectError(t, answers[0].Err, order.Unavailable, "resource_locked")
		_, err = s.Adjust(context.Background(), order.Adjustment{ID: "more", Kind: "stock", Ref: "held", Delta: 1})
		expectError(t, err, order.Unavailable, "resource_locked")
		release()
		if batch := b.closeWith(s, "ORDER-1", "ORDER-2", "ORDER-3"); len(batch.Closed) != 1 || batch.Closed[0].OrderNo != "ORDER-2" {
			t.Errorf("%+v", batch.Closed)
		}
		b.expectStock("held", 10, 0, 0)
	},
	"orders that want a thousand counters lock no others of their kind": func(t *testing.T, b bed) {
		var nos []string
		var drafts []order.Draft
		stock := "INSERT INTO t_resource (kind, ref, available, held, sold) VALUES ('stock', 'other', 1, 0, 0)"
		for i := range 1500 {
			ref := fmt.Sprintf("sku-%04d", i)
			stock += ", ('stock', '" + ref + "', 1, 0, 0)"
			nos = append(nos, fmt.Sprintf("ORDER-%04d", i))
			drafts = append(drafts, draft(nos[i], ref))
		}
		b.exec(stock)
		b.exec("INSERT INTO t_resource_log (order_no, round, op, kind, ref, quantity, at) SELECT ref, 0, 'adjust', kind, ref, available, UTC_TIMESTAMP(3) FROM t_resource")
		defer b.hold("SELECT ref FROM t_resource WHERE kind = 'stock' AND ref = 'other' FOR UPDATE")()
		o := store.Options{LockWait: time.Second, OnRetry: func(failure string) { t.Errorf("tried again: %s", failure) }}
		b.createWith(b.Open(t, noon, o), leased, drafts...)
		if batch := b.closeWith(b.Open(t, noon.Add(time.Minute), o), nos...); len(batch.Closed) != len(nos) {
			t.Errorf("%d closed, not %d", len(batch.Closed), len(nos))
		}
	},
	"an order that others have locked is not reminded of": func(t *testing.T, b bed) {
		b.create(remindedDraft("ORDER-1"), remindedDraft("ORDER-2"))
		release := b.hold("SELECT id FROM t_order WHERE order_no = 'ORDER-1' FOR UPDATE")
		defer release()
		if rows := b.remind(50*time.Second, "ORDER-1", "ORDER-2"); len(rows) != 2 || rows[0].OrderNo != "ORDER-2" {
			t.Errorf("%+v", rows)
		}
		release()
		if rows := b.remind(50*time.Second, "ORDER-1", "ORDER-2"); len(rows) != 2 || rows[0].OrderNo != "ORDER-1" {
			t.Errorf("%+v", rows)
		}
	},
	"who starts to pay just now is extended with all others": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		release := b.hold("SELECT id FROM t_order WHERE order_no = 'ORDER-1' FOR UPDATE")
		defer release()
		go func() {
			b.awaitStatement("%ORDER-1%FOR UPDATE%")
			release()
		}()
		e := order.Extending{UserID: "u1", By: time.Hour, Act: staff}
		done, err := b.at(0).ExtendPage(ctx, e, order.Foremost(), 200, leased)
		if err != nil || done.Extended != 2 {
			t.Errorf("%d extended, %v", done.Extended, err)
		}
		if batch := b.closeAt(2*time.Minute, "ORDER-1", "ORDER-2"); len(batch.Closed) != 0 {
			t.Errorf("%s was closed although all were extended, and nobody was told", batch.Closed[0].OrderNo)
		}
	},
	"an order that others have locked is purged in the next round": func(t *testing.T, b bed) {
		nos := inShard(7, 2)
		b.create(draft(nos[0]), draft(nos[1]))
		b.pay(0, "P1", nos[0], order.Rules{})
		b.pay(0, "P2", nos[1], order.Rules{})
		defer b.hold("SELECT id FROM t_order WHERE order_no = '" + nos[0] + "' FOR UPDATE")()
		s := b.Open(t, noon.Add(500*day), store.Options{OnRetry: func(failure string) { t.Errorf("run again: %s", failure) }})
		if n, _, err := s.PurgeOrders(context.Background(), 7, order.Paid, 400*day, order.Cursor{}, 10); n != 1 || err != nil {
			t.Errorf("%d are gone, %v", n, err)
		}
	},
	"an item that others have locked stays open": func(t *testing.T, b bed) {
		held, free := adopted("B-1", time.Minute), adopted("B-2", time.Minute)
		b.backfilled(held, free)
		paying, err := b.DB.Begin()
		if err != nil {
			t.Fatal(err)
		}
		defer paying.Rollback()
		if err := foreign(t, b).Forget(context.Background(), paying, itemNos(held)); err != nil {
			t.Fatal(err)
		}
		r, err := b.at(time.Minute).Ripen(context.Background(), itemNos(held, free))
		if want := (order.Ripened{Ripe: itemNos(free), Locked: itemNos(held)}); err != nil || !reflect.DeepEqual(r, want) {
			t.Errorf("%+v, %v", r, err)
		}
		if n, err := b.at(time.Minute).Overdue(context.Background(), []order.Adopted{held, free}); err != nil || n != 0 {
			t.Errorf("%d found overdue, %v", n, err)
		}
		if err := paying.Commit(); err != nil {
			t.Fatal(err)
		}
		if r, err := b.at(time.Minute).Ripen(context.Background(), itemNos(held)); err != nil || len(r.Ripe)+len(r.Early)+len(r.Locked) != 0 {
			t.Errorf("%+v, %v", r, err)
		}
	},
	"off returns only after a closing transaction under way has committed, and none commits after it": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.real()
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		release := b.hold("UPDATE t_local_message SET attempts = attempts WHERE dedup_key = ?", order.TimeoutKey("ORDER-1"))
		defer release()
		closed, changed := make(chan order.ClosedBatch, 1), make(chan order.Status, 1)
		go func() {
			batch, err := s.CloseDue(ctx, order.Closing{OrderNos: []string{"ORDER-1"}, Reason: order.ReasonTimeout}, leased)
			if err != nil {
				t.Error(err)
			}
			closed <- batch
		}()
		b.awaitStatement("DELETE FROM t_local_message%")
		go func() {
			_, err := s.ChangeBrakes(ctx, staff, order.BrakeChange{Mode: order.ModeOff, Percent: new(100), Act: staff}.Apply)
			o, _, readErr := s.Get(ctx, "ORDER-1")
			if err := errors.Join(err, readErr); err != nil {
				t.Error(err)
			}
			changed <- o.Status
		}()
		b.awaitStatement("%brakes%FOR UPDATE%")
		select {
		case <-changed:
			t.Fatal("the change did not wait")
		default:
		}
		release()
		if status := <-changed; status != order.Cancelled {
			t.Errorf("when closing was off, the order was %s", status)
		}
		if batch := <-closed; len(batch.Closed) != 1 {
			t.Errorf("%+v", batch)
		}
		if batch := b.closeWith(s, "ORDER-2"); len(batch.Closed) != 0 || fmt.Sprint(batch.Braked) != "[ORDER-2]" {
			t.Errorf("%+v", batch)
		}
	},
	"a closer that has waited for a row in vain and finds closing off leaves the order as it is": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.Open(t, time.Time{}, store.Options{LockWait: time.Second})
		b.create(draft("ORDER-1"))
		defer b.hold("UPDATE t_local_message SET attempts = attempts WHERE dedup_key = ?", order.TimeoutKey("ORDER-1"))()
		var batch order.ClosedBatch
		together(
			func() {
				var err error
				if batch, err = s.CloseDue(ctx, order.Closing{OrderNos: []string{"ORDER-1"}, Reason: order.ReasonTimeout}, leased); err != nil {
					t.Error(err)
				}
			},
			func() {
				b.awaitStatement("DELETE FROM t_local_message%")
				b.setMode(order.ModeOff)
			},
		)
		if len(batch.Closed) != 0 || fmt.Sprint(batch.Braked) != "[ORDER-1]" {
			t.Errorf("%+v", batch)
		}
	},
}

// oneWriterTests are about transactions that wait for the whole database.
var oneWriterTests = map[string]func(t *testing.T, b bed){
	"a close waits for the database, gives up, and works afterwards": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"))
		conn, err := b.DB.Conn(ctx)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			t.Fatal(err)
		}
		s := b.Open(t, noon.Add(time.Minute), store.Options{LockWait: time.Millisecond})
		_, err = s.CloseDue(ctx, order.Closing{OrderNos: []string{"ORDER-1"}, Reason: order.ReasonTimeout}, leased)
		expectError(t, err, order.Unavailable, "database_unavailable")
		if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
			t.Fatal(err)
		}
		if batch := b.closeWith(s, "ORDER-1"); len(batch.Closed) != 1 {
			t.Error(batch)
		}
	},
}

// hold has somebody else's transaction lock the rows that a statement reads for update or writes, until release.
func (b bed) hold(statement string, args ...any) (release func()) {
	b.t.Helper()
	tx, err := b.DB.Begin()
	if err != nil {
		b.t.Fatal(err)
	}
	release = sync.OnceFunc(func() {
		if err := tx.Rollback(); err != nil {
			b.t.Error(err)
		}
	})
	if _, err := tx.Exec(statement, args...); err != nil {
		release()
		b.t.Fatalf("%s: %v", statement, err)
	}
	return release
}

// awaitStatement waits until a session of this database is in the middle of a statement.
func (b bed) awaitStatement(like string) {
	b.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for b.count("SELECT COUNT(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = DATABASE() AND info LIKE '"+like+"'") == 0 {
		if time.Now().After(deadline) {
			b.t.Fatal("nobody waits")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
