package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/app"
	"lapse/pkg/order"
	"lapse/pkg/signature"
)

// shop is a `lapse dev` with a client that makes and pays orders, and commands that look after it.
type shop struct {
	t    *testing.T
	data string
	addr string
	api  *grpc.ClientConn
}

func openShop(t *testing.T) *shop {
	t.Helper()
	data := devData(t)
	s := &shop{t: t, data: data, addr: running(t, data)}
	var err error
	if s.api, err = grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.api.Close() })
	return s
}

// run executes a command of an operator.
func (s *shop) run(args ...string) result {
	s.t.Helper()
	return lapse(s.t, append(args, "--data", s.data, "--server", s.addr)...)
}

// wants fails unless a command says all of these.
func (s *shop) wants(args string, says ...string) {
	s.t.Helper()
	r := s.run(strings.Fields(args)...)
	for _, want := range says {
		if r.code != app.ExitOK || !strings.Contains(r.stdout, want) {
			s.t.Errorf("lapse %s: want %q, got %+v", args, want, r)
		}
	}
}

// reconciled waits for the end of the reconciliation that a new installation begins with: there is one at a time.
func (s *shop) reconciled() {
	s.t.Helper()
	for s.run("reconcile").code == app.ExitConflict {
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *shop) as(scope string) context.Context {
	token, _ := mustLoad(s.t, s.data).TokenFor(scope)
	return metadata.AppendToOutgoingContext(s.t.Context(), "authorization", "Bearer "+token)
}

func (s *shop) create(orderNo string) {
	s.t.Helper()
	amount := int64(1999)
	_, err := lapsev1.NewOrderServiceClient(s.api).CreateOrder(s.as("order"), &lapsev1.CreateOrderRequest{
		OrderNo: orderNo, UserId: "u1", BizType: "retail", Amount: &amount, Currency: "CNY", Timeout: durationpb.New(time.Hour),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *shop) pay(paymentNo, orderNo string) {
	s.t.Helper()
	body := fmt.Appendf(nil, `{"payment_no":%q,"order_no":%q,"amount":"1999","currency":"CNY","paid_at":"2026-01-31T08:00:00Z"}`, paymentNo, orderNo)
	now := time.Now().Unix()
	_, err := lapsev1.NewPaymentServiceClient(s.api).NotifyPayment(s.as("payment"), &lapsev1.NotifyPaymentRequest{
		Body: body, Timestamp: now, Signature: signature.Sign(mustLoad(s.t, s.data).Payment.Secrets[0], now, body),
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func TestOrdersAreChangedByHand(t *testing.T) {
	s := openShop(t)
	s.create("order-1")
	s.create("order-2")
	tomorrow := time.Now().UTC().AddDate(0, 0, 1).Format(time.RFC3339)
	s.wants("order extend order-1 --until "+tomorrow+" --reason outage", "order-1", "pending", tomorrow)
	s.wants("order extend --user u1 --by 1m --reason outage", "2 orders extended")
	s.wants("order extend --type retail --by 1m --reason outage --json", `"extended":"2"`)
	s.wants("order extend --type retial --by 1m --reason outage", `0 orders extended: business type "retial" has no pending order`)
	s.wants("order cancel order-1 --reason fraud", "cancelled", "MANUAL")
	s.wants("order restore order-1 --round 1 --pay-within 5m --reason mistake", "pending", "2")
	s.wants("order restore order-1 --round 1 --reason mistake", "pending") // said again
	s.wants("order cancel order-1 --reason fraud --json", `"status":"cancelled"`)
	for args, code := range map[string]int{
		"order archive order-1 --reason old":                                  app.ExitConflict, // its retention is not over
		"order cancel order-9 --reason fraud":                                 app.ExitNotFound,
		"order cancel order-2":                                                app.ExitUsage,
		"order restore order-2 --reason why":                                  app.ExitConflict,
		"order extend --by 1m --reason why":                                   app.ExitUsage,
		"order extend order-2 --user u1 --by 1m --reason why":                 app.ExitUsage,
		"order extend order-2 --until tomorrow --reason why":                  app.ExitUsage,
		"order extend order-2 --by 1m --until " + tomorrow + " --reason both": app.ExitUsage,
		"order": app.ExitUsage,
		"late":  app.ExitUsage,
	} {
		if r := s.run(strings.Fields(args)...); r.code != code || r.stdout != "" {
			t.Errorf("lapse %s: want exit code %d, got %+v", args, code, r)
		}
	}
	if r := s.run("order", "cancel", "order-2"); !strings.Contains(r.stderr, "  reason: ") {
		t.Errorf("the refused field is not named: %+v", r)
	}
}

func TestTheDataDirectorySaysWhereItsLapseDevListens(t *testing.T) {
	s := openShop(t)
	if r := lapse(t, "brakes", "--data", s.data); r.code != app.ExitOK {
		t.Errorf("on another port than the default: %+v", r)
	}
}

func TestACancelThatWaitsForTheGatewaySaysSo(t *testing.T) {
	o := &lapsev1.Order{OrderNo: "order-1", Status: "confirming", CancelReason: "MANUAL", ConfirmUntil: timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	for _, want := range []string{"confirming", "not yet (MANUAL)", "Not cancelled yet", "2026-03-01T12:00:00Z"} {
		if got := cancelled(o); !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
	o.Status = "cancelled"
	if got := cancelled(o); strings.Contains(strings.ToLower(got), "not ") {
		t.Errorf("got\n%s", got)
	}
}

func TestASweepSaysThatTheBrakesKeepOrdersOpen(t *testing.T) {
	if got := sweepTable(&lapsev1.SweepRun{Looked: 7, Braked: 7}); !strings.Contains(got, "BRAKED") || !strings.Contains(got, "see lapse brakes") {
		t.Errorf("got\n%s", got)
	}
	if got := sweepTable(&lapsev1.SweepRun{Looked: 7, Closed: 7}); strings.Contains(got, "see lapse brakes") {
		t.Errorf("got\n%s", got)
	}
}

func TestPayTimesAreHeadedByWhatTheyAre(t *testing.T) {
	got := payTimesTable([]order.PayReport{{BizType: "retail", Payers: 100, Recommended: 30 * time.Minute, Choices: []order.PayChoice{{Timeout: 30 * time.Minute, CutOff: 0.01}}}})
	for _, want := range []string{"How long payers took", "recommended time-out", "Share of payers", "30m", "1.0%"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestLateMoneyIsDecidedAndRefunded(t *testing.T) {
	s := openShop(t)
	s.create("order-1")
	s.create("order-2")
	s.wants("late list", "no late payments")
	for i, no := range []string{"order-1", "order-2"} {
		s.wants("order cancel "+no+" --reason test", "cancelled")
		s.pay(fmt.Sprintf("p%d", i+1), no)
	}
	s.wants("late list", "p1", "p2", "manual", "open", "1999 CNY")
	s.wants("late decide p1 refund --reason asked", "requested", "asked")
	s.wants("late decide p2 reopen --reason asked", "consumed")
	s.wants("late list --status requested", "p1")
	s.wants("late list --status all --json", `"payment_no":"p1"`, `"payment_no":"p2"`)
	s.wants("refunded p1 --refund-no r1 --reason sent", "order-1", "cancelled")
	s.wants("refunded p2 --refund-no r2 --reason sent", "order-2", "closed")
	s.wants("late list --status refunded", "p1")
	for args, code := range map[string]int{
		"late decide p1 refund --reason again":        app.ExitConflict,
		"late decide p9 refund --reason why":          app.ExitNotFound,
		"late decide p1 keep --reason why":            app.ExitUsage,
		"late list --status lost":                     app.ExitUsage,
		"refunded p9 --refund-no r1 --reason nothing": app.ExitNotFound,
		"refunded p1 --reason sent":                   app.ExitUsage,
	} {
		if r := s.run(strings.Fields(args)...); r.code != code {
			t.Errorf("lapse %s: want exit code %d, got %+v", args, code, r)
		}
	}
}

func TestBrakesAreShownAndChanged(t *testing.T) {
	s := openShop(t)
	s.wants("brakes", "enforce", "100%")
	s.wants("brakes set --mode shadow --type retail=50 --type ticket=0 --reason trying", "shadow", "100%", "retail 50%, ticket 0%")
	s.wants("brakes set --percent 0 --type ticket=default --reason trying", "shadow", "0%", "retail 50%")
	s.wants("brakes set --mode enforce --resume --reason trying --json", `"mode":"enforce"`, `"percent":0`)
	s.wants("shadow-report --since 1h --job cron", "COVERAGE")
	s.wants("shadow-report --json", `"decided":"0"`)
	for args, code := range map[string]int{
		"brakes set --mode off":                          app.ExitUsage,
		"brakes set --mode on --reason why":              app.ExitUsage,
		"brakes set --type retail=many --reason why":     app.ExitUsage,
		"brakes set --mode off --version 1 --reason why": app.ExitConflict,
	} {
		if r := s.run(strings.Fields(args)...); r.code != code {
			t.Errorf("lapse %s: want exit code %d, got %+v", args, code, r)
		}
	}
}

func TestAReconciliationOfWhatIsSoundFindsNothing(t *testing.T) {
	s := openShop(t)
	s.create("order-1")
	s.reconciled()
	s.wants("reconcile", "LOOKED AT", "yes")
	s.wants("reconcile --mend --json", `"dry_run":false`, `"findings":[]`)
}

func TestAReconciliationShowsWhatItFound(t *testing.T) {
	at := timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	got := reconciliation(&lapsev1.ReconcileRun{
		Id: 7, DryRun: true, StartedAt: at, FinishedAt: at, Found: 1,
		Findings: []*lapsev1.Finding{{Kind: "event_missing", Subject: "order-1", Detail: "cancelled, not told", Action: "tell it"}},
	})
	for _, want := range []string{"event_missing", "order-1", "cancelled, not told", "tell it", "no"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestAReconciliationFailsIfDamageIsLeftOrItEndedEarly(t *testing.T) {
	for _, c := range []struct {
		run  *lapsev1.ReconcileRun
		says string // "" if all is well
	}{
		{&lapsev1.ReconcileRun{}, ""},
		{&lapsev1.ReconcileRun{Found: 2, Mended: 2}, ""},
		{&lapsev1.ReconcileRun{Found: 2, Mended: 1}, "1 of 2"},
		{&lapsev1.ReconcileRun{Error: "no database"}, "ended early: no database"},
	} {
		err := left(c.run)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v, want %q", c.run, err, c.says)
		}
	}
}

func TestABrakeThatTrippedSaysWhenAndWhy(t *testing.T) {
	at := timestamppb.New(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	if got := brakesTable(&lapsev1.Brakes{Mode: "enforce", Tripped: "few payments come in", TrippedAt: at}); !strings.Contains(got, "2026-03-01T12:00:00Z: few payments come in") {
		t.Errorf("got\n%s", got)
	}
}

func TestAShadowReportShowsWhatDoesNotAgree(t *testing.T) {
	got := shadowTable(&lapsev1.ShadowReport{Decided: 8, Coverage: 0.5, Examples: []*lapsev1.ShadowCase{{OrderNo: "order-1", Kind: "missed"}}})
	for _, want := range []string{"50.0%", "order-1", "missed"} {
		if !strings.Contains(got, want) {
			t.Errorf("want %q in\n%s", want, got)
		}
	}
}

func TestEveryAnswerOfTheAPIIsJSONOnRequest(t *testing.T) {
	s := openShop(t)
	s.reconciled()
	for _, args := range []string{"brakes", "late list", "shadow-report", "reconcile", "sweep --now"} {
		r := s.run(append(strings.Fields(args), "--json")...)
		var answer map[string]any
		if err := json.Unmarshal([]byte(r.stdout), &answer); err != nil || r.code != app.ExitOK {
			t.Errorf("lapse %s: %v: %+v", args, err, r)
		}
	}
}
