package order

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestTheBreakerTripsOnMissingPaymentsAndOnNothingElse(t *testing.T) {
	rule := TripRule{Attempts: 100, Drop: .3, Floor: .05}
	for name, c := range map[string]struct {
		latest, baseline Cohort
		trips            bool
	}{
		"nothing is paid any more":                 {Cohort{100, 0}, Cohort{1000, 600}, true},
		"a tenth of the usual is paid":             {Cohort{500, 30}, Cohort{1000, 600}, true},
		"just less than the threshold":             {Cohort{1000, 179}, Cohort{1000, 600}, true},
		"just the threshold":                       {Cohort{1000, 180}, Cohort{1000, 600}, false},
		"as usual":                                 {Cohort{100, 58}, Cohort{1000, 600}, false},
		"a rush that is paid as usual":             {Cohort{20_000, 11_500}, Cohort{1000, 600}, false},
		"a rush of the curious":                    {Cohort{20_000, 6000}, Cohort{1000, 600}, false},
		"too few attempts to say":                  {Cohort{99, 0}, Cohort{1000, 600}, false},
		"at night":                                 {Cohort{3, 0}, Cohort{20, 12}, false},
		"no baseline, and nothing is paid":         {Cohort{100, 0}, Cohort{}, true},
		"no baseline, and little is paid":          {Cohort{100, 5}, Cohort{}, false},
		"a baseline that is too small to be one":   {Cohort{100, 6}, Cohort{10, 10}, false},
		"nothing at all":                           {Cohort{}, Cohort{}, false},
		"few are usually paid, which is chance":    {Cohort{100, 0}, Cohort{1000, 240}, false},
		"enough are paid for none to be no chance": {Cohort{100, 0}, Cohort{1000, 260}, true},
		"the outage is older than the baseline":    {Cohort{100, 0}, Cohort{1000, 0}, true},
	} {
		why := rule.Trips(c.latest, c.baseline)
		if (why != "") != c.trips {
			t.Errorf("%s: %q", name, why)
		}
		if why != "" && !strings.Contains(why, "settled payment attempts were paid") {
			t.Errorf("%s does not say why: %q", name, why)
		}
	}
}

func TestBrakesKnowWhenTheBreakerStoppedAndWhenClosingWentOn(t *testing.T) {
	at := time.Date(2026, 11, 11, 20, 0, 0, 0, time.UTC)
	free, tripped := Brakes{Mode: ModeEnforce}, Brakes{Mode: ModeEnforce, Tripped: "few payments", TrippedAt: at, Normal: .2}
	resumed := Brakes{Mode: ModeEnforce, ResumedAt: at}
	for name, c := range map[string]struct{ before, after, want Brakes }{
		"it trips":              {free, Brakes{Mode: ModeEnforce, Tripped: "few payments", Normal: .2}, tripped},
		"it lets go":            {tripped, tripped.Resumed(), resumed},
		"it stays tripped":      {tripped, tripped, tripped},
		"nothing has happened":  {free, free, free},
		"it had let go earlier": {resumed, resumed, resumed},
	} {
		now := at
		if c.before.Tripped == c.after.Tripped {
			now = at.Add(time.Hour)
		}
		if got := c.after.Following(c.before, now); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
