package order

import "time"

// Payment is a captured payment as a channel reports it.
type Payment struct {
	PaymentNo string // the channel's number; unique
	OrderNo   string
	Amount    int64  // minor units
	Currency  string // ISO 4217
	PaidAt    time.Time
}

// PaymentOutcome says what a captured payment became (I7).
type PaymentOutcome string

const (
	PaymentAccepted PaymentOutcome = "paid" // it paid its order
	PaymentLate     PaymentOutcome = "late" // it came for an order that could not take it: a late-payment case
)

// PaymentResult is the answer to a notification; the same payment always gets the same answer.
type PaymentResult struct {
	Outcome  PaymentOutcome
	Repeated bool
	Order    Order
}

// LatePolicy says who decides about a late payment.
type LatePolicy string

// LateManual waits for an operator's decision.
const LateManual LatePolicy = "manual"

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
