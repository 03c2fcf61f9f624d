package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/time/rate"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
	"lapse/pkg/signature"
)

// Scope is what a token may be used for.
type Scope string

const (
	ScopeOrder    Scope = "order"    // orders, their payment attempts and acknowledgements, and reading resources
	ScopePayment  Scope = "payment"  // payment notifications over gRPC
	ScopeOperator Scope = "operator" // what is done by hand, resources, timelines, brakes, sweeps, and all reads
)

// Token is one bearer token. Two tokens of one name are one caller, so that a token can be replaced.
type Token struct {
	Name   string // the caller it stands for, 1 to 64 printable bytes; part of what an idempotency key means, so keep it
	Token  string // the secret, at least 16 characters
	Scopes []Scope
}

const notifyMethod = lapsev1.PaymentService_NotifyPayment_FullMethodName

// unhurried are the methods that take as long as there is something to do.
var unhurried = map[string]bool{
	lapsev1.OperatorService_Sweep_FullMethodName:           true,
	lapsev1.OperatorService_Reconcile_FullMethodName:       true,
	lapsev1.OperatorService_ExtendOrders_FullMethodName:    true,
	lapsev1.OperatorService_GetShadowReport_FullMethodName: true,
}

// access says which scopes open a method; any one of them does. A method that is not listed stays shut.
var access = map[string][]Scope{
	lapsev1.OrderService_CreateOrder_FullMethodName:        {ScopeOrder},
	lapsev1.OrderService_GetOrder_FullMethodName:           {ScopeOrder, ScopeOperator},
	lapsev1.OrderService_ListOrders_FullMethodName:         {ScopeOrder, ScopeOperator},
	lapsev1.OrderService_CancelOrder_FullMethodName:        {ScopeOrder, ScopeOperator}, // without a user only the latter
	lapsev1.OrderService_GetTimeline_FullMethodName:        {ScopeOperator},
	lapsev1.OrderService_StartPayment_FullMethodName:       {ScopeOrder},
	lapsev1.OrderService_FailPayment_FullMethodName:        {ScopeOrder},
	lapsev1.OrderService_AcknowledgeRelease_FullMethodName: {ScopeOrder},
	lapsev1.OrderService_RestoreOrder_FullMethodName:       {ScopeOperator},
	lapsev1.OrderService_ExtendOrder_FullMethodName:        {ScopeOperator},
	lapsev1.OrderService_ArchiveOrder_FullMethodName:       {ScopeOperator},
	notifyMethod: {ScopePayment},
	lapsev1.ResourceService_GetResource_FullMethodName:       {ScopeOrder, ScopeOperator},
	lapsev1.ResourceService_AdjustResource_FullMethodName:    {ScopeOperator},
	lapsev1.OperatorService_Sweep_FullMethodName:             {ScopeOperator},
	lapsev1.OperatorService_ExtendOrders_FullMethodName:      {ScopeOperator},
	lapsev1.OperatorService_ListLatePayments_FullMethodName:  {ScopeOperator},
	lapsev1.OperatorService_DecideLatePayment_FullMethodName: {ScopeOperator},
	lapsev1.OperatorService_CompleteRefund_FullMethodName:    {ScopeOperator},
	lapsev1.OperatorService_GetBrakes_FullMethodName:         {ScopeOperator},
	lapsev1.OperatorService_SetBrakes_FullMethodName:         {ScopeOperator},
	lapsev1.OperatorService_GetShadowReport_FullMethodName:   {ScopeOperator},
	lapsev1.OperatorService_Reconcile_FullMethodName:         {ScopeOperator},
}

// openServices say nothing that /openapi.yaml and a probe may not know.
var openServices = []string{"/grpc.health.v1.Health/", "/grpc.reflection."}

type credential struct {
	name   string
	hash   [sha256.Size]byte
	scopes []Scope
	pace   *rate.Limiter // of the caller, whichever token it uses
}

type keyring []credential

