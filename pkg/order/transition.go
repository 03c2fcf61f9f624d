package order

// Event is something that happens to an order.
type Event string

const (
	EventCreated        Event = "created"
	EventNothingDue     Event = "nothing_due" // created with nothing to pay
	EventPaymentStarted Event = "payment_started"
	EventPaid           Event = "paid"
	EventReminded       Event = "reminded"   // due, but its business type only reminds, once
	EventConfirming     Event = "confirming" // due or to be cancelled while a payment is in flight
	EventExpired        Event = "expired"
	EventCancelled      Event = "cancelled"
	EventCancelAsked    Event = "cancel_asked" // a wish to cancel that waits for the gateway
	EventExtended       Event = "extended"
	EventRestored       Event = "restored" // pending again, in a new round
	EventReopened       Event = "reopened" // paid, in a new round, by money that had come late
	EventRefunded       Event = "refunded"
	EventArchived       Event = "archived"
)

// Effect is what a transition does to everything that the order holds.
type Effect uint8

const (
	Keep    Effect = iota // held stays held, sold stays sold
	Reserve               // available → held
	Sell                  // held → sold
	Resell                // available → sold
	Release               // held → available
)

// Transition is one line of the state machine.
type Transition struct {
	From   Status
	Event  Event
	To     Status
	Effect Effect
}

// Transitions is the state machine of an order that exists. What it does not list is refused and
// changes nothing. Creation is not in it: an order is born Pending, or Paid when nothing is to be paid.
//
// Partial payment and refund in progress are not events of an order: see docs/states.md.
var Transitions = []Transition{
	{Pending, EventPaymentStarted, Pending, Keep},
	{Pending, EventPaid, Paid, Sell},
	{Pending, EventReminded, Pending, Keep},
	{Pending, EventConfirming, Confirming, Keep},
	{Pending, EventExpired, Cancelled, Release},
	{Pending, EventCancelled, Cancelled, Release},
	{Pending, EventExtended, Pending, Keep},
	{Confirming, EventPaid, Paid, Sell},
	{Confirming, EventExpired, Cancelled, Release},
	{Confirming, EventCancelled, Cancelled, Release},
	{Confirming, EventCancelAsked, Confirming, Keep},
	{Paid, EventRefunded, Closed, Keep},
	{Cancelled, EventRestored, Pending, Reserve},
	{Cancelled, EventReopened, Paid, Resell},
	{Cancelled, EventArchived, Closed, Keep},
}

// Next looks up what event does to an order in state from. An unknown pair is a Conflict that names the
// state.
func Next(from Status, event Event) (Transition, error) {
	for _, t := range Transitions {
		if t.From == from && t.Event == event {
			return t, nil
		}
	}
	return Transition{}, Errorf(Conflict, "state_conflict", "the order is %s: it cannot be %s", from, event.done()).
		WithHint("Read the order; its state decides what may still happen to it.")
}

// done is what an event makes of an order, in words.
func (e Event) done() string {
	switch e {
	case EventPaymentStarted:
		return "paid"
	case EventConfirming:
		return "put in doubt"
	case EventExpired:
		return "closed for its deadline"
	case EventCancelAsked:
		return "cancelled"
	}
	return string(e)
}
