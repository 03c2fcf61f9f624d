package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

// cancelled is a server with order-1 cancelled by its user.
func cancelled(t *testing.T) *running {
	t.Helper()
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	r.send("POST", "/v1/orders/order-1:cancel", orderToken, `{"user_id":"u1"}`).want(t, 200)
	return r
}

func TestStaffCancelWithAReasonAndTheirScope(t *testing.T) {
	for _, c := range []struct {
		name, token, body string
		status            int
		code              string
		fields            []string
	}{
		{"staff, with a reason", operatorToken, `{"reason":"fraud"}`, 200, "", nil},
		{"staff, by force", operatorToken, `{"reason":"fraud","force":true}`, 200, "", nil},
		{"staff, for a user", operatorToken, `{"user_id":"u1"}`, 200, "", nil},
		{"staff, without a reason", operatorToken, `{}`, 400, "invalid_argument", []string{"reason"}},
		{"a shop, as if it were staff", orderToken, `{"reason":"fraud"}`, 403, "permission_denied", nil},
		{"a shop, by force", orderToken, `{"force":true}`, 403, "permission_denied", nil},
		{"a shop that forgot the user", orderToken, `{}`, 400, "invalid_argument", []string{"user_id"}},
		{"a user by force", orderToken, `{"user_id":"u1","force":true}`, 400, "invalid_argument", []string{"user_id"}},
		{"staff, for a user by force", operatorToken, `{"user_id":"u1","reason":"fraud"}`, 400, "invalid_argument", []string{"user_id"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
			got := r.send("POST", "/v1/orders/order-1:cancel", c.token, c.body).want(t, c.status)
			if c.code == "" {
				if got.json["status"] != "cancelled" {
					t.Errorf("order %s", got.raw)
				}
				return
			}
			if got.wantProblem(t, c.status, c.code); !slices.Equal(got.fields(), c.fields) {
				t.Errorf("refused fields %v, want %v", got.fields(), c.fields)
			}
			if r.mem.orders["order-1"].Status != order.Pending {
				t.Error("it was cancelled")
			}
		})
	}
}

func TestStaffCancelKeepsWhoAndWhy(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	got := r.send("POST", "/v1/orders/order-1:cancel", operatorToken, `{"reason":"fraud"}`).want(t, 200)
	if got.json["cancel_reason"] != "MANUAL" || !slices.Equal(r.mem.acts, []order.Act{{Actor: "staff", Note: "fraud"}}) {
		t.Errorf("order %s, acts %v", got.raw, r.mem.acts)
	}
}

func TestRestore(t *testing.T) {
	for _, c := range []struct {
		name, body string
		expireAt   string
	}{
		{"with the default time-out", `{"reason":"asked for it"}`, "2026-03-01T12:30:00Z"},
		{"with a time-out", `{"reason":"asked for it","round":1,"timeout":"90s"}`, "2026-03-01T12:01:30Z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := cancelled(t).send("POST", "/v1/orders/order-1:restore", operatorToken, c.body).want(t, 200)
			if got.json["status"] != "pending" || got.json["round"] != 2.0 || got.json["expire_at"] != c.expireAt || got.json["payable"] != true || got.json["cancelled_at"] != nil {
				t.Errorf("order %s", got.raw)
			}
		})
	}
	t.Run("an order that is not cancelled", func(t *testing.T) {
		r := start(t)
		r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
		r.send("POST", "/v1/orders/order-1:restore", operatorToken, `{"reason":"why"}`).wantProblem(t, 409, "state_conflict")
	})
}

func TestExtend(t *testing.T) {
	for _, c := range []struct{ name, body, expireAt, remaining string }{
		{"by a duration", `{"reason":"queueing","by":"60s"}`, "2026-03-01T12:02:00Z", "120000"},
		{"until an instant", `{"reason":"queueing","until":"2026-03-01T12:10:00Z"}`, "2026-03-01T12:10:00Z", "600000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
			got := r.send("POST", "/v1/orders/order-1:extend", operatorToken, c.body).want(t, 200)
			if got.json["expire_at"] != c.expireAt || got.json["remaining_ms"] != c.remaining {
				t.Errorf("order %s", got.raw)
			}
		})
	}
}

