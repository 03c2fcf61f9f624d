package order

import "fmt"

// Cohort is some payment attempts, and how many of their orders have been paid.
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
	Floor    float64 // the least ratio where the baseline has too few attempts
}

// Threshold is the least ratio that is normal after a baseline.
func (r TripRule) Threshold(baseline Cohort) float64 {
	if baseline.Attempts < r.Attempts {
		return r.Floor
	}
	return r.Drop * baseline.Ratio()
}

// Trips says why closing has to stop; "" if it has not.
func (r TripRule) Trips(latest, baseline Cohort) string {
	least := r.Threshold(baseline)
	if latest.Attempts < r.Attempts || latest.Ratio() >= least {
		return ""
	}
	return fmt.Sprintf("only %d of the last %d settled payment attempts were paid (%.1f %%, least %.1f %%): are notifications missing?",
		latest.Paid, latest.Attempts, 100*latest.Ratio(), 100*least)
}
