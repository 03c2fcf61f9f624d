package server

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

const draftJSON = `{"user_id":"u1","biz_type":"retail","amount":"1999","currency":"CNY","timeout":"60s",
	"items":[{"kind":"stock","ref":"sku-1","quantity":2}]}`

// withNumber is draftJSON with an order number.
func withNumber(orderNo string) string {
	return `{"order_no":"` + orderNo + `",` + draftJSON[1:]
}

func TestCreatedOrderIsAnsweredInFull(t *testing.T) {
	r := start(t)
	got := r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, http.StatusOK)
	want := map[string]any{
		"order_no": "order-1", "user_id": "u1", "biz_type": "retail", "status": "pending", "amount": "1999", "currency": "CNY",
		"created_at": "2026-03-01T12:00:00Z", "expire_at": "2026-03-01T12:01:00Z", "cancel_reason": "",
		"round": 1.0, "version": 1.0, "payable": true, "remaining_ms": "60000",
	}
	items := fmt.Sprint(got.json["items"])
	delete(got.json, "items")
	if fmt.Sprint(got.json) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got.json, want)
	}
	if items != "[map[at_payment:false kind:stock quantity:2 ref:sku-1 remote:false]]" {
		t.Errorf("items %s", items)
	}
	if d := r.mem.lastDraft(); d.Caller != "shop" || d.Timeout != time.Minute {
		t.Errorf("draft %+v", d)
	}
}

func TestIdentityOfAnOrder(t *testing.T) {
	long := strings.Repeat("k", maxKey+1)
	for _, c := range []struct {
		name    string
		body    string
		headers []string
		orderNo string // "" for a made-up one
		status  int
		code    string
	}{
		{"the caller's number comes first", withNumber("order-1"), []string{"Idempotency-Key", "k1"}, "order-1", 200, ""},
		{"a key in the header gives the number", draftJSON, []string{"Idempotency-Key", "k1"}, order.DeriveNumber("shop", "k1"), 200, ""},
		{"a key in the body gives the same number", `{"request_id":"k1",` + draftJSON[1:], nil, order.DeriveNumber("shop", "k1"), 200, ""},
		{"the same key in both is one key", `{"request_id":"k1",` + draftJSON[1:], []string{"Idempotency-Key", "k1"}, order.DeriveNumber("shop", "k1"), 200, ""},
		{"two different keys are refused", `{"request_id":"k2",` + draftJSON[1:], []string{"Idempotency-Key", "k1"}, "", 400, "invalid_argument"},
		{"two headers are refused", draftJSON, []string{"Idempotency-Key", "k1", "Idempotency-Key", "k2"}, "", 400, "invalid_argument"},
		{"a key that gRPC could not carry is refused", draftJSON, []string{"Idempotency-Key", "ключ"}, "", 400, "invalid_argument"},
		{"a key that is too long is refused", draftJSON, []string{"Idempotency-Key", long}, "", 400, "invalid_argument"},
		{"without any, a number is made up", draftJSON, nil, "", 200, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			got := r.send("POST", "/v1/orders", orderToken, c.body, c.headers...)
			if c.code != "" {
				got.wantProblem(t, c.status, c.code)
				return
			}
			got.want(t, c.status)
			if no := got.json["order_no"].(string); c.orderNo != "" && no != c.orderNo || len(no) < 6 {
				t.Errorf("order_no %s, want %s", no, c.orderNo)
			}
		})
	}
}

