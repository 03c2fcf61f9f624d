package lifecycle_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// shop is a shop in simulated time: customers start payments, and most of them pay some time later.
type shop struct {
	t         *testing.T
	db        *store.Store
	now       time.Time
	breaker   *lifecycle.Breaker
	options   lifecycle.BreakerOptions
	n         int
	unpaid    []due // captured payments whose notification is under way
	pending   []due // time-outs
	closed    int
	attempts  int
	notifying bool
}

type due struct {
	no string
	at time.Time
}

func newShop(t *testing.T) *shop {
	s := &shop{t: t, now: time.Date(2026, 11, 11, 20, 0, 0, 0, time.UTC), notifying: true}
	db, err := store.Open(t.Context(), store.Options{Driver: "sqlite", DSN: filepath.Join(t.TempDir(), "shop.db"), Now: func() time.Time { return s.now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.db = db
	s.breaker = lifecycle.NewBreaker(db, func() lifecycle.BreakerOptions { return s.options }, lifecycle.NewMetrics(prometheus.NewRegistry()), zap.NewNop())
	return s
}

const (
	shopStep    = 10 * time.Second // between two looks of the breaker
	shopTimeout = 5 * time.Minute  // to pay
)

// trade lets the shop run for a while, with so many customers each step; of five, three pay, half a minute later.
func (s *shop) trade(d time.Duration, customers int) {
	s.t.Helper()
	ctx, later := s.t.Context(), func(order.Message, time.Time) time.Time { return s.now.Add(time.Hour) }
	for end := s.now.Add(d); s.now.Before(end); s.now = s.now.Add(shopStep) {
		drafts := make([]order.Draft, customers)
		for i := range drafts {
			drafts[i] = order.Draft{OrderNo: fmt.Sprintf("ORDER-%06d", s.n+i), UserID: "u1", BizType: "retail", Amount: 100, Currency: "CNY", Timeout: shopTimeout}
		}
		if _, err := s.db.Create(ctx, drafts, later); err != nil {
			s.t.Fatal(err)
		}
		for i, draft := range drafts {
			a := order.Attempting{AttemptNo: fmt.Sprintf("TRY-%06d", s.n+i), OrderNo: draft.OrderNo, Channel: "card", Lifetime: time.Minute}
			if _, _, err := s.db.StartPayment(ctx, a); err != nil {
				s.t.Fatal(err)
			}
			s.attempts++
			s.pending = append(s.pending, due{draft.OrderNo, s.now.Add(shopTimeout)})
			if (s.n+i)%5 < 3 {
				s.unpaid = append(s.unpaid, due{draft.OrderNo, s.now.Add(30 * time.Second)})
			}
		}
		s.n += customers
		s.notify(ctx)
		s.close(ctx)
		if err := s.breaker.Look(ctx); err != nil {
			s.t.Fatal(err)
		}
	}
}

// notify tells of the payments that were captured by now, unless notifications are out.
func (s *shop) notify(ctx context.Context) {
	for s.notifying && len(s.unpaid) > 0 && !s.unpaid[0].at.After(s.now) {
		no := s.unpaid[0].no
		s.unpaid = s.unpaid[1:]
		p := order.Payment{PaymentNo: "P-" + no, OrderNo: no, Amount: 100, Currency: "CNY", PaidAt: s.now}
		if _, err := s.db.Pay(ctx, p, order.Rules{}, func(order.Message, time.Time) time.Time { return s.now }); err != nil {
			s.t.Fatal(err)
		}
	}
}

// close closes what is due, as the messages do.
func (s *shop) close(ctx context.Context) {
	var nos []string
	for len(s.pending) > 0 && !s.pending[0].at.After(s.now) {
		nos = append(nos, s.pending[0].no)
		s.pending = s.pending[1:]
	}
	batch, err := s.db.CloseDue(ctx, order.Closing{OrderNos: nos, Reason: order.ReasonTimeout}, func(order.Message, time.Time) time.Time { return s.now })
	if err != nil {
		s.t.Fatal(err)
	}
	s.closed += len(batch.Closed)
}

func (s *shop) tripped() string {
	s.t.Helper()
	b, err := s.db.Brakes(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return b.Tripped
}

func TestTheBreakerTripsInAnOutageOfNotificationsWithinTheStatedNumberOfAttempts(t *testing.T) {
	s := newShop(t)
	s.trade(20*time.Minute, 10)
	if why := s.tripped(); why != "" {
		t.Fatalf("before the outage: %s", why)
	}
	s.notifying = false
	before, began := s.attempts, s.now
	wrong := s.closed
	for s.tripped() == "" && s.now.Sub(began) < time.Hour {
		s.trade(shopStep, 10)
	}
	// The newest 200 settled attempts, and those that were made while they had their two minutes to settle.
	const most = 200 + 12*10 + 10
	if n := s.attempts - before; s.tripped() == "" || n > most {
		t.Errorf("tripped %q after %d attempts, %d is the most", s.tripped(), n, most)
	}
	t.Logf("tripped %d attempts and %v after the outage began: %s", s.attempts-before, s.now.Sub(began), s.tripped())
	s.trade(10*time.Minute, 10)
	// Those that fell due before the trip were older than the outage, and truly unpaid: two of five.
	if n, truly := s.closed-wrong, int(5*time.Minute/shopStep)*10*2/5; n > truly {
		t.Errorf("%d orders were closed, of which %d were truly unpaid", n, truly)
	}

	s.notifying = true
	s.trade(20*time.Minute, 10)
	if s.tripped() == "" {
		t.Fatal("closing goes on by itself, and should not")
	}
	s.options.Resume = true
	s.trade(shopStep, 10)
	if why := s.tripped(); why != "" {
		t.Errorf("payments are back, but: %s", why)
	}
}

func TestTheBreakerDoesNotTripInARushNorAtNight(t *testing.T) {
	s := newShop(t)
	for _, part := range []struct {
		d         time.Duration
		customers int
	}{{10 * time.Minute, 5}, {5 * time.Minute, 100}, {10 * time.Minute, 5}, {time.Hour, 0}, {10 * time.Minute, 1}} {
		s.trade(part.d, part.customers)
		if why := s.tripped(); why != "" {
			t.Fatalf("with %d customers each %v: %s", part.customers, shopStep, why)
		}
	}
	if s.closed == 0 {
		t.Error("nothing was closed")
	}
}
