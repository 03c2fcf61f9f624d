package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
)

func TestEveryKindOfErrorLeavesByBothFaces(t *testing.T) {
	cause := errors.New("dial 10.0.0.7: password of root is hunter2")
	for _, c := range []struct {
		kind   order.Kind
		code   codes.Code
		status int
		reason string
	}{
		{order.Internal, codes.Internal, 500, "internal"},
		{order.Invalid, codes.InvalidArgument, 400, "the_code"},
		{order.Unauthenticated, codes.Unauthenticated, 401, "the_code"},
		{order.PermissionDenied, codes.PermissionDenied, 403, "the_code"},
		{order.NotFound, codes.NotFound, 404, "order_not_found"},
		{order.Conflict, codes.FailedPrecondition, 409, "the_code"},
		{order.KeyReused, codes.AlreadyExists, 422, "the_code"},
		{order.Exhausted, codes.ResourceExhausted, 429, "the_code"},
		{order.Unavailable, codes.Unavailable, 503, "the_code"},
	} {
		t.Run(fmt.Sprint(c.status), func(t *testing.T) {
			r := start(t)
			fail := order.Errorf(c.kind, "the_code", "what is wrong").WithHint("what to do").Wrap(cause)
			fail.Fields = []order.Field{{Name: "items[2].quantity", Reason: "1 or more"}}
			r.mem.fail = fail
			got := r.send("GET", "/v1/orders/order-1", orderToken, "").wantProblem(t, c.status, c.reason)
			_, err := lapsev1.NewOrderServiceClient(r.conn).GetOrder(as(t, orderToken), &lapsev1.GetOrderRequest{OrderNo: "order-1"})
			info, fields := details(t, err)
			if status.Code(err) != c.code || info.GetReason() != c.reason || info.GetDomain() != "lapse" || len(info.GetMetadata()["trace_id"]) != 32 {
				t.Errorf("gRPC: %v, %v", err, info)
			}
			if got.json["detail"] != status.Convert(err).Message() || fmt.Sprint(got.json["hint"]) != fmt.Sprint(orNil(info.GetMetadata()["hint"])) ||
				!slices.Equal(got.fields(), fields) {
				t.Errorf("the faces differ: %s and %v %v", got.raw, err, fields)
			}
			if c.reason == "the_code" && (got.json["hint"] != "what to do" || !slices.Equal(fields, []string{"items[2].quantity"})) {
				t.Errorf("not all was answered: %s", got.raw)
			}
			if strings.Contains(got.raw+err.Error(), "hunter2") {
				t.Errorf("the cause leaked: %s %v", got.raw, err)
			}
		})
	}
}

func orNil(s string) any {
	if s == "" {
		return nil
	}
	return s
}

func TestEveryKindHasAnAnswer(t *testing.T) {
	for kind := order.Internal; kind <= order.Unavailable; kind++ {
		if a := answers[kind]; a.code == codes.OK || a.status < 400 || http.StatusText(a.status) == "" {
			t.Errorf("kind %d has answer %v", kind, a)
		}
	}
}

func TestHeadersThatGoWithAStatus(t *testing.T) {
	r := start(t)
	if got := r.send("GET", "/v1/orders/order-1", "", ""); got.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("401 with %v", got.header)
	}
	r.mem.fail = order.Errorf(order.Unavailable, "database_unavailable", "not now")
	if got := r.send("GET", "/v1/orders/order-1", orderToken, ""); got.header.Get("Retry-After") != "1" {
		t.Errorf("503 with %v", got.header)
	}
}

func TestInternalErrorsAreLoggedUnderTheirTraceID(t *testing.T) {
	r := start(t)
	r.mem.fail = errors.New("table t_order is damaged")
	got := r.send("GET", "/v1/orders/order-1", orderToken, "").wantProblem(t, 500, "internal")
	entries := r.logs.FilterMessage("call_failed").All()
	if len(entries) != 1 || entries[0].ContextMap()["trace_id"] != got.json["trace_id"] || !strings.Contains(r.logged(), "t_order is damaged") {
		t.Errorf("logged %s, want trace id %v", r.logged(), got.json["trace_id"])
	}
}