// newKeyring makes the ring of tokens whose callers may each make callerRate calls a second; 0 means any number.
func newKeyring(tokens []Token, callerRate int) (keyring, error) {
	var ring keyring
	paces := map[string]*rate.Limiter{}
	for i, t := range tokens {
		if err := t.check(); err != nil {
			return nil, fmt.Errorf("token %d %q: %w", i, t.Name, err)
		}
		if paces[t.Name] == nil {
			paces[t.Name] = newPace(callerRate)
		}
		c := credential{t.Name, sha256.Sum256([]byte(t.Token)), t.Scopes, paces[t.Name]}
		if slices.ContainsFunc(ring, func(o credential) bool { return o.hash == c.hash }) {
			return nil, fmt.Errorf("token %d %q: the same secret is used twice", i, t.Name)
		}
		ring = append(ring, c)
	}
	return ring, nil
}

func newPace(callerRate int) *rate.Limiter {
	if callerRate == 0 {
		return rate.NewLimiter(rate.Inf, 0)
	}
	return rate.NewLimiter(rate.Limit(callerRate), 2*callerRate)
}

func (t Token) check() error {
	if err := CheckName(t.Name); err != nil {
		return err
	}
	if len(t.Token) < signature.MinSecret {
		return fmt.Errorf("needs at least %d characters", signature.MinSecret)
	}
	if len(t.Scopes) == 0 {
		return errors.New("needs a scope: order, payment or operator")
	}
	for _, s := range t.Scopes {
		if s != ScopeOrder && s != ScopePayment && s != ScopeOperator {
			return fmt.Errorf("unknown scope %q; there are order, payment and operator", s)
		}
	}
	return nil
}

// maxName is the longest name of a token in bytes: it stands with every order that its bearer makes.
const maxName = 64

// CheckName refuses names of tokens that could not stand with an order, by the rule for all of its texts.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxName || !utf8.ValidString(name):
		return fmt.Errorf("name: 1 to %d bytes of UTF-8 text", maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }):
		return errors.New("name: no control or line-breaking characters")
	case strings.TrimSpace(name) != name:
		return errors.New("name: no space at either end")
	}
	return nil
}

// admit decides for both faces whether the bearer of authorization may make call c of method, and lets c know the bearer.
func (k keyring) admit(c *call, method, authorization string) error {
	bearer, ok := k.find(authorization)
	if !ok {
		return order.Errorf(order.Unauthenticated, "unauthenticated", "a valid bearer token is needed").
			WithHint("Send the header Authorization: Bearer <token>.")
	}
	c.caller, c.scopes = bearer.name, bearer.scopes
	if !bearer.pace.Allow() {
		return order.Errorf(order.Exhausted, "too_many_calls", "%q calls more often than it may", c.caller).WithHint("Wait a second.")
	}
	if !slices.ContainsFunc(access[method], c.may) {
		return c.denied(access[method]...)
	}
	return nil
}

// may reports whether the call's bearer has a scope.
func (c *call) may(s Scope) bool { return slices.Contains(c.scopes, s) }

// denied refuses a call that any one of scopes would open.
func (c *call) denied(scopes ...Scope) error {
	return order.Errorf(order.PermissionDenied, "permission_denied", "the token of %q may not do this", c.caller).
		WithHint(fmt.Sprintf("Use a token of scope %s.", joinScopes(scopes)))
}

// find looks a bearer token up. Hashes are compared, and all of them, so that the time it takes says
// nothing about any token.
func (k keyring) find(authorization string) (found credential, ok bool) {
	scheme, token, _ := strings.Cut(authorization, " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return credential{}, false
	}
	hash := sha256.Sum256([]byte(token))
	for _, c := range k {
		if subtle.ConstantTimeCompare(hash[:], c.hash[:]) == 1 {
			found, ok = c, true
		}
	}
	return found, ok
}

func isOpen(method string) bool {
	return slices.ContainsFunc(openServices, func(prefix string) bool { return strings.HasPrefix(method, prefix) })
}

func joinScopes(scopes []Scope) string {
	names := make([]string, len(scopes))
	for i, s := range scopes {
		names[i] = string(s)
	}
	return strings.Join(names, " or ")
}
