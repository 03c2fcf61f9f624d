package server

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	lapsev1 "lapse/api/lapse/v1"
)

// route is one HTTP route of the contract.
type route struct {
	verb     string
	template string
	method   string // full gRPC method
	input    protoreflect.MessageDescriptor
	path     *regexp.Regexp
}

// label names the route in logs and metrics.
func (r route) label() string { return r.verb + " " + r.template }

// routeTable finds routes by label.
type routeTable map[string]route

// newRouteTable reads the routes from the contract. A method without a route or without an entry in the
// access table is a defect, found here rather than by a caller.
func newRouteTable() (routeTable, error) {
	table := routeTable{}
	services := lapsev1.File_lapse_v1_lapse_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			r, err := routeOf(methods.Get(j))
			if err != nil {
				return nil, err
			}
			table[r.label()] = r
		}
	}
	return table, nil
}

var pathVariable = regexp.MustCompile(`\\\{[^}]+\\\}`)

func routeOf(m protoreflect.MethodDescriptor) (route, error) {
	r := route{method: fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name()), input: m.Input()}
	if len(access[r.method]) == 0 {
		return r, fmt.Errorf("%s has no entry in the access table", r.method)
	}
	rule, _ := proto.GetExtension(m.Options(), annotations.E_Http).(*annotations.HttpRule)
	switch pattern := rule.GetPattern().(type) {
	case *annotations.HttpRule_Get:
		r.verb, r.template = http.MethodGet, pattern.Get
	case *annotations.HttpRule_Post:
		r.verb, r.template = http.MethodPost, pattern.Post
	default:
		return r, fmt.Errorf("%s has no GET or POST route", r.method)
	}
	r.path = regexp.MustCompile("^" + pathVariable.ReplaceAllString(regexp.QuoteMeta(r.template), `[^/]+`) + "$")
	return r, nil
}

// of finds the route that the gateway has matched for r.
func (t routeTable) of(r *http.Request) (route, bool) {
	pattern, _ := runtime.HTTPPattern(r.Context())
	found, ok := t[r.Method+" "+strings.ReplaceAll(pattern.String(), "=*}", "}")]
	return found, ok
}

// allowed lists the verbs that path answers, for the header Allow.
func (t routeTable) allowed(path string) string {
	var verbs []string
	for _, r := range t {
		if r.path.MatchString(path) {
			verbs = append(verbs, r.verb)
		}
	}
	slices.Sort(verbs)
	return strings.Join(slices.Compact(verbs), ", ")
}
