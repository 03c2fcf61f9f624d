package order

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// Payment is a captured payment as a channel reports it. Its JSON is that of a notification.
type Payment struct {
	PaymentNo string    `json:"payment_no"` // the channel's number; unique
	OrderNo   string    `json:"order_no"`
	AttemptNo string    `json:"attempt_no,omitempty"` // the attempt it belongs to, if the channel says so; else ""
	Amount    int64     `json:"amount,string"`        // minor units
	Currency  string    `json:"currency"`             // ISO 4217
	PaidAt    time.Time `json:"paid_at"`
}

// KeptPayment is a payment that was taken, and what it became.
type KeptPayment struct {
	Payment
	Outcome   PaymentOutcome
	RefundNo  string // of the refund that was reported; "" if none was
	CreatedAt time.Time
}

// PaymentOutcome says what a captured payment became (I7). The names are stored.
type PaymentOutcome string

const (
	PaymentAccepted PaymentOutcome = "paid"     // it paid its order
	PaymentLate     PaymentOutcome = "late"     // it came for an order that could not take it: a late-payment case
	PaymentRefunded PaymentOutcome = "refunded" // it had paid its order, and was given back
)

// PaymentResult is the answer to a notification; the same payment always gets the same answer.
type PaymentResult struct {
	Outcome  PaymentOutcome
	Repeated bool
	Order    Order
	Case     *LatePayment // what its order could not take; nil unless this very call made it one
	Stray    bool         // it names an attempt that nobody has started; only of a new payment
	Messages []Message    // rows written with it, to be offered to the relay
}

// LatePolicy says who decides about a late payment.
type LatePolicy string

const (
	LateManual LatePolicy = "manual" // an operator
	LateRefund LatePolicy = "refund" // it is given back: one event TypeRefundRequested
	LateReopen LatePolicy = "reopen" // it pays the order again if that can still be had, else it is given back
)

// LateStatus is how a late-payment case stands. The names are stored.
type LateStatus string

const (
	LateOpen     LateStatus = "open"      // waits for an operator
	LateAsked    LateStatus = "requested" // its refund was requested
	LateRefunded LateStatus = "refunded"  // its refund was reported as completed
	LateConsumed LateStatus = "consumed"  // it pays the restored order: the payment is not late any more
)

// LatePayment is the case of one payment that its order could not take, with what was known then.
type LatePayment struct {
	Payment
	StateThen Status // the order's
	RoundThen int
	Why       string // why the order could not take it, when that was not its state
	Policy    LatePolicy
	Status    LateStatus
	CreatedAt time.Time
	ChangedAt time.Time
	Actor     string // who decided last; "" while open
	Note      string
}

// Outcome is what the payment of the case is now.
func (l LatePayment) Outcome() PaymentOutcome {
	if l.Status == LateConsumed {
		return PaymentAccepted
	}
	return PaymentLate
}

// Deciding is an operator's decision about an open case: its policy becomes refund or reopen.
type Deciding struct {
	PaymentNo string
	Policy    LatePolicy
	Act
}

// Refunding reports that a refund was completed: of a case whose refund was requested, or of the payment of a paid order.
type Refunding struct {
	PaymentNo string
	RefundNo  string // the channel's number of the refund
	Act
}

// Match refuses a payment that is not of this order's amount and currency.
func (p Payment) Match(o Order) error {
	var fields []Field
	if p.Amount != o.Amount {
		fields = append(fields, Field{"amount", "differs from the order's amount"})
	}
	if p.Currency != o.Currency {
		fields = append(fields, Field{"currency", "differs from the order's currency"})
	}
	return invalid(fields)
}

// RefundEventID is the id of the one event that requests the refund of a payment. Payment numbers may be longer than
// an id and hold any text, so their hash stands in it.
func RefundEventID(orderNo, paymentNo string) string {
	sum := sha256.Sum256([]byte(paymentNo))
	return orderNo + ":" + TypeRefundRequested + ":" + hex.EncodeToString(sum[:8])
}
