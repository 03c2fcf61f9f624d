package lifecycle

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// The store's methods are whole transactions. All of them: errors of kind order.Unavailable mean that
// the database could not answer and nothing is known to be written; any other kind is final.

// OrderStore creates and ends orders one step at a time, and reads them.
type OrderStore interface {
	// Create writes drafts, each with its reservations, order log and time-out row, in one transaction.
	// Answers come in the order of drafts. A draft that cannot be made gets Err and costs its
	// neighbours nothing; a draft whose number exists already with the same hash is Repeated, with
	// another hash Err is a Conflict "order_no_taken". Drafts with nothing to pay are Paid at once.
	Create(ctx context.Context, drafts []order.Draft, first order.Schedule) ([]order.Created, error)
	// StartPayment records an attempt, only while the order is payable; the same attempt number again is the
	// same attempt. NotFound also for another user's order; Conflict when it is not payable, when the number
	// belongs to another attempt, and beyond order.MaxAttempts.
	StartPayment(ctx context.Context, a order.Attempting) (order.Attempt, order.Order, error)
	// FailPayment ends an open attempt that brought no money; one that has ended already is returned as it is.
	FailPayment(ctx context.Context, orderNo, attemptNo string) (order.Attempt, error)
	// Pay records a captured payment: it pays a pending or confirming order, or becomes one late-payment case,
	// decided at once where the rule of the order's business type says so. The same payment number again
	// repeats the first answer. NotFound without the order; Invalid if amount or currency differ; Conflict if
	// the payment number belongs to another order. An attempt that nobody has started is no reason to refuse money.
	Pay(ctx context.Context, p order.Payment, rules order.Rules, first order.Schedule) (order.PaymentResult, error)
	// Cancel cancels a pending or confirming order; with a payment in flight it goes to confirming first. Of one
	// that is cancelled already it returns the order and no message. NotFound also for another user's order;
	// Conflict when it is paid or closed.
	Cancel(ctx context.Context, c order.Cancelling, first order.Schedule) (order.Order, []order.Message, error)
	// Restore opens a cancelled order again in a new round: paid by its oldest open case, else pending. Asked
	// again for the same round it returns the order. Conflict when it is not cancelled, or a resource refuses.
	Restore(ctx context.Context, r order.Restoring, first order.Schedule) (order.Restored, error)
	// Extend moves the deadline of the order that e names; Conflict when it is not pending.
	Extend(ctx context.Context, e order.Extending, first order.Schedule) (order.Extended, error)
	// ExtendPage moves the deadlines of a page of at most limit of the pending orders that e is about, from a
	// position on; those that may not be moved so far are left out.
	ExtendPage(ctx context.Context, e order.Extending, from order.Position, limit int, first order.Schedule) (order.Extended, error)
	// Decide settles an open late-payment case. Conflict when it is not open, or cannot be reopened.
	Decide(ctx context.Context, d order.Deciding, first order.Schedule) (order.LatePayment, []order.Message, error)
	// Refund records that a refund was completed: of a case whose refund was requested, or of a paid order, which
	// is closed. The same again returns the same. NotFound without the payment; Conflict when nothing is to be refunded,
	// and when the number of the refund belongs to another payment.
	Refund(ctx context.Context, r order.Refunding, rules order.Rules) (order.Order, error)
	// Acknowledge notes that a remote service has given back what a cancelled round held of a kind. The same again
	// changes nothing. NotFound without such a release.
	Acknowledge(ctx context.Context, orderNo string, round int, kind string) error
	// Archive closes a cancelled order that was cancelled at least retention ago; Conflict before, and when it is not
	// cancelled. One that is archived already is returned as it is.
	Archive(ctx context.Context, orderNo string, retention time.Duration, act order.Act) (order.Order, error)
	// Adjust changes a resource once per adjustment id and makes it if need be. Conflict if it would
	// go below zero or the id was used for another change.
	Adjust(ctx context.Context, a order.Adjustment) (order.Resource, error)

	Get(ctx context.Context, orderNo string) (o order.Order, now time.Time, err error)
	// List returns a user's orders, newest first, and the cursor of the next page ("" at the end).
	List(ctx context.Context, userID string, size int, cursor string) (orders []order.Order, next string, now time.Time, err error)
	// Timeline returns an order's transitions, oldest first, and its scheduled messages.
	Timeline(ctx context.Context, orderNo string) ([]order.LogEntry, []order.Scheduled, error)
	// Attempts returns an order's payment attempts, oldest first.
	Attempts(ctx context.Context, orderNo string) ([]order.Attempt, error)
	// Payments returns an order's captured payments, and the cases of those that it could not take, each oldest first.
	Payments(ctx context.Context, orderNo string) ([]order.KeptPayment, []order.LatePayment, error)
	// LatePayments returns cases of a status ("" for all), oldest first, and the cursor of the next page.
	LatePayments(ctx context.Context, status order.LateStatus, size int, cursor string) (cases []order.LatePayment, next string, err error)
	Resource(ctx context.Context, kind, ref string) (order.Resource, error)
}

