package lifecycle_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

func TestAnAttemptThatNamesNeitherNumberNorLifetimeGetsThem(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.terms.AttemptDefault, w.terms.AttemptLongest = 10*time.Minute, 20*time.Minute
	before := w.create(t, no1, time.Hour)
	numbers := map[string]bool{}
	for range 2 {
		a, o, err := w.orders.StartPayment(t.Context(), order.Attempting{OrderNo: no1, Channel: "card"})
		if err != nil || a.Deadline.Sub(a.StartedAt) != 10*time.Minute || !o.ExpireAt.Equal(before.ExpireAt) {
			t.Fatalf("%+v, %v", a, err)
		}
		numbers[a.AttemptNo] = true
	}
	if len(numbers) != 2 || numbers[""] {
		t.Errorf("the attempts are called %v", numbers)
	}
	_, _, err := w.orders.StartPayment(t.Context(), order.Attempting{OrderNo: no1, Channel: "card", Lifetime: 21 * time.Minute})
	var refusal *order.Error
	if !errors.As(err, &refusal) || len(refusal.Fields) != 1 || refusal.Fields[0].Name != "lifetime" {
		t.Errorf("longer than may be: %v", err)
	}
	w.holds(t)
}

func TestAnExtendedOrderIsClosedAtItsNewDeadlineAlthoughItsOldMessageComes(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.set(func(w *wire) { w.copies = 2 })
	before := w.create(t, no1, time.Second)
	eventually(t, "the first message is on its way", func() bool { sent, _ := w.counts(no1); return sent == 1 })
	done, err := w.orders.Extend(t.Context(), order.Extending{OrderNo: no1, By: 2 * time.Second, Act: byAlice})
	if err != nil || done.Extended != 1 || !done.Order.ExpireAt.Equal(before.ExpireAt.Add(2*time.Second)) {
		t.Fatalf("%+v, %v", done, err)
	}
	if o := w.waitClosed(t, no1, order.ReasonTimeout); !o.ExpireAt.Equal(done.Order.ExpireAt) {
		t.Errorf("%+v", o)
	}
	w.told(t, no1, order.TypeCancelled)
	w.holds(t)
}

func TestMoreOrdersThanAPageAreExtendedTogetherAndNoneOfAnotherUser(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	const many = 450
	drafts := make([]order.Draft, many)
	for i := range drafts {
		drafts[i] = wanted(fmt.Sprintf("ORDER-%04d", i), time.Hour)
	}
	if _, err := w.store.Create(t.Context(), drafts, w.relay.Schedule); err != nil {
		t.Fatal(err)
	}
	other := wanted("OTHER-0001", time.Hour)
	other.UserID, other.BizType = "u2", "travel"
	if _, err := w.orders.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	for _, e := range []order.Extending{{UserID: "u1"}, {BizType: "retail"}} {
		before := w.get(t, "ORDER-0000")
		e.By, e.Act = time.Hour, byAlice
		if done, err := w.orders.Extend(t.Context(), e); err != nil || done.Extended != many {
			t.Errorf("%d of %d were extended, %v", done.Extended, many, err)
		}
		if after := w.get(t, "ORDER-0000"); !after.ExpireAt.Equal(before.ExpireAt.Add(time.Hour)) {
			t.Errorf("due at %v, then at %v", before.ExpireAt, after.ExpireAt)
		}
	}
	if o := w.get(t, other.OrderNo); o.Version != 1 {
		t.Errorf("another's order was touched: %+v", o)
	}
	w.holds(t)
}

func TestStaffCancelsAnOrderThatIsBeingPaidOnceItsGatewayHasSpoken(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.terms.Confirm = time.Hour
	w.create(t, no1, time.Hour)
	if _, _, err := w.orders.StartPayment(t.Context(), order.Attempting{AttemptNo: "bill-0001", OrderNo: no1, Channel: "card"}); err != nil {
		t.Fatal(err)
	}
	o, err := w.orders.Cancel(t.Context(), order.Cancelling{OrderNo: no1, Reason: order.ReasonManual, Act: byAlice})
	if err != nil || o.Status != order.Confirming {
		t.Fatal(o, err)
	}
	if n := testutil.ToFloat64(w.metrics.Closes.WithLabelValues("cancel", string(order.ReasonManual))); n != 0 {
		t.Errorf("%v closes were counted before there is one", n)
	}
	defer w.startConfirmer(t, w.store, &bank{answer: closes}, lifecycle.ConfirmOptions{})()
	w.becomes(t, no1, order.Cancelled)
	w.told(t, no1, order.TypeCancelled)
	if o := w.get(t, no1); o.CancelReason != order.ReasonManual {
		t.Errorf("%+v", o)
	}
	w.holds(t)
}

