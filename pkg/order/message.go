package order

import (
	"bytes"
	"encoding/json"
	"time"
)

// MessageKind tells the two kinds of local message apart.
type MessageKind string

const (
	// Timeout rows exist exactly while their order is Pending or Confirming.
	Timeout MessageKind = "timeout"
	// Notice rows carry an event and are deleted once sent.
	Notice MessageKind = "event"
)

// Message is one row of t_local_message: something that was committed with a business change and is
// still to be sent (I8, I9).
type Message struct {
	Key     string // unique: TimeoutKey or the event's id
	Kind    MessageKind
	OrderNo string
	Round   int
	Type    string // event type; "timeout" for a time-out
	Hop     int    // how often a time-out was scheduled again; guards against old and forged messages
	DueAt   time.Time
	// NextAt is when the row is to be looked at next: its due time, or the end of the lease of whoever
	// works on it. It fences: a settlement names the NextAt it was given (I10).
	NextAt   time.Time
	Attempts int
	Payload  []byte // events: the CloudEvent; time-outs: the trace context or nothing
}

// TimeoutKey is the key of an order's only time-out row.
func TimeoutKey(orderNo string) string { return orderNo + ":timeout" }

// Receipt is what the broker answered to a send, for an operator to search by.
type Receipt struct {
	MessageID       string
	OffsetMessageID string
}

// Schedule says when a new or re-scheduled row is to be looked at first, given the database's now.
type Schedule func(m Message, now time.Time) time.Time

// Sent is a row that the broker took, to be settled.
type Sent struct {
	Message
	Receipt Receipt
}

// Deferred is a row that stays to be sent later.
type Deferred struct {
	Message
	Wait   time.Duration // from the database's now
	Reason string        // last error; "" when it is only not due yet
	// Refused: the broker refused the row itself. Counts an attempt; an outage never does (I9).
	Refused bool
}

// Early is a time-out message that came before its order was due.
type Early struct {
	OrderNo string
	Hop     int // the message's hop; a row with another hop is left alone (I11)
}

// Envelope is one message as it is handed to a broker.
type Envelope struct {
	Kind      MessageKind
	OrderNo   string // the key to find it by
	MessageID string
	Type      string // event type
	Hop       int
	ExpireAt  time.Time     // time-outs only
	DeliverAt time.Time     // zero: at once
	Delay     time.Duration // DeliverAt as seen from now, for brokers that wait for a time rather than until one
	Body      []byte
}

// Delivery is one message as it comes from a broker.
type Delivery struct {
	Kind    MessageKind
	OrderNo string // as claimed by the message's key
	Body    []byte
	Attempt int // 0 for the first delivery
}

// TimeoutVersion is the schema version of TimeoutBody. Readers are upgraded before writers.
const TimeoutVersion = 1

// TimeoutBody is the body of a time-out message. It stands alone; what it says is a hint, the row decides.
type TimeoutBody struct {
	Version     int       `json:"version"`
	OrderNo     string    `json:"order_no"`
	MessageID   string    `json:"message_id"`
	Hop         int       `json:"hop"`
	ExpireAt    time.Time `json:"expire_at"`
	DeliverAt   time.Time `json:"deliver_at"` // when the broker was asked to hand over this very message
	TraceParent string    `json:"traceparent,omitempty"`
}

// Encode returns the JSON of b.
func (b TimeoutBody) Encode() []byte {
	raw, err := json.Marshal(b)
	if err != nil {
		panic(err) // strings, numbers and times of this millennium always marshal
	}
	return raw
}

// DecodeTimeout reads a time-out message. Anything but a whole body of a known version is Invalid (I12).
func DecodeTimeout(raw []byte) (TimeoutBody, error) {
	var b TimeoutBody
	if err := json.Unmarshal(raw, &b); err != nil {
		return b, Errorf(Invalid, "malformed_message", "the body is not a time-out message").Wrap(err)
	}
	if b.Version != TimeoutVersion {
		return b, Errorf(Invalid, "unknown_version", "time-out message of version %d; this reader knows %d", b.Version, TimeoutVersion).
			WithHint("Upgrade readers before writers.")
	}
	if err := CheckNumber(b.OrderNo); err != nil {
		return b, Errorf(Invalid, "malformed_message", "the message names no order").Wrap(err)
	}
	return b, nil
}

// The CloudEvents types of what is told to the world.
const (
	TypeCancelled       = "cancelled"        // a round of an order was cancelled; what it held is given back
	TypeExpiringSoon    = "expiring_soon"    // a pending order's deadline is near
	TypeExpired         = "expired"          // the deadline has passed, but the order stays payable (Order.SecondChance)
	TypeRestored        = "restored"         // a cancelled order lives again, in a new round
	TypeRefundRequested = "refund_requested" // money that came too late is to be given back
)

// eventSource is the CloudEvents source of all events.
const eventSource = "lapse"

// CancelledData is what a cancelled event says. Version lets a subscriber order the events of one order.
type CancelledData struct {
	OrderNo     string    `json:"order_no"`
	Round       int       `json:"round"`
	Version     int       `json:"version"`
	UserID      string    `json:"user_id"`
	BizType     string    `json:"biz_type"`
	Reason      Reason    `json:"reason"`
	Amount      int64     `json:"amount,string"`
	Currency    string    `json:"currency"`
	ExpireAt    time.Time `json:"expire_at,omitzero"` // absent if it could have been paid for ever
	CancelledAt time.Time `json:"cancelled_at"`
	Items       []Item    `json:"items"`
}

