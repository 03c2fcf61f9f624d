package sim

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// traceLines is how many lines of a trace are shown.
const traceLines = 120

// explain says how a world came to break a promise: by as few steps as a short search finds.
func explain(t *testing.T, seed uint64, r result) string {
	without, shortest := shrink(t, seed, r)
	return fmt.Sprintf("seed %d: %v\nAgain: go test ./test/sim -run TestSim -seeds=1 -start=%d -steps=%d -trace -v\nWith %d of its %d steps: %v\n%s",
		seed, r.broken, seed, *steps, *steps-len(without), *steps, shortest.broken, telling(shortest))
}

var (
	orderName = regexp.MustCompile(`ORDER-\d+-\d+`)
	bigNews   = regexp.MustCompile(`crashes|starts$|brakes:|clock is|the broker|nothing fails|does not hold`)
)

// telling is the part of a trace that tells of the order at fault, and of what happened to everybody; the end of the trace if no
// order is named.
func telling(r result) string {
	lines := r.trace
	if name := orderName.FindString(r.broken.what); name != "" {
		lines = slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
			return !strings.Contains(line, name) && !bigNews.MatchString(line)
		})
	}
	return strings.Join(lines[max(0, len(lines)-traceLines):], "\n")
}

// shrink leaves out steps, many at once and then fewer, as long as the same invariant breaks.
func shrink(t *testing.T, seed uint64, r result) (map[int]bool, result) {
	without, shortest, runs := map[int]bool{}, r, 0
	for size := *steps / 2; size > 0 && runs < *tries; size /= 2 {
		for from := 0; from < *steps && runs < *tries; from += size {
			try := maps.Clone(without)
			for i := from; i < min(from+size, *steps); i++ {
				try[i] = true
			}
			if len(try) == len(without) {
				continue
			}
			runs++
			if got := run(t, seed, *steps, try); got.broken != nil && got.broken.invariant == r.broken.invariant {
				without, shortest = try, got
			}
		}
	}
	return without, shortest
}