func TestACallThatRanOutOfTimeSaysThatItsOutcomeIsUnknown(t *testing.T) {
	for _, cause := range []error{context.DeadlineExceeded, context.Canceled} {
		r := start(t)
		r.mem.fail = fmt.Errorf("commit: %w", cause)
		got := r.send("GET", "/v1/orders/order-1", orderToken, "").wantProblem(t, 503, "timed_out")
		if !strings.Contains(fmt.Sprint(got.json["hint"]), "idempotency key") {
			t.Errorf("hint %v", got.json["hint"])
		}
	}
}

func TestACallThatTheLifecycleGaveUpKeepsItsCode(t *testing.T) {
	r := start(t)
	r.mem.fail = order.Errorf(order.Unavailable, "no_answer_in_time", "no answer in time").Wrap(context.DeadlineExceeded)
	r.send("POST", "/v1/orders", orderToken, draftJSON).wantProblem(t, 503, "no_answer_in_time")
}

func TestPanicsAreAnsweredAndLoggedAndTheServerLives(t *testing.T) {
	r := start(t)
	r.mem.panics = true
	got := r.send("GET", "/v1/orders/order-1", orderToken, "").wantProblem(t, 500, "internal")
	_, err := lapsev1.NewOrderServiceClient(r.conn).GetOrder(as(t, orderToken), &lapsev1.GetOrderRequest{OrderNo: "order-1"})
	if status.Code(err) != codes.Internal || strings.Contains(err.Error()+got.raw, "deliberate") {
		t.Errorf("HTTP %s, gRPC %v", got.raw, err)
	}
	if n := r.logs.FilterMessage("call_panicked").Len(); n != 2 {
		t.Errorf("%d of 2 panics logged", n)
	}
	r.mem.panics = false
	r.send("GET", "/v1/orders/order-1", orderToken, "").wantProblem(t, 404, "order_not_found")
}

func TestMalformedJSONIsNamed(t *testing.T) {
	r := start(t)
	for _, c := range []struct {
		name, body, code string
		fields           []string
		detail           string
	}{
		{"an unknown field", `{"user_id":"u1","amuont":1}`, "invalid_argument", []string{"amuont"}, ""},
		{"an unknown field inside a list", `{"items":[{"kind":"stock"},{"sku":"x"}]}`, "invalid_argument", []string{"items[1].sku"}, ""},
		{"a text for a number", `{"amount":"many"}`, "invalid_argument", []string{"amount"}, ""},
		{"a fraction for a number", `{"amount":1.5}`, "invalid_argument", []string{"amount"}, ""},
		{"a number that overflows", `{"amount":"9223372036854775808"}`, "invalid_argument", []string{"amount"}, ""},
		{"a number for a text", `{"user_id":7}`, "invalid_argument", []string{"user_id"}, ""},
		{"a number for a duration", `{"timeout":60}`, "invalid_argument", []string{"timeout"}, ""},
		{"an object for a list", `{"items":{}}`, "invalid_argument", []string{"items"}, ""},
		{"several at once, all of them", `{"a":1,"amount":"x","items":[{"quantity":"y"}]}`, "invalid_argument", []string{"a", "amount", "items[0].quantity"}, ""},
		{"a field given twice", `{"user_id":"a","user_id":"b"}`, "malformed_json", nil, "user_id"},
		{"the end too early", `{"user_id":"u1"`, "malformed_json", nil, "byte 15 of 15"},
		{"something after the end", `{} {}`, "malformed_json", nil, "byte 4 of 5"},
		{"a list", `[]`, "malformed_json", nil, "object"},
		{"no JSON", `user_id=u1`, "malformed_json", nil, "byte 1 of 10"},
		{"a nest of lists", strings.Repeat("[", 60000), "malformed_json", nil, "depth"},
		{"bytes that are not UTF-8", "{\"user_id\":\"\xff\"}", "invalid_argument", []string{"user_id"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := r.send("POST", "/v1/orders", orderToken, c.body).wantProblem(t, 400, c.code)
			if !slices.Equal(got.fields(), c.fields) || !strings.Contains(got.json["detail"].(string), c.detail) {
				t.Errorf("fields %v, want %v; detail %q, want %q", got.fields(), c.fields, got.json["detail"], c.detail)
			}
		})
	}
}

