package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// remindedDraft is a draft whose user is told 20 s before its deadline.
func remindedDraft(no string, refs ...string) order.Draft {
	d := draft(no, refs...)
	d.Rule.RemindLead = 20 * time.Second
	return d
}

// patientDraft is a draft whose order is not closed at its deadline, but has so long again.
func patientDraft(no string, second time.Duration, refs ...string) order.Draft {
	d := draft(no, refs...)
	d.Rule.SecondChance = second
	return d
}

func (b bed) remind(d time.Duration, nos ...string) []order.Message {
	b.t.Helper()
	rows, err := b.at(d).Remind(context.Background(), nos, leased)
	if err != nil {
		b.t.Fatal(err)
	}
	return rows
}

// expectNotice wants a message to carry an event about an order as it is now.
func expectNotice(t *testing.T, m order.Message, eventType string, o order.Order, at time.Time) {
	t.Helper()
	var e order.CloudEvent[order.OrderData]
	if err := json.Unmarshal(m.Payload, &e); err != nil {
		t.Fatal(err)
	}
	if m.Kind != order.Notice || m.Type != eventType || m.Round != o.Round || m.Key != order.EventID(o.OrderNo, o.Round, eventType) ||
		!m.NextAt.Equal(at.Add(leaseTime)) || e.ID != m.Key || e.Type != eventType || e.Subject != o.OrderNo || !e.Time.Equal(at) {
		t.Errorf("%+v, %+v", m, e)
	}
	if d := e.Data; d.OrderNo != o.OrderNo || d.Version != o.Version || d.UserID != o.UserID || d.Status != "pending" || d.Amount != o.Amount ||
		len(d.Items) != len(o.Items) || o.ExpireAt != order.Never && !d.ExpireAt.Equal(o.ExpireAt) {
		t.Errorf("the event says %+v of %+v", d, o)
	}
}