func TestExtendManyCountsThem(t *testing.T) {
	r := start(t)
	for i := range 3 {
		r.send("POST", "/v1/orders", orderToken, withNumber(fmt.Sprintf("order-%d", i))).want(t, 200)
	}
	if got := r.send("POST", "/v1/orders:extend", operatorToken, `{"user_id":"u1","by":"60s","reason":"an outage"}`).want(t, 200); got.json["extended"] != "3" {
		t.Errorf("answer %s", got.raw)
	}
	until := time.Date(2026, 3, 1, 13, 0, 0, 0, time.UTC)
	got, err := lapsev1.NewOperatorServiceClient(r.conn).ExtendOrders(as(t, operatorToken),
		&lapsev1.ExtendOrdersRequest{BizType: "retail", Until: timestamppb.New(until), Reason: "an outage"})
	want := order.Extending{BizType: "retail", Until: until, Act: order.Act{Actor: "staff", Note: "an outage"}}
	if err != nil || got.GetExtended() != 3 || r.mem.extending[1] != want {
		t.Errorf("answer %v, %v; asked %+v", got, err, r.mem.extending)
	}
}

func TestArchive(t *testing.T) {
	r := cancelled(t)
	got := r.send("POST", "/v1/orders/order-1:archive", operatorToken, `{"reason":"done"}`).want(t, 200)
	if got.json["status"] != "closed" || got.json["closed_at"] != "2026-03-01T12:00:00Z" || got.json["cancelled_at"] == nil {
		t.Errorf("order %s", got.raw)
	}
}

func TestWhatIsDoneByHandNamesAllRefusedFields(t *testing.T) {
	for _, c := range []struct {
		path, body string
		fields     []string
	}{
		{"/v1/orders/x:cancel", `{}`, []string{"order_no", "reason"}},
		{"/v1/orders/x:restore", `{"round":-1,"timeout":"0s"}`, []string{"order_no", "reason", "round", "timeout"}},
		{"/v1/orders/order-1:extend", `{"by":"0s"}`, []string{"by", "reason"}},
		{"/v1/orders/order-1:extend", `{"reason":"why"}`, []string{"by"}},
		{"/v1/orders/order-1:extend", `{"reason":"why","by":"60s","until":"2026-03-01T13:00:00Z"}`, []string{"by"}},
		{"/v1/orders/x:extend", `{}`, []string{"order_no"}},
		{"/v1/orders:extend", `{}`, []string{"by", "reason", "user_id"}},
		{"/v1/orders:extend", `{"user_id":"u1","biz_type":"retail","by":"1s","reason":"why"}`, []string{"user_id"}},
		{"/v1/orders/x:archive", `{"reason":"why"}`, []string{"order_no"}},
		{"/v1/orders/order-1:archive", `{"reason":" "}`, []string{"reason"}},
		{"/v1/late-payments/p1:decide", `{"decision":"keep"}`, []string{"decision", "reason"}},
		{"/v1/payments/p1:refunded", `{}`, []string{"reason", "refund_no"}},
		{"/v1/brakes", `{"mode":"on","percent":101,"by_type":{"a":-1},"version":-1}`, []string{"by_type[a]", "mode", "percent", "reason", "version"}},
	} {
		t.Run(c.path+" "+c.body, func(t *testing.T) {
			r := start(t)
			got := r.send("POST", c.path, operatorToken, c.body).wantProblem(t, 400, "invalid_argument").fields()
			if slices.Sort(got); !slices.Equal(got, c.fields) {
				t.Errorf("refused fields %v, want %v", got, c.fields)
			}
			if n := r.mem.writes(); n != 0 {
				t.Errorf("%d changes", n)
			}
		})
	}
}

func TestUnknownOrdersAndPaymentsAreNotFound(t *testing.T) {
	for path, body := range map[string]string{
		"/v1/orders/order-9:cancel":   `{"reason":"why"}`,
		"/v1/orders/order-9:restore":  `{"reason":"why"}`,
		"/v1/orders/order-9:archive":  `{"reason":"why"}`,
		"/v1/late-payments/p1:decide": `{"reason":"why","decision":"refund"}`,
		"/v1/payments/p1:refunded":    `{"reason":"why","refund_no":"r1"}`,
	} {
		start(t).send("POST", path, operatorToken, body).want(t, 404)
	}
}

