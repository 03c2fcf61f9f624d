package storetest

import (
	"context"
	"reflect"
	"testing"
	"time"

	"lapse/pkg/order"
)

var paytimeTests = map[string]func(t *testing.T, b bed){
	"pay times count payers by whole seconds and business type, late money included": func(t *testing.T, b bed) {
		ctx := context.Background()
		ticket := draft("ORDER-ticket")
		ticket.BizType, ticket.Timeout = "ticket", time.Hour
		free := draft("ORDER-free")
		free.Amount = 0
		b.create(draft("ORDER-1"), draft("ORDER-2"), draft("ORDER-late"), draft("ORDER-open"), free, ticket)
		pay := func(at time.Duration, no string) {
			p := payment("P-"+no, no)
			p.PaidAt = noon.Add(at)
			if _, err := b.at(at).Pay(ctx, p, order.Rules{}, leased); err != nil {
				t.Fatal(err)
			}
		}
		pay(9001*time.Millisecond, "ORDER-1")
		pay(10*time.Second, "ORDER-2")
		pay(40*time.Minute, "ORDER-ticket")
		b.closeAt(time.Minute, "ORDER-late")
		pay(65*time.Second, "ORDER-late")

		got, err := b.at(2*time.Hour).PayTimes(ctx, noon)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]order.PayTimes{
			"retail": {BizType: "retail", Payers: map[int64]int64{10: 2, 65: 1}, Longest: time.Minute},
			"ticket": {BizType: "ticket", Payers: map[int64]int64{2400: 1}, Longest: time.Hour},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v", got)
		}
		if later, err := b.at(2*time.Hour).PayTimes(ctx, noon.Add(90*time.Minute)); err != nil || len(later) != 0 {
			t.Errorf("since later: %+v, %v", later, err)
		}
	},
}
