package demo

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
)

var deadline = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// goodPlay is a play of two orders, one that lapsed and one that was paid, in which everything is right.
func goodPlay(t *testing.T) *play {
	t.Helper()
	sc := scenario{
		stocks: []stock{{hold{"stock", "mug", 5}, ""}},
		orders: []orders{
			{count: 1, biz: "retail", users: everybody, holds: []hold{{"stock", "mug", 2}}, act: leave, fate: lapses},
			{count: 1, biz: "ticket", users: everybody, holds: []hold{{"stock", "mug", 1}}, act: pay, fate: paid},
		},
	}
	p := newPlay(sc, 1)
	p.orders[0].seen = &lapsev1.Order{
		OrderNo: "retail-01", Status: "cancelled", CancelReason: "TIMEOUT", Round: 1,
		ExpireAt: timestamppb.New(deadline), CancelledAt: timestamppb.New(deadline.Add(40 * time.Millisecond)),
	}
	p.orders[1].seen = &lapsev1.Order{OrderNo: "ticket-01", Status: "paid", Round: 1}
	p.inbox.take(event(t, "retail-01:1:cancelled", p.orders[0].seen))
	p.before = []*lapsev1.Resource{{Available: 5}}
	p.after = []*lapsev1.Resource{{Available: 4, Sold: 1}}
	p.answers = []answer{{"a forged payment", "refused with 401", "refused with 401"}}
	return p
}