func TestRepeatedCreate(t *testing.T) {
	other := strings.Replace(draftJSON, "1999", "2000", 1)
	t.Run("the same call again answers the same order and says so", func(t *testing.T) {
		r := start(t)
		first := r.send("POST", "/v1/orders", orderToken, draftJSON, "Idempotency-Key", "k").want(t, 200)
		again := r.send("POST", "/v1/orders", orderToken, draftJSON, "Idempotency-Key", "k").want(t, 200)
		if fmt.Sprint(first.json) != fmt.Sprint(again.json) {
			t.Errorf("first %s\nagain %s", first.raw, again.raw)
		}
		if first.header.Get("Idempotent-Replayed") != "" || again.header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("Idempotent-Replayed: first %q, again %q", first.header.Get("Idempotent-Replayed"), again.header.Get("Idempotent-Replayed"))
		}
	})
	t.Run("it shows the order as it stands now", func(t *testing.T) {
		r := start(t)
		r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
		r.mem.now = r.mem.now.Add(59 * time.Second)
		again := r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
		if again.json["remaining_ms"] != "1000" {
			t.Errorf("remaining_ms %v", again.json["remaining_ms"])
		}
	})
	t.Run("the same number with other content is a conflict", func(t *testing.T) {
		r := start(t)
		r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
		r.send("POST", "/v1/orders", orderToken, strings.Replace(withNumber("order-1"), "1999", "2000", 1)).wantProblem(t, 409, "order_no_taken")
	})
	t.Run("the same key with other content is a reused key", func(t *testing.T) {
		r := start(t)
		r.send("POST", "/v1/orders", orderToken, draftJSON, "Idempotency-Key", "k").want(t, 200)
		r.send("POST", "/v1/orders", orderToken, other, "Idempotency-Key", "k").wantProblem(t, 422, "idempotency_key_reused")
	})
	t.Run("over gRPC likewise", func(t *testing.T) {
		r := start(t)
		orders := lapsev1.NewOrderServiceClient(r.conn)
		amount := int64(5)
		req := &lapsev1.CreateOrderRequest{UserId: "u1", BizType: "retail", Amount: &amount, Currency: "CNY", Timeout: durationpb.New(time.Minute)}
		ctx := as(t, orderToken, "idempotency-key", "k")
		var header metadata.MD
		first, err := orders.CreateOrder(ctx, req, grpc.Header(&header))
		if err != nil || len(header.Get("idempotent-replayed")) != 0 {
			t.Fatalf("first: %v, header %v", err, header)
		}
		again, err := orders.CreateOrder(ctx, req, grpc.Header(&header))
		if err != nil || again.GetOrderNo() != first.GetOrderNo() || !slices.Equal(header.Get("idempotent-replayed"), []string{"true"}) {
			t.Fatalf("again: %v %v, header %v", again, err, header)
		}
		amount = 6
		_, err = orders.CreateOrder(ctx, req)
		if info, _ := details(t, err); status.Code(err) != codes.AlreadyExists || info.GetReason() != "idempotency_key_reused" {
			t.Errorf("other content: %v", err)
		}
	})
}

func TestCreateRefusesWhatItCannotTellApart(t *testing.T) {
	for _, c := range []struct{ name, old, new, field string }{
		{"an amount that was forgotten", `"amount":"1999",`, ``, "amount"},
		{"a time-out of zero", `"60s"`, `"0s"`, "timeout"},
		{"a time-out below zero", `"60s"`, `"-1s"`, "timeout"},
		{"a time-out of 2^31 seconds", `"60s"`, `"2147483648s"`, "timeout"},
		{"a time-out of 2^63-1 seconds", `"60s"`, `"9223372036854775807s"`, "timeout"},
		{"a time-out between two milliseconds", `"60s"`, `"1.0000001s"`, "timeout"},
		{"a quantity of zero", `"quantity":2`, `"quantity":0`, "items[0].quantity"},
		{"a currency in small letters", `CNY`, `cny`, "currency"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			got := r.send("POST", "/v1/orders", orderToken, strings.Replace(draftJSON, c.old, c.new, 1)).wantProblem(t, 400, "invalid_argument")
			if !slices.Equal(got.fields(), []string{c.field}) {
				t.Errorf("refused fields %v, want %s", got.fields(), c.field)
			}
			if len(r.mem.orders) != 0 {
				t.Errorf("it was stored: %v", r.mem.orders)
			}
		})
	}
}

