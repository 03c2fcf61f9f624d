package storetest

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"lapse/pkg/order"
)

var resourceTests = map[string]func(t *testing.T, b bed){
	"an adjustment makes a resource with its owner and validity": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		want := order.Resource{Kind: "coupon", Ref: "c1", Available: 3, Owner: "u1", ValidUntil: noon.Add(time.Hour)}
		made, err := s.Adjust(ctx, order.Adjustment{ID: "a1", Kind: "coupon", Ref: "c1", Delta: 3, Owner: "u1", ValidUntil: noon.Add(time.Hour + time.Microsecond)})
		if err != nil || made != want {
			t.Errorf("made %+v, %v", made, err)
		}
		if read, err := s.Resource(ctx, "coupon", "c1"); err != nil || read != want {
			t.Errorf("read %+v, %v", read, err)
		}
	},
	"an adjustment changes what is available, once per id": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		for i, a := range []order.Adjustment{{ID: "a1", Delta: 5}, {ID: "a2", Delta: -2}, {ID: "a1", Delta: 5}, {ID: "a3"}, {ID: "a2", Delta: -2}} {
			a.Kind, a.Ref = "stock", "a"
			r, err := s.Adjust(ctx, a)
			if want := []int64{5, 3, 3, 3, 3}[i]; err != nil || r.Available != want {
				t.Errorf("%d: %+v, %v", i, r, err)
			}
		}
	},
	"an id that was used for another change is refused": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		b.stock("a", 5)
		b.stock("b", 5)
		for _, a := range []order.Adjustment{
			{ID: "init-a", Kind: "stock", Ref: "a", Delta: 6}, {ID: "init-a", Kind: "stock", Ref: "b", Delta: 5},
			{ID: "init-a", Kind: "coupon", Ref: "a", Delta: 5},
		} {
			_, err := s.Adjust(ctx, a)
			expectError(t, err, order.Conflict, "adjustment_id_taken")
		}
		b.expectStock("a", 5, 0, 0)
		b.expectStock("b", 5, 0, 0)
	},
	"nothing is taken below zero, neither of a new resource": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		b.stock("a", 5)
		b.create(draft("ORDER-1", "a"))
		_, err := s.Adjust(ctx, order.Adjustment{ID: "less", Kind: "stock", Ref: "a", Delta: -5})
		expectError(t, err, order.Conflict, "out_of_stock")
		_, err = s.Adjust(ctx, order.Adjustment{ID: "new", Kind: "stock", Ref: "new", Delta: -1})
		expectError(t, err, order.Conflict, "out_of_stock")
		_, err = s.Resource(ctx, "stock", "new")
		expectError(t, err, order.NotFound, "resource_not_found")
		if _, err := s.Adjust(ctx, order.Adjustment{ID: "less", Kind: "stock", Ref: "a", Delta: -4}); err != nil {
			t.Error("a refused adjustment used its id up:", err)
		}
		b.expectStock("a", 0, 1, 0)
	},
	"an adjustment may have the id of an order": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		if _, err := b.at(0).Adjust(context.Background(), order.Adjustment{ID: "ORDER-1", Kind: "stock", Ref: "a", Delta: 1}); err != nil {
			t.Error(err)
		}
		if batch := b.closeAt(time.Minute, "ORDER-1"); len(batch.Closed) != 1 {
			t.Error(batch)
		}
		b.expectStock("a", 2, 0, 0)
	},
	"a coupon comes back while it is valid, and is forfeited once it has run out": func(t *testing.T, b bed) {
		ctx := context.Background()
		for ref, c := range map[string]struct {
			until     time.Time
			available int64
		}{
			"valid": {noon.Add(time.Minute + time.Millisecond), 1}, "over": {noon.Add(time.Minute), 0}, "ever": {time.Time{}, 1},
		} {
			a := order.Adjustment{ID: "c-" + ref, Kind: "coupon", Ref: ref, Delta: 1, Owner: "u1", ValidUntil: c.until}
			if _, err := b.at(0).Adjust(ctx, a); err != nil {
				t.Fatal(err)
			}
			b.stock(ref, 1)
			no := "ORDER-" + ref
			b.create(b.couponed(no, ref))
			batch := b.closeAt(time.Minute, no)
			coupon, err := b.at(0).Resource(ctx, "coupon", ref)
			if err != nil || coupon.Available != c.available || coupon.Held != 0 || coupon.Sold != 0 {
				t.Errorf("%+v, %v", coupon, err)
			}
			b.expectStock(ref, 1, 0, 0)
			var e order.CloudEvent[order.CancelledData]
			if err := json.Unmarshal(batch.Messages[0].Payload, &e); err != nil {
				t.Fatal(err)
			}
			if got := e.Data.Items; len(got) != 2 || got[0].Forfeited != (c.available == 0) || got[1].Forfeited {
				t.Errorf("%s: the event says %+v", ref, got)
			}
			if n := b.count("SELECT COUNT(*) FROM t_resource_log WHERE op = 'forfeit' AND order_no = '" + no + "'"); int64(n) != 1-c.available {
				t.Errorf("%s: %d forfeits", ref, n)
			}
			b.expectRounds(no, 1, 2)
		}
	},
	"what another service holds has a ledger and no counter, and its release waits to be acknowledged": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 1)
		rules := order.Rules{Remote: []string{"cart", "seat"}}
		d := draft("ORDER-1", "a")
		d.Items = append([]order.Item{{Kind: "cart", Ref: "x", Quantity: 1}, {Kind: "cart", Ref: "y", Quantity: 2}, {Kind: "seat", Ref: "12A", Quantity: 1}}, d.Items...)
		b.create(rules.Apply(d))
		s := b.at(2 * time.Minute)
		before := b.everything()
		for _, wrong := range []struct {
			no    string
			round int
			kind  string
		}{{"ORDER-1", 1, "cart"}, {"ORDER-X", 1, "cart"}} {
			b.expectRefused(before, s.Acknowledge(ctx, wrong.no, wrong.round, wrong.kind), order.NotFound, "release_not_found")
		}
		batch := b.closeAt(time.Minute, "ORDER-1")
		if items := batch.Closed[0].Items; len(items) != 4 || !items[0].Remote || !items[2].Remote || items[3].Remote {
			t.Errorf("%+v", items)
		}
		b.expectStock("a", 1, 0, 0)
		b.expectRounds("ORDER-1", 1, 4)
		open := func() int {
			return b.count("SELECT COUNT(*) FROM t_resource_log WHERE op = 'release' AND remote = 1 AND acked_at IS NULL")
		}
		if n := open(); n != 3 {
			t.Errorf("%d releases wait", n)
		}
		if err := s.Acknowledge(ctx, "ORDER-1", 1, "cart"); err != nil || open() != 1 {
			t.Errorf("%d releases wait, %v", open(), err)
		}
		before = b.everything()
		if err := b.at(time.Hour).Acknowledge(ctx, "ORDER-1", 1, "cart"); err != nil {
			t.Error(err)
		}
		b.expectRefused(before, s.Acknowledge(ctx, "ORDER-1", 2, "cart"), order.NotFound, "release_not_found")
		b.expectRefused(before, s.Acknowledge(ctx, "ORDER-1", 1, "stock"), order.NotFound, "release_not_found")
	},
	"what another service holds is sold with its order, and never released": func(t *testing.T, b bed) {
		d := draft("ORDER-1")
		d.Items = []order.Item{{Kind: "cart", Ref: "x", Quantity: 3, Remote: true}}
		b.create(d)
		b.pay(0, "PAY-1", "ORDER-1", order.Rules{})
		if n := b.count("SELECT COUNT(*) FROM t_resource_log WHERE remote = 1 AND quantity = 3 AND op IN ('reserve', 'sell')"); n != 2 {
			t.Errorf("%d ledger rows", n)
		}
		expectError(t, b.at(0).Acknowledge(context.Background(), "ORDER-1", 1, "cart"), order.NotFound, "release_not_found")
	},
}

