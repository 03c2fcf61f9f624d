package storetest

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// sent says that the broker took m.
func sent(m order.Message) []order.Sent {
	return []order.Sent{{Message: m, Receipt: order.Receipt{MessageID: "id-" + m.OrderNo, OffsetMessageID: "off-" + m.OrderNo}}}
}

// scheduled reads the only message of an order.
func (b bed) scheduled(no string) order.Scheduled {
	b.t.Helper()
	_, rows, err := b.at(0).Timeline(context.Background(), no)
	if err != nil || len(rows) != 1 {
		b.t.Fatalf("%+v, %v", rows, err)
	}
	return rows[0]
}

// claimAll claims rows of both kinds.
func claimAll(ctx context.Context, s *store.Store, limit int, lease time.Duration) (rows []order.Message, now, wake time.Time, err error) {
	for _, kind := range []order.MessageKind{order.Timeout, order.Notice} {
		claimed, at, next, err := s.Claim(ctx, kind, limit-len(rows), lease)
		if err != nil {
			return nil, now, wake, err
		}
		rows, now = append(rows, claimed...), at
		if wake.IsZero() || !next.IsZero() && next.Before(wake) {
			wake = next
		}
	}
	return rows, now, wake, nil
}

// claimOne claims the only row that is due.
func claimOne(t *testing.T, s *store.Store) order.Message {
	t.Helper()
	rows, _, _, err := claimAll(context.Background(), s, 10, leaseTime)
	if err != nil || len(rows) != 1 {
		t.Fatalf("%+v, %v", rows, err)
	}
	return rows[0]
}

