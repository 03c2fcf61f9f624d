package order

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// cancelledFacts are of an order that was cancelled as it should be.
func cancelledFacts() Facts {
	it := Item{Kind: "stock", Ref: "a", Quantity: 2}
	cart := Item{Kind: "cart", Ref: "b", Quantity: 1, Remote: true}
	at := noon
	return Facts{
		Order: Order{OrderNo: "ORDER-000001", Status: Cancelled, Round: 1, Version: 2, ExpireAt: at, CancelledAt: at, CancelReason: ReasonTimeout},
		Log: []LogEntry{
			{Version: 1, Round: 1, To: Pending, Event: EventCreated},
			{Version: 2, Round: 1, To: Cancelled, Event: EventExpired, Reason: "TIMEOUT", At: at, ExpireAt: at, EventSentAt: at},
		},
		Ledger: []Entry{
			{Round: 1, Op: OpReserve, Item: it}, {Round: 1, Op: OpRelease, Item: it},
			{Round: 1, Op: OpReserve, Item: cart}, {Round: 1, Op: OpRelease, Item: cart, AckedAt: at},
		},
	}
}

func pendingFacts() Facts {
	return Facts{
		Order:    Order{OrderNo: "ORDER-000001", Status: Pending, Round: 1, Version: 1, ExpireAt: noon.Add(time.Hour)},
		Log:      []LogEntry{{Version: 1, Round: 1, To: Pending, Event: EventCreated}},
		Ledger:   []Entry{{Round: 1, Op: OpReserve, Item: Item{Kind: "stock", Ref: "a", Quantity: 2}}},
		Messages: []Scheduled{{Message: Message{Key: "ORDER-000001:timeout", Kind: Timeout, NextAt: noon.Add(time.Hour)}}},
	}
}

func paidFacts() Facts {
	f := pendingFacts()
	f.Status, f.Version, f.Messages = Paid, 2, nil
	f.Log = append(f.Log, LogEntry{Version: 2, Round: 1, From: Pending, To: Paid, Event: EventPaid})
	f.Ledger = append(f.Ledger, Entry{Round: 1, Op: OpSell, Item: f.Ledger[0].Item})
	return f
}

func TestDamageOfAnOrderIsFoundByItsKind(t *testing.T) {
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		facts Facts
		spoil func(*Facts)
		at    time.Duration
		want  string
	}{
		"a pending order":                            {pendingFacts(), func(*Facts) {}, 0, "[]"},
		"due a moment ago":                           {pendingFacts(), func(*Facts) {}, 65 * time.Minute, "[]"},
		"due for long":                               {pendingFacts(), func(*Facts) {}, 70 * time.Minute, "[overdue_pending]"},
		"no time-out row":                            {pendingFacts(), func(f *Facts) { f.Messages = nil }, 0, "[timeout_missing]"},
		"a release before its time":                  {pendingFacts(), func(f *Facts) { f.Ledger = append(f.Ledger, Entry{Round: 1, Op: OpRelease, Item: f.Ledger[0].Item}) }, 0, "[release_without_cancel]"},
		"a release of more than was reserved":        {cancelledFacts(), func(f *Facts) { f.Ledger[1].Item.Quantity = 3 }, 0, "[release_without_cancel]"},
		"a release of less than was reserved":        {cancelledFacts(), func(f *Facts) { f.Ledger[1].Item.Quantity = 1 }, 0, "[release_missing]"},
		"a release of what was never reserved":       {cancelledFacts(), func(f *Facts) { f.Ledger = slices.Delete(f.Ledger, 0, 1) }, 0, "[release_without_cancel]"},
		"cancelled by nothing but an update":         {pendingFacts(), func(f *Facts) { f.Status = Cancelled }, 0, "[cancel_unlogged event_missing release_missing]"},
		"paid, and cancelled by an update":           {paidFacts(), func(f *Facts) { f.Status = Cancelled }, 0, "[cancel_unlogged]"},
		"cancelled, and without any log":             {pendingFacts(), func(f *Facts) { f.Status, f.Log = Cancelled, nil }, 0, "[cancel_unlogged]"},
		"a paid order":                               {paidFacts(), func(*Facts) {}, 30 * day, "[]"},
		"due for long, but the brakes keep it":       {pendingFacts(), func(f *Facts) { f.Braked = true }, 2 * time.Hour, "[]"},
		"due for long, and no time-out row":          {pendingFacts(), func(f *Facts) { f.Messages = nil }, 2 * time.Hour, "[overdue_pending timeout_missing]"},
		"confirming, and its row is with the relay":  {pendingFacts(), doubtful(ToSend, noon.Add(day)), time.Hour, "[confirming_stuck]"},
		"confirming":                                 {pendingFacts(), doubtful(ToAsk, noon), time.Minute, "[]"},
		"confirming, and nobody asks":                {pendingFacts(), doubtful(ToAsk, noon), time.Hour, "[confirming_stuck]"},
		"confirming, and its row is thought sent":    {pendingFacts(), doubtful(AlreadySent, noon.Add(day)), time.Hour, "[confirming_stuck]"},
		"confirming, left to a person":               {pendingFacts(), doubtful(SetAside, noon), day, "[]"},
		"a cancelled order":                          {cancelledFacts(), func(*Facts) {}, 30 * day, "[]"},
		"its event is still to be sent":              {cancelledFacts(), unsent(true), 30 * day, "[]"},
		"its event is nowhere":                       {cancelledFacts(), unsent(false), 0, "[event_missing]"},
		"it gave nothing back":                       {cancelledFacts(), func(f *Facts) { f.Ledger = slices.Delete(f.Ledger, 1, 2) }, 0, "[release_missing]"},
		"a remote service is silent":                 {cancelledFacts(), silent, 25 * time.Hour, "[release_unacknowledged]"},
		"a remote service has not had its time":      {cancelledFacts(), silent, 23 * time.Hour, "[]"},
		"a remote service is about to be told again": {cancelledFacts(), func(f *Facts) { silent(f); unsent(true)(f); f.Log[1].EventSentAt = noon }, 25 * time.Hour, "[]"},
		"everything at once":                         {cancelledFacts(), func(f *Facts) { f.Ledger = slices.Delete(f.Ledger, 1, 2); unsent(false)(f) }, 0, "[event_missing release_missing]"},
	} {
		f := c.facts
		c.spoil(&f)
		kinds := []string{}
		for _, s := range f.Examine(noon.Add(c.at), Patience{}.WithDefaults()) {
			kinds = append(kinds, s.Kind)
			if s.Detail == "" {
				t.Errorf("%s: %s without detail", name, s.Kind)
			}
		}
		if slices.Sort(kinds); fmt.Sprint(kinds) != c.want {
			t.Errorf("%s: found %v, want %s", name, kinds, c.want)
		}
	}
}