func TestCreateNamesAllRefusedFieldsAtOnceAndWhatWouldBeRight(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       map[string]string
	}{
		{"nothing given", `{}`, map[string]string{
			"user_id": "1 to 64 bytes of UTF-8 text", "biz_type": "1 to 64 bytes of UTF-8 text",
			"amount": "0 or more minor units", "currency": "three capital letters of ISO 4217, like CNY",
		}},
		{"a time-out of zero, and a currency of nowhere", `{"user_id":"u1","biz_type":"retail","amount":"1","currency":"x","timeout":"0s"}`, map[string]string{
			"timeout": "1s to 7776000s", "currency": "three capital letters of ISO 4217, like CNY",
		}},
		{"a time-out in minutes", `{"timeout":"5m"}`, map[string]string{"timeout": `seconds with an s: "300s", not "5m"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := start(t).send("POST", "/v1/orders", orderToken, c.body).wantProblem(t, 400, "invalid_argument")
			reasons := map[string]string{}
			for _, e := range got.json["errors"].([]any) {
				field := e.(map[string]any)
				reasons[field["field"].(string)] = field["reason"].(string)
			}
			if !maps.Equal(reasons, c.want) {
				t.Errorf("refused %v\nwant    %v", reasons, c.want)
			}
		})
	}
}

func TestNumbersBeyond53BitsKeepTheirDigits(t *testing.T) {
	r := start(t)
	const big = "9007199254740993" // 2^53 + 1
	body := strings.Replace(withNumber("order-1"), "1999", big, 1)
	if got := r.send("POST", "/v1/orders", orderToken, body).want(t, 200); got.json["amount"] != big {
		t.Errorf("amount %v", got.json["amount"])
	}
	numeric := strings.Replace(withNumber("order-2"), `"1999"`, big, 1)
	if got := r.send("POST", "/v1/orders", orderToken, numeric).want(t, 200); got.json["amount"] != big {
		t.Errorf("amount sent as a number: %v", got.json["amount"])
	}
}

func TestGetTellsHowLongAnOrderIsPayable(t *testing.T) {
	for _, c := range []struct {
		name      string
		later     time.Duration
		payable   bool
		remaining string
	}{
		{"at once", 0, true, "60000"},
		{"a millisecond before the deadline", time.Minute - time.Millisecond, true, "1"},
		{"at the deadline", time.Minute, false, "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
			r.mem.now = r.mem.now.Add(c.later)
			got := r.send("GET", "/v1/orders/order-1", orderToken, "").want(t, 200)
			if got.json["payable"] != c.payable || got.json["remaining_ms"] != c.remaining {
				t.Errorf("payable %v, remaining_ms %v", got.json["payable"], got.json["remaining_ms"])
			}
		})
	}
}

// S04: whoever asks for somebody else's order learns nothing, not even that it is there.
func TestAnOrderOfSomebodyElseIsUnknown(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	for _, c := range []struct{ name, verb, theirs, none, body string }{
		{"reading", "GET", "/v1/orders/order-1?user_id=u2", "/v1/orders/order-9?user_id=u2", ""},
		{"cancelling", "POST", "/v1/orders/order-1:cancel", "/v1/orders/order-9:cancel", `{"user_id":"u2"}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			theirs := r.send(c.verb, c.theirs, orderToken, c.body).wantProblem(t, 404, "order_not_found")
			none := r.send(c.verb, c.none, orderToken, c.body).wantProblem(t, 404, "order_not_found")
			for _, a := range []answer{theirs, none} {
				delete(a.json, "trace_id")
				a.header.Del("Trace-Id")
				a.header.Del("Date")
			}
			if fmt.Sprint(theirs.json, theirs.header) != fmt.Sprint(none.json, none.header) {
				t.Errorf("theirs %v %v\nnone   %v %v", theirs.json, theirs.header, none.json, none.header)
			}
		})
	}
	if r.mem.orders["order-1"].Status != order.Pending {
		t.Error("a stranger cancelled the order")
	}
	r.send("GET", "/v1/orders/order-1?user_id=u1", orderToken, "").want(t, 200)
}

func TestCancel(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	for range 2 {
		got := r.send("POST", "/v1/orders/order-1:cancel", orderToken, `{"user_id":"u1"}`).want(t, 200)
		if got.json["status"] != "cancelled" || got.json["cancel_reason"] != "USER_CANCEL" || got.json["payable"] != false {
			t.Errorf("order %s", got.raw)
		}
	}
	got := r.send("POST", "/v1/orders/order-1:cancel", orderToken, ``).wantProblem(t, 400, "invalid_argument")
	if !slices.Equal(got.fields(), []string{"user_id"}) {
		t.Errorf("refused fields %v", got.fields())
	}
}

