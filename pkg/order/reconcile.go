package order

import "time"

// ReconcileRun is the record of one reconciliation.
type ReconcileRun struct {
	ID       int64
	Owner    string
	DryRun   bool // nothing was mended
	Started  time.Time
	Finished time.Time // zero while it runs
	Looked   int64     // rows looked at
	Found    int64
	Mended   int64
	Error    string // why it ended early; "" if it did not
	Findings []Finding
}

// Finding is one damage in what is stored.
type Finding struct {
	Kind    string
	Subject string // order number, resource or message
	Detail  string
	Action  string // what was done, or would be
	Mended  bool
}
