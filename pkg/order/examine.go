package order

import (
	"fmt"
	"time"
)

// The kinds of damage that the reconciler finds.
const (
	OverduePending       = "overdue_pending"        // due, but nobody closed it
	ConfirmingStuck      = "confirming_stuck"       // beyond its confirm deadline, but nobody asks or decides
	TimeoutMissing       = "timeout_missing"        // pending or confirming without its time-out row
	ReleaseMissing       = "release_missing"        // cancelled without giving everything back
	ReleaseWithoutCancel = "release_without_cancel" // gave back without being cancelled
	EventMissing         = "event_missing"          // cancelled, but nobody was or will be told
	Unacknowledged       = "release_unacknowledged" // a remote service has not said that it gave back
	CountersDiffer       = "counters_differ"        // a resource's counters are not what the ledger says
	MessageStuck         = "message_stuck"          // a message that nobody will send, or that nobody needs
	LateCaseOpen         = "late_case_open"         // late money whose case does not go on
)

// FindingKinds are all of them.
var FindingKinds = []string{
	OverduePending, ConfirmingStuck, TimeoutMissing, ReleaseMissing, ReleaseWithoutCancel, EventMissing, Unacknowledged,
	CountersDiffer, MessageStuck, LateCaseOpen,
}

// Patience is how long things may take before the reconciler minds.
type Patience struct {
	Overdue time.Duration // of anything that should happen at once; 0 means 10 min
	Ack     time.Duration // of a remote release's acknowledgement, and between two reminders of it; 0 means 24 h
	Case    time.Duration // of a late-payment case that waits for a person or a refund; 0 means 72 h
}

// WithDefaults fills in the documented defaults.
func (p Patience) WithDefaults() Patience {
	if p.Overdue == 0 {
		p.Overdue = 10 * time.Minute
	}
	if p.Ack == 0 {
		p.Ack = 24 * time.Hour
	}
	if p.Case == 0 {
		p.Case = 72 * time.Hour
	}
	return p
}

// Entry is one row of the ledger of an order.
type Entry struct {
	Round   int
	Op      Op
	Item    Item
	At      time.Time
	AckedAt time.Time // of remote releases; zero if it has not been acknowledged
}

// Facts are all that is stored about one order.
type Facts struct {
	Order
	Log      []LogEntry
	Ledger   []Entry
	Messages []Scheduled
}

// Suspicion is one damage of an order: in which round, and of which things.
type Suspicion struct {
	Kind   string
	Round  int
	Items  []Item
	Detail string
}

// Examine finds what is wrong with an order at now.
func (f Facts) Examine(now time.Time, p Patience) []Suspicion {
	var found []Suspicion
	add := func(kind string, round int, items []Item, format string, args ...any) {
		found = append(found, Suspicion{kind, round, items, fmt.Sprintf(format, args...)})
	}
	timeout, scheduled := f.timeoutRow()
	switch {
	case (f.Status == Pending || f.Status == Confirming) && !scheduled:
		add(TimeoutMissing, f.Round, nil, "%s without a time-out row", f.Status)
	case f.Status == Pending && !f.ExpireAt.After(now.Add(-p.Overdue)):
		add(OverduePending, f.Round, nil, "due since %s", f.ExpireAt.Format(time.RFC3339))
	case f.Status == Confirming && !f.ConfirmUntil.After(now.Add(-p.Overdue)) && timeout.State != SetAside && timeout.lags(now, p):
		add(ConfirmingStuck, f.Round, nil, "to be decided by %s", f.ConfirmUntil.Format(time.RFC3339))
	}
	cancelled := f.cancellations()
	for round, entry := range cancelled {
		if missing := f.unreleased(round); len(missing) > 0 {
			add(ReleaseMissing, round, missing, "round %d was cancelled, but %s were not given back", round, itemList(missing))
		}
		told := f.told(round)
		if entry.EventSentAt.IsZero() && !told {
			add(EventMissing, round, nil, "round %d was cancelled, and nobody told", round)
		}
		if silent := f.unacknowledged(round); len(silent) > 0 && !told && !entry.EventSentAt.IsZero() && entry.EventSentAt.Before(now.Add(-p.Ack)) {
			add(Unacknowledged, round, silent, "round %d: %s were not acknowledged", round, itemList(silent))
		}
	}
	for _, e := range f.Ledger {
		if _, ok := cancelled[e.Round]; e.Op == OpRelease && !ok {
			add(ReleaseWithoutCancel, e.Round, []Item{e.Item}, "round %d gave back %s, but was not cancelled", e.Round, itemList([]Item{e.Item}))
		}
	}
	return found
}

