package order

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC)

func TestAnOrderIsDueFromItsDeadlineOnAndNotAMillisecondBefore(t *testing.T) {
	for _, c := range []struct {
		name       string
		status     Status
		now        time.Time
		due, payab bool
		remaining  time.Duration
	}{
		{"a millisecond before", Pending, noon.Add(-time.Millisecond), false, true, time.Millisecond},
		{"at the deadline", Pending, noon, true, false, 0},
		{"after it", Pending, noon.Add(time.Hour), true, false, 0},
		{"paid", Paid, noon.Add(time.Hour), false, false, 0},
		{"cancelled", Cancelled, noon.Add(-time.Hour), false, false, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := Order{Status: c.status, ExpireAt: noon}
			if o.Due(c.now) != c.due || o.Payable(c.now) != c.payab || o.Remaining(c.now) != c.remaining {
				t.Errorf("due %v, payable %v, remaining %v", o.Due(c.now), o.Payable(c.now), o.Remaining(c.now))
			}
		})
	}
}

func TestWhatTheTableDoesNotListIsRefusedWithTheStateNamed(t *testing.T) {
	listed := map[Status][]Event{}
	for _, tr := range Transitions {
		listed[tr.From] = append(listed[tr.From], tr.Event)
		if next, err := Next(tr.From, tr.Event); err != nil || next != tr {
			t.Errorf("%v + %v: %v, %v", tr.From, tr.Event, next, err)
		}
	}
	for _, from := range []Status{Pending, Confirming, Paid, Cancelled, Closed} {
		for _, event := range []Event{EventCreated, EventPaid, EventExpired, EventCancelled, EventRefunded, EventRestored, "partly_paid"} {
			if slices.Contains(listed[from], event) {
				continue
			}
			if _, err := Next(from, event); KindOf(err) != Conflict || !strings.Contains(err.Error(), from.String()) {
				t.Errorf("%v + %v was not refused by name: %v", from, event, err)
			}
		}
	}
}

func TestNoEventHasTwoOutcomes(t *testing.T) {
	type pair struct {
		from  Status
		event Event
	}
	seen := map[pair]bool{}
	for _, tr := range Transitions {
		if seen[pair{tr.From, tr.Event}] {
			t.Errorf("%v + %v stands twice", tr.From, tr.Event)
		}
		seen[pair{tr.From, tr.Event}] = true
	}
}

func TestOnlyStaffMoneyAndAgeMoveAFinalState(t *testing.T) {
	later := map[Event]bool{EventRefunded: true, EventRestored: true, EventReopened: true, EventArchived: true}
	for _, tr := range Transitions {
		if tr.From.Final() != later[tr.Event] {
			t.Errorf("%v", tr)
		}
	}
}

func draft() Draft {
	return Draft{OrderNo: "ORDER-000001", Caller: "shop", UserID: "u1", BizType: "retail", Amount: 1999, Currency: "CNY",
		Items: []Item{{Kind: "stock", Ref: "sku-1", Quantity: 2}}, Timeout: time.Minute}
}

func TestEveryRefusedFieldIsNamed(t *testing.T) {
	for _, c := range []struct {
		field  string
		change func(*Draft)
	}{
		{"order_no", func(d *Draft) { d.OrderNo = "short" }},
		{"order_no", func(d *Draft) { d.OrderNo = strings.Repeat("x", 33) }},
		{"order_no", func(d *Draft) { d.OrderNo = "with space 1" }},
		{"order_no", func(d *Draft) { d.OrderNo = "quote'--drop" }},
		{"user_id", func(d *Draft) { d.UserID = "" }},
		{"user_id", func(d *Draft) { d.UserID = "line\u2028break" }},
		{"user_id", func(d *Draft) { d.UserID = "\x1b[31mred" }},
		{"user_id", func(d *Draft) { d.UserID = "\xff\xfe" }},
		{"biz_type", func(d *Draft) { d.BizType = strings.Repeat("b", 65) }},
		{"amount", func(d *Draft) { d.Amount = -1 }},
		{"currency", func(d *Draft) { d.Currency = "yuan" }},
		{"timeout", func(d *Draft) { d.Timeout = -time.Second }},
		{"timeout", func(d *Draft) { d.Timeout = time.Second - time.Millisecond }},
		{"timeout", func(d *Draft) { d.Timeout = 1<<63 - 1 }},
		{"timeout", func(d *Draft) { d.Timeout = 91 * 24 * time.Hour }},
		{"timeout", func(d *Draft) { d.Timeout = time.Second + time.Microsecond }},
		{"items[0].quantity", func(d *Draft) { d.Items[0].Quantity = 0 }},
		{"items[0].quantity", func(d *Draft) { d.Items[0].Quantity = 1 << 62 }},
		{"items[0].kind", func(d *Draft) { d.Items[0].Kind = "" }},
		{"items[0].ref", func(d *Draft) { d.Items[0].Ref = "a\nb" }},
		{"items", func(d *Draft) { d.Items = make([]Item, 101) }},
	} {
		d := draft()
		c.change(&d)
		_, err := Limits{}.Validate(d)
		var e *Error
		if !errors.As(err, &e) || e.Kind != Invalid {
			t.Errorf("%s: %v", c.field, err)
			continue
		}
		named := false
		for _, f := range e.Fields {
			named = named || f.Name == c.field && f.Reason != ""
		}
		if !named {
			t.Errorf("%s is not named in %v", c.field, err)
		}
	}
}

