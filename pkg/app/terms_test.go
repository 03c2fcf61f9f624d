package app

import (
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
)

const ruled = `
order:
  late: refund
  remind_before: 2m
  on_expiry: remind
  second_chance: 1h
  stock_at_payment: true
  restock: true
  biz_types:
    - {name: plain, late: manual, remind_before: 0s, on_expiry: close, stock_at_payment: false, restock: false}
    - {name: patient, second_chance: forever}
    - {name: Ticket, late: reopen}
resource: {remote_kinds: [cart, price_lock]}
`

func TestABusinessTypeHasTheDefaultRuleButForWhatItSays(t *testing.T) {
	usual := order.Rule{Late: order.LateRefund, RemindLead: 2 * time.Minute, SecondChance: time.Hour, StockAtPayment: true, Restock: true}
	patient, ticket := usual, usual
	patient.SecondChance = order.Forever
	ticket.Late = order.LateReopen
	rules := load(t, Source{File: file(t, ruled)}).rules()
	for biz, want := range map[string]order.Rule{
		"plain": {Late: order.LateManual}, "patient": patient, "Ticket": ticket, "ticket": usual, "any other": usual,
	} {
		if got := rules.For(biz); got != want {
			t.Errorf("%s has %+v, want %+v", biz, got, want)
		}
	}
	if want := []string{"cart", "price_lock"}; !reflect.DeepEqual(rules.Remote, want) {
		t.Errorf("remote are %v", rules.Remote)
	}
}