// lags reports whether nobody has looked at a row that is due for longer than patience allows.
func (s Scheduled) lags(now time.Time, p Patience) bool {
	return s.State == AlreadySent || s.NextAt.Before(now.Add(-p.Overdue))
}

func (f Facts) timeoutRow() (row Scheduled, found bool) {
	for _, m := range f.Messages {
		if m.Kind == Timeout {
			return m, true
		}
	}
	return Scheduled{}, false
}

// cancellations are the log entries of cancelled rounds.
func (f Facts) cancellations() map[int]LogEntry {
	rounds := map[int]LogEntry{}
	for _, e := range f.Log {
		if e.To == Cancelled && e.From != Cancelled {
			rounds[e.Round] = e
		}
	}
	return rounds
}

// unreleased are the things that a cancelled round reserved and did not give back.
func (f Facts) unreleased(round int) []Item {
	released := map[Item]int64{}
	for _, e := range f.Ledger {
		if e.Round == round && e.Op == OpRelease {
			released[thing(e.Item)] += e.Item.Quantity
		}
	}
	var missing []Item
	for _, e := range f.Ledger {
		if e.Round == round && e.Op == OpReserve && released[thing(e.Item)] == 0 {
			missing = append(missing, e.Item)
		}
	}
	return missing
}

// thing is an item without its quantity.
func thing(it Item) Item { return Item{Kind: it.Kind, Ref: it.Ref} }

// told reports whether the cancelled event of a round is still to be sent.
func (f Facts) told(round int) bool {
	for _, m := range f.Messages {
		if m.Key == EventID(f.OrderNo, round, TypeCancelled) {
			return true
		}
	}
	return false
}

func (f Facts) unacknowledged(round int) []Item {
	var silent []Item
	for _, e := range f.Ledger {
		if e.Round == round && e.Op == OpRelease && e.Item.Remote && e.AckedAt.IsZero() {
			silent = append(silent, e.Item)
		}
	}
	return silent
}

// Cancellation is the order as it was when a round was cancelled: what its event tells.
func (f Facts) Cancellation(round int) (Order, bool) {
	entry, ok := f.cancellations()[round]
	if !ok {
		return Order{}, false
	}
	o := f.Order
	o.Round, o.Version, o.Status, o.CancelReason, o.CancelledAt = round, entry.Version, Cancelled, Reason(entry.Reason), entry.At
	if !entry.ExpireAt.IsZero() {
		o.ExpireAt = entry.ExpireAt
	}
	o.Items = nil
	forfeited := map[Item]bool{}
	for _, e := range f.Ledger {
		if e.Round == round && e.Op == OpForfeit {
			forfeited[thing(e.Item)] = true
		}
	}
	for _, e := range f.Ledger {
		if e.Round == round && e.Op == OpRelease {
			it := e.Item
			it.Forfeited = forfeited[thing(it)]
			o.Items = append(o.Items, it)
		}
	}
	return o, true
}

func itemList(items []Item) string {
	text := ""
	for i, it := range items {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%d %s %q", it.Quantity, it.Kind, it.Ref)
	}
	return text
}

// Stuck reports whether a case has to be seen to at now: a policy that was not followed, or one that has waited for too
// long, for a person or for a refund, since somebody was told of it last.
func (l LatePayment) Stuck(now time.Time, p Patience) bool {
	overdue := func(since time.Time, patience time.Duration) bool { return since.Before(now.Add(-patience)) }
	switch {
	case l.Status == LateOpen && l.Policy != LateManual:
		return overdue(l.CreatedAt, p.Overdue)
	case l.Status == LateOpen:
		return l.ChangedAt.IsZero() && overdue(l.CreatedAt, p.Case)
	case l.Status == LateAsked:
		return overdue(l.ChangedAt, p.Case)
	}
	return false
}
