package storetest

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// adopted is an item that is due at noon + d.
func adopted(ref string, d time.Duration) order.Adopted {
	return order.Adopted{Kind: "booking", Ref: ref, Deadline: noon.Add(d)}
}

// backfilled schedules items at noon.
func (b bed) backfilled(items ...order.Adopted) {
	b.t.Helper()
	if n, err := b.at(0).Backfill(context.Background(), items); err != nil || n != len(items) {
		b.t.Fatalf("%d of %d scheduled, %v", n, len(items), err)
	}
}

// ripened makes items ripe at noon + d, all of which must become so.
func (b bed) ripened(d time.Duration, items ...order.Adopted) {
	b.t.Helper()
	if r, err := b.at(d).Ripen(context.Background(), itemNos(items...)); err != nil || len(r.Ripe) != len(items) {
		b.t.Fatalf("%+v, %v", r, err)
	}
}

func itemNos(items ...order.Adopted) (nos []string) {
	for _, a := range items {
		nos = append(nos, a.No())
	}
	return nos
}

// claimRipe claims what is ripe at noon + d.
func (b bed) claimRipe(d time.Duration) []order.Ripe {
	b.t.Helper()
	ripe, _, _, err := b.at(d).ClaimRipe(context.Background(), 10, leaseTime)
	if err != nil {
		b.t.Fatal(err)
	}
	return ripe
}

// claimedOne makes one item ripe at noon + d and claims it.
func (b bed) claimedOne(d time.Duration, a order.Adopted) order.Ripe {
	b.t.Helper()
	b.backfilled(a)
	b.ripened(d, a)
	ripe := b.claimRipe(d)
	if len(ripe) != 1 || ripe[0].Adopted != a {
		b.t.Fatalf("%+v", ripe)
	}
	return ripe[0]
}

// answered applies an answer at noon + d.
func (b bed) answered(d time.Duration, a order.Asked) []order.Message {
	b.t.Helper()
	rows, err := b.at(d).Answered(context.Background(), a, leased)
	if err != nil {
		b.t.Fatal(err)
	}
	return rows
}

// itemRow is an item's time-out row, as far as these tests look at it.
type itemRow struct {
	State     order.MessageState
	Hop       int
	Attempts  int
	LastError string
	NextAt    time.Time
	DueAt     time.Time
}

func (b bed) itemRow(a order.Adopted) (r itemRow) {
	b.t.Helper()
	var next, due any
	row := b.DB.QueryRow("SELECT state, hop, attempts, last_error, next_at, due_at FROM t_local_message WHERE dedup_key = ?", order.TimeoutKey(a.No()))
	if err := row.Scan(&r.State, &r.Hop, &r.Attempts, &r.LastError, &next, &due); err != nil {
		b.t.Fatal(err)
	}
	r.NextAt, r.DueAt = b.instant(next), b.instant(due)
	return r
}

// instant reads a time as a session with nothing set gives it.
func (b bed) instant(v any) time.Time {
	b.t.Helper()
	switch v := v.(type) {
	case int64:
		return time.UnixMilli(v).UTC()
	case []byte:
		t, err := time.Parse("2006-01-02 15:04:05.000", string(v))
		if err != nil {
			b.t.Fatal(err)
		}
		return t
	}
	b.t.Fatalf("a time is a %T", v)
	return time.Time{}
}

// claimOneOf claims what is to be sent, an item's row among it, and returns that.
func claimOneOf(t *testing.T, s *store.Store, a order.Adopted) order.Message {
	t.Helper()
	rows, _, _, err := claimAll(context.Background(), s, 10, leaseTime)
	i := slices.IndexFunc(rows, func(m order.Message) bool { return m.OrderNo == a.No() })
	if err != nil || i < 0 {
		t.Fatalf("%+v, %v", rows, err)
	}
	return rows[i]
}