func TestByHandOverGRPC(t *testing.T) {
	r := cancelled(t)
	orders := lapsev1.NewOrderServiceClient(r.conn)
	ctx := as(t, operatorToken)
	o, err := orders.RestoreOrder(ctx, &lapsev1.RestoreOrderRequest{OrderNo: "order-1", Reason: "why", Timeout: durationpb.New(time.Minute)})
	if err != nil || o.GetRemainingMs() != 60000 {
		t.Errorf("restored %v, %v", o, err)
	}
	o, err = orders.ExtendOrder(ctx, &lapsev1.ExtendOrderRequest{OrderNo: "order-1", Reason: "why", By: durationpb.New(time.Minute)})
	if err != nil || o.GetRemainingMs() != 120000 {
		t.Errorf("extended %v, %v", o, err)
	}
	o, err = orders.CancelOrder(ctx, &lapsev1.CancelOrderRequest{OrderNo: "order-1", Reason: "why"})
	if err != nil || o.GetCancelReason() != "MANUAL" {
		t.Errorf("cancelled %v, %v", o, err)
	}
	o, err = orders.ArchiveOrder(ctx, &lapsev1.ArchiveOrderRequest{OrderNo: "order-1", Reason: "why"})
	if err != nil || o.GetStatus() != "closed" {
		t.Errorf("archived %v, %v", o, err)
	}
	_, err = orders.ExtendOrder(ctx, &lapsev1.ExtendOrderRequest{Reason: "why", By: durationpb.New(time.Minute)})
	if _, fields := details(t, err); status.Code(err) != codes.InvalidArgument || !slices.Equal(fields, []string{"order_no"}) {
		t.Errorf("without a number: %v", err)
	}
}

func TestTheStateAfterAChangeIsTheOneOfNow(t *testing.T) {
	r := cancelled(t)
	r.mem.now = r.mem.now.Add(time.Second)
	got := r.send("POST", "/v1/orders/order-1:restore", operatorToken, `{"reason":"why","timeout":"10s"}`).want(t, 200)
	if got.json["remaining_ms"] != "10000" {
		t.Errorf("order %s", got.raw)
	}
}

func lateCase(t *testing.T) *running {
	t.Helper()
	r := cancelled(t)
	for _, no := range []string{"p1", "p2", "p3"} {
		r.notify(notification(no, "order-1", 1999)).want(t, 200)
	}
	return r
}

func TestLatePaymentsAreListedByPage(t *testing.T) {
	r := lateCase(t)
	var seen []string
	token := ""
	for pages := 0; pages == 0 || token != ""; pages++ {
		got := r.send("GET", "/v1/late-payments?status=open&page_size=2&page_token="+token, operatorToken, "").want(t, 200)
		for _, l := range got.json["late_payments"].([]any) {
			seen = append(seen, l.(map[string]any)["payment_no"].(string))
		}
		token = got.json["next_page_token"].(string)
	}
	if !slices.Equal(seen, []string{"p1", "p2", "p3"}) {
		t.Errorf("seen %v", seen)
	}
	first := r.send("GET", "/v1/late-payments", operatorToken, "").want(t, 200).json["late_payments"].([]any)[0]
	want := map[string]any{
		"payment_no": "p1", "order_no": "order-1", "amount": "1999", "currency": "CNY", "paid_at": "2026-03-01T12:00:30Z", "order_status": "cancelled",
		"round": 1.0, "why": "too late", "policy": "manual", "status": "open", "created_at": "2026-03-01T12:00:00Z", "actor": "", "note": "",
	}
	if fmt.Sprint(first) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", first, want)
	}
	got := r.send("GET", "/v1/late-payments?status=lost&page_size=-1", operatorToken, "").wantProblem(t, 400, "invalid_argument")
	if !slices.Equal(got.fields(), []string{"page_size", "status"}) {
		t.Errorf("refused fields %v", got.fields())
	}
}

