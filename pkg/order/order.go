// Package order is the life of one unpaid order. It does no I/O and never reads a clock.
//
// It holds the vocabulary that every other package shares (orders, resources, payments, local
// messages, errors) and the pure decisions about them:
//
//	I1. An order leaves Pending exactly once per round.
//	I2. No order is closed before its deadline, whatever a message says.
//	I5. What a cancelled round gives back is what it had reserved.
//	I7. A captured payment pays its order or becomes a late-payment case.
//
// It does not decide when anything runs, nor where anything is kept: pkg/lifecycle and pkg/store do.
// All times are instants of the database clock, cut to milliseconds.
package order

import "time"

// Status is where an order stands. The numbers are stored.
type Status uint8

const (
	Pending    Status = 0
	Confirming Status = 5 // due or cancelled, but a payment attempt is still in flight
	Paid       Status = 10
	Cancelled  Status = 20
	Closed     Status = 30 // refunded, or cancelled and archived
)

// String returns the name used in logs and on the API.
func (s Status) String() string {
	switch s {
	case Pending:
		return "pending"
	case Confirming:
		return "confirming"
	case Paid:
		return "paid"
	case Cancelled:
		return "cancelled"
	case Closed:
		return "closed"
	}
	return "unknown"
}

// Final reports whether no time-out can change the order any more.
func (s Status) Final() bool { return s >= Paid }

// Reason says why an order was cancelled.
type Reason string

const (
	ReasonTimeout    Reason = "TIMEOUT"     // closed by its time-out message
	ReasonCompensate Reason = "COMPENSATE"  // closed by the compensator's sweep
	ReasonUserCancel Reason = "USER_CANCEL" // cancelled by its user
	ReasonManual     Reason = "MANUAL"      // cancelled by staff
)

// Item is one thing that an order holds: so many of one resource.
type Item struct {
	Kind     string `json:"kind"`
	Ref      string `json:"ref"`
	Quantity int64  `json:"quantity"`
	// Remote: another service holds it and gives it back when it reads the cancelled event, which it acknowledges.
	Remote bool `json:"remote,omitempty"`
	// AtPayment: it is not reserved by the order, but taken when the order is paid.
	AtPayment bool `json:"at_payment,omitempty"`
	// Forfeited: it was held, but is not given back: its validity had run out when the order was cancelled.
	Forfeited bool `json:"forfeited,omitempty"`
}

// Draft is an order that a caller asks for, already validated (see Validate).
type Draft struct {
	OrderNo     string // see Identify
	Caller      string // name of the credential that asked
	UserID      string
	BizType     string
	Items       []Item // in resource order, one per (kind, ref)
	Amount      int64  // minor units of Currency; 0 means there is nothing to pay
	Currency    string // ISO 4217
	Timeout     time.Duration
	TraceParent string // W3C trace context of the create call, or ""
	Rule        Rule   // how its business type is treated; see Rules.Apply
	Quota       Quota  // what its user may have; see Rules.Apply
}

// Order is one row of t_order with its items.
type Order struct {
	ID           int64
	OrderNo      string
	Caller       string
	RequestHash  string // see Draft.Hash
	UserID       string
	BizType      string
	Status       Status
	Items        []Item
	Amount       int64
	Currency     string
	CreatedAt    time.Time
	ExpireAt     time.Time
	PaidAt       time.Time // zero unless it is, or was before a refund, Paid
	CancelledAt  time.Time // zero unless it is, or was before it was archived, Cancelled
	CancelReason Reason    // why it was or, while Confirming, is going to be cancelled
	ClosedAt     time.Time // zero unless Closed
	ConfirmUntil time.Time // zero unless Confirming: what is not decided by then ends as configured
	PayingUntil  time.Time // last deadline of its open payment attempts; zero if there are none
	// RemindLead is how long before ExpireAt the event TypeExpiringSoon is due; 0 means never, or that it was sent.
	RemindLead time.Duration
	// SecondChance: at ExpireAt the order is only reminded, and stays payable for so long again; 0 means it is
	// closed, Forever that it stays.
	SecondChance time.Duration
	Round        int
	Version      int
}

// Forever is a SecondChance without an end. Never is the deadline of such an order from then on.
const Forever time.Duration = -1

// Never is later than any deadline.
var Never = time.Date(9000, 1, 1, 0, 0, 0, 0, time.UTC)

// RemindAt is when TypeExpiringSoon is due; zero if it is not.
func (o Order) RemindAt() time.Time {
	if o.RemindLead <= 0 {
		return time.Time{}
	}
	return o.ExpireAt.Add(-o.RemindLead)
}

// WakeAt is when the order is to be looked at next: for its reminder or its deadline.
func (o Order) WakeAt() time.Time {
	if o.RemindLead > 0 {
		return o.RemindAt()
	}
	return o.ExpireAt
}

// InFlight reports whether a payment attempt may still bring money at now.
func (o Order) InFlight(now time.Time) bool { return o.PayingUntil.After(now) }

// Due reports whether the order is to be closed at now (I2: never a moment before its deadline).
func (o Order) Due(now time.Time) bool { return o.Status == Pending && !o.ExpireAt.After(now) }

// Payable reports whether a payment started at now may still be accepted.
func (o Order) Payable(now time.Time) bool { return o.Status == Pending && o.ExpireAt.After(now) }

// Remaining is the time left to pay at now; 0 when the order is not payable.
func (o Order) Remaining(now time.Time) time.Duration {
	if !o.Payable(now) {
		return 0
	}
	return o.ExpireAt.Sub(now)
}

// Created is the answer to one draft. Exactly one of Order and Err is set.
type Created struct {
	Order    *Order
	Repeated bool     // the order existed already, made by an earlier call with the same content
	Message  *Message // the time-out message written with the order; nil if repeated or nothing is payable
	Err      error
}

// Lapsed is one order that a transaction has just cancelled for its deadline.
type Lapsed struct {
	Order
	// MessageLost: the time-out message had been sent and is overdue, so the broker lost it. Only
	// looked up on the compensator's path.
	MessageLost bool
}

// LogEntry is one row of t_order_log: one transition.
type LogEntry struct {
	OrderNo     string
	Version     int // the order's version after the transition
	Round       int
	From, To    Status
	Event       Event
	Reason      string // a code
	Note        string // what a person gave as the reason
	Actor       string
	At          time.Time
	ExpireAt    time.Time // the order's deadline after the transition; zero in entries of older versions
	EventSentAt time.Time // when the transition's event was accepted by the broker; zero if not (yet)
}
