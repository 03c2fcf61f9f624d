package app

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"lapse/pkg/order"
)

// Rule is how the orders of a business type are treated, as it is written in settings.
type Rule struct {
	Late           string
	RemindBefore   time.Duration
	OnExpiry       string
	SecondChance   time.Duration // order.Forever: without end
	StockAtPayment bool
	Restock        bool
}

// keys are the settings of a rule, relative to where it stands.
func (r *Rule) keys() []Key {
	return []Key{
		{Name: "late", Default: "manual", value: choice(&r.Late, "manual", "refund", "reopen"),
			Doc: "What becomes of money that comes too late: an operator decides, it is refunded, or it opens the order again (refunded if that cannot be)."},
		{Name: "remind_before", Default: "0s", value: duration(&r.RemindBefore, 0, 90*day),
			Doc: "How long before its deadline an unpaid order is told of by the event `expiring_soon`; 0s: never."},
		{Name: "on_expiry", Default: "close", value: choice(&r.OnExpiry, "close", "remind"),
			Doc: "`remind`: an order that falls due is told of by the event `expired`, and closed only after `second_chance`."},
		{Name: "second_chance", Default: "forever", value: endless(&r.SecondChance, second, 90*day), Doc: "With `on_expiry: remind`: how long the order stays payable after its deadline."},
		{Name: "stock_at_payment", Default: "false", value: boolean(&r.StockAtPayment), Doc: "Items of kind `stock` are taken when the order is paid instead of being held from its creation."},
		{Name: "restock", Default: "false", value: boolean(&r.Restock), Doc: "The refund of a paid order gives its items back."},
	}
}

// rule is r as the story knows it.
func (r Rule) rule() order.Rule {
	rule := order.Rule{Late: order.LatePolicy(r.Late), RemindLead: r.RemindBefore, StockAtPayment: r.StockAtPayment, Restock: r.Restock}
	if r.OnExpiry == "remind" {
		rule.SecondChance = r.SecondChance
	}
	return rule
}

// BizType is a business type whose orders are treated in a way of their own.
type BizType struct {
	Name string
	own  map[string]any // settings of its rule by name, those that differ from the default rule
}

// over is the rule of the business type where all others have r.
func (b BizType) over(r Rule) (Rule, error) {
	keys := r.keys()
	for name, raw := range b.own {
		i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == name })
		if i < 0 {
			return r, fmt.Errorf("%s: unknown; a business type has name, %s", name, names(keys))
		}
		if err := keys[i].value.set(raw); err != nil {
			return r, fmt.Errorf("%s: %w", name, err)
		}
	}
	return r, nil
}

func names(keys []Key) string {
	all := make([]string, len(keys))
	for i, k := range keys {
		all[i] = k.Name
	}
	return strings.Join(all, ", ")
}

func bizTypes(at *[]BizType) value {
	return field[[]BizType]{at: at, accept: "list of business types", parse: parseBizTypes, print: printBizTypes}
}

var errBizTypes = errors.New("write a list like [{name: ticket, late: refund}]")

func parseBizTypes(raw any) ([]BizType, error) {
	if s, ok := raw.(string); ok { // environment or command line: YAML, of which JSON is a part
		raw = nil
		if err := yaml.Unmarshal([]byte(s), &raw); err != nil {
			return nil, errBizTypes
		}
	}
	if raw == nil {
		return nil, nil
	}
	items, ok := raw.([]any)
	if !ok {
		return nil, errBizTypes
	}
	var all []BizType
	for i, item := range items {
		own, ok := item.(map[string]any)
		if !ok {
			return nil, errBizTypes
		}
		b := BizType{own: maps.Clone(own)}
		b.Name, _ = own["name"].(string)
		delete(b.own, "name")
		if _, err := b.over(Rule{}); err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
		if b.Name == "" || slices.ContainsFunc(all, func(o BizType) bool { return o.Name == b.Name }) {
			return nil, fmt.Errorf("[%d]: each needs a name of its own", i)
		}
		all = append(all, b)
	}
	return all, nil
}

func printBizTypes(all []BizType) string {
	items := make([]string, len(all))
	for i, b := range all {
		parts := []string{"name: " + quote(b.Name)}
		for _, name := range slices.Sorted(maps.Keys(b.own)) {
			parts = append(parts, fmt.Sprintf("%s: %v", name, b.own[name]))
		}
		items[i] = "{" + strings.Join(parts, ", ") + "}"
	}
	return "[" + strings.Join(items, ", ") + "]"
}

// endless is a duration that may also be without end.
func endless(at *time.Duration, low, high time.Duration) value {
	var d time.Duration
	within := duration(&d, low, high).(field[time.Duration])
	parse := func(raw any) (time.Duration, error) {
		if raw == "forever" {
			return order.Forever, nil
		}
		d, err := within.parse(raw)
		if err != nil {
			err = fmt.Errorf("%w, and not forever", err)
		}
		return d, err
	}
	print := func(d time.Duration) string {
		if d == order.Forever {
			return "forever"
		}
		return short(d)
	}
	return field[time.Duration]{at: at, accept: within.accept + ", or forever", parse: parse, print: print}
}

// rules are how business types are treated.
func (c *Config) rules() order.Rules {
	rules := order.Rules{Default: c.Order.Rule.rule(), ByType: map[string]order.Rule{}, Remote: c.Resource.RemoteKinds, Quota: order.Quota{Pending: c.Limit.UserPending, Minute: c.Limit.UserMinute}}
	for _, b := range c.Order.BizTypes {
		if r, err := b.over(c.Order.Rule); err == nil { // checked when it was read
			rules.ByType[b.Name] = r.rule()
		}
	}
	return rules
}

// confirmFor is how long a payment in flight is waited for: not at all where there is no gateway to ask.
func (c *Config) confirmFor() time.Duration {
	if c.Gateway.URL == "" {
		return 0
	}
	return c.Confirm.For
}
