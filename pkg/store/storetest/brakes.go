package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
)

var staff = order.Act{Actor: "staff", Note: "trying it"}

// setMode sets the mode of closing.
func (b bed) setMode(mode order.Mode) order.Brakes {
	b.t.Helper()
	after, err := b.real().ChangeBrakes(context.Background(), staff, order.BrakeChange{Mode: mode, Act: staff}.Apply)
	if err != nil {
		b.t.Fatal(err)
	}
	return after
}

// setModeAt sets it by a clock at noon + d.
func (b bed) setModeAt(d time.Duration, mode order.Mode) {
	b.t.Helper()
	if _, err := b.at(d).ChangeBrakes(context.Background(), staff, order.BrakeChange{Mode: mode, Act: staff}.Apply); err != nil {
		b.t.Fatal(err)
	}
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
		same := order.BrakeChange{Mode: order.ModeEnforce, Percent: new(100), Version: 1, Act: staff}
		if got, err := s.ChangeBrakes(ctx, staff, same.Apply); err != nil || got.Version != 1 {
			t.Errorf("%+v, %v", got, err)
		}
		stale := order.BrakeChange{Mode: order.ModeOff, Percent: new(100), Version: 7, Act: staff}
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
		change := order.BrakeChange{Mode: order.ModeEnforce, Percent: new(40), ByType: map[string]int{"ticket": 0}, Act: staff}
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
	"closers that race with off close nothing after it": func(t *testing.T, b bed) {
		const closers, orders = 4, 200
		ctx, s, nos := context.Background(), b.real(), make([]string, orders)
		drafts := make([]order.Draft, orders)
		for i := range drafts {
			drafts[i] = draft(fmt.Sprintf("ORDER-%03d", i))
			nos[i] = drafts[i].OrderNo
		}
		b.create(drafts...)
		var next, closed, braked atomic.Int32
		var then int
		closer := func() {
			for i := int(next.Add(1)) - 1; i < orders; i = int(next.Add(1)) - 1 {
				batch, err := s.CloseDue(ctx, order.Closing{OrderNos: nos[i : i+1], Reason: order.ReasonTimeout}, leased)
				if err != nil {
					t.Error(err)
				}
				closed.Add(int32(len(batch.Closed)))
				braked.Add(int32(len(batch.Braked)))
			}
		}
		off := func() {
			for closed.Load() < orders/10 && next.Load() < orders {
				time.Sleep(time.Millisecond)
			}
			b.setMode(order.ModeOff)
			then = b.count("SELECT COUNT(*) FROM t_order WHERE status = 20")
		}
		together(append(slices.Repeat([]func(){closer}, closers), off)...)
		if now := b.count("SELECT COUNT(*) FROM t_order WHERE status = 20"); now != then || now != int(closed.Load()) || now+int(braked.Load()) != orders {
			t.Errorf("%d were closed when closing was off, %d are; %d were told closed, %d kept", then, now, closed.Load(), braked.Load())
		}
	},
	"a shadow report agrees with an independent count of every kind, and deciding changed nothing else": func(t *testing.T, b bed) {
		ctx, far := context.Background(), b.at(time.Hour)
		fates := []struct {
			kind       string // "" if it agrees, or is no matter of the report
			jobAt      time.Duration
			paidAt     time.Duration
			undecided  bool // Lapse was not there to decide
			inTime     bool // closed by the job, and not before the deadline
			leftByUser bool
		}{
			{jobAt: 70 * time.Second, inTime: true},
			{jobAt: 2 * time.Minute, inTime: true}, // as late as is tolerated
			{kind: "late", jobAt: 2*time.Minute + time.Millisecond, inTime: true},
			{kind: "missed"},
			{kind: "missed", leftByUser: true},
			{kind: "wrong", paidAt: 90 * time.Second},
			{kind: "early", jobAt: 30 * time.Second, undecided: true},
			{jobAt: 80 * time.Second, undecided: true, inTime: true},
			{paidAt: 20 * time.Second, undecided: true},
		}
		const orders, decided = 300, time.Minute
		drafts, counts := make([]order.Draft, orders), map[string]int64{}
		var want order.ShadowReport
		var due []string
		var covered, inTime float64
		dice := rand.New(rand.NewPCG(1, 2))
		chosen := make([]int, orders)
		for i := range drafts {
			drafts[i] = draft(fmt.Sprintf("ORDER-%03d", i), "a")
			chosen[i] = dice.IntN(len(fates))
			f := fates[chosen[i]]
			counts[f.kind]++
			if !f.undecided {
				want.Decided++
				due = append(due, drafts[i].OrderNo)
			}
			if f.jobAt > 0 {
				want.Closed++
			}
			if f.inTime {
				inTime++
				if !f.undecided {
					covered++
				}
			}
		}
		want.Early, want.Late, want.Missed, want.Wrong = counts["early"], counts["late"], counts["missed"], counts["wrong"]
		want.Agreed, want.Coverage = want.Decided-want.Late-want.Missed-want.Wrong, covered/inTime
		b.stock("a", orders)
		b.create(drafts...)
		b.setModeAt(0, order.ModeShadow)

		happen := func(from, to time.Duration) {
			for i, d := range drafts {
				f := fates[chosen[i]]
				var err error
				switch at := max(f.jobAt, f.paidAt); {
				case at <= from || at > to:
				case f.paidAt > 0:
					_, err = b.at(at).Pay(ctx, payment("P-"+d.OrderNo, d.OrderNo), order.Rules{}, leased)
				default:
					_, _, err = b.at(at).Cancel(ctx, order.Cancelling{OrderNo: d.OrderNo, Reason: order.ReasonManual, Act: order.Act{Actor: "job", Note: "not paid"}}, leased)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		happen(0, decided)
		before := b.dump(b.allBut("t_shadow")...)
		if batch := b.closeAt(decided, due...); len(batch.Braked) != len(due) || len(batch.Closed) != 0 {
			t.Errorf("%d of %d were decided, %d closed", len(batch.Braked), len(due), len(batch.Closed))
		}
		if b.dump(b.allBut("t_shadow")...) != before {
			t.Error("something changed")
		}
		happen(decided, time.Hour)
		for i, d := range drafts {
			if fates[chosen[i]].leftByUser {
				if _, _, err := far.Cancel(ctx, wish(d.OrderNo, "u1"), leased); err != nil {
					t.Fatal(err)
				}
			}
		}

		c := order.Comparing{Tolerance: time.Minute}
		got, err := far.ShadowReport(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		shown := map[string]int{}
		for _, e := range got.Examples {
			shown[e.Kind]++
			i := slices.IndexFunc(drafts, func(d order.Draft) bool { return d.OrderNo == e.OrderNo })
			f := fates[chosen[i]]
			var ended time.Time
			if at := max(f.jobAt, f.paidAt); at > 0 {
				ended = noon.Add(at)
			}
			if e.Kind != f.kind || !e.ExpireAt.Equal(noon.Add(time.Minute)) || e.DecidedAt.IsZero() != f.undecided || !e.EndedAt.Equal(ended) {
				t.Errorf("%+v of %+v", e, f)
			}
		}
		if got.Examples = nil; !reflect.DeepEqual(got, want) {
			t.Errorf("the report says %+v, counted were %+v", got, want)
		}
		if len(shown) != 4 || shown["wrong"] != order.MaxShadowCases/4 || shown["missed"] != order.MaxShadowCases/4 {
			t.Errorf("examples are of %v", shown)
		}
		t.Logf("%d orders, %+v", orders, want)

		for name, c := range map[string]order.Comparing{"before": {To: noon}, "after": {From: noon.Add(2 * time.Hour)}} {
			if got, err := far.ShadowReport(ctx, c); err != nil || !reflect.DeepEqual(got, order.ShadowReport{}) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
	},
	"a shadow report leaves out what was closed while nothing was noted, and by others than the job": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.create(draft("ORDER-before"), draft("ORDER-early"), draft("ORDER-fraud"), draft("ORDER-due"), draft("ORDER-between"), draft("ORDER-again"), draft("ORDER-paying"))
		b.attempt(30*time.Second, "ORDER-paying", "TRY-1", time.Hour)
		cancel := func(at time.Duration, no, actor string) {
			c := order.Cancelling{OrderNo: no, Reason: order.ReasonManual, Confirm: time.Hour, Act: order.Act{Actor: actor, Note: "not paid"}}
			if _, _, err := b.at(at).Cancel(ctx, c, leased); err != nil {
				t.Fatal(err)
			}
		}
		cancel(time.Second, "ORDER-before", "job")
		b.setModeAt(10*time.Second, order.ModeShadow)
		cancel(20*time.Second, "ORDER-early", "job")
		cancel(20*time.Second, "ORDER-fraud", "staff")
		b.closeAt(time.Minute, "ORDER-due", "ORDER-between", "ORDER-again", "ORDER-paying")
		cancel(61*time.Second, "ORDER-due", "job")
		b.setModeAt(2*time.Minute, order.ModeOff)
		cancel(3*time.Minute, "ORDER-between", "job")
		b.setModeAt(4*time.Minute, order.ModeShadow)
		cancel(5*time.Minute, "ORDER-again", "job")
		cancel(5*time.Minute, "ORDER-paying", "job")
		v := b.claimOne(6 * time.Minute)
		v.Closed = []string{"TRY-1"}
		b.confirm(6*time.Minute, v, order.ConfirmCancel, order.ConfirmClosed)
		for name, c := range map[string]struct {
			ask           order.Comparing
			closed, early int64
			coverage      float64
		}{
			"all of staff":    {order.Comparing{}, 5, 2, 1},
			"the job":         {order.Comparing{Job: "job"}, 4, 1, 1},
			"nobody":          {order.Comparing{Job: "cron"}, 0, 0, 0},
			"the second time": {order.Comparing{From: noon.Add(3 * time.Minute)}, 2, 0, 1},
			"its beginning":   {order.Comparing{To: noon.Add(time.Minute), Job: "job"}, 1, 1, 0},
		} {
			c.ask.Tolerance = time.Hour
			got, err := b.at(time.Hour).ShadowReport(ctx, c.ask)
			if err != nil || got.Closed != c.closed || got.Early != c.early || got.Coverage != c.coverage {
				t.Errorf("%s: %+v, %v, want %d closed, %d early, coverage %v", name, got, err, c.closed, c.early, c.coverage)
			}
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

// allBut are all tables but some.
func (b bed) allBut(some ...string) (tables []string) {
	b.t.Helper()
	names := "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 't\\_%' ESCAPE '\\'"
	if b.locking == RowLocks {
		names = "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name LIKE 't\\_%'"
	}
	rows, err := b.DB.Query(names)
	if err != nil {
		b.t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			b.t.Fatal(err)
		}
		if !slices.Contains(some, name) {
			tables = append(tables, name)
		}
	}
	if err := rows.Err(); err != nil || len(tables) < 15 {
		b.t.Fatal(tables, err)
	}
	return tables
}