var remindTests = map[string]func(t *testing.T, b bed){
	"a reminder is told once, in its time": func(t *testing.T, b bed) {
		b.stock("a", 2)
		made := b.create(remindedDraft("ORDER-1", "a"))
		if due := made[0].Message.DueAt; !due.Equal(noon.Add(40 * time.Second)) {
			t.Errorf("the order is to be looked at at %v", due)
		}
		if rows := b.remind(40*time.Second-time.Millisecond, "ORDER-1"); len(rows) != 0 {
			t.Errorf("a millisecond early: %+v", rows)
		}
		rows := b.remind(40*time.Second, "ORDER-1", "ORDER-1", "ORDER-nosuch")
		o, _, err := b.at(0).Get(context.Background(), "ORDER-1")
		if err != nil || len(rows) != 2 || o.RemindLead != 0 || o.Version != 1 || o.Status != order.Pending {
			t.Fatal(rows, o, err)
		}
		if m := rows[0]; m.Kind != order.Timeout || m.Hop != 1 || !m.DueAt.Equal(o.ExpireAt) || !m.NextAt.Equal(noon.Add(40*time.Second+leaseTime)) {
			t.Errorf("%+v", m)
		}
		expectNotice(t, rows[1], order.TypeExpiringSoon, o, noon.Add(40*time.Second))
		if m := b.timeoutRow("ORDER-1"); m.Hop != 1 || !m.DueAt.Equal(o.ExpireAt) || m.State != order.ToSend {
			t.Errorf("%+v", m)
		}
		if rows := b.remind(50*time.Second, "ORDER-1"); len(rows) != 0 {
			t.Errorf("told again: %+v", rows)
		}
		if batch := b.closeAt(time.Minute, "ORDER-1"); len(batch.Closed) != 1 {
			t.Errorf("%+v", batch)
		}
		b.expectStock("a", 2, 0, 0)
	},
	"nobody is reminded of what is over": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(remindedDraft("ORDER-paid"), remindedDraft("ORDER-cancelled"), remindedDraft("ORDER-doubted"), remindedDraft("ORDER-due"), draft("ORDER-plain"))
		if _, err := b.at(0).Pay(ctx, payment("P1", "ORDER-paid"), order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.at(0).Cancel(ctx, wish("ORDER-cancelled", "u1"), leased); err != nil {
			t.Fatal(err)
		}
		b.attempt(0, "ORDER-doubted", "BILL-0001", time.Hour)
		w := wish("ORDER-doubted", "u1")
		w.Confirm = patience
		if _, _, err := b.at(0).Cancel(ctx, w, leased); err != nil {
			t.Fatal(err)
		}
		before := b.dump(everything...)
		rows := b.remind(50*time.Second, "ORDER-paid", "ORDER-cancelled", "ORDER-doubted", "ORDER-plain")
		rows = append(rows, b.remind(time.Minute, "ORDER-due")...)
		rows = append(rows, b.remind(50*time.Second)...)
		if after := b.dump(everything...); len(rows) != 0 || after != before {
			t.Errorf("%+v\n%s\n%s", rows, before, after)
		}
	},
	"two who remind at once tell it once": func(t *testing.T, b bed) {
		b.create(remindedDraft("ORDER-1"))
		stores, counts := []*store.Store{b.at(50 * time.Second), b.at(50 * time.Second)}, [2]int{}
		remind := func(i int) func() {
			return func() {
				rows, err := stores[i].Remind(context.Background(), []string{"ORDER-1"}, leased)
				if err != nil {
					t.Error(err)
				}
				counts[i] = len(rows)
			}
		}
		together(remind(0), remind(1))
		if counts[0]+counts[1] != 2 {
			t.Errorf("%v rows were written", counts)
		}
	},
	"a second chance: told at the deadline, closed at the second one": func(t *testing.T, b bed) {
		b.stock("a", 2)
		d := patientDraft("ORDER-1", 5*time.Minute, "a")
		d.Rule.RemindLead = 20 * time.Second // of no use any more when the deadline has passed
		b.create(d)
		if batch := b.closeAt(time.Minute-time.Millisecond, "ORDER-1"); batch.Reminded != 0 {
			t.Errorf("a millisecond early: %+v", batch)
		}
		batch := b.closeAt(time.Minute, "ORDER-1")
		o, _, err := b.at(0).Get(context.Background(), "ORDER-1")
		if err != nil || batch.Reminded != 1 || len(batch.Closed) != 0 || len(batch.Messages) != 2 || o.Status != order.Pending || o.Version != 2 ||
			!o.ExpireAt.Equal(noon.Add(6*time.Minute)) || o.SecondChance != 0 || o.RemindLead != 0 {
			t.Fatal(batch, o, err)
		}
		if m := batch.Messages[0]; m.Kind != order.Timeout || m.Hop != 1 || !m.DueAt.Equal(o.ExpireAt) {
			t.Errorf("%+v", m)
		}
		expectNotice(t, batch.Messages[1], order.TypeExpired, o, noon.Add(time.Minute))
		want := order.LogEntry{OrderNo: "ORDER-1", Version: 2, Round: 1, Event: order.EventReminded, Reason: "TIMEOUT", Actor: "closer-1",
			At: noon.Add(time.Minute), ExpireAt: o.ExpireAt}
		if got := b.lastEntry("ORDER-1"); got != want {
			t.Errorf("log %+v", got)
		}
		b.expectStock("a", 1, 1, 0)
		if !o.Payable(noon.Add(5 * time.Minute)) {
			t.Error("it cannot be paid")
		}
		if batch := b.closeAt(6*time.Minute-time.Millisecond, "ORDER-1"); batch.Reminded+len(batch.Closed) != 0 {
			t.Errorf("a millisecond early: %+v", batch)
		}
		if batch := b.closeAt(6*time.Minute, "ORDER-1"); len(batch.Closed) != 1 {
			t.Errorf("%+v", batch)
		}
		b.expectStock("a", 2, 0, 0)
	},
	"a second chance for ever is never closed": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(patientDraft("ORDER-1", order.Forever, "a"))
		batch := b.closeAt(time.Minute, "ORDER-1")
		o, _, err := b.at(0).Get(context.Background(), "ORDER-1")
		if err != nil || batch.Reminded != 1 || !o.ExpireAt.Equal(order.Never) {
			t.Fatal(batch, o, err)
		}
		if batch := b.closeAt(100_000*time.Hour, "ORDER-1"); batch.Reminded+len(batch.Closed) != 0 {
			t.Errorf("%+v", batch)
		}
		if got, err := b.at(1000*time.Hour).Pay(context.Background(), payment("P1", "ORDER-1"), order.Rules{}, leased); err != nil || got.Outcome != order.PaymentAccepted {
			t.Error(got, err)
		}
		b.expectStock("a", 0, 0, 1)
	},
	"many at once: each gets its own deadline": func(t *testing.T, b bed) {
		var nos []string
		var drafts []order.Draft
		for i := range 150 {
			d := patientDraft(fmt.Sprintf("ORDER-%03d", i), time.Hour+time.Duration(i)*time.Second)
			d.Timeout = time.Minute + time.Duration(i)*time.Millisecond
			drafts, nos = append(drafts, d), append(nos, d.OrderNo)
		}
		b.create(drafts...)
		batch := b.closeAt(2*time.Minute, nos...)
		if batch.Reminded != 150 || len(batch.Messages) != 300 {
			t.Fatalf("%d reminded, %d messages", batch.Reminded, len(batch.Messages))
		}
		orders, _, err := b.at(0).Look(context.Background(), nos)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range drafts {
			want := noon.Add(d.Timeout + d.Rule.SecondChance)
			if o := orders[i]; o.OrderNo != d.OrderNo || !o.ExpireAt.Equal(want) || !b.timeoutRow(o.OrderNo).DueAt.Equal(want) {
				t.Errorf("%s: %v, want %v", o.OrderNo, o.ExpireAt, want)
			}
		}
	},
}