// CloseStore closes orders whose deadline has passed.
type CloseStore interface {
	QuarantineStore
	// CloseDue cancels, in one transaction, those of c.OrderNos that are pending and due by the database
	// clock (I1, I2), gives back what they hold (I5), and writes one event row each (I6). Those with a payment in
	// flight become confirming instead, those with a second chance are reminded, and those that the brakes keep
	// stay as they are (I15). What is not in the answer was not due, not pending, not there, or locked by others.
	CloseDue(ctx context.Context, c order.Closing, first order.Schedule) (order.ClosedBatch, error)
	// Look reads orders without locks and without items; unknown numbers are left out.
	Look(ctx context.Context, orderNos []string) (orders []order.Order, now time.Time, err error)
	// Remind writes the event order.TypeExpiringSoon for those of the orders whose reminder is due and that are
	// still payable, once each, takes their time-out rows to the next hop, and returns all rows to be sent.
	Remind(ctx context.Context, orderNos []string, next order.Schedule) ([]order.Message, error)
	// Postpone makes the time-out rows whose hop is the message's ready for their next hop, in one
	// transaction, and returns them; others are left alone.
	Postpone(ctx context.Context, early []order.Early, next order.Schedule) ([]order.Message, error)
	// Ripen makes those of the numbers that are adopted items, and due (I2), ready for their owners to be called, in one
	// transaction. Numbers that are in none of its answers are no items.
	Ripen(ctx context.Context, nos []string) (order.Ripened, error)
}

// ConfirmStore is for orders whose payment is in doubt.
type ConfirmStore interface {
	QuarantineStore
	// ClaimDoubtful leases up to limit confirming orders that are to be asked about, with their attempts in flight.
	// wake is when the next one is to be asked about; zero if there is none.
	ClaimDoubtful(ctx context.Context, limit int, lease time.Duration) (doubtful []order.InDoubt, now, wake time.Time, err error)
	// Confirm applies what the gateway has shown, in one transaction. Captured money is taken like any payment. The
	// rest is fenced by the row's lease (I10): without an attempt in flight the order is cancelled, unless the brakes
	// keep it (I15); at its confirm deadline it ends as end says; else it is asked about again after wait, or sooner
	// if that can end it. A captured payment that is refused, as by Pay, is the error, and nothing is written.
	Confirm(ctx context.Context, v order.Verdict, end order.ConfirmEnd, wait time.Duration, rules order.Rules, first order.Schedule) (order.Confirmed, error)
}

// Gateway asks a payment channel. It never guesses: whatever is not an explicit answer is an error of kind Unavailable.
// It is used by many at once, and gives up when ctx ends.
type Gateway interface {
	// Query says how the bill of an attempt stands.
	Query(ctx context.Context, a order.Attempt) (order.Bill, error)
	// Close asks for the bill to be closed and says how it stands then: BillClosed is the channel's word that nobody
	// can pay it any more.
	Close(ctx context.Context, a order.Attempt) (order.Bill, error)
}

// BackfillStore schedules what its owners have open.
type BackfillStore interface {
	// Backfill schedules those of items that are not scheduled, in one transaction, and returns their number. An item
	// that is scheduled already keeps its deadline, which may be younger.
	Backfill(ctx context.Context, items []order.Adopted) (added int, err error)
}

