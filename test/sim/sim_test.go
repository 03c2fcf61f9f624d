package sim

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	seeds = flag.Int("seeds", 200, "how many worlds live")
	first = flag.Uint64("start", 1, "seed of the first of them")
	steps = flag.Int("steps", 300, "steps of each with faults")
	tries = flag.Int("shrink", 300, "how many worlds may live to find a shorter one that breaks the same promise")
	trace = flag.Bool("trace", false, "print the trace of each world that lives")
)

// total is what all worlds have come to.
type total struct {
	mu     sync.Mutex
	seeds  int
	steps  int
	counts map[string]int
	hash   uint64 // of all traces, in no order
	broken []uint64
}

func (a *total) add(seed uint64, r result) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seeds++
	a.steps += r.steps
	a.hash ^= r.hash * (2*seed + 1)
	for what, n := range r.counts {
		a.counts[what] += n
	}
	if r.broken != nil {
		a.broken = append(a.broken, seed)
	}
}

func (a *total) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d seeds from %d, %d steps, %d violations, hash of all traces %016x", a.seeds, *first, a.steps, len(a.broken), a.hash)
	for _, what := range slices.Sorted(maps.Keys(a.counts)) {
		fmt.Fprintf(&out, "\n  %9d %s", a.counts[what], what)
	}
	return out.String()
}

func TestSim(t *testing.T) {
	sum := &total{counts: map[string]int{}}
	began := time.Now()
	t.Run("worlds", func(t *testing.T) {
		workers := min(runtime.GOMAXPROCS(0), *seeds)
		for worker := range workers {
			t.Run(fmt.Sprint(worker), func(t *testing.T) {
				t.Parallel()
				for i := worker; i < *seeds; i += workers {
					seed := *first + uint64(i)
					r := run(t, seed, *steps, nil)
					sum.add(seed, r)
					if *trace {
						t.Log(strings.Join(r.trace, "\n"))
					}
					if r.broken != nil {
						t.Error(explain(t, seed, r))
						return
					}
				}
			})
		}
	})
	t.Logf("%v\n%v a seed", sum, time.Since(began)/time.Duration(max(sum.seeds, 1)))
}

func TestTheSameSeedIsTheSameWorld(t *testing.T) {
	for i := range min(*seeds, 50) {
		seed := *first + uint64(i)
		a, b := run(t, seed, *steps, nil), run(t, seed, *steps, nil)
		if a.hash != b.hash {
			t.Errorf("seed %d: %016x, then %016x\n%s", seed, a.hash, b.hash, parting(a.trace, b.trace))
		}
	}
}

// parting is where two traces part.
func parting(a, b []string) string {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return strings.Join(a[max(0, i-20):i+1], "\n") + "\nand then\n" + b[i]
		}
	}
	return "the traces are the same, but what is stored is not"
}