func TestWhatAnEventTellsAndWhatAClosingNeedsIsMendedFirst(t *testing.T) {
	f := pendingFacts()
	f.Messages = nil
	f.Ledger = append(f.Ledger, Entry{Round: 1, Op: OpRelease, Item: f.Ledger[0].Item})
	f.Log = append([]LogEntry{{Version: 1, Round: 1, To: Cancelled}}, f.Log...)
	f.Round = 2
	f.Ledger = append(f.Ledger, Entry{Round: 2, Op: OpRelease, Item: Item{Kind: "stock", Ref: "b", Quantity: 1}}, Entry{Round: 1, Op: OpReserve, Item: Item{Kind: "stock", Ref: "c", Quantity: 1}})
	var kinds []string
	for _, s := range f.Examine(noon.Add(2*time.Hour), Patience{}.WithDefaults()) {
		kinds = append(kinds, fmt.Sprint(s.Kind, s.Round))
	}
	if want := "[release_missing1 release_without_cancel2 event_missing1 timeout_missing2 overdue_pending2]"; fmt.Sprint(kinds) != want {
		t.Errorf("%v, want %s", kinds, want)
	}
}

func TestEveryKindOfDamageIsListedOnce(t *testing.T) {
	kinds := slices.Clone(FindingKinds)
	slices.Sort(kinds)
	if n := len(slices.Compact(kinds)); n != len(FindingKinds) || n != 11 {
		t.Errorf("%d kinds of %d", n, len(FindingKinds))
	}
}

func doubtful(state MessageState, nextAt time.Time) func(*Facts) {
	return func(f *Facts) {
		f.Status, f.ConfirmUntil = Confirming, noon.Add(5*time.Minute)
		f.Messages[0].State, f.Messages[0].NextAt = state, nextAt
	}
}

func unsent(scheduled bool) func(*Facts) {
	return func(f *Facts) {
		f.Log[1].EventSentAt = time.Time{}
		if scheduled {
			f.Messages = []Scheduled{{Message: Message{Key: EventID(f.OrderNo, 1, TypeCancelled), Kind: Notice}}}
		}
	}
}

func silent(f *Facts) { f.Ledger[3].AckedAt = time.Time{} }

func TestACancellationIsToldAgainAsItWasThen(t *testing.T) {
	f := cancelledFacts()
	first, ok := f.Cancellation(1)
	if !ok {
		t.Fatal("it was not cancelled")
	}
	want := string(CancelledMessage(first).Payload)
	// Restored, extended, paid: what the event tells stays.
	f.Round, f.Version, f.Status, f.ExpireAt, f.CancelledAt, f.CancelReason = 2, 9, Paid, noon.Add(time.Hour), time.Time{}, ""
	f.Ledger = append(f.Ledger, Entry{Round: 2, Op: OpReserve, Item: f.Ledger[0].Item}, Entry{Round: 2, Op: OpSell, Item: f.Ledger[0].Item})
	again, _ := f.Cancellation(1)
	if got := string(CancelledMessage(again).Payload); got != want {
		t.Errorf("told\n%s\nthen\n%s", got, want)
	}
	if _, ok := f.Cancellation(2); ok {
		t.Error("round 2 was not cancelled")
	}
}