func TestAValidDraftGetsTheDefaultTimeoutAndMergedItems(t *testing.T) {
	d := draft()
	d.Timeout = 0
	d.Items = []Item{{Kind: "stock", Ref: "b", Quantity: 1}, {Kind: "coupon", Ref: "z", Quantity: 1}, {Kind: "stock", Ref: "a", Quantity: 2}, {Kind: "stock", Ref: "b", Quantity: 3}}
	got, err := Limits{}.Validate(d)
	if err != nil {
		t.Fatal(err)
	}
	if got.Timeout != 30*time.Minute {
		t.Errorf("time-out %v", got.Timeout)
	}
	if want := []Item{{Kind: "coupon", Ref: "z", Quantity: 1}, {Kind: "stock", Ref: "a", Quantity: 2}, {Kind: "stock", Ref: "b", Quantity: 4}}; !reflect.DeepEqual(got.Items, want) {
		t.Errorf("items %v", got.Items)
	}
}

func TestTheHashTellsARepeatFromAnotherRequest(t *testing.T) {
	same := draft()
	same.Caller, same.TraceParent = "another", "00-1-2-3"
	if draft().Hash() != same.Hash() {
		t.Error("who asks is not part of what is asked")
	}
	for name, change := range map[string]func(*Draft){
		"user": func(d *Draft) { d.UserID = "u2" }, "type": func(d *Draft) { d.BizType = "x" },
		"amount": func(d *Draft) { d.Amount++ }, "currency": func(d *Draft) { d.Currency = "EUR" },
		"timeout": func(d *Draft) { d.Timeout += time.Second }, "items": func(d *Draft) { d.Items[0].Quantity++ },
	} {
		other := draft()
		change(&other)
		if draft().Hash() == other.Hash() {
			t.Errorf("another %s has the same hash", name)
		}
	}
}

func TestDerivedNumbersAreValidStableAndDifferByCaller(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		caller, key := rapid.String().Draw(t, "caller"), rapid.String().Draw(t, "key")
		no := DeriveNumber(caller, key)
		if err := CheckNumber(no); err != nil {
			t.Fatal(err)
		}
		if no != DeriveNumber(caller, key) {
			t.Fatal("not stable")
		}
		if no == DeriveNumber(caller+"x", key) || no == DeriveNumber(caller, key+"x") {
			t.Fatal("not distinct")
		}
	})
	if DeriveNumber("a", "bc") == DeriveNumber("ab", "c") {
		t.Error("caller and key run together")
	}
}

func TestShardsAreStoredForEverSoTheirHashNeverChanges(t *testing.T) {
	for no, want := range map[string]int{"ORDER-000001": 49, "K3X2ABCDEFGHIJKLMNOPQRST": 33} {
		if got := ShardOf(no); got != want {
			t.Errorf("shard of %s is %d, was %d", no, got, want)
		}
	}
}

func TestReservingChecksOwnerValidityAndQuantity(t *testing.T) {
	for _, c := range []struct {
		name string
		res  Resource
		code string
	}{
		{"enough", Resource{Available: 2}, ""},
		{"own coupon", Resource{Available: 2, Owner: "u1"}, ""},
		{"too few", Resource{Available: 1}, "out_of_stock"},
		{"another's coupon", Resource{Available: 2, Owner: "u2"}, "resource_unusable"},
		{"run out this instant", Resource{Available: 2, ValidUntil: noon}, "resource_unusable"},
		{"valid a millisecond longer", Resource{Available: 2, ValidUntil: noon.Add(time.Millisecond)}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.res
			err := c.res.Reserve(2, "u1", noon)
			var e *Error
			switch {
			case c.code == "" && (err != nil || c.res.Available != before.Available-2 || c.res.Held != 2):
				t.Errorf("%v, %+v", err, c.res)
			case c.code != "" && (!errors.As(err, &e) || e.Code != c.code || c.res != before):
				t.Errorf("%v, %+v", err, c.res)
			}
		})
	}
}

