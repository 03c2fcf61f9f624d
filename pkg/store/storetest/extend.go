package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// extend moves the deadline of an order, which must be possible.
func (b bed) extend(d time.Duration, e order.Extending) order.Extended {
	b.t.Helper()
	e.Act = staff
	done, err := b.at(d).Extend(context.Background(), e, leased)
	if err != nil || done.Order == nil {
		b.t.Fatal(done, err)
	}
	return done
}

// extendMany walks all pages, two orders at a time, and returns how many were moved.
func (b bed) extendMany(s *store.Store, e order.Extending) (moved int) {
	b.t.Helper()
	e.Act = staff
	for from := order.Foremost(); ; {
		done, err := s.ExtendPage(context.Background(), e, from, 2, leased)
		if err != nil {
			b.t.Fatal(err)
		}
		if done.Extended > 2 || len(done.Messages) != done.Extended {
			b.t.Errorf("a page of two moved %d orders, with %d messages", done.Extended, len(done.Messages))
		}
		if moved += done.Extended; done.Next == nil {
			return moved
		}
		from = *done.Next
	}
}

// expectDeadline wants an order's deadline so long after noon.
func (b bed) expectDeadline(no string, want time.Duration) {
	b.t.Helper()
	o, _, err := b.at(0).Get(context.Background(), no)
	if err != nil || !o.ExpireAt.Equal(noon.Add(want)) {
		b.t.Errorf("%s is due at %v (%v), want %v after noon", no, o.ExpireAt, err, want)
	}
}

