package order

import (
	"slices"
	"time"
)

// PayTimes are how long the payers of one business type took, in whole seconds from the creation of their order.
type PayTimes struct {
	BizType string
	Payers  map[int64]int64 // seconds → payers, those included whose money came too late
	Longest time.Duration   // longest time to pay that any of them had
}

// PayChoice is what a time-out would have meant.
type PayChoice struct {
	Timeout time.Duration
	CutOff  float64 // share of payers that it would have cut off, 0 to 1
}

// PayReport recommends a time-out for one business type.
type PayReport struct {
	BizType            string
	Payers             int64
	P50, P90, P95, P99 time.Duration
	Choices            []PayChoice
	// Recommended is the shortest usual time-out that cuts off at most 1 % of the payers; 0 if there are too few of
	// them to say, or none is long enough.
	Recommended time.Duration
	// Censored: the tail was cut off by the time-out of the day, so real payers are slower than what was seen.
	Censored bool
}

// usualTimeouts are the choices: what shops promise.
var usualTimeouts = []time.Duration{
	time.Minute, 2 * time.Minute, 3 * time.Minute, 5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 20 * time.Minute,
	30 * time.Minute, 45 * time.Minute, time.Hour, 2 * time.Hour, 6 * time.Hour, 12 * time.Hour, 24 * time.Hour, 72 * time.Hour,
}

const (
	// enoughPayers is how many payers a 99th percentile takes: fewer than one in a hundred would decide by one.
	enoughPayers = 200
	mostCutOff   = 0.01
	// nearLongest: a P99 beyond this share of the longest time-out shows a tail that was cut off.
	nearLongest = 0.9
)

// Report summarizes pay times.
func (p PayTimes) Report() PayReport {
	r := PayReport{BizType: p.BizType}
	seconds := make([]int64, 0, len(p.Payers))
	for s, n := range p.Payers {
		seconds = append(seconds, s)
		r.Payers += n
	}
	slices.Sort(seconds)
	r.P50, r.P90 = p.quantile(seconds, r.Payers, .5), p.quantile(seconds, r.Payers, .9)
	r.P95, r.P99 = p.quantile(seconds, r.Payers, .95), p.quantile(seconds, r.Payers, .99)
	for _, timeout := range usualTimeouts {
		choice := PayChoice{timeout, p.cutOff(timeout, r.Payers)}
		r.Choices = append(r.Choices, choice)
		if r.Recommended == 0 && choice.CutOff <= mostCutOff && r.Payers >= enoughPayers {
			r.Recommended = timeout
		}
	}
	r.Censored = float64(r.P99) >= nearLongest*float64(p.Longest)
	return r
}

// quantile is the shortest time within which a share q of all payers had paid.
func (p PayTimes) quantile(seconds []int64, payers int64, q float64) time.Duration {
	var seen int64
	for _, s := range seconds {
		if seen += p.Payers[s]; float64(seen) >= q*float64(payers) {
			return time.Duration(s) * time.Second
		}
	}
	return 0
}

// cutOff is the share of payers who took longer than timeout. Times are whole seconds, rounded up.
func (p PayTimes) cutOff(timeout time.Duration, payers int64) float64 {
	if payers == 0 {
		return 0
	}
	var cut int64
	for s, n := range p.Payers {
		if time.Duration(s)*time.Second > timeout {
			cut += n
		}
	}
	return float64(cut) / float64(payers)
}
