package order

import "time"

// ReconcileRun is the record of one reconciliation.
type ReconcileRun struct {
	ID       int64
	Owner    string // its process, and a mark that no other run or take-over has
	DryRun   bool   // nothing was mended
	Started  time.Time
	Finished time.Time // zero while it runs
	Looked   int64     // rows looked at
	Found    int64
	Mended   int64
	Error    string    // why it ended early; "" if it did not
	Findings []Finding // the first MaxFindings
	Position Place     // where it stands
}

// MaxFindings is how many findings of a run are kept; all are counted.
const MaxFindings = 1000

// Place is where a reconciliation stands: the walk, and the last key of it that was looked at.
type Place struct {
	Walk string
	Key  string
}

// Mending says how the reconciler is to go about what it finds.
type Mending struct {
	Run      int64  // see ReconcileRun.ID
	Owner    string // see ReconcileRun.Owner: nothing is mended for a run that somebody else goes on with (I10)
	DryRun   bool
	Patience Patience
	Confirm  time.Duration // see Closing.Confirm
	Actor    string
}

// Walked is what one page of a walk has brought. Its findings are in the run's record already.
type Walked struct {
	Looked   int
	Last     string // key to go on after; "" at the end of the walk
	Findings []Finding
	Messages []Message // rows that were written and are to be sent
}

// Finding is one damage in what is stored.
type Finding struct {
	Kind    string
	Subject string // order number, resource or message
	Detail  string
	Action  string // what was done, or would be
	Mended  bool
}