// ItemStore keeps the deadlines of adopted items.
type ItemStore interface {
	Now(ctx context.Context) (time.Time, error)
	// ClaimRipe leases up to limit items whose owners are to be called; those that the brakes keep are not among them
	// (I15). wake is when the next one is to be called about; zero if there is none.
	ClaimRipe(ctx context.Context, limit int, lease time.Duration) (ripe []order.Ripe, now, wake time.Time, err error)
	// PutOff gives items back whose owners were not called: they are claimed again after wait. Guarded by their lease (I10).
	PutOff(ctx context.Context, ripe []order.Ripe, wait time.Duration, why string) error
	// Answered applies what came of calling an item's owner, in one transaction, fenced by the row's lease (I10): an item
	// that has ended is forgotten, one that is due later is scheduled, and of any other the owner is called again after
	// a.Wait. It returns the row to be sent, if there is one.
	Answered(ctx context.Context, a order.Asked, first order.Schedule) ([]order.Message, error)
	// Overdue makes those of items that are due, and of which their owners are not being called, ready for that, in one
	// transaction, and returns their number. Deadlines are the owner's. Items that others have locked are left out.
	Overdue(ctx context.Context, items []order.Adopted) (ripened int, err error)
	// Unanswered counts items whose owners were called at least so many times without an answer; 100,000 also means more.
	Unanswered(ctx context.Context, attempts int) (int64, error)
	// The lease of order.AdoptedShard is that of the search for what is overdue.
	AcquireShard(ctx context.Context, shard int, owner string, lease, interval time.Duration) (order.Lease, bool, error)
	RenewLease(ctx context.Context, l order.Lease, lease time.Duration) (order.Lease, bool, error)
	ReleaseShard(ctx context.Context, l order.Lease) error
}

// Hook calls the owners of adopted items. Its calls end when their context does.
type Hook interface {
	// Close asks the owner to close an item if it is open and due, and says how it stands then. Calls are repeated: the
	// owner's condition makes it happen once. Whatever is not an explicit answer is an error.
	Close(ctx context.Context, a order.Adopted) (order.Answer, error)
	// Due lists open items whose deadline is before a time, in an order that does not change, and the cursor to go on
	// with; "" at the end.
	Due(ctx context.Context, before time.Time, after string, limit int) (items []order.Adopted, next string, err error)
}

// MessageStore is the relay's side of the local messages.
type MessageStore interface {
	// Claim leases up to limit rows of a kind that are to be sent and due: their NextAt becomes now + lease.
	// wake is the NextAt of the earliest row that is not due yet; zero if there is none.
	Claim(ctx context.Context, kind order.MessageKind, limit int, lease time.Duration) (rows []order.Message, now, wake time.Time, err error)
	// Settle marks time-out rows as sent and deletes event rows, stamping their order-log entry, in one
	// transaction. Rows whose hop or NextAt is not the given one, and rows whose lease has run out, are
	// left alone (I10).
	Settle(ctx context.Context, sent []order.Sent) error
	// Defer gives rows back: NextAt becomes now + Wait. A row refused maxAttempts times is quarantined
	// (state and t_quarantine); their number is returned. Guarded like Settle.
	Defer(ctx context.Context, rows []order.Deferred, maxAttempts int) (quarantined int, err error)
	// Backlog counts what is due and not sent.
	Backlog(ctx context.Context) (order.Backlog, error)
}

// SweepStore is the compensator's side.
type SweepStore interface {
	CloseStore
	// AcquireShard takes a shard's lease if nobody holds it and its last pass ended at least interval ago.
	AcquireShard(ctx context.Context, shard int, owner string, lease, interval time.Duration) (order.Lease, bool, error)
	// RenewLease prolongs a lease that still holds; false if it does not.
	RenewLease(ctx context.Context, l order.Lease, lease time.Duration) (order.Lease, bool, error)
	// ReleaseShard ends a pass: the lease becomes free, and the next pass is due after the interval.
	ReleaseShard(ctx context.Context, l order.Lease) error
	// ScanDue reads up to limit pending orders of a shard that have been due for longer than overdue,
	// after the cursor. The answer may come from a replica and be stale.
	ScanDue(ctx context.Context, shard int, overdue time.Duration, after order.Cursor, limit int) ([]order.DueOrder, error)
	// StartRun records the start of a run and returns it; it also decides whether the replica is fresh
	// enough to scan.
	StartRun(ctx context.Context, owner, kind string) (order.SweepRun, error)
	// FinishRun records the end of a run and sets it in r.
	FinishRun(ctx context.Context, r *order.SweepRun) error
}

// Sender hands messages to a broker.
type Sender interface {
	// Step returns when the broker would hand over a message sent now that is due at due: due itself if
	// it can wait that long, an earlier time if it has to go in steps, now or earlier if it cannot wait
	// at all. Such a message stays in the table until it is due.
	Step(now, due time.Time) time.Time
	// Send returns once the broker has taken the message. Unavailable: the broker is out of reach;
	// Invalid: it refused this message and will refuse it again.
	Send(ctx context.Context, e order.Envelope) (order.Receipt, error)
}