// OrderData is what expiring_soon, expired and restored say: all that a notifier needs to write to the user.
type OrderData struct {
	OrderNo  string    `json:"order_no"`
	Round    int       `json:"round"`
	Version  int       `json:"version"`
	UserID   string    `json:"user_id"`
	BizType  string    `json:"biz_type"`
	Status   string    `json:"status"`
	Amount   int64     `json:"amount,string"`
	Currency string    `json:"currency"`
	ExpireAt time.Time `json:"expire_at,omitzero"` // until when it can be paid now; absent for ever
	Items    []Item    `json:"items"`
}

// RefundData is what refund_requested says. The refund is to be reported as completed.
type RefundData struct {
	PaymentNo string    `json:"payment_no"`
	OrderNo   string    `json:"order_no"`
	UserID    string    `json:"user_id"`
	BizType   string    `json:"biz_type"`
	Amount    int64     `json:"amount,string"`
	Currency  string    `json:"currency"`
	PaidAt    time.Time `json:"paid_at"`
	Status    string    `json:"order_status"` // when the payment came
}

// CloudEvent is the structured JSON form of CloudEvents 1.0 (https://github.com/cloudevents/spec).
type CloudEvent[Data any] struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject"`
	Time            time.Time `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	Data            Data      `json:"data"`
}

func event[Data any](id, eventType, orderNo string, at time.Time, data Data) CloudEvent[Data] {
	return CloudEvent[Data]{
		SpecVersion: "1.0", ID: id, Source: eventSource, Type: eventType, Subject: orderNo, Time: at,
		DataContentType: "application/json", Data: data,
	}
}

// end is the order's deadline as the world is told; zero if it never comes.
func (o Order) end() time.Time {
	if o.ExpireAt.Equal(Never) {
		return time.Time{}
	}
	return o.ExpireAt
}

// CancelledEvent is the one event of a cancelled round (I6): same round, same id, same body.
func CancelledEvent(o Order) CloudEvent[CancelledData] {
	return event(EventID(o.OrderNo, o.Round, TypeCancelled), TypeCancelled, o.OrderNo, o.CancelledAt, CancelledData{
		OrderNo: o.OrderNo, Round: o.Round, Version: o.Version, UserID: o.UserID, BizType: o.BizType,
		Reason: o.CancelReason, Amount: o.Amount, Currency: o.Currency,
		ExpireAt: o.end(), CancelledAt: o.CancelledAt, Items: o.Items,
	})
}

// OrderEvent is an event of type expiring_soon, expired or restored, each at most once a round.
func OrderEvent(eventType string, o Order, now time.Time) CloudEvent[OrderData] {
	return event(EventID(o.OrderNo, o.Round, eventType), eventType, o.OrderNo, now, OrderData{
		OrderNo: o.OrderNo, Round: o.Round, Version: o.Version, UserID: o.UserID, BizType: o.BizType, Status: o.Status.String(),
		Amount: o.Amount, Currency: o.Currency, ExpireAt: o.end(), Items: o.Items,
	})
}

// RefundEvent is the one event that requests the refund of a late payment; o is its order.
func RefundEvent(l LatePayment, o Order, now time.Time) CloudEvent[RefundData] {
	return event(RefundEventID(l.OrderNo, l.PaymentNo), TypeRefundRequested, l.OrderNo, now, RefundData{
		PaymentNo: l.PaymentNo, OrderNo: l.OrderNo, UserID: o.UserID, BizType: o.BizType, Amount: l.Amount, Currency: l.Currency,
		PaidAt: l.PaidAt, Status: l.StateThen.String(),
	})
}

// CancelledMessage is the local message that carries CancelledEvent(o); the caller sets NextAt.
func CancelledMessage(o Order) Message { return NoticeOf(CancelledEvent(o), o.Round) }

// NoticeOf is the local message that carries an event of a round; the caller sets NextAt.
func NoticeOf[Data any](e CloudEvent[Data], round int) Message {
	// Escaped for HTML, an order of the largest size would not fit into a message.
	var body bytes.Buffer
	plain := json.NewEncoder(&body)
	plain.SetEscapeHTML(false)
	if err := plain.Encode(e); err != nil {
		panic(err) // as in TimeoutBody.Encode
	}
	raw := bytes.TrimSuffix(body.Bytes(), []byte("\n"))
	return Message{Key: e.ID, Kind: Notice, OrderNo: e.Subject, Round: round, Type: e.Type, DueAt: e.Time, Payload: raw}
}

// Scheduled is a local message as the timeline shows it.
type Scheduled struct {
	Message
	State     MessageState
	Receipt   Receipt
	LastError string
}

// MessageState is the state of a row of t_local_message. The numbers are stored.
type MessageState uint8

const (
	ToSend      MessageState = 0
	AlreadySent MessageState = 1 // only time-outs: events are deleted once sent
	SetAside    MessageState = 2 // quarantined
	ToAsk       MessageState = 3 // a gateway is to be asked about its order
	ToCall      MessageState = 4 // the owner of its item is to be called
)

// String returns the name used on the API.
func (s MessageState) String() string {
	return [...]string{"to_send", "sent", "quarantined", "to_ask", "to_call"}[s]
}