var messageTests = map[string]func(t *testing.T, b bed){
	"a claim leases what is due and tells when the next is": func(t *testing.T, b bed) {
		ctx := context.Background()
		if rows, now, wake, err := claimAll(ctx, b.at(0), 10, leaseTime); err != nil || len(rows) != 0 || !wake.IsZero() || !now.Equal(noon) {
			t.Fatal(rows, now, wake, err)
		}
		due := func(d time.Duration) order.Schedule {
			return func(_ order.Message, now time.Time) time.Time { return now.Add(d) }
		}
		b.createWith(b.at(0), due(0), draft("ORDER-1"))
		b.createWith(b.at(0), due(time.Second), draft("ORDER-2"))
		b.createWith(b.at(0), due(time.Hour), draft("ORDER-3"))
		rows, now, wake, err := claimAll(ctx, b.at(time.Second), 10, leaseTime)
		if err != nil || !now.Equal(noon.Add(time.Second)) {
			t.Fatal(now, err)
		}
		var got []string
		for _, m := range rows {
			got = append(got, m.OrderNo)
			if !m.NextAt.Equal(now.Add(leaseTime)) || string(m.Payload) != "00-trace" || !m.DueAt.Equal(noon.Add(time.Minute)) {
				t.Errorf("%+v", m)
			}
		}
		if fmt.Sprint(got) != "[ORDER-1 ORDER-2]" {
			t.Error(got)
		}
		if !wake.Equal(now.Add(leaseTime)) {
			t.Errorf("wake is %v", wake)
		}
		if again, _, wake, err := claimAll(ctx, b.at(time.Second), 10, leaseTime); err != nil || len(again) != 0 || !wake.Equal(now.Add(leaseTime)) {
			t.Error("claimed twice:", again, wake, err)
		}
		if after, _, _, err := claimAll(ctx, b.at(time.Second+leaseTime), 10, leaseTime); err != nil || len(after) != 2 {
			t.Error("after the lease:", after, err)
		}
	},
	"a claim takes the oldest first, and no more than asked for": func(t *testing.T, b bed) {
		for i := range 5 {
			b.createWith(b.at(time.Duration(5-i)*time.Second), unleased, draft(fmt.Sprintf("ORDER-%d", i)))
		}
		rows, _, _, err := claimAll(context.Background(), b.at(time.Minute), 2, leaseTime)
		if err != nil || len(rows) != 2 || rows[0].OrderNo != "ORDER-4" || rows[1].OrderNo != "ORDER-3" {
			t.Error(rows, err)
		}
	},
	"a claim takes rows of one kind": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		event := b.closeAt(time.Minute, "ORDER-1").Messages[0]
		for kind, key := range map[order.MessageKind]string{order.Timeout: order.TimeoutKey("ORDER-2"), order.Notice: event.Key} {
			rows, _, wake, err := b.at(time.Hour).Claim(context.Background(), kind, 10, leaseTime)
			if err != nil || len(rows) != 1 || rows[0].Key != key || !wake.Equal(noon.Add(time.Hour+leaseTime)) {
				t.Errorf("%s: %+v, %v, %v", kind, rows, wake, err)
			}
		}
	},
	"a settled time-out row is sent, with what the broker answered": func(t *testing.T, b bed) {
		m := *b.create(draft("ORDER-1"))[0].Message
		if err := b.at(time.Second).Settle(context.Background(), sent(m)); err != nil {
			t.Fatal(err)
		}
		want := order.Scheduled{Message: m, State: order.AlreadySent, Receipt: order.Receipt{MessageID: "id-ORDER-1", OffsetMessageID: "off-ORDER-1"}}
		if got := b.scheduled("ORDER-1"); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v", got)
		}
		if rows, _, wake, err := claimAll(context.Background(), b.at(time.Hour), 10, leaseTime); err != nil || len(rows) != 0 || !wake.IsZero() {
			t.Error("a sent row was claimed:", rows, wake, err)
		}
	},
	"a settled event is gone, and stamped in the order's log": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		batch := b.closeAt(time.Minute, "ORDER-1", "ORDER-2")
		if err := b.at(time.Minute+time.Second).Settle(context.Background(), sent(batch.Messages[0])); err != nil {
			t.Fatal(err)
		}
		for _, m := range batch.Messages {
			settled := m.Key == batch.Messages[0].Key
			log, scheduled, err := b.at(0).Timeline(context.Background(), m.OrderNo)
			if err != nil || len(scheduled) == 0 != settled || log[1].EventSentAt.IsZero() == settled || !log[0].EventSentAt.IsZero() {
				t.Errorf("log %+v, scheduled %+v, %v", log, scheduled, err)
			}
		}
	},
	"many rows settle in one call, also one that is named twice": func(t *testing.T, b bed) {
		var drafts []order.Draft
		var rows []order.Sent
		for i := range 150 {
			drafts = append(drafts, draft(fmt.Sprintf("ORDER-%d", i)))
		}
		var due []string
		for i, c := range b.create(drafts...) {
			if i%2 == 0 {
				rows = append(rows, sent(*c.Message)...)
			} else {
				due = append(due, c.Order.OrderNo)
			}
		}
		for _, m := range b.closeAt(time.Minute, due...).Messages {
			m.NextAt = noon.Add(time.Minute + leaseTime)
			rows = append(rows, sent(m)...)
		}
		b.exec("UPDATE t_local_message SET next_at = (SELECT n FROM (SELECT MAX(next_at) AS n FROM t_local_message) x) WHERE kind = 'timeout'")
		for i := range rows {
			rows[i].NextAt = noon.Add(time.Minute + leaseTime)
		}
		if err := b.at(time.Minute).Settle(context.Background(), append(rows, rows[0], rows[149])); err != nil {
			t.Fatal(err)
		}
		if n := b.count("SELECT COUNT(*) FROM t_local_message WHERE state = 1 AND message_id <> '' AND offset_message_id <> ''"); n != 75 {
			t.Errorf("%d time-outs", n)
		}
		if n := b.count("SELECT COUNT(*) FROM t_order_log WHERE event_sent_at IS NOT NULL"); n != 75 {
			t.Errorf("%d events", n)
		}
		if n := b.count("SELECT COUNT(*) FROM t_local_message"); n != 75 {
			t.Errorf("%d rows left", n)
		}
	},
	"who has lost his lease, or holds an older message, changes nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		timeout := *b.create(draft("ORDER-1"))[0].Message
		b.create(draft("ORDER-2"))
		event := b.closeAt(time.Minute, "ORDER-2").Messages[0]
		for _, m := range []order.Message{timeout, event} {
			before := b.scheduled(m.OrderNo)
			inTime := m.NextAt.Add(-time.Millisecond).Sub(noon)
			otherHop, otherLease, unknown := m, m, m
			otherHop.Hop++
			otherLease.NextAt = m.NextAt.Add(time.Second)
			unknown.Key = "nosuch"
			for name, c := range map[string]struct {
				m  order.Message
				at time.Duration
			}{
				"lease has run out": {m, inTime + time.Millisecond},
				"another hop":       {otherHop, inTime},
				"another's lease":   {otherLease, inTime},
				"no such row":       {unknown, inTime},
			} {
				if err := b.at(c.at).Settle(ctx, sent(c.m)); err != nil {
					t.Error(err)
				}
				for _, refused := range []bool{false, true} {
					q, err := b.at(c.at).Defer(ctx, []order.Deferred{{Message: c.m, Wait: time.Hour, Reason: "x", Refused: refused}}, 1)
					if err != nil || q != 0 {
						t.Error(q, err)
					}
				}
				if after := b.scheduled(m.OrderNo); !reflect.DeepEqual(after, before) {
					t.Errorf("%s: %+v\nwas %+v", name, after, before)
				}
			}
			if log, _, _ := b.at(0).Timeline(ctx, m.OrderNo); !log[len(log)-1].EventSentAt.IsZero() {
				t.Error("stamped as sent")
			}
		}
	},
	"an outage costs time, and no attempts": func(t *testing.T, b bed) {
		ctx := context.Background()
		m := *b.create(draft("ORDER-1"))[0].Message
		for i := range 3 {
			at := time.Duration(i) * time.Minute
			if i > 0 {
				m = claimOne(t, b.at(at))
			}
			q, err := b.at(at).Defer(ctx, []order.Deferred{{Message: m, Wait: time.Minute, Reason: "broker is away"}}, 1)
			if err != nil || q != 0 {
				t.Fatal(q, err)
			}
			got := b.scheduled("ORDER-1")
			if got.Attempts != 0 || got.State != order.ToSend || got.LastError != "broker is away" || !got.NextAt.Equal(noon.Add(at+time.Minute)) {
				t.Errorf("%d: %+v", i, got)
			}
		}
		backlog, err := b.at(2*time.Minute + time.Second).Backlog(ctx)
		if want := (order.Backlog{Rows: 1, Age: 2*time.Minute + time.Second}); err != nil || backlog != want {
			t.Errorf("backlog %+v, %v", backlog, err)
		}
		if err := b.at(4*time.Minute).Settle(ctx, sent(claimOne(t, b.at(4*time.Minute)))); err != nil {
			t.Error(err)
		}
		if got := b.scheduled("ORDER-1"); got.LastError != "" || got.State != order.AlreadySent {
			t.Errorf("%+v", got)
		}
	},
	"rows given back in one call each wait their own time": func(t *testing.T, b bed) {
		var rows []order.Deferred
		for i, c := range b.create(draft("ORDER-0"), draft("ORDER-1"), draft("ORDER-2")) {
			rows = append(rows, order.Deferred{Message: *c.Message, Wait: time.Duration(i+1) * time.Minute, Reason: []string{"", "away", "away"}[i]})
		}
		if _, err := b.at(0).Defer(context.Background(), rows, 9); err != nil {
			t.Fatal(err)
		}
		for i, r := range rows {
			got := b.scheduled(r.OrderNo)
			if !got.NextAt.Equal(noon.Add(r.Wait)) || got.LastError != r.Reason {
				t.Errorf("%d: %+v", i, got)
			}
		}
		if backlog, err := b.at(0).Backlog(context.Background()); err != nil || backlog.Rows != 2 {
			t.Errorf("one is only not due yet: %+v, %v", backlog, err)
		}
	},
	"a row that the broker refuses is quarantined after so many attempts": func(t *testing.T, b bed) {
		ctx := context.Background()
		m := *b.create(draft("ORDER-1"))[0].Message
		long := strings.Repeat("é", 400) + "x"
		for attempt := 1; attempt <= 3; attempt++ {
			if m.Attempts != attempt-1 {
				t.Fatalf("%+v", m)
			}
			at := time.Duration(attempt) * time.Second
			if attempt > 1 {
				m = claimOne(t, b.at(at))
				if m.Attempts != attempt-1 {
					t.Fatalf("%+v", m)
				}
			}
			q, err := b.at(at).Defer(ctx, []order.Deferred{{Message: m, Wait: time.Second, Reason: long, Refused: true}}, 3)
			if err != nil || (q == 1) != (attempt == 3) {
				t.Fatal(attempt, q, err)
			}
			m.Attempts++
		}
		got := b.scheduled("ORDER-1")
		if got.State != order.SetAside || got.Attempts != 3 || !strings.HasPrefix(long, got.LastError) || len(got.LastError) < 400 {
			t.Errorf("%+v", got)
		}
		if rows, _, _, err := claimAll(ctx, b.at(time.Hour), 10, leaseTime); err != nil || len(rows) != 0 {
			t.Error("claimed:", rows, err)
		}
		if n := b.count("SELECT COUNT(*) FROM t_quarantine WHERE source = 'relay' AND order_no = 'ORDER-1'"); n != 1 {
			t.Errorf("%d rows of quarantine", n)
		}
		if backlog, err := b.at(time.Hour).Backlog(ctx); err != nil || backlog.Rows != 0 || backlog.Quarantined != 1 {
			t.Errorf("%+v, %v", backlog, err)
		}
	},
	"an early message takes its row to the next hop, once": func(t *testing.T, b bed) {
		ctx := context.Background()
		var early []order.Early
		for _, c := range b.create(draft("ORDER-1"), draft("ORDER-2")) {
			if err := b.at(0).Settle(ctx, sent(*c.Message)); err != nil {
				t.Fatal(err)
			}
			early = append(early, order.Early{OrderNo: c.Order.OrderNo})
		}
		next := func(m order.Message, now time.Time) time.Time {
			if m.Hop != 1 {
				t.Errorf("asked for hop %d", m.Hop)
			}
			if m.OrderNo == "ORDER-2" {
				return m.DueAt
			}
			return now.Add(leaseTime)
		}
		forged := order.Early{OrderNo: "ORDER-1", Hop: 7}
		rows, err := b.at(time.Second).Postpone(ctx, append(early, early[0], forged), next)
		if err != nil || len(rows) != 2 {
			t.Fatal(rows, err)
		}
		for i, want := range []time.Duration{time.Second + leaseTime, time.Minute} {
			got := b.scheduled(rows[i].OrderNo)
			if rows[i].Hop != 1 || !rows[i].NextAt.Equal(noon.Add(want)) || got.State != order.ToSend || !reflect.DeepEqual(got.Message, rows[i]) {
				t.Errorf("%+v\nstored %+v", rows[i], got)
			}
		}
		if again, err := b.at(time.Second).Postpone(ctx, early, next); err != nil || len(again) != 0 {
			t.Error("an old message changed a row:", again, err)
		}
		if err := b.at(2*time.Second).Settle(ctx, sent(rows[0])); err != nil || b.scheduled("ORDER-1").State != order.AlreadySent {
			t.Error("the next hop could not be settled:", err)
		}
	},
	"an early message is scheduled again even before its sender has settled it": func(t *testing.T, b bed) {
		ctx := context.Background()
		m := *b.create(draft("ORDER-1"))[0].Message
		rows, err := b.at(0).Postpone(ctx, []order.Early{{OrderNo: "ORDER-1"}}, func(m order.Message, _ time.Time) time.Time { return m.DueAt })
		if err != nil || len(rows) != 1 {
			t.Fatal(rows, err)
		}
		if err := b.at(0).Settle(ctx, sent(m)); err != nil {
			t.Fatal(err)
		}
		if got := b.scheduled("ORDER-1"); got.State != order.ToSend || got.Hop != 1 {
			t.Errorf("the late settlement undid the hop: %+v", got)
		}
	},
	"forged early messages change nothing": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-1"), draft("ORDER-2"))
		b.closeAt(time.Minute, "ORDER-2")
		before := b.scheduled("ORDER-1")
		for _, e := range []order.Early{{OrderNo: "ORDER-1", Hop: 1}, {OrderNo: "ORDER-1", Hop: -1}, {OrderNo: "ORDER-2"}, {OrderNo: "ORDER-X"}} {
			if rows, err := b.at(0).Postpone(ctx, []order.Early{e}, leased); err != nil || len(rows) != 0 {
				t.Error(e, rows, err)
			}
		}
		if after := b.scheduled("ORDER-1"); !reflect.DeepEqual(after, before) {
			t.Errorf("%+v", after)
		}
	},
	"calls about no rows do nothing": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		_, err := s.Defer(ctx, nil, 1)
		rows, perr := s.Postpone(ctx, nil, leased)
		if err := errors.Join(err, perr, s.Settle(ctx, nil)); err != nil || len(rows) != 0 {
			t.Error(rows, err)
		}
	},
	"the backlog is what is due, not what waits": func(t *testing.T, b bed) {
		ctx := context.Background()
		if got, err := b.at(0).Backlog(ctx); err != nil || got != (order.Backlog{}) {
			t.Error(got, err)
		}
		b.createWith(b.at(0), unleased, draft("ORDER-1"))
		b.createWith(b.at(time.Second), unleased, draft("ORDER-2"))
		b.create(draft("ORDER-3"))
		if got, err := b.at(3 * time.Second).Backlog(ctx); err != nil || got != (order.Backlog{Rows: 2, Age: 3 * time.Second}) {
			t.Error(got, err)
		}
	},
	"what waits for the gateway and for people is counted": func(t *testing.T, b bed) {
		ctx, end := context.Background(), time.Minute+patience
		b.stock("a", 2)
		b.inDoubt("ORDER-held", "BILL-1")
		b.confirm(end, b.claimOne(end), order.ConfirmHold, order.ConfirmHeld)
		b.inDoubt("ORDER-asked", "BILL-2")
		b.create(draft("ORDER-open"), draft("ORDER-refund"))
		b.closeAt(time.Minute, "ORDER-open", "ORDER-refund")
		b.pay(time.Hour, "P1", "ORDER-open", lately(order.LateManual))
		b.pay(time.Hour, "P2", "ORDER-refund", lately(order.LateRefund))
		refused := b.create(draft("ORDER-refused"))[0].Message
		if n, err := b.at(0).Defer(ctx, []order.Deferred{{Message: *refused, Refused: true}}, 1); err != nil || n != 1 {
			t.Fatal(n, err)
		}
		got, err := b.at(0).Backlog(ctx)
		if want := (order.Backlog{Quarantined: 2, Doubtful: 1, Held: 1, LateOpen: 1}); err != nil || got != want {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
	},
	"the newest 10,000 inputs are quarantined, the same one once, the rest is counted": func(t *testing.T, b bed) {
		for id := range 3 {
			b.exec(fmt.Sprintf("INSERT INTO t_quarantine (id, source, order_no, reason, body, at) SELECT %d, 'x', '', '', '', lease_until FROM t_lease WHERE shard = 0", id+1))
		}
		b.exec("INSERT INTO t_quarantine (id, source, order_no, reason, body, at) SELECT 10001, 'x', '', '', '', lease_until FROM t_lease WHERE shard = 0")
		q := order.Quarantined{Source: "timeout", OrderNo: "\xff\x00 no number " + strings.Repeat("n", 200), Reason: strings.Repeat("r", 2000), Body: make([]byte, 100<<10)}
		for _, body := range [][]byte{q.Body, nil} {
			q.Body = body
			for again := range 2 {
				if fresh, err := b.at(0).Quarantine(context.Background(), q); err != nil || fresh != (again == 0) {
					t.Fatal(fresh, err)
				}
			}
		}
		if n := b.count("SELECT COUNT(*) FROM t_quarantine"); n != 3 {
			t.Errorf("%d kept", n)
		}
		if n := b.count("SELECT value FROM t_counter WHERE name = 'quarantine_dropped'"); n != 3 {
			t.Errorf("%d counted", n)
		}
		if n := b.count("SELECT MAX(LENGTH(body)) FROM t_quarantine"); n != 64<<10 {
			t.Errorf("%d bytes of the body", n)
		}
	},
}