func TestALatePaymentIsDecidedOnce(t *testing.T) {
	r := lateCase(t)
	got := r.send("POST", "/v1/late-payments/p1:decide", operatorToken, `{"decision":"refund","reason":"they asked"}`).want(t, 200)
	if got.json["status"] != "requested" || got.json["policy"] != "refund" || got.json["actor"] != "staff" || got.json["note"] != "they asked" {
		t.Errorf("case %s", got.raw)
	}
	_, err := lapsev1.NewOperatorServiceClient(r.conn).DecideLatePayment(as(t, operatorToken),
		&lapsev1.DecideLatePaymentRequest{PaymentNo: "p1", Decision: "reopen", Reason: "why"})
	if info, _ := details(t, err); info.GetReason() != "late_payment_settled" {
		t.Errorf("decided again: %v", err)
	}
	list, err := lapsev1.NewOperatorServiceClient(r.conn).ListLatePayments(as(t, operatorToken), &lapsev1.ListLatePaymentsRequest{Status: "requested"})
	if err != nil || len(list.GetLatePayments()) != 1 {
		t.Errorf("requested: %v, %v", list, err)
	}
}

func TestACompletedRefundClosesItsOrder(t *testing.T) {
	r := start(t)
	for _, no := range []string{"order-1", "order-2"} {
		r.send("POST", "/v1/orders", orderToken, withNumber(no)).want(t, 200)
		r.notify(notification("p-"+no, no, 1999)).want(t, 200)
	}
	got := r.send("POST", "/v1/payments/p-order-1:refunded", operatorToken, `{"refund_no":"r1","reason":"returned"}`).want(t, 200)
	if got.json["status"] != "closed" || got.json["closed_at"] == nil || got.json["paid_at"] == nil {
		t.Errorf("order %s", got.raw)
	}
	o, err := lapsev1.NewOperatorServiceClient(r.conn).CompleteRefund(as(t, operatorToken),
		&lapsev1.CompleteRefundRequest{PaymentNo: "p-order-2", RefundNo: "r2", Reason: "returned"})
	if err != nil || o.GetStatus() != "closed" {
		t.Errorf("order %v, %v", o, err)
	}
}

func TestBrakes(t *testing.T) {
	r := start(t)
	r.mem.braked.Tripped, r.mem.braked.TrippedAt = "few payments come in", r.mem.now
	got := r.send("GET", "/v1/brakes", operatorToken, "").want(t, 200)
	if fmt.Sprint(got.json) != fmt.Sprint(map[string]any{
		"mode": "enforce", "percent": 100.0, "by_type": map[string]any{}, "tripped": "few payments come in", "tripped_at": "2026-03-01T12:00:00Z", "version": 1.0,
	}) {
		t.Errorf("brakes %s", got.raw)
	}
	got = r.send("POST", "/v1/brakes", operatorToken, `{"mode":"shadow","reason":"trying","version":1}`).want(t, 200)
	if got.json["mode"] != "shadow" || got.json["percent"] != 100.0 || got.json["tripped"] == "" || got.json["version"] != 2.0 {
		t.Errorf("brakes %s", got.raw)
	}
	r.send("POST", "/v1/brakes", operatorToken, `{"mode":"off","reason":"late to it","version":1}`).wantProblem(t, 409, "brakes_changed")
	operator := lapsev1.NewOperatorServiceClient(r.conn)
	none := int32(0)
	set, err := operator.SetBrakes(as(t, operatorToken), &lapsev1.SetBrakesRequest{
		Mode: "enforce", Percent: &none, ByType: map[string]int32{"retail": 50}, Reason: "on", Resume: true,
	})
	if err != nil || set.GetPercent() != 0 || set.GetByType()["retail"] != 50 || set.GetTripped() != "" || set.GetTrippedAt() != nil {
		t.Errorf("brakes %v, %v", set, err)
	}
	got = r.send("POST", "/v1/brakes", operatorToken, `{"by_type":{"ticket":5},"reason":"and this"}`).want(t, 200)
	if got.json["mode"] != "enforce" || got.json["percent"] != 0.0 || fmt.Sprint(got.json["by_type"]) != "map[retail:50 ticket:5]" {
		t.Errorf("what was not said did not stay: %s", got.raw)
	}
	set, err = operator.SetBrakes(as(t, operatorToken), &lapsev1.SetBrakesRequest{ByDefault: []string{"ticket"}, Reason: "not this"})
	if err != nil || fmt.Sprint(set.GetByType()) != "map[retail:50]" {
		t.Errorf("brakes %v, %v", set, err)
	}
	read, err := operator.GetBrakes(as(t, operatorToken), &lapsev1.GetBrakesRequest{})
	if err != nil || read.String() != set.String() {
		t.Errorf("brakes %v, %v", read, err)
	}
	if want := []order.Act{{Actor: "staff", Note: "trying"}, {Actor: "staff", Note: "on"}, {Actor: "staff", Note: "and this"}, {Actor: "staff", Note: "not this"}}; !slices.Equal(r.mem.acts, want) {
		t.Errorf("acts %v", r.mem.acts)
	}
}

