package order

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits bounds what a draft may ask for.
type Limits struct {
	DefaultTimeout time.Duration // for drafts that name none; 0 means 30 min
	MinTimeout     time.Duration // 0 means 1 s
	MaxTimeout     time.Duration // 0 means 90 days
}

const (
	maxItems    = 100
	maxQuantity = 1_000_000_000
	maxText     = 64
	maxDelta    = 1_000_000_000_000
)

// withDefaults fills in the documented defaults.
func (l Limits) withDefaults() Limits {
	if l.DefaultTimeout == 0 {
		l.DefaultTimeout = 30 * time.Minute
	}
	if l.MinTimeout == 0 {
		l.MinTimeout = time.Second
	}
	if l.MaxTimeout == 0 {
		l.MaxTimeout = 90 * 24 * time.Hour
	}
	return l
}

// Validate checks a draft, merges its items and fills in the default time-out. Every refused field is named.
func (l Limits) Validate(d Draft) (Draft, error) {
	l = l.withDefaults()
	var bad []Field
	refuse := func(name, format string, args ...any) {
		bad = append(bad, Field{name, fmt.Sprintf(format, args...)})
	}
	if err := CheckNumber(d.OrderNo); err != nil {
		refuse("order_no", "%v", err)
	}
	bad = append(bad, checkText("user_id", d.UserID)...)
	bad = append(bad, checkText("biz_type", d.BizType)...)
	if d.Amount < 0 {
		refuse("amount", "0 or more minor units")
	}
	if !isCurrency(d.Currency) {
		refuse("currency", "three capital letters of ISO 4217, like CNY")
	}
	if d.Timeout == 0 {
		d.Timeout = l.DefaultTimeout
	}
	if d.Timeout < l.MinTimeout || d.Timeout > l.MaxTimeout {
		refuse("timeout", "%s to %s", inSeconds(l.MinTimeout), inSeconds(l.MaxTimeout))
	}
	if d.Timeout%time.Millisecond != 0 {
		refuse("timeout", "whole milliseconds")
	}
	if len(d.Items) > maxItems {
		refuse("items", "at most %d", maxItems)
	}
	for i, it := range d.Items {
		name := fmt.Sprintf("items[%d].", i)
		bad = append(bad, checkText(name+"kind", it.Kind)...)
		bad = append(bad, checkText(name+"ref", it.Ref)...)
		if it.Quantity < 1 || it.Quantity > maxQuantity {
			refuse(name+"quantity", "1 to %d", maxQuantity)
		}
	}
	d.Items = MergeItems(d.Items)
	return d, invalid(bad)
}

// inSeconds writes d as the API takes it.
func inSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

// Validate checks a payment notification.
func (p Payment) Validate() error {
	bad := checkText("payment_no", p.PaymentNo)
	if err := CheckNumber(p.OrderNo); err != nil {
		bad = append(bad, Field{"order_no", err.Error()})
	}
	if p.AttemptNo != "" {
		bad = append(bad, checkAttemptNo(p.AttemptNo)...)
	}
	if p.Amount <= 0 {
		bad = append(bad, Field{"amount", "more than 0 minor units"})
	}
	if !isCurrency(p.Currency) {
		bad = append(bad, Field{"currency", "three capital letters of ISO 4217, like CNY"})
	}
	if p.PaidAt.IsZero() || p.PaidAt.Year() < 2000 || p.PaidAt.Year() > 9000 {
		bad = append(bad, Field{"paid_at", "the instant of the capture, RFC 3339"})
	}
	return invalid(bad)
}

// Validate checks an adjustment.
func (a Adjustment) Validate() error {
	var bad []Field
	if a.ID == "" || len(a.ID) > maxNumber || !onlyOf(a.ID, numberAlphabet) {
		bad = append(bad, Field{"adjustment_id", fmt.Sprintf("1 to %d letters, digits, _ or -", maxNumber)})
	}
	bad = append(bad, checkText("kind", a.Kind)...)
	bad = append(bad, checkText("ref", a.Ref)...)
	if a.Delta == 0 || a.Delta < -maxDelta || a.Delta > maxDelta {
		bad = append(bad, Field{"delta", fmt.Sprintf("up to %d more or less, and not 0", int64(maxDelta))})
	}
	if a.Owner != "" {
		bad = append(bad, checkText("owner", a.Owner)...)
	}
	return invalid(bad)
}

// checkText refuses what could not stand in a key, a header or a log line: empty, too long, not UTF-8,
// control or line-breaking characters, and outer spaces, which databases ignore when they compare.
func checkText(name, s string) []Field {
	if s == "" || len(s) > maxText || !utf8.ValidString(s) {
		return []Field{{name, fmt.Sprintf("1 to %d bytes of UTF-8 text", maxText)}}
	}
	return checkChars(name, s)
}

// checkChars is the part of checkText that does not depend on the length.
func checkChars(name, s string) []Field {
	if !utf8.ValidString(s) {
		return []Field{{name, "UTF-8 text"}}
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return []Field{{name, "no control or line-breaking characters"}}
		}
	}
	if strings.TrimSpace(s) != s {
		return []Field{{name, "no space at either end"}}
	}
	return nil
}

func isCurrency(s string) bool {
	return len(s) == 3 && onlyOf(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
}
