package order

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestAnItemIsKeptAsItIsButNeverForAMomentLess(t *testing.T) {
	noon := time.Date(2026, 3, 29, 12, 0, 0, 0, time.UTC)
	for deadline, want := range map[time.Time]time.Time{
		noon:                      noon,
		noon.Add(time.Nanosecond): noon.Add(time.Millisecond),
		noon.Add(time.Millisecond + time.Microsecond): noon.Add(2 * time.Millisecond),
		noon.In(time.FixedZone("elsewhere", 9*3600)):  noon,
		Never.Add(-time.Second):                       Never.Add(-time.Second),
		time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC):   time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		got, err := Adopted{Kind: "booking", Ref: "B-1", Deadline: deadline}.Validate()
		if err != nil || got.Deadline != want || got.Kind != "booking" || got.Ref != "B-1" {
			t.Errorf("%v: %+v, %v", deadline, got, err)
		}
	}
	for field, change := range map[string]func(*Adopted){
		"kind":     func(a *Adopted) { a.Kind = "" },
		"ref":      func(a *Adopted) { a.Ref = strings.Repeat("x", 65) },
		"deadline": func(a *Adopted) { a.Deadline = Never },
	} {
		a := Adopted{Kind: "booking", Ref: "B-1", Deadline: noon}
		change(&a)
		_, err := a.Validate()
		var e *Error
		if !errors.As(err, &e) || e.Kind != Invalid || len(e.Fields) != 1 || e.Fields[0].Name != field {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestAnItemsNumberIsItsOwnAndNoOrders(t *testing.T) {
	seen := map[string]bool{DeriveNumber("booking", "B-1"): true, DeriveNumber("book", "ingB-1"): true}
	for _, a := range []Adopted{{Kind: "booking", Ref: "B-1"}, {Kind: "book", Ref: "ingB-1"}, {Kind: "booking", Ref: "B-2"}} {
		no := a.No()
		if err := CheckNumber(no); err != nil || seen[no] {
			t.Errorf("%+v: %s, %v", a, no, err)
		}
		seen[no] = true
		again := a
		again.Deadline = Never
		if again.No() != no {
			t.Error("the number depends on the deadline")
		}
	}
}

func TestOnlyAnExplicitAnswerIsOne(t *testing.T) {
	noon := time.Date(2026, 3, 29, 12, 0, 0, 1, time.UTC)
	for _, c := range []struct{ said, want Answer }{
		{Answer{Word: WordClosed, Deadline: noon}, Answer{Word: WordClosed}},
		{Answer{Word: WordFinal}, Answer{Word: WordFinal}},
		{Answer{Word: WordLater, Deadline: noon}, Answer{Word: WordLater, Deadline: noon.Truncate(time.Second).Add(time.Millisecond)}},
	} {
		if got, err := c.said.Validate(); err != nil || got != c.want {
			t.Errorf("%+v: %+v, %v", c.said, got, err)
		}
	}
	for _, said := range []Answer{{}, {Word: "ok"}, {Word: "Closed"}, {Word: WordLater}, {Word: WordLater, Deadline: Never}} {
		if got, err := said.Validate(); KindOf(err) != Unavailable || got != (Answer{}) {
			t.Errorf("%+v: %+v, %v", said, got, err)
		}
	}
}
