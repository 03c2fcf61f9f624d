package sim

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

// traceLines is how many lines of a trace are shown.
const traceLines = 120

// explain says how a world came to break a promise: by as few steps as a short search finds.
func explain(t *testing.T, seed uint64, r result) string {
	without, shortest := shrink(t, seed, r)
	lines := shortest.trace
	left := ""
	if n := len(lines) - traceLines; n > 0 {
		lines, left = lines[n:], fmt.Sprintf("(%d lines before)\n", n)
	}
	return fmt.Sprintf("seed %d: %v\nAgain: go test ./test/sim -run TestSim -seeds=1 -start=%d -steps=%d -trace\nThe same with %d of its %d steps:\n%s%s",
		seed, r.broken, seed, *steps, *steps-len(without), *steps, left, strings.Join(lines, "\n"))
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
