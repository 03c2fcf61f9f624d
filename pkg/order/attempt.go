package order

import (
	"fmt"
	"time"
)

// Attempt is one try to pay an order: a bill at a payment channel. An order may have several.
type Attempt struct {
	AttemptNo string // the merchant's number of the bill at the channel; unique
	OrderNo   string
	Round     int
	Channel   string // which gateway or channel holds the bill
	Amount    int64  // minor units, the order's
	Currency  string // ISO 4217, the order's
	State     AttemptState
	StartedAt time.Time
	// Deadline is when the attempt is over, whatever the channel says then: it never blocks the order for longer.
	Deadline time.Time
	EndedAt  time.Time // zero while open
	Repeated bool      // only in the answer to a start: it had been started before
}

// AttemptState is how an attempt stands. The names are stored.
type AttemptState string

const (
	AttemptOpen   AttemptState = "open"
	AttemptFailed AttemptState = "failed" // the caller said so
	AttemptPaid   AttemptState = "paid"   // its payment was captured
	AttemptClosed AttemptState = "closed" // the gateway confirmed that its bill is closed unpaid
)

// InFlight reports whether the attempt may still bring money at now.
func (a Attempt) InFlight(now time.Time) bool { return a.State == AttemptOpen && a.Deadline.After(now) }

// Attempting asks for a payment attempt to be recorded.
type Attempting struct {
	AttemptNo string // the caller's, or made up; the same again is the same attempt
	OrderNo   string
	UserID    string // the order must be this user's; "" asks nothing
	Channel   string
	Lifetime  time.Duration // from the database's now to the attempt's deadline
	Actor     string        // name of the credential
}

// MaxAttempts is how many attempts one round of an order may have.
const MaxAttempts = 20

// Validate checks a start of a payment; longest bounds its lifetime.
func (a Attempting) Validate(longest time.Duration) error {
	var bad []Field
	if err := CheckNumber(a.OrderNo); err != nil {
		bad = append(bad, Field{"order_no", err.Error()})
	}
	bad = append(bad, checkAttemptNo(a.AttemptNo)...)
	bad = append(bad, checkText("channel", a.Channel)...)
	if a.UserID != "" {
		bad = append(bad, checkText("user_id", a.UserID)...)
	}
	if a.Lifetime < time.Second || a.Lifetime > longest {
		bad = append(bad, Field{"lifetime", fmt.Sprintf("1s to %s", inSeconds(longest))})
	}
	return invalid(bad)
}

func checkAttemptNo(no string) []Field {
	if CheckNumber(no) == nil {
		return nil
	}
	return []Field{{"attempt_no", fmt.Sprintf("%d to %d letters, digits, _ or -", minNumber, maxNumber)}}
}

// BillState is what a gateway says about the bill of an attempt.
type BillState string

const (
	BillPaid   BillState = "paid"
	BillUnpaid BillState = "unpaid" // it may still be paid
	BillClosed BillState = "closed" // it cannot be paid any more, and was not
)

// Bill is a gateway's explicit answer about one attempt. Payment is set when it was paid.
type Bill struct {
	State   BillState
	Payment Payment
}

// InDoubt is a confirming order, as it is handed to whoever asks the gateway.
type InDoubt struct {
	Order
	Attempts []Attempt // those in flight; empty when none is left to ask about
	Message  Message   // its time-out row, leased (I10)
}

// Verdict is what asking the gateway has shown about a confirming order.
type Verdict struct {
	InDoubt
	Captured []Payment // the first pays the order, the others are cases
	Closed   []string  // attempts whose bill is closed
	Failed   string    // why the others are not decided; "" if they are only unpaid
	Unasked  bool      // some of them were not even asked about: nothing may be concluded from that, whatever the hour
}

// ConfirmEnd is what becomes of an order that is still in doubt at its confirm deadline.
type ConfirmEnd string

const (
	ConfirmCancel ConfirmEnd = "cancel" // it is cancelled; money that comes later is late
	ConfirmHold   ConfirmEnd = "hold"   // it stays for a person
)

// Confirmed is what a verdict led to.
type Confirmed struct {
	Order
	Result   ConfirmResult
	Cases    []LatePayment // captured payments that the order could not take any more
	Messages []Message     // rows written with it, to be offered to the relay
}

// ConfirmResult is what asking about a confirming order led to.
type ConfirmResult string

const (
	ConfirmPaid    ConfirmResult = "paid"    // captured money has paid it
	ConfirmClosed  ConfirmResult = "closed"  // cancelled: nothing can pay it any more
	ConfirmExpired ConfirmResult = "expired" // cancelled at its confirm deadline, undecided as it is
	ConfirmHeld    ConfirmResult = "held"    // left to a person at its confirm deadline
	ConfirmBraked  ConfirmResult = "braked"  // it would have been cancelled, but the brakes keep it; asked about again
	ConfirmUnpaid  ConfirmResult = "unpaid"  // its bills may still be paid; asked about again
	ConfirmUnknown ConfirmResult = "unknown" // the gateway has not said enough; asked about again
	ConfirmUnasked ConfirmResult = "unasked" // there was no room or no time to ask; asked about again
	ConfirmGone    ConfirmResult = "gone"    // not this worker's any more: something else has ended it, or the lease has run out
)
