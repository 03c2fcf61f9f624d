package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cenkalti/backoff/v5"

	"lapse/pkg/order"
)

// flushes records the batches that a group hands on.
type flushes struct {
	mu      sync.Mutex
	batches [][]int
	takes   time.Duration
}

func (f *flushes) flush(_ context.Context, items []int) []error {
	time.Sleep(f.takes)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, slices.Clone(items))
	return make([]error, len(items))
}

func runGroup[T any](t *testing.T, g *group[T]) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func fixed(size int, linger time.Duration) func() groupOptions {
	return func() groupOptions { return groupOptions{Size: size, Linger: linger} }
}

func TestALoneCallerPaysNoLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{}
		g := newGroup(1, 0, fixed(10, time.Hour), f.flush)
		defer runGroup(t, g)()
		start := time.Now()
		for i := range 5 {
			if err := g.Do(t.Context(), i)[0]; err != nil {
				t.Fatal(err)
			}
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("five calls, one after the other, waited %v", waited)
		}
	})
}

func TestCallersThatComeWhileABatchIsWrittenShareTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{takes: time.Second}
		g := newGroup(1, 0, fixed(10, 0), f.flush)
		defer runGroup(t, g)()
		var callers sync.WaitGroup
		for i := range 26 {
			callers.Go(func() {
				if err := g.Do(t.Context(), i)[0]; err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		sizes := []int{}
		for _, b := range f.batches {
			sizes = append(sizes, len(b))
		}
		total := 0
		for _, n := range sizes {
			total += n
			if n > 10 {
				t.Errorf("a batch of %d is larger than 10", n)
			}
		}
		if total != 26 || len(sizes) > 4 {
			t.Errorf("26 callers made batches of %v", sizes)
		}
	})
}

func TestABatchLingersOnlyUntilItIsAsLargeAsTheOneBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{}
		g := newGroup(1, 8, fixed(10, time.Minute), f.flush)
		for i := range 3 {
			g.Put(t.Context(), i)
		}
		defer runGroup(t, g)()
		synctest.Wait()
		start := time.Now()
		go g.Put(t.Context(), 3)
		go func() { time.Sleep(time.Second); g.Put(t.Context(), 4) }()
		time.Sleep(2 * time.Second)
		if err := g.Do(t.Context(), 5)[0]; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took != 2*time.Second {
			t.Errorf("the batch went after %v, want as soon as it had three items", took)
		}
	})
}

func TestAPatientGroupWaitsForAFullBatchOrTheLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{}
		g := newGroup(1, 10, func() groupOptions { return groupOptions{Size: 3, Linger: time.Second, Patient: true} }, f.flush)
		stop := runGroup(t, g)
		for i := range 4 {
			g.Put(t.Context(), i)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		stop()
		if want := [][]int{{0, 1, 2}, {3}}; !slices.EqualFunc(f.batches, want, slices.Equal) {
			t.Errorf("batches %v, want %v", f.batches, want)
		}
	})
}

func TestEachCallerGetsItsOwnAnswer(t *testing.T) {
	g := newGroup(2, 0, fixed(7, time.Millisecond), func(_ context.Context, items []int) []error {
		errs := make([]error, len(items))
		for i, item := range items {
			if item%3 == 0 {
				errs[i] = fmt.Errorf("no %d", item)
			}
		}
		return errs
	})
	defer runGroup(t, g)()
	var callers sync.WaitGroup
	for c := range 20 {
		callers.Go(func() {
			items := []int{c * 10, c*10 + 1, c*10 + 2, c*10 + 3}
			for i, err := range g.Do(t.Context(), items...) {
				want := ""
				if items[i]%3 == 0 {
					want = fmt.Sprintf("no %d", items[i])
				}
				if got := fmt.Sprint(err); (err != nil || want != "") && got != want {
					t.Errorf("item %d answered %q, want %q", items[i], got, want)
				}
			}
		})
	}
	callers.Wait()
}

func TestAPanicInABatchAnswersItsCallersAndNobodyElse(t *testing.T) {
	g := newGroup(1, 0, fixed(1, 0), func(_ context.Context, items []int) []error {
		if items[0] == 13 {
			panic("unlucky")
		}
		return make([]error, len(items))
	})
	defer runGroup(t, g)()
	if err := g.Do(t.Context(), 13)[0]; order.KindOf(err) != order.Internal || err == nil {
		t.Errorf("panic answered %v", err)
	}
	if err := g.Do(t.Context(), 14)[0]; err != nil {
		t.Errorf("the next caller got %v", err)
	}
}

func TestStoppingAnswersEveryone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{takes: time.Second}
		g := newGroup(1, 0, fixed(1, 0), f.flush)
		stop := runGroup(t, g)
		results := make(chan error, 10)
		for i := range 10 {
			go func() { results <- g.Do(t.Context(), i)[0] }()
		}
		time.Sleep(1500 * time.Millisecond) // one written, one being written
		stop()
		var served, refused int
		for range 10 {
			switch err := <-results; {
			case err == nil:
				served++
			case errors.Is(err, errStopping):
				refused++
			default:
				t.Errorf("answered %v", err)
			}
		}
		if served != len(f.batches) || served < 2 || served+refused != 10 {
			t.Errorf("%d served, %d written, %d refused", served, len(f.batches), refused)
		}
		if err := g.Do(t.Context(), 1)[0]; !errors.Is(err, errStopping) {
			t.Errorf("a call after the end answered %v", err)
		}
		if g.Put(t.Context(), 1) {
			t.Error("an item was taken after the end")
		}
	})
}

func TestACallerThatGivesUpIsToldThatTheOutcomeIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flushes{takes: time.Minute}
		g := newGroup(1, 0, fixed(1, 0), f.flush)
		defer runGroup(t, g)()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := g.Do(ctx, 1)[0]
		if order.KindOf(err) != order.Unavailable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("answered %v", err)
		}
	})
}

func TestAnOutageIsOneHoweverManySendsItHits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := outage{now: time.Now, retry: func() backoff.BackOff { return newBackoff() }}
		if o.on() || o.left() > 0 {
			t.Fatal("an outage before the first failure")
		}
		wait, first := o.begin()
		if !first {
			t.Fatal("the first failure is not the first")
		}
		for range 100 {
			if again, first := o.begin(); again > wait || first {
				t.Fatalf("a send of the same moment doubled the wait to %v", again)
			}
		}
		for range 20 {
			time.Sleep(o.left())
			if wait, _ := o.begin(); wait > retryMost*3/2 {
				t.Fatalf("wait grew to %v", wait)
			}
		}
		o.end()
		if o.on() || o.left() > 0 {
			t.Error("still out after a send went through")
		}
	})
}

func TestAFlushWritesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen flushes
		g := newGroup(2, 0, func() groupOptions { return groupOptions{Size: 10} }, seen.flush)
		g.flushQueued(t.Context())
		errs := make(chan error, 3)
		for i := range 3 {
			go func() { errs <- g.Do(t.Context(), i)[0] }()
			synctest.Wait()
		}
		g.flushQueued(t.Context())
		for range 3 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		if len(seen.batches) != 1 || len(seen.batches[0]) != 3 {
			t.Errorf("%v", seen.batches)
		}
	})
}