func TestCancelOfAPaidOrderNamesItsState(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	r.notify(notification("p1", "order-1", 1999)).want(t, 200)
	got := r.send("POST", "/v1/orders/order-1:cancel", orderToken, `{"user_id":"u1"}`).wantProblem(t, 409, "state_conflict")
	if !strings.Contains(got.json["detail"].(string), "paid") {
		t.Errorf("detail %v", got.json["detail"])
	}
}

func TestListIsPaged(t *testing.T) {
	r := start(t)
	for i := range 5 {
		r.send("POST", "/v1/orders", orderToken, withNumber(fmt.Sprintf("order-%d", i))).want(t, 200)
	}
	var seen []string
	token := ""
	for pages := 0; pages == 0 || token != ""; pages++ {
		got := r.send("GET", "/v1/orders?user_id=u1&page_size=2&page_token="+token, orderToken, "").want(t, 200)
		for _, o := range got.json["orders"].([]any) {
			seen = append(seen, o.(map[string]any)["order_no"].(string))
		}
		token = got.json["next_page_token"].(string)
	}
	if want := []string{"order-4", "order-3", "order-2", "order-1", "order-0"}; !slices.Equal(seen, want) {
		t.Errorf("seen %v", seen)
	}
	empty := r.send("GET", "/v1/orders?user_id=nobody", orderToken, "").want(t, 200)
	if fmt.Sprint(empty.json) != "map[next_page_token: orders:[]]" {
		t.Errorf("nobody's orders: %s", empty.raw)
	}
}

func TestPageSize(t *testing.T) {
	for asked, want := range map[int32]int{0: defaultPage, 1: 1, maxPage: maxPage, maxPage + 1: maxPage} {
		if got, bad := pageSize(asked); got != want || bad != nil {
			t.Errorf("pageSize(%d) = %d, %v; want %d", asked, got, bad, want)
		}
	}
	if _, bad := pageSize(-1); len(bad) != 1 || bad[0].Name != "page_size" {
		t.Errorf("a page size below zero: %v", bad)
	}
}

func TestQueryParametersAreChecked(t *testing.T) {
	r := start(t)
	for _, c := range []struct{ name, verb, path, field string }{
		{"a number that is none", "GET", "/v1/orders?user_id=u1&page_size=ten", "page_size"},
		{"a number out of range", "GET", "/v1/orders?user_id=u1&page_size=2147483648", "page_size"},
		{"a number below zero", "GET", "/v1/orders?user_id=u1&page_size=-1", "page_size"},
		{"a misspelt name", "GET", "/v1/orders?user_id=u1&pagesize=1", "pagesize"},
		{"a name given twice", "GET", "/v1/orders?user_id=u1&user_id=u2", "user_id"},
		{"a name that belongs into the path", "GET", "/v1/orders/order-1?order_no=order-2", "order_no"},
		{"a name that belongs into the body", "POST", "/v1/orders/order-1:cancel?user_id=u1", "user_id"},
		{"no user", "GET", "/v1/orders", "user_id"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := r.send(c.verb, c.path, orderToken, "").wantProblem(t, 400, "invalid_argument")
			if !slices.Equal(got.fields(), []string{c.field}) {
				t.Errorf("refused fields %v, want %s", got.fields(), c.field)
			}
		})
	}
	r.send("GET", "/v1/orders?a;b", orderToken, "").wantProblem(t, 400, "malformed_query")
}

func TestTimeline(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	got := r.send("GET", "/v1/orders/order-1/timeline", operatorToken, "").want(t, 200)
	transition := got.json["transitions"].([]any)[0].(map[string]any)
	if transition["from"] != "" || transition["to"] != "pending" || transition["event"] != "created" || transition["actor"] != "shop" {
		t.Errorf("transition %v", transition)
	}
	message := got.json["scheduled"].([]any)[0].(map[string]any)
	if message["message_id"] != "order-1:timeout" || message["state"] != "sent" || message["hop"] != 2.0 ||
		message["due_at"] != "2026-03-01T12:01:00Z" || message["broker_message_id"] != "M1" || message["broker_offset_message_id"] != "O1" {
		t.Errorf("message %v", message)
	}
	r.notify(notification("p1", "order-1", 1999)).want(t, 200)
	r.notify(notification("p2", "order-1", 1999)).want(t, 200)
	got = r.send("GET", "/v1/orders/order-1/timeline", operatorToken, "").want(t, 200)
	paid, late := got.json["payments"].([]any), got.json["late_payments"].([]any)
	if len(paid) != 2 || len(late) != 1 || paid[0].(map[string]any)["outcome"] != "paid" || paid[1].(map[string]any)["amount"] != "1999" ||
		late[0].(map[string]any)["payment_no"] != "p2" {
		t.Errorf("payments %v, late %v", paid, late)
	}
	r.send("GET", "/v1/orders/order-9/timeline", operatorToken, "").wantProblem(t, 404, "order_not_found")
}

