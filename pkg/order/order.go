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
	Pending   Status = 0
	Paid      Status = 10
	Cancelled Status = 20
)

// String returns the name used in logs and on the API.
func (s Status) String() string {
	switch s {
	case Pending:
		return "pending"
	case Paid:
		return "paid"
	case Cancelled:
		return "cancelled"
	}
	return "unknown"
}

// Final reports whether no time-out can change the order any more.
func (s Status) Final() bool { return s != Pending }

// Reason says why an order was cancelled.
type Reason string

const (
	ReasonTimeout    Reason = "TIMEOUT"     // closed by its time-out message
	ReasonCompensate Reason = "COMPENSATE"  // closed by the compensator's sweep
	ReasonUserCancel Reason = "USER_CANCEL" // cancelled by its user
)

// Item is one thing that an order holds: so many of one resource.
type Item struct {
	Kind     string `json:"kind"`
	Ref      string `json:"ref"`
	Quantity int64  `json:"quantity"`
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
	PaidAt       time.Time // zero unless Paid
	CancelledAt  time.Time // zero unless Cancelled
	CancelReason Reason
	Round        int
	Version      int
}

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

// Closed is one order that a transaction has just cancelled.
type Closed struct {
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
	Reason      string
	Actor       string
	At          time.Time
	EventSentAt time.Time // when the transition's event was accepted by the broker; zero if not (yet)
}
