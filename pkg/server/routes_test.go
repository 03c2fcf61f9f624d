package server

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/dynamicpb"

	"lapse/api"
	lapsev1 "lapse/api/lapse/v1"
)

// tokens are the tokens of testOptions by scope.
var tokens = map[Scope]string{ScopeOrder: orderToken, ScopePayment: paymentToken, ScopeOperator: operatorToken}

func allRoutes(t *testing.T) []route {
	t.Helper()
	table, err := newRouteTable()
	if err != nil {
		t.Fatal(err)
	}
	var routes []route
	for _, r := range table {
		routes = append(routes, r)
	}
	slices.SortFunc(routes, func(a, b route) int { return strings.Compare(a.label(), b.label()) })
	return routes
}

// path fills in the variables of a route.
func (r route) sample() string {
	return regexp.MustCompile(`\{[^}]+\}`).ReplaceAllString(r.template, "sample-1")
}

// callOver calls a method with an empty request over gRPC.
func (r *running) callOver(rt route, token string) error {
	services := lapsev1.File_lapse_v1_lapse_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			m := services.Get(i).Methods().Get(j)
			if rt.method == fmt.Sprintf("/%s/%s", services.Get(i).FullName(), m.Name()) {
				return r.conn.Invoke(as(r.t, token), rt.method, dynamicpb.NewMessage(m.Input()), dynamicpb.NewMessage(m.Output()))
			}
		}
	}
	return fmt.Errorf("no method %s", rt.method)
}

// S05: a walk over every route of the contract, so that none can be forgotten.
func TestEveryRouteNeedsACredential(t *testing.T) {
	for _, rt := range allRoutes(t) {
		t.Run(rt.label(), func(t *testing.T) {
			r := start(t)
			wantAuth := "unauthenticated"
			if rt.method == notifyMethod {
				wantAuth = "bad_signature"
			}
			for _, bad := range []string{"", "wrong-token-0123456789", orderToken + "x", orderToken[1:]} {
				r.send(rt.verb, rt.sample(), bad, "").wantProblem(t, http.StatusUnauthorized, wantAuth)
				if err := r.callOver(rt, bad); status.Code(err) != codes.Unauthenticated {
					t.Errorf("gRPC with token %q: %v", bad, err)
				}
			}
			for scope, token := range tokens {
				if slices.Contains(access[rt.method], scope) {
					continue
				}
				if rt.method != notifyMethod {
					r.send(rt.verb, rt.sample(), token, "").wantProblem(t, http.StatusForbidden, "permission_denied")
				}
				if err := r.callOver(rt, token); status.Code(err) != codes.PermissionDenied {
					t.Errorf("gRPC with scope %s: %v", scope, err)
				}
			}
			if n := r.mem.writes(); n != 0 {
				t.Errorf("%d changes without a credential", n)
			}
		})
	}
}

func TestEveryRouteOpensForItsScopes(t *testing.T) {
	for _, rt := range allRoutes(t) {
		for _, scope := range access[rt.method] {
			t.Run(rt.label()+" for "+string(scope), func(t *testing.T) {
				r := start(t)
				err := r.callOver(rt, tokens[scope])
				if code := status.Code(err); code == codes.PermissionDenied || code == codes.Unimplemented || code == codes.Internal {
					t.Errorf("gRPC: %v", err)
				}
				if rt.method == notifyMethod {
					return // its HTTP form takes a signature
				}
				if got := r.send(rt.verb, rt.sample(), tokens[scope], ""); got.status == 401 || got.status == 403 || got.status >= 500 {
					t.Errorf("HTTP: %d %s", got.status, got.raw)
				}
			})
		}
	}
}

