package order

import "time"

// Closing asks for a set of orders to be closed in one transaction.
type Closing struct {
	OrderNos []string
	Reason   Reason
	Actor    string
	// Confirm is how long an order whose payment is in flight is waited for; 0 means that there is nobody to ask.
	Confirm time.Duration
	// Lease: if set, the transaction commits only while it holds (I10).
	Lease *Lease
}

// ClosedBatch is what a closing transaction did.
type ClosedBatch struct {
	Now      time.Time // database clock, read in the transaction before it closed anything
	Closed   []Lapsed
	Doubtful int       // orders that are confirming now
	Reminded int       // orders that got their second chance
	Off      bool      // closing is off or has tripped: no order is closed, whichever it is
	Braked   []string  // orders that are due, but that the brakes keep: nothing is to be tried again
	Messages []Message // the rows that it wrote and that are to be sent
}

// Lease is the right of one owner to sweep one shard until a time of the database clock.
type Lease struct {
	Shard int
	Owner string
	Token int64 // fencing token; grows with every acquisition
	Until time.Time
}

// Cursor is a position in the due orders of a shard.
type Cursor struct {
	ExpireAt time.Time
	ID       int64
}

// DueOrder is one order that a scan found.
type DueOrder struct {
	Cursor
	OrderNo string
}

// SweepRun is the record of one run of the compensator.
type SweepRun struct {
	ID       int64
	Owner    string
	Kind     string // "round" or "now"
	Started  time.Time
	Finished time.Time
	Shards   int
	Looked   int // rows the scans returned
	Closed   int
	Failed   int // orders that could not be closed; they back off
	Braked   int // orders that are due, but that the brakes keep; not recorded
	Error    string
}

// Backlog is what waits for the relay, for the gateway and for people.
type Backlog struct {
	Rows        int64         // local messages that are due and not sent; 100,000 also means more
	Age         time.Duration // how long the oldest of them has been due
	Quarantined int64         // rows of t_quarantine
	Doubtful    int64         // confirming orders that the gateway is asked about; 100,000 also means more
	Held        int64         // confirming orders that wait for a person; 10,000 also means more
	LateOpen    int64         // late-payment cases that wait for a decision; 100,000 also means more
}

// Quarantined is an input that was set aside for a human.
type Quarantined struct {
	ID      int64
	Source  string // "timeout", "relay", "payment", "close", "confirm"
	OrderNo string
	Reason  string
	Body    []byte
	At      time.Time
}