func TestWhatIsDoneByHandNeedsAReasonAndSaysWhatItIsAbout(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	w.create(t, no1, time.Hour)
	silent := order.Act{Actor: "alice"}
	for name, c := range map[string]struct {
		field string
		call  func(context.Context) error
	}{
		"a cancellation without a reason": {"reason", func(ctx context.Context) error {
			_, err := w.orders.Cancel(ctx, order.Cancelling{OrderNo: no1, Reason: order.ReasonManual, Act: silent})
			return err
		}},
		"an extension without a reason": {"reason", func(ctx context.Context) error {
			_, err := w.orders.Extend(ctx, order.Extending{OrderNo: no1, By: time.Minute, Act: silent})
			return err
		}},
		"an extension of nobody's orders": {"user_id", func(ctx context.Context) error {
			_, err := w.orders.Extend(ctx, order.Extending{By: time.Minute, Act: byAlice})
			return err
		}},
		"an extension of a user's and a type's orders": {"user_id", func(ctx context.Context) error {
			_, err := w.orders.Extend(ctx, order.Extending{UserID: "u1", BizType: "retail", By: time.Minute, Act: byAlice})
			return err
		}},
		"an extension by nothing": {"by", func(ctx context.Context) error {
			_, err := w.orders.Extend(ctx, order.Extending{OrderNo: no1, Act: byAlice})
			return err
		}},
		"an archiving without a reason": {"reason", func(ctx context.Context) error {
			_, err := w.orders.Archive(ctx, no1, silent)
			return err
		}},
	} {
		var refusal *order.Error
		if err := c.call(t.Context()); !errors.As(err, &refusal) || refusal.Kind != order.Invalid || len(refusal.Fields) != 1 || refusal.Fields[0].Name != c.field {
			t.Errorf("%s: %v", name, err)
		}
	}
	if o := w.get(t, no1); o.Version != 1 {
		t.Errorf("something was done: %+v", o)
	}
}

// kept is how many rows housekeeping has closed or deleted.
func (w *world) kept(what string) float64 {
	return testutil.ToFloat64(w.metrics.Kept.WithLabelValues(what))
}