func TestWithoutSettingsOrdersAreClosedAndLateMoneyWaitsForAPerson(t *testing.T) {
	if got, want := load(t, Source{}).rules().For("any"), (order.Rule{Late: order.LateManual}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestBusinessTypesCanBeSetInTheEnvironmentAndArePrintedAsTheyAreRead(t *testing.T) {
	t.Setenv("LAPSE_ORDER_BIZ_TYPES", `[{"name": "ticket", "late": "refund", "restock": true}, {name: "a b", remind_before: 90s}]`)
	c := load(t, Source{})
	t.Setenv("LAPSE_ORDER_BIZ_TYPES", "")
	printed := &strings.Builder{}
	if err := c.Print(printed); err != nil {
		t.Fatal(err)
	}
	again := load(t, Source{File: file(t, printed.String())})
	for _, c := range []*Config{c, again} {
		want := map[string]order.Rule{
			"ticket": {Late: order.LateRefund, Restock: true}, "a b": {Late: order.LateManual, RemindLead: 90 * time.Second},
		}
		if got := c.rules().ByType; !maps.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
}

func TestTermsThatNoOrderCouldFollowAreRefused(t *testing.T) {
	cases := []struct{ name, yaml, setting, says string }{
		{"no policy", "order: {late: never}", "order.late", "manual, refund, reopen"},
		{"a second chance of no time", "order: {second_chance: 0s}", "order.second_chance", "and not forever"},
		{"business types that are a text", "order: {biz_types: ticket}", "order.biz_types", "write a list like"},
		{"business types that are no YAML", `order: {biz_types: "[{"}`, "order.biz_types", "write a list like"},
		{"a business type that is a text", "order: {biz_types: [ticket]}", "order.biz_types", "write a list like"},
		{"a business type without a name", "order: {biz_types: [{late: refund}]}", "order.biz_types", "[0]: each needs a name"},
		{"two of one name", "order: {biz_types: [{name: a}, {name: a}]}", "order.biz_types", "[1]: each needs a name of its own"},
		{"a misspelt setting of one", "order: {biz_types: [{name: a, latte: refund}]}", "order.biz_types", "latte: unknown; a business type has name, late,"},
		{"a bad setting of one", "order: {biz_types: [{name: a, late: never}]}", "order.biz_types", "manual, refund, reopen"},
		{"an attempt that is too long by default", "attempt: {default: 2h}", "attempt.default", "attempt.longest"},
		{"no end of confirming", "confirm: {end: pay}", "confirm.end", "cancel, hold"},
		{"a gateway that is no URL", "gateway: {url: pay.example}", "gateway.url", "Write http:// or https://"},
		{"a token without a gateway", "gateway: {token: abc}", "gateway.url", "take out gateway.token"},
		{"a hook that is no URL", "hook: {url: shop.example, secret: " + goodSecret + "}", "hook.url", "Write http:// or https://"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			if got := refused(t, Source{File: file(t, c.yaml+"\n")}); !strings.Contains(got[c.setting], c.says) {
				t.Errorf("want %s refused with %q, got %v", c.setting, c.says, got)
			}
		})
	}
}

func TestPaymentsInFlightAreWaitedForOnlyWhereThereIsAGateway(t *testing.T) {
	for url, want := range map[string]time.Duration{"": 0, "http://pay.example": 7 * time.Minute} {
		live, err := Open(Source{Set: map[string]string{"gateway.url": url, "confirm.for": "7m"}})
		if err != nil {
			t.Fatal(err)
		}
		a := &App{live: live}
		for by, got := range map[string]time.Duration{
			"messages": a.closeOptions().Confirm, "sweeps": a.sweepOptions().Confirm, "people": a.terms().Confirm, "reconciliations": a.reconcileOptions().Confirm,
		} {
			if got != want {
				t.Errorf("%q: %s wait %s, want %s", url, by, got, want)
			}
		}
	}
}

func TestChangedTermsHoldForWhatComesNext(t *testing.T) {
	path := file(t, "order: {biz_types: [{name: ticket, late: refund}]}\n")
	w := watch(t, path)
	a := &App{live: w.Live}
	write(t, path, "order: {late: reopen, biz_types: [{name: ticket, remind_before: 1m}]}\nconfirm: {end: hold}\n")
	eventually(t, "the new terms are in force", func() bool {
		return a.terms().Rules.For("ticket") == order.Rule{Late: order.LateReopen, RemindLead: time.Minute}
	})
	if got := a.confirmOptions(); got.End != order.ConfirmHold || !reflect.DeepEqual(got.Rules, a.terms().Rules) {
		t.Errorf("the confirmer goes by %+v", got)
	}
}

func TestOptionsAreTheSettings(t *testing.T) {
	live, err := Open(Source{Set: map[string]string{
		"breaker.enabled": "false", "breaker.attempts": "50", "breaker.drop": "40", "breaker.floor": "3", "breaker.resume": "auto",
		"breaker.interval": "3s", "breaker.settle": "30s", "reconcile.interval": "2h", "reconcile.rate": "10", "reconcile.overdue": "5m",
		"reconcile.ack": "1h", "reconcile.case": "2h", "house.interval": "3h", "house.archive_after": "4h", "house.retention": "5h",
		"sweep.rate": "7", "attempt.default": "6m", "attempt.longest": "8m", "gateway.timeout": "2s",
	}})
	if err != nil {
		t.Fatal(err)
	}
	a := &App{live: live}
	terms := a.terms()
	for what, is := range map[string]bool{
		"breaker": a.breakerOptions() == lifecycle.BreakerOptions{
			Off: true, Interval: 3 * time.Second, Settle: 30 * time.Second, Resume: true, Rule: order.TripRule{Attempts: 50, Drop: .4, Floor: .03},
		},
		"reconcile": a.reconcileOptions() == lifecycle.ReconcileOptions{
			Interval: 2 * time.Hour, Rate: 10, Patience: order.Patience{Overdue: 5 * time.Minute, Ack: time.Hour, Case: 2 * time.Hour},
		},
		"house":    a.houseOptions() == lifecycle.HouseOptions{Interval: 3 * time.Hour, ArchiveAfter: 4 * time.Hour, Retention: 5 * time.Hour},
		"sweep":    a.sweepOptions().Rate == 7,
		"gateway":  a.confirmOptions().Timeout == 2*time.Second,
		"attempts": terms.AttemptDefault == 6*time.Minute && terms.AttemptLongest == 8*time.Minute && terms.ArchiveAfter == 4*time.Hour,
	} {
		if !is {
			t.Errorf("the options of %s are not as they were set", what)
		}
	}
}
