package order

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// The kinds of damage that the reconciler finds, those of orders in the order in which they are mended.
const (
	CancelUnlogged       = "cancel_unlogged"        // cancelled, but its log does not say so
	ReleaseWithoutCancel = "release_without_cancel" // gave back without being cancelled, or more than it had
	ReleaseMissing       = "release_missing"        // cancelled without giving everything back
	EventMissing         = "event_missing"          // cancelled, but nobody was or will be told
	Unacknowledged       = "release_unacknowledged" // a remote service has not said that it gave back
	TimeoutMissing       = "timeout_missing"        // pending or confirming without its time-out row
	OverduePending       = "overdue_pending"        // due, but nobody closed it
	ConfirmingStuck      = "confirming_stuck"       // beyond its confirm deadline, but nobody asks or decides
	LateCaseOpen         = "late_case_open"         // late money whose case does not go on
	MessageStuck         = "message_stuck"          // a message that nobody will send, or that nobody needs
	CountersDiffer       = "counters_differ"        // a resource's counters are not what the ledger says
)

// FindingKinds are all of them.
var FindingKinds = []string{
	CancelUnlogged, ReleaseWithoutCancel, ReleaseMissing, EventMissing, Unacknowledged, TimeoutMissing, OverduePending, ConfirmingStuck,
	LateCaseOpen, MessageStuck, CountersDiffer,
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
	Braked   bool // the brakes keep it: that it is due is no damage
}

// Suspicion is one damage of an order: in which round, and of which things. There is at most one of a kind in a round.
type Suspicion struct {
	Kind   string
	Round  int
	Items  []Item // with the quantities that are wrong
	Detail string
}

// Examine finds what is wrong with an order at now. What comes first is to be mended first: an event tells what the ledger
// says, and an order can be closed only while its ledger is sound.
func (f Facts) Examine(now time.Time, p Patience) []Suspicion {
	return slices.Concat(f.examineLedger(), f.examineTelling(now, p), f.examineWaiting(now, p))
}

func (f Facts) examineLedger() (found []Suspicion) {
	cancelled := f.cancellations()
	if f.unlogged() {
		found = append(found, Suspicion{CancelUnlogged, f.Round, nil, fmt.Sprintf("round %d is cancelled, but its log does not say so", f.Round)})
	}
	short, over := map[int][]Item{}, map[int][]Item{}
	for round, things := range f.holdings() {
		_, given := cancelled[round]
		for _, h := range things {
			owed := -h.released
			if given {
				owed += h.kept
			}
			it := h.item
			switch {
			case owed > 0:
				it.Quantity = owed
				short[round] = append(short[round], it)
			case owed < 0:
				it.Quantity = -owed
				over[round] = append(over[round], it)
			}
		}
	}
	for round := 1; round <= f.Round; round++ {
		if items := over[round]; items != nil {
			found = append(found, Suspicion{ReleaseWithoutCancel, round, items, fmt.Sprintf("round %d gave back %s without reason", round, itemList(items))})
		}
		if items := short[round]; items != nil {
			found = append(found, Suspicion{ReleaseMissing, round, items, fmt.Sprintf("round %d was cancelled, but %s were not given back", round, itemList(items))})
		}
	}
	return found
}

// holding is what one round did with one thing.
type holding struct {
	item     Item
	kept     int64 // reserved and not sold
	released int64
}

// holdings are what each round did, in the order of things.
func (f Facts) holdings() map[int][]holding {
	rounds := map[int][]holding{}
	for _, e := range f.Ledger {
		if e.Op != OpReserve && e.Op != OpSell && e.Op != OpRelease {
			continue
		}
		things := rounds[e.Round]
		i := slices.IndexFunc(things, func(h holding) bool { return CompareItems(h.item, e.Item) == 0 })
		if i < 0 {
			i, things = len(things), append(things, holding{item: e.Item})
		}
		switch e.Op {
		case OpReserve:
			things[i].kept += e.Item.Quantity
		case OpSell:
			things[i].kept -= e.Item.Quantity
		default:
			things[i].released += e.Item.Quantity
		}
		rounds[e.Round] = things
	}
	return rounds
}