func TestNothingThatChangesStateAnswersGET(t *testing.T) {
	reads := regexp.MustCompile(`/(Get|List)[A-Z]\w+$`)
	for _, rt := range allRoutes(t) {
		if isRead := reads.MatchString(rt.method); isRead != (rt.verb == http.MethodGet) {
			t.Errorf("%s is %s", rt.method, rt.verb)
		}
		if rt.verb == http.MethodGet {
			continue
		}
		r := start(t)
		for _, token := range tokens {
			_, isRead := r.srv.routes["GET "+rt.template]
			if got := r.send("GET", rt.sample(), token, ""); got.status < 400 && !isRead {
				t.Errorf("GET %s answers %d", rt.sample(), got.status)
			}
		}
		if n := r.mem.writes(); n != 0 {
			t.Errorf("GET %s made %d changes", rt.sample(), n)
		}
	}
}

func TestMethodOverrideIsNotHonoured(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders/order-1", orderToken, "user_id=u1", "X-HTTP-Method-Override", "GET",
		"Content-Type", "application/x-www-form-urlencoded").wantProblem(t, 405, "method_not_allowed")
}

func TestUnknownRoutesAndMethods(t *testing.T) {
	r := start(t)
	for _, path := range []string{"/", "/v1", "/v1/orders/", "/v1/orders/order-1/", "//v1/orders", "/v1/orders/order-1/timeline/x", "/v2/orders", "/debug/pprof/"} {
		got := r.send("GET", path, orderToken, "")
		if got.status != 404 && got.status != 400 {
			t.Errorf("GET %s: %d", path, got.status)
		}
		if got.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("GET %s: %s", path, got.raw)
		}
	}
	r.send("GET", "/nowhere", "", "").wantProblem(t, 404, "unknown_route")
	for _, c := range []struct{ verb, path, allow string }{
		{"DELETE", "/v1/orders", "GET, POST"},
		{"PUT", "/v1/orders/order-1", "GET"},
		{"GET", "/v1/sweeps", "POST"},
		{"GET", "/v1/payments:notify", "POST"},
		{"PATCH", openAPIPath, "GET, HEAD"},
	} {
		got := r.send(c.verb, c.path, orderToken, "").wantProblem(t, 405, "method_not_allowed")
		if got.header.Get("Allow") != c.allow {
			t.Errorf("%s %s allows %q, want %q", c.verb, c.path, got.header.Get("Allow"), c.allow)
		}
	}
	err := r.conn.Invoke(as(t, orderToken), "/lapse.v1.OrderService/Nothing", &lapsev1.SweepRequest{}, &lapsev1.SweepRun{})
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("unknown gRPC method: %v", err)
	}
}

func TestAMethodWithoutAnAccessEntryIsADefect(t *testing.T) {
	check := healthpb.File_grpc_health_v1_health_proto.Services().Get(0).Methods().Get(0)
	if _, err := routeOf(check); err == nil {
		t.Error("it was let in")
	}
	info := &grpc.StreamServerInfo{FullMethod: "/lapse.v1.OrderService/Follow"}
	if err := new(Server).stream(nil, nil, info, nil); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a stream of ours: %v", err)
	}
}

func TestOpenAPIDescribesEveryRoute(t *testing.T) {
	r := start(t)
	got := r.send("GET", openAPIPath, "", "").want(t, 200)
	if got.raw != string(api.OpenAPI) || got.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("%s: %d bytes of %s", openAPIPath, len(got.raw), got.header.Get("Content-Type"))
	}
	var document struct {
		Paths map[string]map[string]struct {
			Security   []map[string][]string
			Parameters []struct{ Name, In string }
			Responses  map[string]any
		}
	}
	if err := yaml.Unmarshal(api.OpenAPI, &document); err != nil {
		t.Fatal(err)
	}
	for _, rt := range allRoutes(t) {
		op, ok := document.Paths[rt.template][strings.ToLower(rt.verb)]
		if !ok {
			t.Errorf("%s is missing", rt.label())
		}
		if op.Responses["default"] == nil || op.Responses["200"] == nil {
			t.Errorf("%s lacks an answer: %v", rt.label(), op.Responses)
		}
		if open := op.Security != nil; open != (rt.method == notifyMethod) {
			t.Errorf("%s has security %v", rt.label(), op.Security)
		}
		delete(document.Paths[rt.template], strings.ToLower(rt.verb))
		if len(document.Paths[rt.template]) == 0 {
			delete(document.Paths, rt.template)
		}
	}
	if len(document.Paths) > 0 {
		t.Errorf("described but not served: %v", document.Paths)
	}
}

