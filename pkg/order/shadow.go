package order

import "time"

// Comparing asks what shadow decisions are worth: those of a time, compared with what another job did close.
type Comparing struct {
	From, To  time.Time     // decided from, and before; zero: all
	Tolerance time.Duration // how much later than the decision the job may close
	Job       string        // who cancels as the job; "" means that every cancellation by staff is the job's
}

// ShadowReport compares what would have been closed with what the existing job did close.
type ShadowReport struct {
	Decided  int64 // would have been closed
	Closed   int64 // closed by the job in that time, while due orders were noted
	Agreed   int64 // closed by the job, and in time
	Early    int64 // closed by the job before their deadline
	Late     int64 // closed by the job later than tolerated
	Missed   int64 // would have been closed, but not closed by the job yet
	Wrong    int64 // would have been closed, but was paid
	Coverage float64
	Examples []ShadowCase // some of each kind that does not agree, at most MaxShadowCases
}

// MaxShadowCases is how many examples a report gives.
const MaxShadowCases = 20

// ShadowCase is one order on which the two do not agree.
type ShadowCase struct {
	OrderNo   string
	Kind      string // early, late, missed or wrong
	ExpireAt  time.Time
	DecidedAt time.Time // zero if nothing was decided
	EndedAt   time.Time // when the job closed it, or it was paid; zero while neither
}