func TestLaterTransitionsNameTheStateBefore(t *testing.T) {
	got := transitionOf(order.LogEntry{From: order.Pending, To: order.Cancelled, Event: order.EventExpired})
	if got.GetFrom() != "pending" || got.GetTo() != "cancelled" {
		t.Errorf("transition %v", got)
	}
}

func TestResources(t *testing.T) {
	r := start(t)
	for range 2 { // the second one is a repetition
		got := r.send("POST", "/v1/resources/stock/sku%201:adjust", operatorToken,
			`{"adjustment_id":"a1","delta":"5","owner":"u1","valid_until":"2027-01-01T00:00:00Z"}`).want(t, 200)
		if got.json["available"] != "5" || got.json["held"] != "0" || got.json["ref"] != "sku 1" {
			t.Errorf("resource %s", got.raw)
		}
	}
	got := r.send("GET", "/v1/resources/stock/sku%201", orderToken, "").want(t, 200)
	if got.json["available"] != "5" || got.json["owner"] != "u1" || got.json["valid_until"] != "2027-01-01T00:00:00Z" {
		t.Errorf("resource %s", got.raw)
	}
	r.send("GET", "/v1/resources/stock/none", orderToken, "").wantProblem(t, 404, "resource_not_found")
}

func TestAnyNameFitsIntoAPath(t *testing.T) {
	r := start(t)
	for i, ref := range []string{"a/b", "a b", "a%2Fb", "a:adjust", "红", "a?b#c", "..", "x:y:z"} {
		path := "/v1/resources/stock/" + escape(ref)
		body := fmt.Sprintf(`{"adjustment_id":"a%d","delta":1}`, i)
		got := r.send("POST", path+":adjust", operatorToken, body).want(t, 200)
		if got.json["ref"] != ref {
			t.Errorf("%q came in as %q", ref, got.json["ref"])
		}
		read, err := lapsev1.NewResourceServiceClient(r.conn).GetResource(as(t, operatorToken), &lapsev1.GetResourceRequest{Kind: "stock", Ref: ref})
		if err != nil || read.GetAvailable() != 1 {
			t.Errorf("%q over gRPC: %v, %v", ref, read, err)
		}
		r.send("GET", path, orderToken, "").want(t, 200)
	}
}

func TestSweepAnswersItsRun(t *testing.T) {
	r := start(t)
	got := r.send("POST", "/v1/sweeps", operatorToken, "").want(t, 200)
	if got.json["shards"] != 64.0 || got.json["looked"] != "7" || got.json["braked"] != "2" || got.json["closed"] != "4" || got.json["failed"] != "1" || got.json["duration_ms"] != "1500" {
		t.Errorf("run %s", got.raw)
	}
	run, err := lapsev1.NewOperatorServiceClient(r.conn).Sweep(as(t, operatorToken), &lapsev1.SweepRequest{})
	if err != nil || run.GetClosed() != 4 {
		t.Errorf("run %v, %v", run, err)
	}
}

func TestASweepThatEndedEarlySaysWhyAndWhatItDid(t *testing.T) {
	r := start(t)
	r.mem.sweepError = "the database cannot be reached"
	got := r.send("POST", "/v1/sweeps", operatorToken, "").want(t, 200)
	if got.json["error"] != r.mem.sweepError || got.json["closed"] != "4" {
		t.Errorf("run %s", got.raw)
	}
	r.mem.sweepError, r.mem.unrecorded = "", order.Errorf(order.Unavailable, "database_unavailable", "not now")
	r.send("POST", "/v1/sweeps", operatorToken, "").wantProblem(t, 503, "database_unavailable")
}