func TestWhatTheGatewayRefusesIsAProblemToo(t *testing.T) {
	r := start(t)
	r.send("GET", "/v1/orders/order-1", orderToken, "", "Grpc-Timeout", "soon").wantProblem(t, 400, "invalid_argument")
}

func TestDecodersTakeOnlyBodiesThatWereRead(t *testing.T) {
	if err := newCodec().NewDecoder(strings.NewReader("{}")).Decode(&lapsev1.Order{}); err == nil {
		t.Error("a body without a limit was decoded")
	}
	b := newBody([]byte("{}"))
	if err := newCodec().NewDecoder(b).Decode(new(int)); err == nil || b.err == nil {
		t.Error("something that is no message was decoded")
	}
}

func TestTraceIsTakenUpAndHandedOn(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	r := start(t)
	got := r.send("POST", "/v1/orders", orderToken, draftJSON, "Traceparent", parent).want(t, 200)
	if got.header.Get("Trace-Id") != parent[3:35] || r.mem.lastDraft().TraceParent != parent {
		t.Errorf("Trace-Id %q, draft %q", got.header.Get("Trace-Id"), r.mem.lastDraft().TraceParent)
	}
	var header metadata.MD
	amount := int64(1)
	_, err := lapsev1.NewOrderServiceClient(r.conn).CreateOrder(as(t, orderToken, "traceparent", parent),
		&lapsev1.CreateOrderRequest{UserId: "u1", BizType: "b", Amount: &amount, Currency: "CNY"}, grpc.Header(&header))
	if err != nil || !slices.Equal(header.Get("trace-id"), []string{parent[3:35]}) || r.mem.lastDraft().TraceParent != parent {
		t.Errorf("gRPC: %v, header %v, draft %q", err, header, r.mem.lastDraft().TraceParent)
	}
	got = r.send("POST", "/v1/orders", orderToken, draftJSON).want(t, 200)
	if d := r.mem.lastDraft(); !validTraceParent(d.TraceParent) || d.TraceParent[3:35] != got.header.Get("Trace-Id") {
		t.Errorf("a trace of our own: %q, answered %q", d.TraceParent, got.header.Get("Trace-Id"))
	}
}

func TestTraceParent(t *testing.T) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, c := range []struct {
		name, in string
		ok       bool
	}{
		{"version 00", good, true},
		{"a later version", "cc" + good[2:] + "-what-comes-later", true},
		{"a later version that is not longer", "cc" + good[2:], true},
		{"version 00 with something behind it", good + "-x", false},
		{"a later version with something glued to it", "cc" + good[2:] + "x", false},
		{"the forbidden version", "ff" + good[2:], false},
		{"no trace id", strings.Replace(good, "0af7651916cd43dd8448eb211c80319c", strings.Repeat("0", 32), 1), false},
		{"no span id", strings.Replace(good, "b7ad6b7169203331", strings.Repeat("0", 16), 1), false},
		{"capital digits", strings.ToUpper(good), false},
		{"dashes in the wrong place", strings.ReplaceAll(good, "-", "_"), false},
		{"a line break", good[:54] + "\n", false},
		{"nothing", "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := traceOf(c.in)
			if taken := got.id == good[3:35]; taken != c.ok {
				t.Errorf("taken up: %v (%+v)", taken, got)
			}
			if !validTraceParent(got.parent) || got.parent[3:35] != got.id || len(got.parent) != traceParentLen {
				t.Errorf("handed on: %+v", got)
			}
		})
	}
}