func TestHousekeepingClosesAndDeletesWhatIsOverPageByPageAndNothingElse(t *testing.T) {
	w := newWorld(t, lifecycle.RelayOptions{})
	var drafts []order.Draft
	const ended = 205 // more than a page in one shard
	for i := 0; len(drafts) < ended; i++ {
		d := wanted(fmt.Sprintf("ORDER-%05d", i), time.Minute)
		d.Amount, d.Items = 0, nil // paid at once
		if order.ShardOf(d.OrderNo) == 0 {
			drafts = append(drafts, d)
		}
	}
	if _, err := w.store.Create(t.Context(), drafts, w.relay.Schedule); err != nil {
		t.Fatal(err)
	}
	open, gone := w.create(t, no1, time.Hour), w.create(t, no2, time.Hour)
	if _, err := w.orders.Cancel(t.Context(), order.Cancelling{OrderNo: no2, UserID: "u1", Reason: order.ReasonUserCancel}); err != nil {
		t.Fatal(err)
	}
	w.told(t, no2, order.TypeCancelled)
	for range ended {
		if _, err := w.store.Quarantine(t.Context(), order.Quarantined{Source: "payment", Reason: "refused"}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.store.StartRun(t.Context(), "test", "round"); err != nil {
			t.Fatal(err)
		}
	}
	keep := func(at time.Time) {
		t.Helper()
		s, err := store.Open(t.Context(), store.Options{Driver: "sqlite", DSN: w.path, Now: func() time.Time { return at }})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		h := lifecycle.NewHousekeeper(s, func() lifecycle.HouseOptions { return lifecycle.HouseOptions{} }, w.metrics, zap.NewNop())
		if err := h.Round(t.Context()); err != nil {
			t.Error(err)
		}
	}
	const day = 24 * time.Hour
	keep(time.Now().Add(179 * day))
	if w.kept("archived")+w.kept("orders")+w.kept("records") != 0 {
		t.Errorf("early: %v archived, %v orders, %v records", w.kept("archived"), w.kept("orders"), w.kept("records"))
	}
	keep(time.Now().Add(181 * day))
	if o := w.get(t, no2); w.kept("archived") != 1 || o.Status != order.Closed {
		t.Errorf("%v archived, %+v", w.kept("archived"), o)
	}
	keep(time.Now().Add(401 * day))
	if w.kept("orders") != ended || w.kept("records") != 2*ended {
		t.Errorf("%v orders and %v records are gone", w.kept("orders"), w.kept("records"))
	}
	keep(time.Now().Add(600 * day))
	if _, _, err := w.store.Get(t.Context(), gone.OrderNo); order.KindOf(err) != order.NotFound {
		t.Errorf("what was archived long ago is still there: %v", err)
	}
	if o := w.get(t, open.OrderNo); o.Status != order.Pending || o.Version != 1 {
		t.Errorf("an open order was touched: %+v", o)
	}
	w.holds(t)
}

// brokenHouse fails at each round.
type brokenHouse struct {
	lifecycle.HouseStore
	rounds chan struct{}
}

func (b brokenHouse) PurgeRecords(ctx context.Context, _ time.Duration, _ int) (map[string]int, error) {
	select {
	case b.rounds <- struct{}{}:
	case <-ctx.Done():
	}
	panic("damage")
}

func TestARoundOfHousekeepingThatFailsIsNotTheLast(t *testing.T) {
	b := brokenHouse{rounds: make(chan struct{})}
	options := func() lifecycle.HouseOptions { return lifecycle.HouseOptions{Interval: time.Millisecond} }
	w := newWorld(t, lifecycle.RelayOptions{})
	defer start(t, lifecycle.NewHousekeeper(b, options, w.metrics, zap.NewNop()).Run)()
	for range 3 {
		select {
		case <-b.rounds:
		case <-time.After(time.Minute):
			t.Fatal("no other round")
		}
	}
}

// sickHouse fails in one shard.
type sickHouse struct {
	failure  error
	archived map[int]bool
	records  int
}

const sickShard = 3

func (s *sickHouse) ArchiveDue(_ context.Context, shard int, _ time.Duration, _ int, _ order.Act) (int, error) {
	s.archived[shard] = true
	if shard == sickShard {
		return 0, s.failure
	}
	return 0, nil
}

func (s *sickHouse) PurgeOrders(context.Context, int, order.Status, time.Duration, order.Cursor, int) (int, *order.Cursor, error) {
	return 0, nil, nil
}

func (s *sickHouse) PurgeRecords(context.Context, time.Duration, int) (map[string]int, error) {
	s.records++
	return nil, nil
}

func TestAShardThatCannotBeKeptCostsTheOthersNothingUnlessTheDatabaseIsAway(t *testing.T) {
	for failure, shards := range map[error]int{
		order.Errorf(order.Internal, "data_damaged", "damage"):             order.Shards,
		order.Errorf(order.Unavailable, "database_unavailable", "is away"): sickShard + 1,
	} {
		t.Run(failure.Error(), func(t *testing.T) {
			s := &sickHouse{failure: failure, archived: map[int]bool{}}
			metrics := lifecycle.NewMetrics(prometheus.NewRegistry())
			h := lifecycle.NewHousekeeper(s, func() lifecycle.HouseOptions { return lifecycle.HouseOptions{} }, metrics, zap.NewNop())
			if err := h.Round(t.Context()); !errors.Is(err, failure) {
				t.Errorf("got %v", err)
			}
			if len(s.archived) != shards || s.records != 1 {
				t.Errorf("looked at %d shards, want %d, and %d times at the records", len(s.archived), shards, s.records)
			}
		})
	}
}