func TestShadowReport(t *testing.T) {
	r := start(t)
	got := r.send("GET", "/v1/shadow-report?from=2026-03-01T00:00:00Z&to=2026-03-02T00:00:00Z&tolerance=5s&job=cron", operatorToken, "").want(t, 200)
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	if want := (order.Comparing{From: day, To: day.AddDate(0, 0, 1), Tolerance: 5 * time.Second, Job: "cron"}); r.mem.compared != want {
		t.Errorf("asked %+v", r.mem.compared)
	}
	examples := fmt.Sprint(got.json["examples"])
	delete(got.json, "examples")
	want := map[string]any{"decided": "8", "closed": "7", "agreed": "3", "early": "1", "late": "2", "missed": "1", "wrong": "1", "coverage": 0.5}
	if fmt.Sprint(got.json) != fmt.Sprint(want) || examples != "[map[decided_at:2026-03-01T12:00:01Z expire_at:2026-03-01T12:00:00Z kind:missed order_no:order-1]]" {
		t.Errorf("report %v, examples %s", got.json, examples)
	}
	if _, err := lapsev1.NewOperatorServiceClient(r.conn).GetShadowReport(as(t, operatorToken), &lapsev1.GetShadowReportRequest{}); err != nil ||
		r.mem.compared != (order.Comparing{}) {
		t.Errorf("asked %+v, %v", r.mem.compared, err)
	}
	for query, fields := range map[string][]string{
		"from=yesterday": {"from"}, "tolerance=1h": {"tolerance"}, "tolerance=0s": {"tolerance"},
		"from=2026-03-01T00:00:00Z&to=2026-03-01T00:00:00Z": {"to"}, "since=1h": {"since"},
	} {
		got := r.send("GET", "/v1/shadow-report?"+query, operatorToken, "").wantProblem(t, 400, "invalid_argument")
		if !slices.Equal(got.fields(), fields) {
			t.Errorf("%s: refused fields %v", query, got.fields())
		}
	}
}

func TestReconcileAnswersItsRunAndMendsOnlyWhenToldTo(t *testing.T) {
	r := start(t)
	got := r.send("POST", "/v1/reconciliations", operatorToken, "").want(t, 200)
	finding := fmt.Sprint(got.json["findings"].([]any)[0])
	if got.json["dry_run"] != true || got.json["looked"] != "9" || got.json["found"] != "1" || got.json["mended"] != "0" || got.json["finished_at"] == nil ||
		finding != "map[action:send it again detail:quarantined kind:message_stuck mended:false subject:order-1:timeout]" {
		t.Errorf("run %s", got.raw)
	}
	run, err := lapsev1.NewOperatorServiceClient(r.conn).Reconcile(as(t, operatorToken), &lapsev1.ReconcileRequest{DryRun: new(false)})
	if err != nil || run.GetDryRun() || run.GetMended() != 1 {
		t.Errorf("run %v, %v", run, err)
	}
	r.mem.sweepError = "the database cannot be reached"
	if got := r.send("POST", "/v1/reconciliations", operatorToken, "").want(t, 200); got.json["error"] != r.mem.sweepError {
		t.Errorf("run %s", got.raw)
	}
	r.mem.sweepError, r.mem.unrecorded = "", order.Errorf(order.Unavailable, "database_unavailable", "not now")
	r.send("POST", "/v1/reconciliations", operatorToken, "").wantProblem(t, 503, "database_unavailable")
}

// startPayment starts a payment of order-1 over HTTP.
func (r *running) startPayment(body string) answer {
	return r.send("POST", "/v1/orders/order-1/attempts", orderToken, body)
}

