package order

import (
	"testing"
	"time"
)

// evenly are payers who took 1, 2, … n seconds.
func evenly(n int64) map[int64]int64 {
	payers := map[int64]int64{}
	for s := int64(1); s <= n; s++ {
		payers[s] = 1
	}
	return payers
}

func TestPercentilesAreTheTimesWithinWhichThatShareHadPaid(t *testing.T) {
	r := PayTimes{BizType: "retail", Payers: evenly(1000), Longest: time.Hour}.Report()
	if r.Payers != 1000 || r.P50 != 500*time.Second || r.P90 != 900*time.Second || r.P95 != 950*time.Second || r.P99 != 990*time.Second {
		t.Errorf("%+v", r)
	}
	if r.Censored {
		t.Error("nobody was cut off")
	}
}

func TestTheRecommendedTimeoutIsTheShortestThatCutsOffOneInAHundredAtMost(t *testing.T) {
	r := PayTimes{Payers: evenly(1000), Longest: time.Hour}.Report()
	if r.Recommended != 20*time.Minute {
		t.Errorf("recommended %v", r.Recommended)
	}
	want := map[time.Duration]float64{5 * time.Minute: .7, 10 * time.Minute: .4, 15 * time.Minute: .1, 20 * time.Minute: 0}
	for _, c := range r.Choices {
		if share, ok := want[c.Timeout]; ok && share != c.CutOff {
			t.Errorf("%v cuts off %v", c.Timeout, c.CutOff)
		}
	}
}

func TestAPayerAtTheVeryTimeoutIsNotCutOff(t *testing.T) {
	r := PayTimes{Payers: map[int64]int64{60: 1}, Longest: time.Hour}.Report()
	if r.Choices[0].Timeout != time.Minute || r.Choices[0].CutOff != 0 {
		t.Errorf("%+v", r.Choices[0])
	}
}

func TestTooFewPayersRecommendNothing(t *testing.T) {
	if r := (PayTimes{Payers: evenly(enoughPayers - 1), Longest: time.Hour}).Report(); r.Recommended != 0 {
		t.Errorf("recommended %v", r.Recommended)
	}
	if r := (PayTimes{Longest: time.Hour}).Report(); r.Recommended != 0 || r.P99 != 0 || r.Censored {
		t.Errorf("%+v", r)
	}
}

func TestATailThatTheTimeoutCutOffIsSaid(t *testing.T) {
	if r := (PayTimes{Payers: evenly(300), Longest: 5 * time.Minute}).Report(); !r.Censored {
		t.Errorf("%+v", r)
	}
}
