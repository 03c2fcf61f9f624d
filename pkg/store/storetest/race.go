package storetest

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/store"
)

// together runs all at the same moment and waits for them.
func together(all ...func()) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for _, run := range all {
		wg.Go(func() {
			<-start
			run()
		})
	}
	close(start)
	wg.Wait()
}

var raceTests = map[string]func(t *testing.T, b bed){
	"payment, cancellation and two closers have one winner": func(t *testing.T, b bed) {
		ctx := context.Background()
		first, second := b.at(time.Minute), b.at(time.Minute)
		b.stock("a", 1000)
		const rounds = 40
		for i := range rounds {
			no := fmt.Sprintf("ORDER-%d", i)
			b.create(draft(no, "a"))
			var won atomic.Int32
			var outcome order.PaymentOutcome
			closer := func(s *store.Store) func() {
				return func() {
					batch, err := s.CloseDue(ctx, order.Closing{OrderNos: []string{no}, Reason: order.ReasonTimeout}, leased)
					if err != nil {
						t.Error(err)
					}
					won.Add(int32(len(batch.Closed)))
				}
			}
			together(
				closer(first), closer(second),
				func() {
					got, err := second.Pay(ctx, payment("P-"+no, no), order.Rules{}, leased)
					if err != nil {
						t.Error(err)
					}
					if outcome = got.Outcome; outcome == order.PaymentAccepted {
						won.Add(1)
					}
				},
				func() {
					_, m, err := first.Cancel(ctx, wish(no, "u1"), leased)
					if err != nil && order.KindOf(err) != order.Conflict {
						t.Error(err)
					}
					if m != nil {
						won.Add(1)
					}
				},
			)
			if won.Load() != 1 {
				t.Errorf("%s had %d winners", no, won.Load())
			}
			if paid := b.status(no) == order.Paid; paid != (outcome == order.PaymentAccepted) {
				t.Errorf("%s: the payment was told %q", no, outcome)
			}
		}
		sold := int64(b.count("SELECT COUNT(*) FROM t_order WHERE status = 10"))
		b.expectStock("a", 1000-sold, 0, sold)
	},
	"a hundred buyers of the last item: one gets it": func(t *testing.T, b bed) {
		b.stock("a", 1)
		stores := []*store.Store{b.at(0), b.at(0)}
		var won, refused atomic.Int32
		var buyers []func()
		for i := range 100 {
			buyers = append(buyers, func() {
				answers, err := stores[i%2].Create(context.Background(), []order.Draft{draft(fmt.Sprintf("ORDER-%d", i), "a")}, leased)
				switch {
				case err != nil:
					t.Error(err)
				case answers[0].Err == nil:
					won.Add(1)
				case order.KindOf(answers[0].Err) == order.Conflict:
					refused.Add(1)
				default:
					t.Error(answers[0].Err)
				}
			})
		}
		together(buyers...)
		if won.Load() != 1 || refused.Load() != 99 {
			t.Errorf("%d won, %d were refused", won.Load(), refused.Load())
		}
		b.expectStock("a", 0, 1, 0)
	},
	"two producers creating the same numbers at once make each order once": func(t *testing.T, b bed) {
		b.stock("a", 10_000)
		stores := []*store.Store{b.at(0), b.at(0)}
		const rounds, group = 10, 20
		for round := range rounds {
			var made, repeated, conflicts atomic.Int32
			var producers []func()
			for i := range 4 {
				var drafts []order.Draft
				for n := range group {
					d := draft(fmt.Sprintf("ORDER-%d-%d", round, (n*7+i*3)%group), "a") // each in another order
					if i == 3 {
						d.Amount = 2 // other content
					}
					drafts = append(drafts, d)
				}
				producers = append(producers, func() {
					answers, err := stores[i%2].Create(context.Background(), drafts, leased)
					if err != nil {
						t.Error(err)
					}
					for _, a := range answers {
						switch {
						case a.Err != nil && order.KindOf(a.Err) == order.Conflict:
							conflicts.Add(1)
						case a.Err != nil:
							t.Error(a.Err)
						case a.Repeated:
							repeated.Add(1)
						default:
							made.Add(1)
						}
					}
				})
			}
			together(producers...)
			if made.Load() != group || made.Load()+repeated.Load()+conflicts.Load() != 4*group {
				t.Errorf("%d made, %d repeated, %d conflicts", made.Load(), repeated.Load(), conflicts.Load())
			}
		}
		b.expectStock("a", 10_000-rounds*group, rounds*group, 0)
	},
	"baskets A+B and B+A, created, closed and paid at once, all come through": func(t *testing.T, b bed) {
		ctx := context.Background()
		b.stock("a", 1000)
		b.stock("b", 1000)
		stores := []*store.Store{b.at(0), b.at(time.Minute)}
		const rounds = 15
		for round := range rounds {
			nos := make([]string, 8)
			for i := range nos {
				nos[i] = fmt.Sprintf("ORDER-%d-%d", round, i)
				b.create(draft(nos[i], "a", "b"))
			}
			var work []func()
			for i := range 4 {
				work = append(work, func() {
					d := draft(fmt.Sprintf("NEW-%d-%d", round, i))
					for _, ref := range [][]string{{"a", "b"}, {"b", "a"}}[i%2] {
						d.Items = append(d.Items, order.Item{Kind: "stock", Ref: ref, Quantity: 1})
					}
					if answers, err := stores[i%2].Create(ctx, []order.Draft{d}, leased); err != nil || answers[0].Err != nil {
						t.Error(answers, err)
					}
				}, func() {
					if _, err := stores[i%2].Pay(ctx, payment("P-"+nos[i], nos[i]), order.Rules{}, leased); err != nil {
						t.Error(err)
					}
				})
			}
			work = append(work, func() {
				if _, err := stores[1].CloseDue(ctx, order.Closing{OrderNos: nos, Reason: order.ReasonTimeout}, leased); err != nil {
					t.Error(err)
				}
			}, func() {
				if _, err := stores[1].CloseDue(ctx, order.Closing{OrderNos: nos[2:], Reason: order.ReasonTimeout}, leased); err != nil {
					t.Error(err)
				}
			})
			together(work...)
		}
	},
	"the same adjustment from many at once is made once": func(t *testing.T, b bed) {
		s, other := b.at(0), b.at(0)
		var work []func()
		for i := range 20 {
			work = append(work, func() {
				r, err := []*store.Store{s, other}[i%2].Adjust(context.Background(), order.Adjustment{ID: "once", Kind: "stock", Ref: "a", Delta: 5})
				if err != nil || r.Available != 5 {
					t.Error(r, err)
				}
			})
		}
		together(work...)
		b.expectStock("a", 5, 0, 0)
	},
	"1500 racing uses of a quota of 1000: exactly 1000": func(t *testing.T, b bed) {
		b.stock("a", 1000)
		s := b.at(0)
		var won atomic.Int32
		var work []func()
		for worker := range 15 {
			work = append(work, func() {
				var drafts []order.Draft
				for i := range 100 {
					drafts = append(drafts, draft(fmt.Sprintf("ORDER-%d-%d", worker, i), "a"))
				}
				answers, err := s.Create(context.Background(), drafts, leased)
				if err != nil {
					t.Error(err)
				}
				for _, a := range answers {
					if a.Err == nil {
						won.Add(1)
					}
				}
			})
		}
		together(work...)
		if won.Load() != 1000 {
			t.Errorf("%d", won.Load())
		}
		b.expectStock("a", 0, 1000, 0)
	},
	"more transactions than connections end all the same": func(t *testing.T, b bed) {
		b.stock("a", 1000)
		s := b.Open(t, noon, store.Options{MaxConns: 1})
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var work []func()
		for i := range 30 {
			no := fmt.Sprintf("ORDER-%d", i)
			work = append(work, func() {
				if _, err := s.Create(ctx, []order.Draft{draft(no, "a")}, leased); err != nil {
					t.Error(err)
				}
				if _, err := s.Pay(ctx, payment("P-"+no, no), order.Rules{}, leased); err != nil {
					t.Error(err)
				}
				if _, _, _, err := claimAll(ctx, s, 1, leaseTime); err != nil {
					t.Error(err)
				}
			})
		}
		together(work...)
		b.expectStock("a", 970, 0, 30)
	},
	"two relays claim each row once": func(t *testing.T, b bed) {
		var drafts []order.Draft
		for i := range 200 {
			drafts = append(drafts, draft(fmt.Sprintf("ORDER-%d", i)))
		}
		b.createWith(b.at(0), unleased, drafts...)
		stores := []*store.Store{b.at(0), b.at(0)}
		var mu sync.Mutex
		claimed := map[string]int{}
		var work []func()
		for i := range 4 {
			work = append(work, func() {
				for range 10 {
					rows, _, _, err := claimAll(context.Background(), stores[i%2], 13, leaseTime)
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					for _, m := range rows {
						claimed[m.Key]++
					}
					mu.Unlock()
				}
			})
		}
		together(work...)
		if len(claimed) != 200 {
			t.Errorf("%d rows were claimed", len(claimed))
		}
		for key, n := range claimed {
			if n != 1 {
				t.Errorf("%s was claimed %d times", key, n)
			}
		}
	},
	"a shard's lease has one holder": func(t *testing.T, b bed) {
		stores := []*store.Store{b.at(0), b.at(0)}
		var won atomic.Int32
		var work []func()
		for i := range 10 {
			work = append(work, func() {
				_, ok, err := stores[i%2].AcquireShard(context.Background(), 3, fmt.Sprintf("sweeper-%d", i), time.Minute, 0)
				if err != nil {
					t.Error(err)
				}
				if ok {
					won.Add(1)
				}
			})
		}
		together(work...)
		if won.Load() != 1 {
			t.Errorf("%d holders", won.Load())
		}
	},
}