func TestCallsAreCountedByRouteTemplate(t *testing.T) {
	r := start(t)
	r.send("GET", "/v1/orders/order-1", orderToken, "").want(t, 404)
	r.send("GET", "/v1/orders/order-2", orderToken, "").want(t, 404)
	r.send("GET", "/nowhere/secret", orderToken, "").want(t, 404)
	lapsev1.NewOrderServiceClient(r.conn).GetOrder(as(t, orderToken), &lapsev1.GetOrderRequest{OrderNo: "order-1"}) //nolint:errcheck // counted below
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]uint64{}
	for _, m := range families[0].GetMetric() {
		var labels []string
		for _, l := range m.GetLabel() {
			labels = append(labels, l.GetValue())
		}
		counts[strings.Join(labels, " ")] = m.GetHistogram().GetSampleCount()
	}
	want := map[string]uint64{
		"404 http GET /v1/orders/{order_no}":            2,
		"404 http unmatched":                            1,
		"NotFound grpc /lapse.v1.OrderService/GetOrder": 1,
	}
	if fmt.Sprint(counts) != fmt.Sprint(want) {
		t.Errorf("counted %v\nwant    %v", counts, want)
	}
}

// S06, S07: what callers send is data in the log, and no secret is in it.
func TestAccessLogHasNoSecretAndNoRawText(t *testing.T) {
	r := start(t)
	r.send("GET", "/v1/orders/order-1?user_id=u%0a%1b[31m", orderToken, "").want(t, 404)
	r.notify(notification("p1", "order-1", 1)).want(t, 404)
	r.send("GET", "/v1/orders/order-1", "wrong-token-0123456789", "").want(t, 401)
	if r.logs.FilterMessage("call").Len() != 3 {
		t.Errorf("logged %s", r.logged())
	}
	for _, bad := range []string{orderToken, "wrong-token", secret, "\x1b", "\\n"} {
		if strings.Contains(strings.TrimRight(r.logged(), "\n"), bad) {
			t.Errorf("%q is in the log: %s", bad, r.logged())
		}
	}
}

// unsent are codes of errors that no caller of the API meets: of starts, of messages, and of work that nobody has called for.
var unsent = []string{
	"schema_too_new", "schema_too_old", "server_too_old", "unknown_server", "wrong_isolation", "wrong_time_zone", "invalid_dsn", "unknown_driver",
	"malformed_message", "unknown_version", "lease_lost", "reconcile_not_due", "channel_busy", "gateway_unknown", "no_explicit_answer",
	"list_stands_still", "page_too_long", "not_asked", "invalid_order_no",
}

// made finds where an error that is not internal gets its code.
var made = regexp.MustCompile(`Errorf\((?:order\.)?(?:Invalid|Unauthenticated|PermissionDenied|NotFound|Conflict|KeyReused|Exhausted|Unavailable), "([a-z_]+)"|` +
	`Code: "([a-z_]+)"|(?:code[A-Z]\w*|runLost) += "([a-z_]+)"`)

func TestTheDocsNameExactlyTheCodesThatAreSent(t *testing.T) {
	sent := []string{"internal"}
	for _, folder := range []string{".", "../order", "../lifecycle", "../store"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatal(folder, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, found := range made.FindAllStringSubmatch(read(t, file), -1) {
				sent = append(sent, found[1]+found[2]+found[3])
			}
		}
	}
	_, table, _ := strings.Cut(read(t, "../../docs/api.md"), "Switch on `code`:")
	table, _, _ = strings.Cut(table, "\n## ")
	var named []string
	for line := range strings.Lines(table) {
		if codes, _, isRow := strings.Cut(strings.TrimPrefix(line, "| "), " | "); isRow && codes != "`code`" {
			for _, code := range regexp.MustCompile("`([a-z_]+)`").FindAllStringSubmatch(codes, -1) {
				named = append(named, code[1])
			}
		}
	}
	slices.Sort(sent)
	sent = slices.DeleteFunc(slices.Compact(sent), func(code string) bool { return slices.Contains(unsent, code) })
	if slices.Sort(named); !slices.Equal(named, sent) {
		t.Errorf("docs/api.md names %v\nthe code sends     %v", named, sent)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
