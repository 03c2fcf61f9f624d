package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"lapse/pkg/order"
)

var staff = order.Act{Actor: "staff", Note: "trying it"}

// setMode sets the mode of closing.
func (b bed) setMode(mode order.Mode) order.Brakes {
	b.t.Helper()
	after, err := b.real().ChangeBrakes(context.Background(), staff, order.BrakeChange{Mode: mode, Percent: 100, Act: staff}.Apply)
	if err != nil {
		b.t.Fatal(err)
	}
	return after
}

var brakeTests = map[string]func(t *testing.T, b bed){
	"a new installation closes, and each change is kept with who and why": func(t *testing.T, b bed) {
		before, err := b.real().Brakes(context.Background())
		if err != nil || !before.Full() || before.Version != 1 {
			t.Fatalf("%+v, %v", before, err)
		}
		after := b.setMode(order.ModeShadow)
		read, err := b.real().Brakes(context.Background())
		if err != nil || fmt.Sprint(read) != fmt.Sprint(after) || after.Version != 2 || after.Mode != order.ModeShadow || read.Full() {
			t.Errorf("set %+v, read %+v, %v", after, read, err)
		}
		if n := b.count("SELECT COUNT(*) FROM t_setting_log WHERE name = 'brakes' AND version = 2 AND actor = 'staff' AND note = 'trying it'"); n != 1 {
			t.Errorf("%d entries", n)
		}
	},
	"a change to what is there already, and one of another version, change nothing": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.real()
		before := b.dump("t_setting", "t_setting_log")
		same := order.BrakeChange{Mode: order.ModeEnforce, Percent: 100, Version: 1, Act: staff}
		if got, err := s.ChangeBrakes(ctx, staff, same.Apply); err != nil || got.Version != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		stale := order.BrakeChange{Mode: order.ModeOff, Percent: 100, Version: 7, Act: staff}
		_, err := s.ChangeBrakes(ctx, staff, stale.Apply)
		expectError(t, err, order.Conflict, "brakes_changed")
		if b.dump("t_setting", "t_setting_log") != before {
			t.Error("something changed")
		}
	},
	"while closing is off nothing is closed, and everything once it is on again": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"), draft("ORDER-2", "a"))
		b.setMode(order.ModeOff)
		before := b.dump(businessTables...)
		batch := b.closeAt(time.Hour, "ORDER-1", "ORDER-2")
		if len(batch.Closed) != 0 || fmt.Sprint(batch.Braked) != "[ORDER-1 ORDER-2]" || len(batch.Messages) != 0 {
			t.Errorf("%+v", batch)
		}
		if b.dump(businessTables...) != before || b.count("SELECT COUNT(*) FROM t_shadow") != 0 {
			t.Error("something changed")
		}
		b.setMode(order.ModeEnforce)
		if batch := b.closeAt(time.Hour, "ORDER-1", "ORDER-2"); len(batch.Closed) != 2 || len(batch.Braked) != 0 {
			t.Errorf("%+v", batch)
		}
	},
	"in shadow a decision is noted once and nothing else changes": func(t *testing.T, b bed) {
		b.stock("a", 2)
		b.create(draft("ORDER-1", "a"), draft("ORDER-2", "a"))
		b.setMode(order.ModeShadow)
		before := b.dump(append(businessTables, "t_local_message")...)
		for range 2 {
			if batch := b.closeAt(time.Hour, "ORDER-1", "ORDER-2"); len(batch.Closed) != 0 || len(batch.Braked) != 2 {
				t.Errorf("%+v", batch)
			}
		}
		if b.dump(append(businessTables, "t_local_message")...) != before {
			t.Error("something changed")
		}
		if n := b.count("SELECT COUNT(*) FROM t_shadow WHERE round = 1 AND reason = 'TIMEOUT'"); n != 2 {
			t.Errorf("%d notes", n)
		}
		b.closeAt(2*time.Hour, "ORDER-1")
		if n := b.count("SELECT COUNT(DISTINCT decided_at) FROM t_shadow"); n != 1 {
			t.Error("the first note did not stay")
		}
	},
	"only a share of the users, or of a business type's, is closed": func(t *testing.T, b bed) {
		drafts := make([]order.Draft, 60)
		nos := make([]string, len(drafts))
		for i := range drafts {
			drafts[i] = draft(fmt.Sprintf("ORDER-%02d", i))
			drafts[i].UserID = fmt.Sprintf("user-%d", i)
			if i%2 == 0 {
				drafts[i].BizType = "ticket"
			}
			nos[i] = drafts[i].OrderNo
		}
		b.create(drafts...)
		change := order.BrakeChange{Mode: order.ModeEnforce, Percent: 40, ByType: map[string]int{"ticket": 0}, Act: staff}
		brakes, err := b.real().ChangeBrakes(context.Background(), staff, change.Apply)
		if err != nil {
			t.Fatal(err)
		}
		batch := b.closeAt(time.Hour, nos...)
		for _, c := range batch.Closed {
			if c.BizType == "ticket" || brakes.On(c.Order) != order.Go {
				t.Errorf("%s of %s was closed", c.OrderNo, c.UserID)
			}
		}
		if n := len(batch.Closed); n < 4 || n > 22 || n+len(batch.Braked) != len(nos) {
			t.Errorf("%d closed, %d kept", n, len(batch.Braked))
		}
	},
	"a change waits for the closing transactions under way, and none commits after it": func(t *testing.T, b bed) {
		if !b.RowLocks {
			t.Skip("one transaction at a time")
		}
		b.create(draft("ORDER-1"))
		held, err := b.DB.Begin() // a closing transaction that has read the brakes and goes on
		if err != nil {
			t.Fatal(err)
		}
		defer held.Rollback()
		if _, err := held.Exec("SELECT value FROM t_setting WHERE name = 'brakes' LOCK IN SHARE MODE"); err != nil {
			t.Fatal(err)
		}
		changed := make(chan error, 1)
		go func() {
			_, err := b.real().ChangeBrakes(context.Background(), staff, order.BrakeChange{Mode: order.ModeOff, Percent: 100, Act: staff}.Apply)
			changed <- err
		}()
		b.awaitStatement("%brakes%FOR UPDATE%")
		select {
		case err := <-changed:
			t.Fatalf("the change did not wait: %v", err)
		default:
		}
		if _, err := held.Exec("UPDATE t_order SET caller = 'closed before' WHERE order_no = 'ORDER-1'"); err != nil {
			t.Fatal(err)
		}
		if err := held.Commit(); err != nil {
			t.Fatal(err)
		}
		if err := <-changed; err != nil {
			t.Fatal(err)
		}
		if batch := b.closeAt(time.Hour, "ORDER-1"); len(batch.Closed) != 0 || len(batch.Braked) != 1 {
			t.Errorf("%+v", batch)
		}
	},
	"a shadow report agrees with what happened": func(t *testing.T, b bed) {
		ctx := context.Background()
		drafts := []order.Draft{draft("ORDER-agreed"), draft("ORDER-late"), draft("ORDER-missed"), draft("ORDER-wrong"), draft("ORDER-early"), draft("ORDER-uncovered")}
		nos := make([]string, 5)
		for i := range nos {
			nos[i] = drafts[i].OrderNo
		}
		b.create(drafts...)
		b.setMode(order.ModeShadow)
		job := func(at time.Duration, no string) {
			c := order.Cancelling{OrderNo: no, Reason: order.ReasonManual, Act: order.Act{Actor: "job", Note: "not paid"}}
			if _, _, err := b.at(at).Cancel(ctx, c, leased); err != nil {
				t.Fatal(err)
			}
		}
		job(30*time.Second, "ORDER-early")
		b.closeAt(61*time.Second, nos...)
		job(70*time.Second, "ORDER-agreed")
		job(80*time.Second, "ORDER-uncovered")
		job(10*time.Minute, "ORDER-late")
		if _, err := b.at(2*time.Minute).Pay(ctx, payment("P1", "ORDER-wrong"), order.Rules{}, leased); err != nil {
			t.Fatal(err)
		}
		got, err := b.at(time.Hour).ShadowReport(ctx, order.Comparing{Tolerance: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[string]string{}
		for _, e := range got.Examples {
			kinds[e.OrderNo] = e.Kind
		}
		want := map[string]string{"ORDER-late": "late", "ORDER-missed": "missed", "ORDER-wrong": "wrong", "ORDER-early": "early"}
		if got.Decided != 4 || got.Closed != 4 || got.Agreed != 1 || got.Early != 1 || got.Late != 1 || got.Missed != 1 || got.Wrong != 1 ||
			got.Coverage != 2.0/3 || fmt.Sprint(kinds) != fmt.Sprint(want) {
			t.Errorf("%+v", got)
		}
	},
	"attempts are counted in their cohort, once they had time to be paid": func(t *testing.T, b bed) {
		ctx := context.Background()
		start := func(at time.Duration, no string, pays time.Duration) {
			d := draft(no)
			d.Timeout = time.Hour
			if made, err := b.at(at).Create(ctx, []order.Draft{d}, leased); err != nil || made[0].Err != nil {
				t.Fatal(err, made[0].Err)
			}
			a := order.Attempting{AttemptNo: "TRY-" + no, OrderNo: no, Channel: "card", Lifetime: time.Minute}
			_, _, err := b.at(at).StartPayment(ctx, a)
			if err == nil && pays > 0 {
				_, err = b.at(at+pays).Pay(ctx, payment("P-"+no, no), order.Rules{}, leased)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		start(0, "ORDER-before-1", time.Second)
		start(time.Minute, "ORDER-before-2", 0)
		start(time.Minute+1, "ORDER-before-3", 2*time.Minute)
		start(time.Minute+2, "ORDER-before-slow", 2*time.Minute+time.Millisecond)
		start(61*time.Minute, "ORDER-now-1", time.Second)
		start(62*time.Minute, "ORDER-now-2", time.Second)
		start(62*time.Minute, "ORDER-now-3", 0)
		start(-25*time.Hour, "ORDER-old", time.Second)
		start(65*time.Minute, "ORDER-fresh", 0)
		for since, want := range map[time.Duration][2]order.Cohort{
			-48 * time.Hour:              {{Attempts: 3, Paid: 2}, {Attempts: 4, Paid: 2}},
			0:                            {{Attempts: 3, Paid: 2}, {Attempts: 4, Paid: 2}},
			time.Millisecond:             {{Attempts: 3, Paid: 2}, {Attempts: 3, Paid: 1}},
			61*time.Minute + time.Second: {{Attempts: 2, Paid: 1}, {}},
			time.Hour + 6*time.Minute:    {},
		} {
			latest, before, err := b.at(66*time.Minute).Cohorts(ctx, 2*time.Minute, noon.Add(since), 3, 100)
			if err != nil || [2]order.Cohort{latest, before} != want {
				t.Errorf("since %v: %v, %v, %v, want %v", since, latest, before, err, want)
			}
		}
	},
	"a change that is refused is not made": func(t *testing.T, b bed) {
		no := errors.New("no")
		before := b.dump("t_setting", "t_setting_log")
		if _, err := b.real().ChangeBrakes(context.Background(), staff, func(at order.Brakes) (order.Brakes, error) {
			return at, order.Errorf(order.Conflict, "no", "no").Wrap(no)
		}); !errors.Is(err, no) {
			t.Error(err)
		}
		if b.dump("t_setting", "t_setting_log") != before {
			t.Error("something changed")
		}
	},
}

// awaitStatement waits until a session is in the middle of a statement.
func (b bed) awaitStatement(like string) {
	b.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for b.count("SELECT COUNT(*) FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND info LIKE '"+like+"'") == 0 {
		if time.Now().After(deadline) {
			b.t.Fatal("nobody waits")
		}
		time.Sleep(5 * time.Millisecond)
	}
}