var readTests = map[string]func(t *testing.T, b bed){
	"what does not exist is not found": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		_, _, err := s.Get(ctx, "ORDER-X")
		expectError(t, err, order.NotFound, "order_not_found")
		_, _, err = s.Timeline(ctx, "ORDER-X")
		expectError(t, err, order.NotFound, "order_not_found")
		_, err = s.Resource(ctx, "stock", "nosuch")
		expectError(t, err, order.NotFound, "resource_not_found")
		if found, now, err := s.Look(ctx, []string{"ORDER-X"}); err != nil || len(found) != 0 || !now.Equal(noon) {
			t.Error(found, now, err)
		}
		if orders, next, _, err := s.List(ctx, "u1", 10, ""); err != nil || len(orders) != 0 || next != "" {
			t.Error(orders, next, err)
		}
	},
	"a look finds what exists, without items": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.create(draft("ORDER-1", "a"))
		for _, nos := range [][]string{nil, {"ORDER-1", "ORDER-X"}} {
			found, now, err := b.at(0).Look(context.Background(), nos)
			if err != nil || !now.Equal(noon) || len(found) != min(len(nos), 1) {
				t.Error(found, now, err)
			}
			for _, o := range found {
				if o.OrderNo != "ORDER-1" || o.Items != nil {
					t.Errorf("%+v", o)
				}
			}
		}
	},
	"a list has every order of the user once, newest first, page by page": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 100)
		var want []string
		for i := range 5 { // of each second two, so that pages end between orders of one time
			one, two, foreign := draft(fmt.Sprintf("ORDER-%d-1", i), "a"), draft(fmt.Sprintf("ORDER-%d-2", i), "a"), draft(fmt.Sprintf("FOREIGN-%d", i))
			foreign.UserID = "u2"
			b.createWith(b.at(time.Duration(i)*time.Second), leased, one, two, foreign)
			want = append([]string{two.OrderNo, one.OrderNo}, want...)
		}
		for size := 1; size <= 11; size++ {
			var got []string
			cursor := ""
			for {
				page, next, _, err := b.at(0).List(ctx, "u1", size, cursor)
				if err != nil || len(page) > size || len(page) == 0 {
					t.Fatal(page, err)
				}
				for _, o := range page {
					got = append(got, o.OrderNo)
					if len(o.Items) != 1 {
						t.Errorf("%+v", o)
					}
				}
				if cursor = next; cursor == "" {
					break
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("pages of %d: %v\nwant %v", size, got, want)
			}
		}
	},
	"a cursor that we did not make is refused by name": func(t *testing.T, b bed) {
		for _, cursor := range []string{"x", "!!", "MS4x", "MTc3NDc4NTYwMDEyMy4", "OTk5OTk5OTk5OTk5OTk5OTk5LjE"} {
			_, _, _, err := b.at(0).List(context.Background(), "u1", 10, cursor)
			expectField(t, err, "page_token")
		}
	},
	"the clock is the database's": func(t *testing.T, b bed) {
		if now, err := b.at(42 * time.Second).Now(context.Background()); err != nil || !now.Equal(noon.Add(42*time.Second)) {
			t.Error(now, err)
		}
		real := b.real()
		before := time.Now()
		now, err := real.Now(context.Background())
		if err != nil || now.Location() != time.UTC || now.Sub(before).Abs() > time.Minute || now.Nanosecond()%1e6 != 0 {
			t.Error(now, err)
		}
	},
	"the server says what it is, and fits": func(t *testing.T, b bed) {
		s := b.real()
		version, err := s.ServerVersion(context.Background())
		if err != nil || version == "" {
			t.Error(version, err)
		}
		t.Log(version)
		if err := s.Check(context.Background()); err != nil {
			t.Error(err)
		}
	},
}