func TestTokensAreChecked(t *testing.T) {
	const good = "0123456789abcdef"
	for _, c := range []struct {
		name   string
		tokens []Token
		ok     bool
	}{
		{"none at all", nil, true},
		{"two of one name", []Token{{"a", good, []Scope{ScopeOrder}}, {"a", good + "2", []Scope{ScopeOrder}}}, true},
		{"without a name", []Token{{"", good, []Scope{ScopeOrder}}}, false},
		{"too short", []Token{{"a", good[1:], []Scope{ScopeOrder}}}, false},
		{"without a scope", []Token{{"a", good, nil}}, false},
		{"with an unknown scope", []Token{{"a", good, []Scope{"admin"}}}, false},
		{"the same secret twice", []Token{{"a", good, []Scope{ScopeOrder}}, {"b", good, []Scope{ScopeOperator}}}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := newKeyring(c.tokens, 0)
			if (err == nil) != c.ok {
				t.Errorf("error %v", err)
			}
			if err != nil && strings.Contains(err.Error(), good[1:]) {
				t.Errorf("the error shows a secret: %v", err)
			}
		})
	}
}

func TestSchemeOfAuthorization(t *testing.T) {
	ring, err := newKeyring(testOptions().Tokens, 0)
	if err != nil {
		t.Fatal(err)
	}
	for header, ok := range map[string]bool{
		"Bearer " + orderToken: true, "bearer " + orderToken: true, "Basic " + orderToken: false,
		orderToken: false, "Bearer": false, "Bearer  " + orderToken: false, "Bearer " + orderToken + " ": false, "": false,
	} {
		if _, found := ring.find(header); found != ok {
			t.Errorf("%q is accepted: %v", header, found)
		}
	}
}

// Whatever is asked for as an order number gets an answer of the contract.
func TestACallerMayCallNoMoreOftenThanAllowedAndDelaysNoOther(t *testing.T) {
	r := start(t, func(o *Options) { o.CallerRate = 1 })
	refused := 0
	for range 5 {
		if got := r.send("GET", "/v1/orders/nobody", orderToken, ""); got.status == http.StatusTooManyRequests {
			got.wantProblem(t, 429, "too_many_calls")
			refused++
		}
	}
	if refused < 2 { // two at once, and one more each second
		t.Errorf("%d of 5 calls were refused", refused)
	}
	r.send("GET", "/v1/brakes", operatorToken, "").want(t, 200)
}

func FuzzOrderNumberInPath(f *testing.F) {
	for _, seed := range []string{"order-1", "a", "order-1:cancel", "../../v1/sweeps", "%2e%2e", "order-1\r\nX: y", "\u2028\x1b[31m", "' OR 1=1 --", strings.Repeat("9", 5000)} {
		f.Add(seed)
	}
	r := start(f)
	f.Fuzz(func(t *testing.T, orderNo string) {
		got := r.inProcess(t, "GET", "/v1/orders/"+escape(orderNo))
		if got.status != 404 && got.status != 400 {
			t.Errorf("%q: status %d: %s", orderNo, got.status, got.raw)
		}
		got.wantProblem(t, got.status, got.json["code"].(string))
		if strings.ContainsAny(got.raw, "\r\x1b") || strings.Contains(fmt.Sprint(got.header), "\n") {
			t.Errorf("%q is echoed raw: %q", orderNo, got.raw)
		}
	})
}
