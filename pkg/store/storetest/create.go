package storetest

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"lapse/pkg/order"
)

var createTests = map[string]func(t *testing.T, b bed){
	"an order comes with its reservations, log and time-out row": func(t *testing.T, b bed) {
		b.stock("a", 5)
		b.stock("b", 5)
		got := b.create(draft("ORDER-1", "b", "a"))[0]
		if got.Repeated || !got.Order.CreatedAt.Equal(noon) || !got.Order.ExpireAt.Equal(noon.Add(time.Minute)) {
			t.Errorf("answer %+v, order %+v", got, got.Order)
		}
		wantMessage := order.Message{Key: "ORDER-1:timeout", Kind: order.Timeout, OrderNo: "ORDER-1", Round: 1, Type: "timeout",
			DueAt: noon.Add(time.Minute), NextAt: noon.Add(leaseTime), Payload: []byte("00-trace")}
		if !reflect.DeepEqual(*got.Message, wantMessage) {
			t.Errorf("message %+v", *got.Message)
		}
		read, now, err := b.at(time.Second).Get(context.Background(), "ORDER-1")
		if err != nil || !now.Equal(noon.Add(time.Second)) {
			t.Fatal(now, err)
		}
		got.Order.ID = read.ID
		if read.ID == 0 || !reflect.DeepEqual(read, *got.Order) {
			t.Errorf("read    %+v\ncreated %+v", read, *got.Order)
		}
		log, scheduled, err := b.at(0).Timeline(context.Background(), "ORDER-1")
		if err != nil {
			t.Fatal(err)
		}
		wantLog := []order.LogEntry{{OrderNo: "ORDER-1", Version: 1, Round: 1, Event: order.EventCreated, Actor: "shop", At: noon, ExpireAt: read.ExpireAt}}
		if !reflect.DeepEqual(log, wantLog) {
			t.Errorf("log %+v", log)
		}
		if len(scheduled) != 1 || !reflect.DeepEqual(scheduled[0], order.Scheduled{Message: wantMessage}) {
			t.Errorf("scheduled %+v", scheduled)
		}
		b.expectStock("a", 4, 1, 0)
		b.expectStock("b", 4, 1, 0)
	},
	"a user has no more orders than allowed, and whoever repeats a create gets the order all the same": func(t *testing.T, b bed) {
		wanted := func(at time.Duration, q order.Quota, user string, nos ...string) (refusals []string) {
			drafts := make([]order.Draft, len(nos))
			for i, no := range nos {
				drafts[i] = draft(no, "a")
				drafts[i].UserID, drafts[i].Quota, drafts[i].Timeout = user, q, time.Hour
			}
			answers, err := b.at(at).Create(context.Background(), drafts, leased)
			if err != nil {
				t.Fatal(err)
			}
			for i, a := range answers {
				if a.Err != nil {
					if order.KindOf(a.Err) != order.Exhausted {
						t.Error(a.Err)
					}
					refusals = append(refusals, nos[i])
				}
			}
			return refusals
		}
		b.stock("a", 100)
		for _, c := range []struct {
			at    time.Duration
			quota order.Quota
			user  string
			nos   string
			want  string
		}{
			{0, order.Quota{Pending: 2}, "u1", "ORDER-1 ORDER-2 ORDER-3", "[ORDER-3]"},
			{0, order.Quota{Pending: 2}, "u1", "ORDER-1 ORDER-4", "[ORDER-4]"},
			{0, order.Quota{Pending: 2}, "u2", "ORDER-5", "[]"},
			{0, order.Quota{}, "u1", "ORDER-6", "[]"},
			{0, order.Quota{Minute: 3}, "u1", "ORDER-7", "[ORDER-7]"},
			{time.Minute, order.Quota{Minute: 3}, "u1", "ORDER-7", "[]"},
		} {
			if got := fmt.Sprint(wanted(c.at, c.quota, c.user, strings.Fields(c.nos)...)); got != c.want {
				t.Errorf("%+v refused %s", c, got)
			}
		}
		for _, no := range strings.Fields("ORDER-1 ORDER-2 ORDER-6 ORDER-7") {
			if _, _, err := b.at(time.Minute).Cancel(context.Background(), order.Cancelling{OrderNo: no, UserID: "u1", Reason: order.ReasonUserCancel}, leased); err != nil {
				t.Fatal(err)
			}
		}
		if got := wanted(2*time.Minute, order.Quota{Pending: 2}, "u1", "ORDER-8"); got != nil {
			t.Errorf("refused %v although the others are cancelled", got)
		}
		b.expectStock("a", 98, 2, 0)
		b.audit()
	},
	"a repeated create answers the first order, other content conflicts": func(t *testing.T, b bed) {
		b.stock("a", 5)
		b.create(draft("ORDER-1", "a"))
		other := draft("ORDER-1", "a")
		other.Amount++
		answers, err := b.at(time.Second).Create(context.Background(), []order.Draft{draft("ORDER-1", "a"), other, draft("ORDER-2", "a")}, leased)
		if err != nil {
			t.Fatal(err)
		}
		first := answers[0]
		if first.Err != nil || !first.Repeated || first.Message != nil || !first.Order.CreatedAt.Equal(noon) || len(first.Order.Items) != 1 {
			t.Errorf("repeat %+v", first)
		}
		expectError(t, answers[1].Err, order.Conflict, "order_no_taken")
		if answers[2].Err != nil || answers[2].Repeated {
			t.Errorf("its neighbour %+v", answers[2])
		}
		b.expectStock("a", 3, 2, 0)
	},
	"a repeat of an order that was cancelled since answers it as it is": func(t *testing.T, b bed) {
		b.create(draft("ORDER-1"))
		b.closeAt(time.Minute, "ORDER-1")
		got := b.create(draft("ORDER-1"))[0]
		if !got.Repeated || got.Order.Status != order.Cancelled {
			t.Errorf("%+v", got.Order)
		}
	},
	"the same number twice in one group makes one order": func(t *testing.T, b bed) {
		b.stock("a", 5)
		other := draft("ORDER-1", "a")
		other.UserID = "u2"
		answers, err := b.at(0).Create(context.Background(), []order.Draft{draft("ORDER-1", "a"), draft("ORDER-1", "a"), other}, leased)
		if err != nil {
			t.Fatal(err)
		}
		if answers[0].Err != nil || answers[0].Repeated || answers[0].Message == nil {
			t.Errorf("first %+v", answers[0])
		}
		if answers[1].Err != nil || !answers[1].Repeated || answers[1].Message != nil {
			t.Errorf("second %+v", answers[1])
		}
		expectError(t, answers[2].Err, order.Conflict, "order_no_taken")
		b.expectStock("a", 4, 1, 0)
	},
	"the same number twice in one group fails alike when its items are refused": func(t *testing.T, b bed) {
		b.stock("a", 1)
		want2 := draft("ORDER-1", "a", "a")
		want1 := draft("ORDER-1", "a")
		answers, err := b.at(0).Create(context.Background(), []order.Draft{want2, want2, want1}, leased)
		if err != nil {
			t.Fatal(err)
		}
		expectError(t, answers[0].Err, order.Conflict, "out_of_stock")
		expectError(t, answers[1].Err, order.Conflict, "out_of_stock")
		expectError(t, answers[2].Err, order.Unavailable, "order_no_in_flight")
		b.expectStock("a", 1, 0, 0)
	},
	"a draft that a resource refuses fails alone and leaves nothing": func(t *testing.T, b bed) {
		ctx, s := context.Background(), b.at(0)
		b.stock("a", 2)
		b.stock("few", 0)
		for _, a := range []order.Adjustment{
			{ID: "c1", Kind: "coupon", Ref: "of-u2", Delta: 1, Owner: "u2"},
			{ID: "c2", Kind: "coupon", Ref: "run-out", Delta: 1, ValidUntil: noon},
			{ID: "c3", Kind: "coupon", Ref: "valid", Delta: 1, Owner: "u1", ValidUntil: noon.Add(time.Millisecond)},
		} {
			if _, err := s.Adjust(ctx, a); err != nil {
				t.Fatal(err)
			}
		}
		with := func(no string, it order.Item) order.Draft {
			d := draft(no, "a")
			d.Items = order.MergeItems(append(d.Items, it))
			return d
		}
		answers, err := s.Create(ctx, []order.Draft{
			with("ORDER-few", order.Item{Kind: "stock", Ref: "few", Quantity: 1}),
			with("ORDER-unknown", order.Item{Kind: "stock", Ref: "nosuch", Quantity: 1}),
			with("ORDER-others", order.Item{Kind: "coupon", Ref: "of-u2", Quantity: 1}),
			with("ORDER-runout", order.Item{Kind: "coupon", Ref: "run-out", Quantity: 1}),
			with("ORDER-good", order.Item{Kind: "coupon", Ref: "valid", Quantity: 1}),
			draft("ORDER-last", "a"),
			draft("ORDER-late", "a"),
		}, leased)
		if err != nil {
			t.Fatal(err)
		}
		for i, code := range []string{"out_of_stock", "unknown_resource", "resource_unusable", "resource_unusable", "", "", "out_of_stock"} {
			if code != "" {
				expectError(t, answers[i].Err, order.Conflict, code)
			} else if answers[i].Err != nil {
				t.Errorf("%d: %v", i, answers[i].Err)
			}
		}
		if got, want := b.rows(), "t_order=2 t_order_item=3 t_order_log=2 t_resource_log=8 t_local_message=2 t_payment=0 t_late_payment=0"; got != want {
			t.Errorf("left %s\nwant %s", got, want)
		}
		b.expectStock("a", 0, 2, 0)
	},
	"a group of which nothing is created leaves nothing": func(t *testing.T, b bed) {
		before := b.rows()
		answers, err := b.at(0).Create(context.Background(), []order.Draft{draft("ORDER-1", "nosuch")}, leased)
		if err != nil {
			t.Fatal(err)
		}
		expectError(t, answers[0].Err, order.Conflict, "unknown_resource")
		if after := b.rows(); after != before {
			t.Error(after)
		}
	},
	"no drafts, no answers": func(t *testing.T, b bed) {
		if answers, err := b.at(0).Create(context.Background(), nil, leased); err != nil || len(answers) != 0 {
			t.Error(answers, err)
		}
	},
	"an order with nothing to pay is paid at once and has no time-out row": func(t *testing.T, b bed) {
		b.stock("a", 2)
		free := draft("ORDER-1", "a")
		free.Amount = 0
		got := b.create(free)[0]
		if got.Order.Status != order.Paid || !got.Order.PaidAt.Equal(noon) || got.Message != nil {
			t.Errorf("%+v", got)
		}
		b.expectStock("a", 1, 0, 1)
		if batch := b.closeAt(time.Hour, "ORDER-1"); len(batch.Closed) != 0 {
			t.Error("it was closed")
		}
		log, scheduled, err := b.at(0).Timeline(context.Background(), "ORDER-1")
		if err != nil || len(log) != 1 || log[0].Event != order.EventNothingDue || log[0].To != order.Paid || len(scheduled) != 0 {
			t.Errorf("log %+v, scheduled %+v, %v", log, scheduled, err)
		}
	},
	"what is taken at payment or held elsewhere is not reserved here, nor asked for": func(t *testing.T, b bed) {
		rules := order.Rules{Default: order.Rule{StockAtPayment: true}, Remote: []string{"cart"}}
		d := draft("ORDER-1", "nosuch")
		d.Items = append([]order.Item{{Kind: "cart", Ref: "basket", Quantity: 1}}, d.Items...)
		got := b.create(rules.Apply(d))[0]
		read, _, err := b.at(0).Get(context.Background(), "ORDER-1")
		if err != nil || !reflect.DeepEqual(read.Items, got.Order.Items) || !read.Items[0].Remote || !read.Items[1].AtPayment {
			t.Errorf("%+v, %v", read.Items, err)
		}
		if n := b.count("SELECT COUNT(*) FROM t_resource_log WHERE remote = 1 AND op = 'reserve' AND kind = 'cart'"); n != 1 {
			t.Errorf("%d ledger rows of the cart", n)
		}
		if n := b.count("SELECT COUNT(*) FROM t_resource_log WHERE kind = 'stock'"); n != 0 {
			t.Errorf("%d ledger rows of the stock", n)
		}
	},
	"with nothing to pay, what would be taken at payment is taken at once": func(t *testing.T, b bed) {
		b.stock("a", 1)
		free := draft("ORDER-1", "a")
		free.Amount = 0
		rules := order.Rules{Default: order.Rule{StockAtPayment: true}}
		b.create(rules.Apply(free))
		b.expectStock("a", 0, 0, 1)
	},
	"a group may be larger than one statement": func(t *testing.T, b bed) {
		s := b.at(0)
		var drafts []order.Draft
		for i := range 30 {
			d := draft(fmt.Sprintf("ORDER-%d", i))
			for ref := range 100 {
				d.Items = append(d.Items, order.Item{Kind: fmt.Sprintf("kind-%d", ref%3), Ref: fmt.Sprintf("ref-%d", ref), Quantity: 1})
			}
			d.Items = order.MergeItems(d.Items)
			drafts = append(drafts, d)
		}
		for i, it := range drafts[0].Items {
			if _, err := s.Adjust(context.Background(), order.Adjustment{ID: fmt.Sprint("init-", i), Kind: it.Kind, Ref: it.Ref, Delta: 30}); err != nil {
				t.Fatal(err)
			}
		}
		b.createWith(s, leased, drafts...)
		if n := b.count("SELECT COUNT(*) FROM t_resource WHERE available = 0 AND held = 30"); n != 100 {
			t.Errorf("%d of 100 resources are right", n)
		}
	},
	"a transaction that is broken off leaves nothing": func(t *testing.T, b bed) {
		b.stock("a", 5)
		before := b.rows()
		ctx, cancel := context.WithCancel(context.Background())
		_, err := b.at(0).Create(ctx, []order.Draft{draft("ORDER-1", "a")}, func(m order.Message, now time.Time) time.Time {
			cancel() // the order row and the counters are written by now
			return now
		})
		expectError(t, err, order.Unavailable, "database_unavailable")
		if after := b.rows(); after != before {
			t.Error(after)
		}
		b.expectStock("a", 5, 0, 0)
	},
	"text that means something to SQL is stored as it is": func(t *testing.T, b bed) {
		for i, text := range []string{`'; DROP TABLE t_order; --`, `"quoted" \' back\slash %s ?`, "Ünïcödé 订单 🧾", "a?*b WHEN* {skip}"} {
			d := draft(fmt.Sprintf("ORDER-%d", i), text)
			d.UserID, d.BizType = text, text
			if _, err := b.at(0).Adjust(context.Background(), order.Adjustment{ID: fmt.Sprint("a", i), Kind: "stock", Ref: text, Delta: 1}); err != nil {
				t.Fatal(err)
			}
			b.create(d)
			o, _, err := b.at(0).Get(context.Background(), d.OrderNo)
			if err != nil || o.UserID != text || o.BizType != text || o.Items[0].Ref != text {
				t.Errorf("%q became %+v, %v", text, o, err)
			}
		}
	},
	"names that differ only in case are two": func(t *testing.T, b bed) {
		b.stock("a", 1)
		b.stock("A", 2)
		b.create(draft("order-1", "a"), draft("ORDER-1", "A"))
		b.expectStock("a", 0, 1, 0)
		b.expectStock("A", 1, 1, 0)
	},
}