// foreign writes as an owner does.
func foreign(t *testing.T, b bed) store.Foreign {
	t.Helper()
	driver := "sqlite"
	if b.locking == RowLocks {
		driver = "mysql"
	}
	f, err := store.NewForeign(driver)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// inTx runs do in a transaction of an owner's, on a session with nothing set.
func (b bed) inTx(commit bool, do func(tx *sql.Tx) error) {
	b.t.Helper()
	tx, err := b.DB.Begin()
	if err != nil {
		b.t.Fatal(err)
	}
	defer tx.Rollback()
	if err := do(tx); err != nil {
		b.t.Fatal(err)
	}
	if !commit {
		return
	}
	if err := tx.Commit(); err != nil {
		b.t.Fatal(err)
	}
}

// itemTables are compared by dump; both have at least as many columns as it sorts by.
var itemTables = []string{"t_item", "t_local_message"}

var itemTests = map[string]func(t *testing.T, b bed){
	"an item in waiting is sent as any time-out is, and none is asked about": func(t *testing.T, b bed) {
		a := adopted("B-1", time.Minute)
		b.backfilled(a)
		m := claimOne(t, b.at(0))
		want := order.Message{Key: a.No() + ":timeout", Kind: order.Timeout, OrderNo: a.No(), Type: order.AdoptedType, DueAt: a.Deadline,
			NextAt: noon.Add(leaseTime), Payload: []byte{}}
		if m.Payload = append([]byte{}, m.Payload...); !reflect.DeepEqual(m, want) {
			t.Errorf("%+v", m)
		}
		if err := b.at(time.Second).Settle(context.Background(), sent(m)); err != nil {
			t.Fatal(err)
		}
		if got := b.itemRow(a); got.State != order.AlreadySent {
			t.Errorf("%+v", got)
		}
		if ripe := b.claimRipe(time.Hour); len(ripe) != 0 {
			t.Errorf("%+v", ripe)
		}
	},
	"what is due becomes ripe once, what is early does not, and what is no item is in no answer": func(t *testing.T, b bed) {
		due, early := adopted("B-1", time.Minute), adopted("B-2", time.Minute+time.Millisecond)
		b.backfilled(due, early)
		b.create(draft("ORDER-1"))
		for i := range 2 {
			r, err := b.at(time.Minute).Ripen(context.Background(), []string{due.No(), "NOBODY-1", early.No(), "ORDER-1"})
			want := order.Ripened{Ripe: []string{due.No()}, Early: []string{early.No()}, Locked: []string{}}
			if err != nil || !reflect.DeepEqual(r, want) {
				t.Fatalf("%+v, %v", r, err)
			}
			if got := b.itemRow(due); got.State != order.ToCall || got.Hop != 1 || !got.NextAt.Equal(noon.Add(time.Minute)) {
				t.Errorf("%d: %+v", i, got)
			}
		}
		if got := b.itemRow(early); got.State != order.ToSend || got.Hop != 0 {
			t.Errorf("%+v", got)
		}
		if got := b.scheduled("ORDER-1"); got.State != order.ToSend {
			t.Errorf("%+v", got)
		}
	},
	"an early message takes its item to the next hop, like an order": func(t *testing.T, b bed) {
		a := adopted("B-1", time.Minute)
		b.backfilled(a)
		rows, err := b.at(time.Second).Postpone(context.Background(), []order.Early{{OrderNo: a.No(), Hop: 0}, {OrderNo: a.No(), Hop: 7}}, leased)
		if err != nil || len(rows) != 1 || rows[0].Hop != 1 || rows[0].Type != order.AdoptedType {
			t.Errorf("%+v, %v", rows, err)
		}
	},
	"a claim leases what is ripe and tells when the next is": func(t *testing.T, b bed) {
		ctx := context.Background()
		first, second := adopted("B-1", time.Minute), adopted("B-2", 2*time.Minute)
		b.backfilled(first, second)
		b.ripened(2*time.Minute, second)
		b.ripened(time.Minute, first)
		ripe, now, wake, err := b.at(time.Minute).ClaimRipe(ctx, 10, leaseTime)
		if err != nil || len(ripe) != 1 || ripe[0].Adopted != first || !now.Equal(noon.Add(time.Minute)) || !wake.Equal(noon.Add(time.Minute+leaseTime)) {
			t.Fatalf("%+v, %v, %v, %v", ripe, now, wake, err)
		}
		if m := ripe[0].Message; !m.NextAt.Equal(noon.Add(time.Minute+leaseTime)) || m.OrderNo != first.No() {
			t.Errorf("%+v", m)
		}
		if again := b.claimRipe(time.Minute); len(again) != 0 {
			t.Errorf("claimed twice: %+v", again)
		}
		if after := b.claimRipe(2 * time.Minute); len(after) != 2 {
			t.Errorf("after the lease: %+v", after)
		}
	},
	"neither orders in doubt nor ripe items are claimed for the other": func(t *testing.T, b bed) {
		b.claimedOne(time.Minute, adopted("B-1", time.Minute))
		doubtful, _, _, err := b.at(time.Hour).ClaimDoubtful(context.Background(), 10, leaseTime)
		if err != nil || len(doubtful) != 0 {
			t.Errorf("%+v, %v", doubtful, err)
		}
		b.exec("DELETE FROM t_item")
		b.exec("UPDATE t_local_message SET state = 3")
		if ripe := b.claimRipe(time.Hour); len(ripe) != 0 {
			t.Errorf("%+v", ripe)
		}
		b.exec("DELETE FROM t_local_message")
	},
	"a row without its item is nobody's": func(t *testing.T, b bed) {
		b.claimedOne(time.Minute, adopted("B-1", time.Minute))
		b.exec("DELETE FROM t_item")
		if ripe := b.claimRipe(time.Hour); len(ripe) != 0 {
			t.Errorf("%+v", ripe)
		}
		b.tolerated["each time-out row has a pending or confirming order, or an item"] = true
	},
	"brakes keep what is ripe, from their commit on until they are released": func(t *testing.T, b bed) {
		a := adopted("B-1", time.Minute)
		b.backfilled(a)
		b.ripened(time.Minute, a)
		set := func(brakes order.Brakes) {
			_, err := b.at(0).ChangeBrakes(context.Background(), order.Act{Actor: "staff", Note: "test"}, func(now order.Brakes) (order.Brakes, error) {
				brakes.Version = now.Version
				return brakes, nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		before := b.itemRow(a)
		for _, brakes := range []order.Brakes{
			{Mode: order.ModeOff, Percent: 100}, {Mode: order.ModeShadow, Percent: 100}, {Mode: order.ModeEnforce, Percent: 100, Tripped: "test", TrippedAt: noon},
		} {
			set(brakes)
			if ripe := b.claimRipe(time.Minute); len(ripe) != 0 || b.itemRow(a) != before {
				t.Errorf("%+v: %+v, %+v", brakes, ripe, b.itemRow(a))
			}
		}
		set(order.Brakes{Mode: order.ModeEnforce, Percent: 100, ByType: map[string]int{a.Kind: 0}})
		if ripe := b.claimRipe(time.Minute); len(ripe) != 0 {
			t.Errorf("not rolled out: %+v", ripe)
		}
		if got := b.itemRow(a); got.State != order.ToCall || got.Attempts != 0 || got.LastError == "" || !got.NextAt.After(noon.Add(time.Minute)) {
			t.Errorf("%+v", got)
		}
		set(order.Brakes{Mode: order.ModeEnforce, Percent: 100})
		if ripe := b.claimRipe(time.Hour); len(ripe) != 1 {
			t.Errorf("%+v", ripe)
		}
	},
	"an item whose owner says that it has ended is forgotten": func(t *testing.T, b bed) {
		for _, word := range []order.Word{order.WordClosed, order.WordFinal} {
			r := b.claimedOne(time.Minute, adopted("B-"+string(word), time.Minute))
			if rows := b.answered(time.Minute, order.Asked{Ripe: r, Answer: order.Answer{Word: word}}); len(rows) != 0 {
				t.Errorf("%+v", rows)
			}
			if n := b.count("SELECT COUNT(*) FROM t_item") + b.count("SELECT COUNT(*) FROM t_local_message"); n != 0 {
				t.Errorf("%s: %d rows are left", word, n)
			}
		}
	},
	"an item whose owner says later is scheduled for then": func(t *testing.T, b bed) {
		a := adopted("B-1", time.Minute)
		r := b.claimedOne(time.Minute, a)
		later := noon.Add(time.Hour)
		rows := b.answered(time.Minute, order.Asked{Ripe: r, Answer: order.Answer{Word: order.WordLater, Deadline: later}})
		if len(rows) != 1 || rows[0].Hop != r.Message.Hop+1 || !rows[0].DueAt.Equal(later) || !rows[0].NextAt.Equal(noon.Add(time.Minute+leaseTime)) {
			t.Fatalf("%+v", rows)
		}
		if got, want := b.itemRow(a), (itemRow{Hop: rows[0].Hop, NextAt: rows[0].NextAt, DueAt: later}); got != want {
			t.Errorf("%+v\nwant %+v", got, want)
		}
		for at, early := range map[time.Duration]bool{time.Hour - time.Millisecond: true, time.Hour: false} {
			if r, err := b.at(at).Ripen(context.Background(), itemNos(a)); err != nil || (len(r.Early) == 1) != early {
				t.Errorf("%v: %+v, %v", at, r, err)
			}
		}
	},
	"an owner that does not answer is called again, and what it said stands in the row": func(t *testing.T, b bed) {
		a := adopted("B-1", time.Minute)
		r := b.claimedOne(time.Minute, a)
		b.answered(time.Minute, order.Asked{Ripe: r, Failed: "502 Bad Gateway", Wait: time.Minute})
		if got := b.itemRow(a); got.State != order.ToCall || got.Attempts != 1 || got.LastError != "502 Bad Gateway" || !got.NextAt.Equal(noon.Add(2*time.Minute)) {
			t.Errorf("%+v", got)
		}
		r = b.claimRipe(2 * time.Minute)[0]
		b.answered(2*time.Minute, order.Asked{Ripe: r, Answer: order.Answer{Word: order.WordLater, Deadline: noon.Add(2 * time.Minute)}, Wait: time.Minute})
		if got := b.itemRow(a); got.State != order.ToCall || got.Attempts != 2 || got.LastError == "" {
			t.Errorf("later, but not later than now: %+v", got)
		}
		for attempts, want := range map[int]int64{1: 1, 2: 1, 3: 0} {
			if n, err := b.at(0).Unanswered(context.Background(), attempts); err != nil || n != want {
				t.Errorf("%d were called %d times, %v", n, attempts, err)
			}
		}
	},
	"who has lost his lease, or holds an older hop, changes nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		a := adopted("B-1", time.Minute)
		r := b.claimedOne(time.Minute, a)
		inTime := time.Minute + leaseTime - time.Millisecond
		otherHop, otherLease, unknown := r, r, r
		otherHop.Message.Hop++
		otherLease.Message.NextAt = r.Message.NextAt.Add(time.Second)
		unknown.Message.Key, unknown.Message.OrderNo, unknown.Ref = "nosuch", "nosuch", "B-0"
		before := b.dump(itemTables...)
		for name, c := range map[string]struct {
			r  order.Ripe
			at time.Duration
		}{
			"lease has run out": {r, time.Minute + leaseTime},
			"another hop":       {otherHop, inTime},
			"another's lease":   {otherLease, inTime},
			"no such item":      {unknown, inTime},
		} {
			for _, asked := range []order.Asked{
				{Answer: order.Answer{Word: order.WordClosed}},
				{Answer: order.Answer{Word: order.WordLater, Deadline: noon.Add(time.Hour)}},
				{Failed: "x", Wait: time.Hour},
			} {
				asked.Ripe = c.r
				if rows := b.answered(c.at, asked); len(rows) != 0 {
					t.Errorf("%s: %+v", name, rows)
				}
			}
			if name != "another hop" { // what is put off was not called about, so it has no hop of its own
				if err := b.at(c.at).PutOff(ctx, []order.Ripe{c.r}, time.Hour, "x"); err != nil {
					t.Error(err)
				}
			}
			if after := b.dump(itemTables...); after != before {
				t.Errorf("%s:\n%swas\n%s", name, after, before)
			}
		}
	},
	"items that are put off wait, and it counts as no call": func(t *testing.T, b bed) {
		items := []order.Adopted{adopted("B-1", time.Minute), adopted("B-2", time.Minute)}
		b.backfilled(items...)
		b.ripened(time.Minute, items...)
		if err := b.at(time.Minute).PutOff(context.Background(), b.claimRipe(time.Minute), time.Second, "busy"); err != nil {
			t.Fatal(err)
		}
		for _, a := range items {
			if got := b.itemRow(a); got.Attempts != 0 || got.LastError != "busy" || !got.NextAt.Equal(noon.Add(time.Minute+time.Second)) {
				t.Errorf("%+v", got)
			}
		}
		if err := b.at(0).PutOff(context.Background(), nil, time.Second, ""); err != nil {
			t.Error(err)
		}
	},
	"a backfill schedules what is not scheduled, and moves nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		a := adopted("B-1", time.Minute)
		b.backfilled(a)
		before := b.dump(itemTables...)
		older := a
		older.Deadline = noon.Add(time.Second)
		if n, err := b.at(time.Hour).Backfill(ctx, []order.Adopted{older}); err != nil || n != 0 || b.dump(itemTables...) != before {
			t.Errorf("%d, %v\n%s", n, err, b.dump(itemTables...))
		}
		b2 := adopted("B-2", time.Minute)
		if n, err := b.at(0).Backfill(ctx, []order.Adopted{a, b2, b2}); err != nil || n != 1 {
			t.Errorf("%d, %v", n, err)
		}
		if n, err := b.at(0).Backfill(ctx, nil); err != nil || n != 0 {
			t.Errorf("%d, %v", n, err)
		}
		var many []order.Adopted
		for i := range 500 {
			many = append(many, adopted(fmt.Sprintf("M-%d", i), time.Minute))
		}
		b.backfilled(many...)
		if n := b.count("SELECT COUNT(*) FROM t_item"); n != 502 {
			t.Errorf("%d items", n)
		}
	},
	"what its owner says is overdue is ripe, unless it is scheduled for later": func(t *testing.T, b bed) {
		ctx := context.Background()
		unknown, lost, asked, moved, early := adopted("B-1", time.Minute), adopted("B-2", time.Minute), adopted("B-3", time.Minute),
			adopted("B-4", 2*time.Hour), adopted("B-5", 2*time.Hour)
		b.backfilled(lost, asked, moved, early)
		m := claimOneOf(t, b.at(0), lost)
		if err := b.at(0).Settle(ctx, sent(m)); err != nil {
			t.Fatal(err)
		}
		b.ripened(time.Minute, asked)
		b.answered(time.Minute, order.Asked{Ripe: b.claimRipe(time.Minute)[0], Failed: "x", Wait: 2 * time.Hour})
		before := b.itemRow(asked)
		moved.Deadline = noon.Add(30 * time.Minute) // in a list: what is scheduled counts
		for _, want := range []int{2, 0} {
			n, err := b.at(time.Hour).Overdue(ctx, []order.Adopted{unknown, lost, asked, moved, early})
			if err != nil || n != want {
				t.Errorf("%d found overdue, want %d, %v", n, want, err)
			}
		}
		if got := b.itemRow(asked); got != before {
			t.Errorf("an owner that is being called: %+v\nwas %+v", got, before)
		}
		if got := b.itemRow(early); got.State != order.ToSend {
			t.Errorf("%+v", got)
		}
		var got []order.Adopted
		for _, r := range b.claimRipe(time.Hour) {
			got = append(got, r.Adopted)
		}
		slices.SortFunc(got, func(a, b order.Adopted) int { return strings.Compare(a.Ref, b.Ref) })
		if !reflect.DeepEqual(got, []order.Adopted{unknown, lost}) {
			t.Errorf("%+v", got)
		}
		if n, err := b.at(time.Hour).Overdue(ctx, nil); err != nil || n != 0 {
			t.Errorf("%d, %v", n, err)
		}
	},
	"an owner's transaction schedules, moves and forgets, or does nothing at all": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.real()
		now, err := s.Now(ctx)
		if err != nil {
			t.Fatal(err)
		}
		a := order.Adopted{Kind: "booking", Ref: "B-1", Deadline: now.Add(time.Hour + 100*time.Nanosecond)}
		due := now.Add(time.Hour + time.Millisecond) // never a moment before its deadline
		f := foreign(t, b)
		b.inTx(false, func(tx *sql.Tx) error { return f.Schedule(ctx, tx, []order.Adopted{a}) })
		if n := b.count("SELECT COUNT(*) FROM t_item") + b.count("SELECT COUNT(*) FROM t_local_message"); n != 0 {
			t.Fatalf("%d rows after a rollback", n)
		}
		b.inTx(true, func(tx *sql.Tx) error { return f.Schedule(ctx, tx, []order.Adopted{a}) })
		m := claimOne(t, s)
		if m.Hop != 0 || !m.DueAt.Equal(due) || m.Type != order.AdoptedType || m.Kind != order.Timeout || m.OrderNo != a.No() {
			t.Errorf("%+v, want due at %v", m, due)
		}
		if err := s.Settle(ctx, sent(m)); err != nil {
			t.Fatal(err)
		}
		a.Deadline = now
		b.inTx(true, func(tx *sql.Tx) error { return f.Schedule(ctx, tx, []order.Adopted{a}) })
		if m = claimOne(t, s); m.Hop != 1 || !m.DueAt.Equal(now) {
			t.Errorf("%+v", m)
		}
		if r, err := s.Ripen(ctx, itemNos(a)); err != nil || len(r.Ripe) != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		b.inTx(true, func(tx *sql.Tx) error { return f.Forget(ctx, tx, itemNos(a, adopted("unknown", 0))) })
		if n := b.count("SELECT COUNT(*) FROM t_item") + b.count("SELECT COUNT(*) FROM t_local_message"); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	},
	"an answer about a deadline that was moved since is of no effect": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.real()
		now, err := s.Now(ctx)
		if err != nil {
			t.Fatal(err)
		}
		a := order.Adopted{Kind: "booking", Ref: "B-1", Deadline: now}
		f := foreign(t, b)
		b.inTx(true, func(tx *sql.Tx) error { return f.Schedule(ctx, tx, []order.Adopted{a}) })
		if _, err := s.Ripen(ctx, itemNos(a)); err != nil {
			t.Fatal(err)
		}
		ripe, _, _, err := s.ClaimRipe(ctx, 10, leaseTime)
		if err != nil || len(ripe) != 1 {
			t.Fatalf("%+v, %v", ripe, err)
		}
		a.Deadline = now.Add(time.Hour)
		b.inTx(true, func(tx *sql.Tx) error { return f.Schedule(ctx, tx, []order.Adopted{a}) })
		before := b.dump(itemTables...)
		if rows, err := s.Answered(ctx, order.Asked{Ripe: ripe[0], Answer: order.Answer{Word: order.WordClosed}}, leased); err != nil || len(rows) != 0 {
			t.Errorf("%+v, %v", rows, err)
		}
		if after := b.dump(itemTables...); after != before {
			t.Errorf("%swas\n%s", after, before)
		}
	},
}