var extendTests = map[string]func(t *testing.T, b bed){
	"an extension moves the deadline, and with it all that waits for it": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		done := b.extend(30*time.Second, order.Extending{OrderNo: "ORDER-1", By: time.Hour})
		deadline := noon.Add(time.Hour + time.Minute)
		if o := done.Order; done.Extended != 1 || !o.ExpireAt.Equal(deadline) || o.Version != 2 || o.Status != order.Pending || len(o.Items) != 1 {
			t.Errorf("%+v", o)
		}
		b.expectRead(*done.Order)
		want := order.LogEntry{OrderNo: "ORDER-1", Version: 2, Round: 1, Event: order.EventExtended, Note: staff.Note, Actor: staff.Actor,
			At: noon.Add(30 * time.Second), ExpireAt: deadline}
		if got := b.lastEntry("ORDER-1"); got != want {
			t.Errorf("log %+v", got)
		}
		m := b.timeoutRow("ORDER-1")
		if m.Hop != 1 || m.State != order.ToSend || !m.DueAt.Equal(deadline) || !m.NextAt.Equal(noon.Add(30*time.Second+leaseTime)) {
			t.Errorf("%+v", m)
		}
		if len(done.Messages) != 1 || done.Messages[0].Key != m.Key || done.Messages[0].Hop != 1 || !done.Messages[0].NextAt.Equal(m.NextAt) {
			t.Errorf("to be sent: %+v", done.Messages)
		}
		if batch := b.closeAt(time.Hour+time.Minute-time.Millisecond, "ORDER-1"); len(batch.Closed) != 0 {
			t.Error("closed a millisecond early")
		}
		if batch := b.closeAt(time.Hour+time.Minute, "ORDER-1"); len(batch.Closed) != 1 {
			t.Errorf("%+v", batch)
		}
	},
	"messages from before an extension are of no effect": func(t *testing.T, b bed) {
		ctx := context.Background()
		before := *b.create(draft("ORDER-1"))[0].Message
		b.extend(0, order.Extending{OrderNo: "ORDER-1", By: time.Minute})
		between := b.extend(time.Second, order.Extending{OrderNo: "ORDER-1", Until: noon.Add(time.Hour)}).Messages[0]
		b.extend(2*time.Second, order.Extending{OrderNo: "ORDER-1", By: time.Minute})
		stands := b.everything()
		for _, d := range []time.Duration{time.Minute, 2 * time.Minute, time.Hour, time.Hour + time.Minute - time.Millisecond} {
			for _, m := range []order.Message{before, between} {
				s := b.at(d)
				if batch := b.closeWith(s, m.OrderNo); len(batch.Closed) != 0 {
					t.Errorf("hop %d closed the order %v after noon", m.Hop, d)
				}
				if rows, err := s.Postpone(ctx, []order.Early{{OrderNo: m.OrderNo, Hop: m.Hop}}, leased); err != nil || len(rows) != 0 {
					t.Errorf("hop %d was scheduled again: %+v, %v", m.Hop, rows, err)
				}
				if err := s.Settle(ctx, sent(m)); err != nil {
					t.Error(err)
				}
			}
		}
		if b.everything() != stands {
			t.Error("an old message changed something")
		}
		if batch := b.closeAt(time.Hour+time.Minute, "ORDER-1"); len(batch.Closed) != 1 {
			t.Errorf("%+v", batch)
		}
	},
	"a deadline that does not change writes nothing": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		before := b.everything()
		for _, until := range []time.Duration{time.Second, time.Minute, time.Minute + time.Microsecond} {
			done := b.extend(0, order.Extending{OrderNo: "ORDER-1", Until: noon.Add(until)})
			if done.Extended != 0 || len(done.Messages) != 0 || !done.Order.ExpireAt.Equal(noon.Add(time.Minute)) || b.everything() != before {
				t.Errorf("held until %v after noon: %+v", until, done)
			}
		}
		if n := b.extendMany(b.at(0), order.Extending{UserID: "u1", Until: noon.Add(time.Minute)}); n != 0 || b.everything() != before {
			t.Errorf("%d were moved", n)
		}
	},
	"an extension that cannot be is refused": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"), draft("ORDER-doubt"), draft("ORDER-paid"), draft("ORDER-gone"))
		b.attempt(0, "ORDER-doubt", "BILL-0001", time.Hour)
		b.expire(time.Minute, "ORDER-doubt", "ORDER-gone")
		b.pay(0, "P1", "ORDER-paid", order.Rules{})
		before := b.everything()
		for _, c := range []struct {
			e    order.Extending
			at   time.Duration
			kind order.Kind
			code string
		}{
			{order.Extending{OrderNo: "ORDER-nosuch", By: time.Minute}, 0, order.NotFound, "order_not_found"},
			{order.Extending{OrderNo: "ORDER-doubt", By: time.Minute}, 0, order.Conflict, "state_conflict"},
			{order.Extending{OrderNo: "ORDER-paid", By: time.Minute}, 0, order.Conflict, "state_conflict"},
			{order.Extending{OrderNo: "ORDER-gone", By: time.Minute}, 0, order.Conflict, "state_conflict"},
			{order.Extending{OrderNo: "ORDER-1", By: 90 * day}, 0, order.Invalid, "extension_too_far"},
			{order.Extending{OrderNo: "ORDER-1", By: time.Minute}, 2 * time.Minute, order.Invalid, "extension_in_the_past"},
			{order.Extending{OrderNo: "ORDER-1", Until: noon.Add(-time.Hour)}, 0, order.Invalid, "extension_in_the_past"},
		} {
			c.e.Act = staff
			_, err := b.at(c.at).Extend(context.Background(), c.e, leased)
			b.expectRefused(before, err, c.kind, c.code)
		}
	},
	"an order that was reminded is not reminded again, and one that was not is, in its new time": func(t *testing.T, b bed) {
		b.create(remindedDraft("ORDER-1"), remindedDraft("ORDER-2"))
		if rows := b.remind(40*time.Second, "ORDER-1"); len(rows) != 2 {
			t.Fatalf("%+v", rows)
		}
		done := b.extend(45*time.Second, order.Extending{OrderNo: "ORDER-1", By: time.Hour})
		if m := done.Messages[0]; !m.DueAt.Equal(done.Order.ExpireAt) {
			t.Errorf("looked at again at %v", m.DueAt)
		}
		done = b.extend(30*time.Second, order.Extending{OrderNo: "ORDER-2", By: time.Hour})
		if m := done.Messages[0]; !m.DueAt.Equal(noon.Add(time.Hour + 40*time.Second)) {
			t.Errorf("to be reminded at %v", m.DueAt)
		}
		if rows := b.remind(40*time.Second, "ORDER-1", "ORDER-2"); len(rows) != 0 {
			t.Errorf("reminded at the old time: %+v", rows)
		}
		if rows := b.remind(time.Hour+40*time.Second, "ORDER-1", "ORDER-2"); len(rows) != 2 || rows[1].OrderNo != "ORDER-2" {
			t.Errorf("%+v", rows)
		}
	},
	"all pending orders of a user are extended, each once, and nobody else's": func(t *testing.T, b bed) {
		var drafts []order.Draft
		for i := range 7 {
			d := draft(fmt.Sprintf("ORDER-%d", i))
			d.Timeout = time.Duration(1+i/3) * time.Minute // some at the same moment
			drafts = append(drafts, d)
		}
		other := draft("ORDER-other")
		other.UserID = "u2"
		b.create(append(drafts, other)...)
		b.pay(0, "P0", "ORDER-0", order.Rules{})
		if n := b.extendMany(b.at(0), order.Extending{UserID: "u1", By: time.Hour}); n != 6 {
			t.Errorf("%d were moved", n)
		}
		for _, d := range drafts[1:] {
			b.expectDeadline(d.OrderNo, d.Timeout+time.Hour)
		}
		b.expectDeadline("ORDER-0", time.Minute)
		b.expectDeadline("ORDER-other", time.Minute)
	},
	"all pending orders of a business type are extended, each once, and none of another is waited for": func(t *testing.T, b bed) {
		nos := append(inShard(5, 5), inShard(order.Shards-1, 3)...)
		var drafts []order.Draft
		for _, no := range nos {
			d := draft(no)
			d.BizType = "travel"
			drafts = append(drafts, d)
		}
		others := []order.Draft{draft("OTHER-1"), draft("OTHER-2")}
		others[1].BizType = "travel agency"
		b.create(append(drafts, others...)...)
		if b.locking == RowLocks {
			defer b.hold("UPDATE t_order SET amount = amount WHERE order_no LIKE 'OTHER%'")()
		}
		s := b.Open(t, noon, store.Options{OnRetry: func(failure string) { t.Errorf("run again: %s", failure) }})
		if n := b.extendMany(s, order.Extending{BizType: "travel", By: time.Hour}); n != len(nos) {
			t.Errorf("%d of %d were moved", n, len(nos))
		}
		for _, no := range nos {
			b.expectDeadline(no, time.Hour+time.Minute)
		}
		for _, d := range others {
			b.expectDeadline(d.OrderNo, time.Minute)
		}
	},
	"of many, those that cannot be moved so far are left out": func(t *testing.T, b bed) {
		ever := draft("ORDER-ever")
		ever.Rule.SecondChance = order.Forever
		drafts := []order.Draft{draft("ORDER-1"), ever}
		for i := range 3 { // a page and more, all due at one moment
			d := draft(fmt.Sprintf("ORDER-far-%d", i))
			d.Timeout = 80 * day
			drafts = append(drafts, d)
		}
		b.create(drafts...)
		b.closeAt(time.Minute, "ORDER-ever") // payable for ever from now on
		if n := b.extendMany(b.at(0), order.Extending{UserID: "u1", By: 20 * day}); n != 1 {
			t.Errorf("%d were moved", n)
		}
		b.expectDeadline("ORDER-1", 20*day+time.Minute)
		b.expectDeadline("ORDER-far-0", 80*day)
	},
	"an extension that races a close: one wins, and the last committed deadline counts": func(t *testing.T, b bed) {
		ctx := context.Background()
		const rounds = 40
		b.stock("a", rounds)
		before, due := b.at(time.Minute-time.Millisecond), b.at(time.Minute)
		for i := range rounds {
			no := fmt.Sprintf("ORDER-%d", i)
			b.create(draft(no, "a"))
			var extended, closed atomic.Int32
			together(
				func() {
					done, err := before.Extend(ctx, order.Extending{OrderNo: no, By: time.Hour, Act: staff}, leased)
					if err != nil && order.KindOf(err) != order.Conflict {
						t.Error(err)
					}
					extended.Add(int32(done.Extended))
				},
				func() {
					batch, err := due.CloseDue(ctx, order.Closing{OrderNos: []string{no}, Reason: order.ReasonTimeout}, leased)
					if err != nil {
						t.Error(err)
					}
					closed.Add(int32(len(batch.Closed)))
				},
			)
			open := b.status(no) == order.Pending
			if extended.Load()+closed.Load() != 1 || open != (extended.Load() == 1) {
				t.Errorf("%s: %d extended, %d closed, pending is %v", no, extended.Load(), closed.Load(), open)
			}
			if !open {
				continue
			}
			b.expectDeadline(no, time.Hour+time.Minute)
			if batch := b.closeWith(due, no); len(batch.Closed) != 0 {
				t.Errorf("%s was closed at its old deadline", no)
			}
			if batch := b.closeAt(time.Hour+time.Minute, no); len(batch.Closed) != 1 {
				t.Errorf("%s was not closed at its new one: %+v", no, batch)
			}
		}
		b.expectStock("a", rounds, 0, 0)
	},
	"extensions at once all count": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		stores := []*store.Store{b.at(0), b.at(0)}
		var work []func()
		for i := range 8 {
			work = append(work, func() {
				e := order.Extending{OrderNo: "ORDER-1", By: time.Hour, Act: staff}
				if _, err := stores[i%2].Extend(context.Background(), e, leased); err != nil {
					t.Error(err)
				}
				e.OrderNo, e.UserID = "", "u1"
				if _, err := stores[i%2].ExtendPage(context.Background(), e, order.Foremost(), 10, leased); err != nil {
					t.Error(err)
				}
			})
		}
		together(work...)
		b.expectDeadline("ORDER-1", 16*time.Hour+time.Minute)
		b.expectDeadline("ORDER-2", 8*time.Hour+time.Minute)
		if m := b.timeoutRow("ORDER-1"); m.Hop != 16 || !m.DueAt.Equal(noon.Add(16*time.Hour+time.Minute)) {
			t.Errorf("%+v", m)
		}
	},
}