func (f Facts) examineTelling(now time.Time, p Patience) (found []Suspicion) {
	cancelled := f.cancellations()
	for round := 1; round <= f.Round; round++ {
		entry, ok := cancelled[round]
		if !ok || f.told(round) {
			continue
		}
		silent := f.unacknowledged(round)
		switch {
		case entry.EventSentAt.IsZero():
			found = append(found, Suspicion{EventMissing, round, nil, fmt.Sprintf("round %d was cancelled, and nobody told", round)})
		case len(silent) > 0 && entry.EventSentAt.Before(now.Add(-p.Ack)):
			found = append(found, Suspicion{Unacknowledged, round, silent, fmt.Sprintf("round %d: %s were not acknowledged", round, itemList(silent))})
		}
	}
	return found
}

func (f Facts) examineWaiting(now time.Time, p Patience) (found []Suspicion) {
	if f.Status != Pending && f.Status != Confirming {
		return nil
	}
	row, scheduled := f.timeoutRow()
	if !scheduled {
		found = append(found, Suspicion{TimeoutMissing, f.Round, nil, fmt.Sprintf("%s without a time-out row", f.Status)})
	}
	latest := now.Add(-p.Overdue)
	asked := row.State == SetAside || row.State == ToAsk && !row.NextAt.Before(latest)
	switch {
	case f.Status == Pending && !f.Braked && !f.ExpireAt.After(latest):
		found = append(found, Suspicion{OverduePending, f.Round, nil, "due since " + f.ExpireAt.Format(time.RFC3339)})
	case f.Status == Confirming && scheduled && !asked && !f.ConfirmUntil.After(latest):
		found = append(found, Suspicion{ConfirmingStuck, f.Round, nil, "to be decided by " + f.ConfirmUntil.Format(time.RFC3339)})
	}
	return found
}

func (f Facts) timeoutRow() (row Scheduled, found bool) {
	for _, m := range f.Messages {
		if m.Kind == Timeout {
			return m, true
		}
	}
	return Scheduled{}, false
}

// cancellations are the log entries of cancelled rounds, and the one that the log may lack: the row decides.
func (f Facts) cancellations() map[int]LogEntry {
	rounds := f.logged()
	if e, ok := f.Unlogged(); ok {
		rounds[e.Round] = e
	}
	return rounds
}

func (f Facts) logged() map[int]LogEntry {
	rounds := map[int]LogEntry{}
	for _, e := range f.Log {
		if e.To == Cancelled && e.From != Cancelled {
			rounds[e.Round] = e
		}
	}
	return rounds
}

// unlogged reports whether the order is cancelled without an entry that says so.
func (f Facts) unlogged() bool {
	_, logged := f.logged()[f.Round]
	return f.Status == Cancelled && !logged
}

// Unlogged is the entry that the log of a cancelled order lacks; false if it lacks none, or if what it says came before
// cannot be cancelled: money may be at stake.
func (f Facts) Unlogged() (LogEntry, bool) {
	if !f.unlogged() || len(f.Log) == 0 {
		return LogEntry{}, false
	}
	last := f.Log[len(f.Log)-1]
	next, err := Next(last.To, EventCancelled)
	if err != nil || last.Round != f.Round {
		return LogEntry{}, false
	}
	return LogEntry{OrderNo: f.OrderNo, Version: last.Version + 1, Round: f.Round, From: next.From, To: next.To, Event: next.Event,
		Reason: string(cmp.Or(f.CancelReason, ReasonManual)), At: f.CancelledAt, ExpireAt: f.ExpireAt}, true
}

// thing is an item without its quantity.
func thing(it Item) Item { return Item{Kind: it.Kind, Ref: it.Ref} }

// Forfeits reports whether a round has an entry that something of it was forfeited.
func (f Facts) Forfeits(round int, it Item) bool {
	return slices.ContainsFunc(f.Ledger, func(e Entry) bool { return e.Round == round && e.Op == OpForfeit && thing(e.Item) == thing(it) })
}

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
	for _, e := range f.Ledger {
		if e.Round == round && e.Op == OpRelease {
			it := e.Item
			it.Forfeited = f.Forfeits(round, it)
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