func TestAPaymentAttempt(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	for _, replayed := range []string{"", "true"} { // the same again is the same attempt
		got := r.startPayment(`{"user_id":"u1","attempt_no":"bill-1","channel":"wechat","lifetime":"90s"}`).want(t, 200)
		want := map[string]any{
			"attempt_no": "bill-1", "order_no": "order-1", "channel": "wechat", "state": "open", "round": 1.0,
			"started_at": "2026-03-01T12:00:00Z", "deadline": "2026-03-01T12:01:30Z",
		}
		if fmt.Sprint(got.json["attempt"]) != fmt.Sprint(want) || got.header.Get("Idempotent-Replayed") != replayed {
			t.Errorf("attempt %s, replayed %q", got.raw, got.header.Get("Idempotent-Replayed"))
		}
		if o := got.json["order"].(map[string]any); o["payable"] != true || o["remaining_ms"] != "60000" {
			t.Errorf("order %v", o)
		}
	}
	made := r.startPayment(`{"channel":"wechat"}`).want(t, 200).json["attempt"].(map[string]any)
	if made["deadline"] != "2026-03-01T12:05:00Z" || order.CheckNumber(made["attempt_no"].(string)) != nil {
		t.Errorf("attempt %v", made)
	}
	failed := r.send("POST", "/v1/orders/order-1/attempts/bill-1:fail", orderToken, "").want(t, 200)
	if failed.json["state"] != "failed" || failed.json["ended_at"] != "2026-03-01T12:00:00Z" {
		t.Errorf("attempt %s", failed.raw)
	}
	timeline := r.send("GET", "/v1/orders/order-1/timeline", operatorToken, "").want(t, 200).json["attempts"].([]any)
	if len(timeline) != 2 || timeline[0].(map[string]any)["state"] != "failed" {
		t.Errorf("attempts %v", timeline)
	}
}

func TestAPaymentAttemptOverGRPC(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	orders := lapsev1.NewOrderServiceClient(r.conn)
	started, err := orders.StartPayment(as(t, orderToken), &lapsev1.StartPaymentRequest{OrderNo: "order-1", AttemptNo: "bill-1", Channel: "wechat"})
	if err != nil || started.GetAttempt().GetState() != "open" || started.GetOrder().GetOrderNo() != "order-1" {
		t.Errorf("started %v, %v", started, err)
	}
	failed, err := orders.FailPayment(as(t, orderToken), &lapsev1.FailPaymentRequest{OrderNo: "order-1", AttemptNo: "bill-1"})
	if err != nil || failed.GetState() != "failed" {
		t.Errorf("failed %v, %v", failed, err)
	}
}

func TestAPaymentIsOnlyStartedWhereItMayBe(t *testing.T) {
	for _, c := range []struct {
		name, body string
		later      time.Duration
		status     int
		code       string
		fields     []string
	}{
		{"in the millisecond before the deadline", `{"channel":"wechat"}`, time.Minute - time.Millisecond, 200, "", nil},
		{"at the deadline", `{"channel":"wechat"}`, time.Minute, 409, "not_payable", nil},
		{"for an order of somebody else", `{"user_id":"u2","channel":"wechat"}`, 0, 404, "order_not_found", nil},
		{"with all of it wrong", `{"attempt_no":"x","lifetime":"0s"}`, 0, 400, "invalid_argument", []string{"attempt_no", "channel", "lifetime"}},
		{"for too long", `{"channel":"wechat","lifetime":"9223372036854775807s"}`, 0, 400, "invalid_argument", []string{"lifetime"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
			r.mem.now = r.mem.now.Add(c.later)
			got := r.startPayment(c.body)
			if c.code == "" {
				got.want(t, 200)
				return
			}
			if got.wantProblem(t, c.status, c.code); !slices.Equal(got.fields(), c.fields) || len(r.mem.attempts) != 0 {
				t.Errorf("refused fields %v, attempts %v", got.fields(), r.mem.attempts)
			}
		})
	}
}