func TestAPaymentHasToMatchItsOrder(t *testing.T) {
	o := Order{Amount: 100, Currency: "CNY"}
	for name, c := range map[string]struct {
		p  Payment
		ok bool
	}{
		"same":           {Payment{Amount: 100, Currency: "CNY"}, true},
		"less":           {Payment{Amount: 99, Currency: "CNY"}, false},
		"other currency": {Payment{Amount: 100, Currency: "JPY"}, false},
	} {
		if err := c.p.Match(o); (err == nil) != c.ok || err != nil && KindOf(err) != Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPaymentsAndAdjustmentsNameWhatIsWrong(t *testing.T) {
	good := Payment{PaymentNo: "p1", OrderNo: "ORDER-000001", Amount: 1, Currency: "CNY", PaidAt: noon}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	bad := Payment{OrderNo: "x", AttemptNo: "y", Currency: "cny"}
	for _, field := range []string{"payment_no", "order_no", "attempt_no", "amount", "currency", "paid_at"} {
		if err := bad.Validate(); !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
	adj := Adjustment{ID: "a-1", Kind: "stock", Ref: "s", Delta: -5}
	if err := adj.Validate(); err != nil {
		t.Fatal(err)
	}
	worse := Adjustment{ID: "no spaces", Delta: 1 << 62, Owner: "\n"}
	for _, field := range []string{"adjustment_id", "kind", "ref", "delta", "owner"} {
		if err := worse.Validate(); !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}

func TestTimeoutBodiesSurviveTheWireAndNothingElseIsRead(t *testing.T) {
	b := TimeoutBody{Version: TimeoutVersion, OrderNo: "ORDER-000001", MessageID: "m", Hop: 3, ExpireAt: noon, DeliverAt: noon.Add(time.Second)}
	got, err := DecodeTimeout(b.Encode())
	if err != nil || got != b {
		t.Fatalf("%v, %+v", err, got)
	}
	for name, raw := range map[string]string{
		"empty": "", "not JSON": "\x78\x9c", "cut": string(b.Encode()[:40]), "array": "[]", "no order": `{"version":1}`,
		"future version": `{"version":99,"order_no":"ORDER-000001"}`, "no version": `{"order_no":"ORDER-000001"}`,
		"deep": strings.Repeat("[", 10000), "wrong type": `{"version":1,"order_no":7}`,
	} {
		if _, err := DecodeTimeout([]byte(raw)); KindOf(err) != Invalid || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzDecodeTimeout(f *testing.F) {
	f.Add([]byte(`{"version":1,"order_no":"ORDER-000001","hop":0}`))
	f.Add([]byte(`{"version":99}`))
	f.Add([]byte("\x1f\x8b\x08"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := DecodeTimeout(raw)
		if err != nil && KindOf(err) != Invalid {
			t.Fatalf("%v is not Invalid", err)
		}
		if err == nil && CheckNumber(b.OrderNo) != nil {
			t.Fatalf("order number %q got through", b.OrderNo)
		}
	})
}

func FuzzCheckNumber(f *testing.F) {
	for _, s := range []string{"ORDER-000001", "short", "a b c d e f", "'; DROP TABLE t_order", "\r\nX-Evil: 1", "日本語日本語"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckNumber(s) == nil && (len(s) < 6 || len(s) > 32 || strings.ContainsAny(s, " \r\n\t'\"\\:")) {
			t.Fatalf("%q got through", s)
		}
	})
}

func TestOneRoundHasOneEventAlwaysTheSame(t *testing.T) {
	o := Order{OrderNo: "ORDER-000001", Round: 2, Version: 4, CancelReason: ReasonTimeout, CancelledAt: noon, Items: []Item{{Kind: "stock", Ref: "s", Quantity: 1}}}
	a, b := CancelledMessage(o), CancelledMessage(o)
	if a.Key != "ORDER-000001:2:cancelled" || string(a.Payload) != string(b.Payload) || a.Key != b.Key {
		t.Errorf("%s, %s", a.Payload, b.Payload)
	}
	o.Round++
	if CancelledMessage(o).Key == a.Key {
		t.Error("another round has the same event")
	}
	if !strings.Contains(string(a.Payload), `"amount":"0"`) {
		t.Errorf("64-bit numbers are strings: %s", a.Payload)
	}
}

func TestErrorsKeepTheirKindAndCauseThroughWrapping(t *testing.T) {
	cause := errors.New("disk full")
	err := Errorf(Unavailable, "busy", "try %s", "later").WithHint("wait").Wrap(cause)
	if KindOf(err) != Unavailable || !errors.Is(err, cause) || !strings.Contains(err.Error(), "try later: disk full") {
		t.Errorf("%v", err)
	}
	if KindOf(cause) != Internal {
		t.Error("an error without a kind is Internal")
	}
	var e *Error
	if !errors.As(err, &e) || e.Hint != "wait" {
		t.Error("the hint is lost")
	}
}

func TestStatusNames(t *testing.T) {
	for s, want := range map[Status]string{Pending: "pending", Paid: "paid", Cancelled: "cancelled", 77: "unknown"} {
		if s.String() != want {
			t.Errorf("%d is %s", s, s)
		}
	}
}

func TestTheEventOfTheLargestOrderFitsIntoAMessage(t *testing.T) {
	d := draft()
	d.UserID, d.BizType, d.Items = strings.Repeat("&", maxText), strings.Repeat("<", maxText), nil
	for i := range maxItems {
		ref := []byte(strings.Repeat("<>&\"", maxText/4))
		ref[0], ref[1] = byte('a'+i%26), byte('a'+i/26)
		d.Items = append(d.Items, Item{Kind: strings.Repeat("&\\", maxText/2), Ref: string(ref), Quantity: maxQuantity})
	}
	d, err := Limits{}.Validate(d)
	if err != nil || len(d.Items) != maxItems {
		t.Fatal(len(d.Items), err)
	}
	m := CancelledMessage(Order{OrderNo: d.OrderNo, UserID: d.UserID, BizType: d.BizType, Items: d.Items, Round: 1})
	if len(m.Payload) > 64<<10 {
		t.Errorf("%d bytes", len(m.Payload))
	}
}

func TestABrakeChangeNamesAllThatIsWrong(t *testing.T) {
	good := BrakeChange{Mode: ModeShadow, Percent: new(100), ByType: map[string]int{"retail": 0}, Act: Act{Actor: "staff", Note: "trying it"}}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	bad := BrakeChange{Mode: "on", Percent: new(101), ByType: map[string]int{"retail": -1}, Version: -1}
	for _, field := range []string{"mode", "percent", "by_type[retail]", "version", "reason"} {
		if err := bad.Validate(); !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}

func TestABrakeChangeLeavesWhatItDoesNotName(t *testing.T) {
	at := Brakes{Mode: ModeEnforce, Percent: 10, ByType: map[string]int{"retail": 50, "ticket": 5}, Tripped: "few payments", Version: 3}
	for name, c := range map[string]struct {
		change BrakeChange
		want   Brakes
	}{
		"nothing":      {BrakeChange{}, at},
		"a mode":       {BrakeChange{Mode: ModeOff}, Brakes{Mode: ModeOff, Percent: 10, ByType: at.ByType, Tripped: at.Tripped, Version: 3}},
		"a percentage": {BrakeChange{Percent: new(0)}, Brakes{Mode: ModeEnforce, ByType: at.ByType, Tripped: at.Tripped, Version: 3}},
		"types": {
			BrakeChange{ByType: map[string]int{"retail": 60, "flash": 1}, ByDefault: []string{"ticket"}},
			Brakes{Mode: ModeEnforce, Percent: 10, ByType: map[string]int{"retail": 60, "flash": 1}, Tripped: at.Tripped, Version: 3},
		},
		"to go on": {BrakeChange{Resume: true}, Brakes{Mode: ModeEnforce, Percent: 10, ByType: at.ByType, Version: 3}},
	} {
		if got, err := c.change.Apply(at); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		}
	}
	if len(at.ByType) != 2 || at.ByType["retail"] != 50 {
		t.Errorf("the brakes that were read have changed: %v", at.ByType)
	}
}

func TestADeadlineThatNeverComesIsNotTold(t *testing.T) {
	o := Order{OrderNo: "ORDER-000001", Round: 1, ExpireAt: Never, CancelledAt: noon}
	for _, m := range []Message{NoticeOf(OrderEvent(TypeExpired, o, noon), 1), CancelledMessage(o)} {
		if strings.Contains(string(m.Payload), "expire_at") {
			t.Errorf("told %s", m.Payload)
		}
	}
	o.ExpireAt = noon
	if m := NoticeOf(OrderEvent(TypeExpiringSoon, o, noon), 1); !strings.Contains(string(m.Payload), `"expire_at":"`+noon.Format(time.RFC3339)) {
		t.Errorf("told %s", m.Payload)
	}
}
