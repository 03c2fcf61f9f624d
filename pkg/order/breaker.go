package order

import (
	"fmt"
	"math"
	"time"
)

// Cohort is some payment attempts, and how many of them were paid within the time to settle.
type Cohort struct {
	Attempts int64
	Paid     int64
}

// Ratio is the share that was paid; 0 of none.
func (c Cohort) Ratio() float64 {
	if c.Attempts == 0 {
		return 0
	}
	return float64(c.Paid) / float64(c.Attempts)
}

// TripRule says when so few payments come in that their notifications, not the customers, must be missing.
type TripRule struct {
	Attempts int64   // how many of the newest are judged; fewer decide nothing
	Drop     float64 // a ratio of less than this share of the baseline's trips
	Floor    float64 // the least ratio that is ever normal, and all that is known where the baseline has too few attempts
}

// chance is how many standard deviations below the usual number of payments chance does not explain.
const chance = 5

// Threshold is the least ratio that is normal after a baseline. It is 0, and nothing trips, where so few attempts are usually
// paid that none at all may be chance: chance² of those judged.
func (r TripRule) Threshold(baseline Cohort) float64 {
	if baseline.Attempts < r.Attempts || baseline.Ratio() < r.Floor {
		return r.Floor
	}
	usual := baseline.Ratio()
	beyondChance := usual - chance*math.Sqrt(usual/float64(r.Attempts))
	return max(0, min(r.Drop*usual, beyondChance))
}

// Trips says why closing has to stop; "" if it has not.
func (r TripRule) Trips(latest, baseline Cohort) string {
	least := r.Threshold(baseline)
	if latest.Attempts < r.Attempts || latest.Ratio() >= least {
		return ""
	}
	return fmt.Sprintf("only %d of the last %d settled payment attempts were paid in time (%.1f %%, least %.1f %%): are notifications missing?",
		latest.Paid, latest.Attempts, 100*latest.Ratio(), 100*least)
}

// Following is b as what comes after before at now: it knows when the breaker stopped closing, and when closing went on.
func (b Brakes) Following(before Brakes, now time.Time) Brakes {
	switch {
	case before.Tripped == "" && b.Tripped != "":
		b.TrippedAt = now
	case before.Tripped != "" && b.Tripped == "":
		b.ResumedAt = now
	}
	return b
}