func TestFailingNamesWhatIsWrong(t *testing.T) {
	r := start(t)
	got := r.send("POST", "/v1/orders/x/attempts/y:fail", orderToken, "").wantProblem(t, 400, "invalid_argument")
	if !slices.Equal(got.fields(), []string{"order_no", "attempt_no"}) {
		t.Errorf("refused fields %v", got.fields())
	}
	r.send("POST", "/v1/orders/order-1/attempts/bill-1:fail", orderToken, "").wantProblem(t, 404, "attempt_not_found")
}

func TestAnOrderThatIsCancelledWithAPaymentInFlightIsConfirming(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	r.startPayment(`{"channel":"wechat"}`).want(t, 200)
	got := r.send("POST", "/v1/orders/order-1:cancel", orderToken, `{"user_id":"u1"}`).want(t, 200)
	if got.json["status"] != "confirming" || got.json["confirm_until"] != "2026-03-01T12:10:00Z" || got.json["cancel_reason"] != "USER_CANCEL" || got.json["payable"] != false {
		t.Errorf("order %s", got.raw)
	}
}

func TestARemoteServiceAcknowledgesItsRelease(t *testing.T) {
	r := cancelled(t)
	for range 2 {
		r.send("POST", "/v1/orders/order-1:acknowledge", orderToken, `{"round":1,"kind":"channel_auth"}`).want(t, 200)
	}
	_, err := lapsev1.NewOrderServiceClient(r.conn).AcknowledgeRelease(as(t, orderToken), &lapsev1.AcknowledgeReleaseRequest{OrderNo: "order-1", Round: 1, Kind: "cart"})
	if err != nil || !slices.Equal(r.mem.acked, []string{"channel_auth", "channel_auth", "cart"}) {
		t.Errorf("acknowledged %v, %v", r.mem.acked, err)
	}
	r.send("POST", "/v1/orders/order-1:acknowledge", orderToken, `{"round":2,"kind":"cart"}`).wantProblem(t, 404, "release_not_found")
	got := r.send("POST", "/v1/orders/x:acknowledge", orderToken, `{}`).wantProblem(t, 400, "invalid_argument")
	if !slices.Equal(got.fields(), []string{"order_no", "round", "kind"}) {
		t.Errorf("refused fields %v", got.fields())
	}
}

func TestHowAnOrderIsShown(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	t.Run("one that stays payable for ever has no deadline, and always some time left", func(t *testing.T) {
		got := orderOf(order.Order{ExpireAt: order.Never}, now)
		if got.GetExpireAt() != nil || !got.GetPayable() || got.GetRemainingMs() != maxRemaining.Milliseconds() {
			t.Errorf("order %v", got)
		}
	})
	t.Run("once it is paid nothing is left", func(t *testing.T) {
		if got := orderOf(order.Order{ExpireAt: order.Never, Status: order.Paid}, now); got.GetPayable() || got.GetRemainingMs() != 0 {
			t.Errorf("order %v", got)
		}
	})
	t.Run("second chances", func(t *testing.T) {
		for chance, want := range map[time.Duration]string{0: "", time.Hour: "3600s", order.Forever: "315576000000s"} {
			raw, err := newCodec().Marshal(orderOf(order.Order{SecondChance: chance}, now))
			if err != nil || strings.Contains(string(raw), "second_chance") != (want != "") || !strings.Contains(string(raw), want) {
				t.Errorf("%v: %s, %v", chance, raw, err)
			}
		}
	})
	t.Run("items say where they are and when they are taken", func(t *testing.T) {
		got := orderOf(order.Order{Items: []order.Item{{Kind: "cart", Remote: true}, {Kind: "stock", AtPayment: true}}}, now).GetItems()
		if !got[0].GetRemote() || got[0].GetAtPayment() || got[1].GetRemote() || !got[1].GetAtPayment() {
			t.Errorf("items %v", got)
		}
	})
	t.Run("a transition shows its note and the deadline after it", func(t *testing.T) {
		got := transitionOf(order.LogEntry{Event: order.EventExtended, Note: "an outage", ExpireAt: now})
		if got.GetNote() != "an outage" || !got.GetExpireAt().AsTime().Equal(now) {
			t.Errorf("transition %v", got)
		}
		if got := transitionOf(order.LogEntry{Event: order.EventReminded, ExpireAt: order.Never}); got.GetExpireAt() != nil {
			t.Errorf("transition %v", got)
		}
	})
}
