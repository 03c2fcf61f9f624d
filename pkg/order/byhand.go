package order

import (
	"fmt"
	"time"
)

// Act is who does something by hand, and why. Both stand in the order log.
type Act struct {
	Actor string // name of the credential
	Note  string // the reason a person gave
}

// Cancelling asks for an order to be cancelled.
type Cancelling struct {
	OrderNo string
	UserID  string // the order must be this user's; "" for staff
	Reason  Reason // ReasonUserCancel or ReasonManual
	// Confirm is how long a payment in flight is waited for; 0 means that there is nobody to ask.
	Confirm time.Duration
	// Force cancels a confirming order whose confirm deadline has passed, undecided as it is. Only staff.
	Force bool
	Act
}

// Restoring asks for a cancelled order to be opened again, in a new round. It consumes an open late-payment case and is
// paid, or else is pending with a new deadline.
type Restoring struct {
	OrderNo string
	Round   int // the cancelled round; asked again for the same round the answer is the same. 0 means the present one
	Timeout time.Duration
	Act
}

// Restored is a cancelled order that was opened again.
type Restored struct {
	Order
	Case     *LatePayment // the case that this very call consumed; nil if there was none
	Messages []Message    // rows written with it, to be offered to the relay
}

// Extending asks for the deadlines of pending orders to be moved. The last committed deadline counts (I13).
type Extending struct {
	// Exactly one of these says whose.
	OrderNo string
	UserID  string
	BizType string

	// Exactly one of these says how far.
	By    time.Duration // later by so much
	Until time.Time     // held: no deadline before this instant
	Act
}

// Extended is what an extension did; of many orders it counts them.
type Extended struct {
	Order    *Order // when one was named
	Extended int
	Messages []Message // their time-out rows, to be offered to the relay
	// Next is where the next page goes on; nil at the end.
	Next *Position
}

// Position is a place in the pending orders of all shards, which are walked from the latest deadline to the nearest: an
// order whose deadline has been moved is not met again.
type Position struct {
	Shard int
	Cursor
}

// Foremost is before all pending orders.
func Foremost() Position { return Position{Cursor: Cursor{ExpireAt: Never.Add(time.Millisecond)}} }

const (
	maxNote      = 255
	maxExtension = 90 * 24 * time.Hour
)

// Validate asks for a reason.
func (a Act) Validate() error { return invalid(a.check()) }

func (a Act) check() []Field {
	if a.Note == "" || len(a.Note) > maxNote {
		return []Field{{"reason", fmt.Sprintf("why you do this, 1 to %d bytes", maxNote)}}
	}
	if fields := checkChars("reason", a.Note); fields != nil {
		return fields
	}
	return nil
}

// Validate checks a cancellation; only staff has to give a reason.
func (c Cancelling) Validate() error {
	var bad []Field
	if err := CheckNumber(c.OrderNo); err != nil {
		bad = append(bad, Field{"order_no", err.Error()})
	}
	if c.Reason == ReasonManual {
		bad = append(bad, c.check()...)
	} else {
		bad = append(bad, checkText("user_id", c.UserID)...)
	}
	return invalid(bad)
}

// Validate checks a restore and fills in the default time-out.
func (l Limits) ValidateRestoring(r Restoring) (Restoring, error) {
	l = l.withDefaults()
	bad := r.check()
	if err := CheckNumber(r.OrderNo); err != nil {
		bad = append(bad, Field{"order_no", err.Error()})
	}
	if r.Round < 0 {
		bad = append(bad, Field{"round", "the cancelled round, or nothing"})
	}
	if r.Timeout == 0 {
		r.Timeout = l.DefaultTimeout
	}
	if r.Timeout < l.MinTimeout || r.Timeout > l.MaxTimeout || r.Timeout%time.Millisecond != 0 {
		bad = append(bad, Field{"timeout", fmt.Sprintf("%s to %s, in whole milliseconds", inSeconds(l.MinTimeout), inSeconds(l.MaxTimeout))})
	}
	return r, invalid(bad)
}

// Validate checks an extension.
func (e Extending) Validate() error {
	bad := e.check()
	whose := 0
	for _, s := range []string{e.OrderNo, e.UserID, e.BizType} {
		if s != "" {
			whose++
		}
	}
	if whose != 1 {
		bad = append(bad, Field{"user_id", "one of user_id and biz_type, unless one order is named"})
	}
	if e.OrderNo != "" {
		if err := CheckNumber(e.OrderNo); err != nil {
			bad = append(bad, Field{"order_no", err.Error()})
		}
	}
	if (e.By != 0) == !e.Until.IsZero() {
		bad = append(bad, Field{"by", "one of by and until"})
	}
	if e.By != 0 && (e.By < time.Millisecond || e.By > maxExtension || e.By%time.Millisecond != 0) {
		bad = append(bad, Field{"by", fmt.Sprintf("up to %s later, in whole milliseconds", inSeconds(maxExtension))})
	}
	return invalid(bad)
}

// Deadline is the new deadline of an order, or why there is none. An extension never brings a deadline nearer.
func (e Extending) Deadline(o Order, now time.Time) (time.Time, error) {
	until := o.ExpireAt.Add(e.By)
	if e.By == 0 {
		until = e.Until.Truncate(time.Millisecond)
	}
	switch {
	case until.Sub(now) > maxExtension && until.After(o.ExpireAt):
		return time.Time{}, Errorf(Invalid, "extension_too_far", "the deadline would be %s, more than %s from now", until.Format(time.RFC3339), inSeconds(maxExtension))
	case !until.After(now):
		return time.Time{}, Errorf(Invalid, "extension_in_the_past", "the deadline would be %s, which has passed", until.Format(time.RFC3339))
	case until.Before(o.ExpireAt):
		return o.ExpireAt, nil
	}
	return until, nil
}

// Validate checks a decision about a case.
func (d Deciding) Validate() error {
	bad := append(checkText("payment_no", d.PaymentNo), d.check()...)
	if d.Policy != LateRefund && d.Policy != LateReopen {
		bad = append(bad, Field{"decision", "refund or reopen"})
	}
	return invalid(bad)
}

// Validate checks a report of a refund.
func (r Refunding) Validate() error {
	bad := append(checkText("payment_no", r.PaymentNo), checkText("refund_no", r.RefundNo)...)
	return invalid(append(bad, r.check()...))
}