// event is the body of a cancelled event of o.
func event(t *testing.T, id string, o *lapsev1.Order) []byte {
	t.Helper()
	e := cloudEvent{ID: id, Type: "cancelled", Subject: o.OrderNo}
	e.Data.OrderNo, e.Data.Reason = o.OrderNo, o.CancelReason
	e.Data.ExpireAt, e.Data.CancelledAt = o.ExpireAt.AsTime(), o.CancelledAt.AsTime()
	raw, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestTheJudgeFindsWhatIsWrong(t *testing.T) {
	const nothing = ""
	for name, tc := range map[string]struct {
		spoil func(p *play)
		fails string // part of the statement that must fail, alone; "" if all hold
	}{
		"all is right": {func(*play) {}, nothing},
		"the same event twice is no fault": {func(p *play) {
			p.inbox.take(event(t, "retail-01:1:cancelled", p.orders[0].seen))
		}, nothing},
		"closed by the compensator is planned for": {func(p *play) {
			p.orders[0].seen.CancelReason = "COMPENSATE"
			p.inbox = newInbox()
			p.inbox.take(event(t, "retail-01:1:cancelled", p.orders[0].seen))
		}, nothing},
		"an unpaid order is still pending":                 {func(p *play) { p.orders[1].seen.Status = "pending" }, "fate"},
		"an order was never made":                          {func(p *play) { p.orders[1].seen = nil }, "fate"},
		"a message closed what only the compensator could": {func(p *play) { p.orders[0].fate = swept }, "fate"},
		"a call failed":                                    {func(p *play) { p.orders[1].note(nil, errors.New("500")) }, "had to work"},
		"no event came":                                    {func(p *play) { p.inbox = newInbox() }, "one event"},
		"an event of a paid order":                         {func(p *play) { p.inbox.take(event(t, "x", p.orders[1].seen)) }, "one event"},
		"two events of one order":                          {func(p *play) { p.inbox.take(event(t, "y", p.orders[0].seen)) }, "one event"},
		"what is no event":                                 {func(p *play) { p.inbox.take([]byte("{")) }, "one event"},
		"stock is still held":                              {func(p *play) { p.after[0] = &lapsev1.Resource{Available: 2, Held: 2, Sold: 1} }, "resource"},
		"stock came back twice":                            {func(p *play) { p.after[0].Available = 6 }, "resource"},
		"a sold thing came back":                           {func(p *play) { p.after[0] = &lapsev1.Resource{Available: 5} }, "resource"},
		"a forged payment was taken":                       {func(p *play) { p.answers[0].Got = "accepted" }, "forged"},
		"an event of the same id tells another":            {func(p *play) { p.inbox.take(event(t, "retail-01:1:cancelled", p.orders[1].seen)) }, "one event"},
		"an event tells another reason": {func(p *play) {
			p.inbox = newInbox()
			p.inbox.take([]byte(strings.Replace(string(event(t, "z", p.orders[0].seen)), "TIMEOUT", "USER_CANCEL", 1)))
		}, "one event"},
		"a payment in flight was not waited for": {func(p *play) {
			p.orders[0].act = startOnly
			p.stories["retail-01"] = []*lapsev1.Transition{{Event: "created"}, {Event: "payment_started"}, {Event: "expired"}}
		}, "took their way"},
		"late money has no case": {func(p *play) {
			p.orders[0].act = payLate
			p.stories["retail-01"] = []*lapsev1.Transition{{Event: "created"}, {Event: "expired"}}
		}, "took their way"},
		"late money is where it belongs": {func(p *play) {
			p.orders[0].act = payLate
			p.stories["retail-01"] = []*lapsev1.Transition{{Event: "created"}, {Event: "expired"}}
			p.cases = []*lapsev1.LatePayment{{OrderNo: "retail-01", Status: "open"}}
		}, nothing},
		"a lost message was not counted": {func(p *play) { p.orders[0].act = lose }, "metrics"},
		"an early close was counted":     {func(p *play) { p.metrics[earlyMetric] = 1 }, "metrics"},
		"closed a millisecond early": {func(p *play) {
			p.orders[0].seen.CancelledAt = timestamppb.New(deadline.Add(-time.Millisecond))
			p.inbox = newInbox()
			p.inbox.take(event(t, "retail-01:1:cancelled", p.orders[0].seen))
		}, "before its deadline"},
	} {
		t.Run(name, func(t *testing.T) {
			p := goodPlay(t)
			tc.spoil(p)
			r := p.report(0, time.Second)
			failing := r.failing()
			switch {
			case tc.fails == nothing && (len(failing) > 0 || !r.Holds):
				t.Errorf("fails, and should not: %q", failing)
			case tc.fails != nothing && (len(failing) != 1 || !strings.Contains(failing[0], tc.fails) || r.Holds):
				t.Errorf("failing: %q; wanted one line about %q", failing, tc.fails)
			}
		})
	}
}

func TestAViolationOfAnInvariantFailsTheDemo(t *testing.T) {
	p := goodPlay(t)
	p.audited = []check{{ID: "I4", Name: "never negative", Checked: 7, Violations: 2, Example: "stock/mug"}}
	r := p.report(0, time.Second)
	var out strings.Builder
	if err := r.verdict(newScreen(&out)); !errors.Is(err, ErrFailed) {
		t.Errorf("verdict: %v, wanted ErrFailed", err)
	}
	if want := "I4 never negative: 2 of 7, like stock/mug"; !strings.Contains(out.String(), want) {
		t.Errorf("printed %q, wanted %q in it", out.String(), want)
	}
}

func TestAStatementWithoutACaseShowsNothing(t *testing.T) {
	r := report{Checks: []check{{ID: "I1", Name: "once", Checked: 7}, {ID: "I3", Name: "no order waits beyond the bound"}}}
	var out strings.Builder
	if err := r.verdict(newScreen(&out)); err != nil {
		t.Fatal(err)
	}
	if want := "All 1 statements hold (1 more had no case)."; !strings.Contains(out.String(), want) {
		t.Errorf("printed %q, wanted %q in it", out.String(), want)
	}
	if line := r.checkTable(newScreen(&out)); !strings.Contains(line, "none") {
		t.Errorf("table\n%s", line)
	}
}

func TestFiguresOfTwoAuditsAreAddedUp(t *testing.T) {
	answers := [][]check{
		{{"I1", "once", 3, 0, ""}, {"I9", "none is stuck", 5, 1, "a"}},
		{{"I1", "once", 4, 2, "b"}, {"I9", "none is stuck", 0, 1, "c"}},
	}
	p := newPlay(scenario{}, 1)
	p.audit = func(context.Context) ([]check, error) {
		next := answers[0]
		answers = answers[1:]
		return next, nil
	}
	for range 2 {
		if err := p.ask(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	want := []check{{"I1", "once", 7, 2, "b"}, {"I9", "none is stuck", 5, 2, "a"}}
	if !slices.Equal(p.audited, want) {
		t.Errorf("got %v, wanted %v", p.audited, want)
	}
}

func TestLatenessIsByNearestRank(t *testing.T) {
	hundred := make([]int64, 100)
	for i := range hundred {
		hundred[i] = int64(100 - i)
	}
	for name, tc := range map[string]struct {
		ms   []int64
		want spread
	}{
		"none":      {nil, spread{}},
		"one":       {[]int64{7}, spread{1, 7, 7, 7}},
		"a hundred": {hundred, spread{100, 50, 99, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := spreadOf(tc.ms); got != tc.want {
				t.Errorf("got %+v, wanted %+v", got, tc.want)
			}
		})
	}
}

// A scenario that needs more than there is would fail for a reason of its own.
func TestTheScenarioIsSound(t *testing.T) {
	plan := standard.plan(1)
	if len(plan) < 48 {
		t.Errorf("%d orders, wanted at least 48", len(plan))
	}
	have := map[string]int64{}
	for _, s := range standard.stocks {
		have[s.name()] = s.quantity
	}
	numbers := map[string]bool{}
	for _, it := range plan {
		if numbers[it.no] {
			t.Errorf("%s is planned twice", it.no)
		}
		numbers[it.no] = true
		if it.timeout < 2*time.Second || it.timeout > 15*time.Second {
			t.Errorf("%s: time-out %s is not within 2 s to 15 s", it.no, it.timeout)
		}
		if it.after != "" {
			if !numbers[it.after] {
				t.Errorf("%s waits for %s, which is not planned before it", it.no, it.after)
			}
			continue // it takes what the other gives back
		}
		for _, h := range it.holds {
			if have[h.name()] -= h.quantity; have[h.name()] < 0 {
				t.Errorf("%s needs more %s than there is", it.no, h.name())
			}
		}
	}
}
