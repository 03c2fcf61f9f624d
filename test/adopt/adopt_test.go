package adopt

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"lapse/test/process"
	"lapse/test/services"
)

const (
	booked = 900 // over the shop's API
	old    = 80  // in its table before it knew of Lapse: for the backfill
	missed = 20  // in its table without Lapse being told: for the second path

	clients    = 16
	startBound = time.Minute
	endBound   = 3 * time.Minute
	stopBound  = 40 * time.Second
	down       = 3 * time.Second // how long a killed process stays away
)

// system is the shop, and Lapse on the shop's database.
type system struct {
	t         *testing.T
	programs  process.Programs
	db        services.Database
	logs      string
	env       []string // Lapse's
	shopEnv   []string
	shopAddr  string
	shop      *process.Process
	consumers []*process.Process
	ops       []string // the consumers' addresses for operators
}

func TestAShopsOwnBookingsLapseOnceAndOnTimeAlthoughItsProcessIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute on a real database and broker")
	}
	services.Need(t, "LAPSE_TEST_MYSQL_DSN", "LAPSE_TEST_ROCKETMQ")
	s := startShop(t)
	s.bookOld("old", old, 8*time.Second)
	for _, want := range []string{fmt.Sprintf("%d items are open, %d of them were not", old, old), fmt.Sprintf("%d items are open, 0 of them were not", old)} {
		if said := s.lapse("backfill"); !strings.HasPrefix(said, want) {
			t.Fatalf("lapse backfill: %s", said)
		}
	}
	s.startConsumers()
	s.bookOld("missed", missed, time.Second)

	var paid atomic.Int64
	trading := make(chan error, 1)
	go func() { trading <- s.tradeAll(t.Context(), &paid) }()
	s.killBoth()
	if err := <-trading; err != nil {
		t.Fatal(err)
	}
	s.await(endBound, "no booking is open, and nothing is scheduled", func() bool {
		return s.count("SELECT COUNT(*) FROM bookings WHERE state = 'open'")+s.count("SELECT COUNT(*) FROM t_item")+s.count("SELECT COUNT(*) FROM t_local_message") == 0
	})
	s.judge(int(paid.Load()))
	if said := s.lapse("audit"); said == "" {
		t.Error("lapse audit said nothing")
	}
	for _, p := range append(s.consumers, s.shop) {
		if err := p.Stop(stopBound); err != nil {
			t.Error(err)
		}
	}
}

// startShop starts the shop on a database that has Lapse's tables beside its own.
func startShop(t *testing.T) *system {
	t.Helper()
	broker := services.NewBroker(t, "5.5.0")
	secret := services.RandomHex(16)
	s := &system{
		t: t, programs: process.Build(t, "./examples/bookings"), db: services.NewDatabase(t), logs: t.TempDir(),
		shopEnv: []string{"BOOKINGS_HOOK_SECRET=" + secret}, shopAddr: fmt.Sprintf("127.0.0.1:%d", services.FreePort(t)),
	}
	s.env = []string{
		"LAPSE_DATABASE_DSN=" + s.db.DSN, "LAPSE_BROKER_NAME_SERVERS=" + broker.Addr,
		"LAPSE_HOOK_URL=http://" + s.shopAddr + "/lapse", "LAPSE_HOOK_SECRET=" + secret, "LAPSE_HOOK_TIMEOUT=1s",
		"LAPSE_HOOK_INTERVAL=2s", "LAPSE_SWEEP_OVERDUE=5s",
	}
	s.lapse("migrate")
	s.startBookings()
	return s
}

func (s *system) startBookings() {
	s.shop = process.Start(s.t, s.logs, "bookings", s.programs.Path("bookings"), s.shopEnv, "--driver", "mysql", "--dsn", s.db.DSN, "--listen", s.shopAddr)
	s.await(startBound, "the shop answers", func() bool {
		status, _ := s.call(s.t.Context(), http.MethodGet, "/bookings/nosuch", "")
		return status == http.StatusNotFound
	})
}

func (s *system) startConsumers() {
	for range 2 {
		s.ops = append(s.ops, fmt.Sprintf("127.0.0.1:%d", services.FreePort(s.t)))
		s.consumers = append(s.consumers, nil)
		s.startConsumer(len(s.consumers) - 1)
	}
}

func (s *system) startConsumer(i int) {
	env := append(slices.Clone(s.env), "LAPSE_OPS_ADDR="+s.ops[i])
	s.consumers[i] = process.Start(s.t, s.logs, fmt.Sprintf("consumer-%d", i+1), s.programs.Path("consumer"), env)
	s.await(startBound, "the consumer is ready", func() bool {
		if s.consumers[i].Ended() {
			s.t.Fatal("the consumer has ended")
		}
		r, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.ops[i]+"/readyz", nil)
		if err != nil {
			s.t.Fatal(err)
		}
		status, _ := do(r)
		return status == http.StatusOK
	})
}

// lapse runs a command of an operator's.
func (s *system) lapse(args ...string) string {
	s.t.Helper()
	out, err := s.programs.Run(s.t.Context(), s.env, "lapse", args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// bookOld writes bookings as the shop did before: without a word to Lapse. They are due within 5 s after soonest.
func (s *system) bookOld(prefix string, n int, soonest time.Duration) {
	s.t.Helper()
	for i := range n {
		_, err := s.db.ExecContext(s.t.Context(), "INSERT INTO bookings (ref, state, pay_by) VALUES (?, 'open', CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED) + ?)",
			fmt.Sprintf("%s-%d", prefix, i), soonest.Milliseconds()+int64(i)*5000/int64(n))
		if err != nil {
			s.t.Fatal(err)
		}
	}
}

// tradeAll makes all bookings over the API.
func (s *system) tradeAll(ctx context.Context, paid *atomic.Int64) error {
	var crew errgroup.Group
	crew.SetLimit(clients)
	for i := range booked {
		crew.Go(func() error { return s.trade(ctx, i, paid) })
	}
	return crew.Wait()
}

// trade makes a booking that has 4 to 24 s to be paid, and pays each third at once. The shop may be away.
func (s *system) trade(ctx context.Context, i int, paid *atomic.Int64) error {
	ref := fmt.Sprintf("new-%d", i)
	within := 4*time.Second + time.Duration(i)*20*time.Second/booked
	status, said, err := s.insist(ctx, "/bookings", fmt.Sprintf(`{"ref":%q,"pay_within":%q}`, ref, within))
	if err != nil || status != http.StatusOK && status != http.StatusConflict { // 409: an earlier try has made it
		return fmt.Errorf("booking %s: %d %s, %w", ref, status, said, err)
	}
	if i%3 != 0 {
		return nil
	}
	status, said, err = s.insist(ctx, "/bookings/"+ref+"/pay", "")
	switch {
	case err != nil:
		return err
	case status == http.StatusOK:
		paid.Add(1)
	case status != http.StatusConflict: // 409: while the shop was away its time was over
		return fmt.Errorf("paying %s: %d %s", ref, status, said)
	}
	return nil
}

// insist makes a call until the shop answers.
func (s *system) insist(ctx context.Context, path, body string) (status int, said string, err error) {
	for deadline := time.Now().Add(startBound); time.Now().Before(deadline); {
		if status, said = s.call(ctx, http.MethodPost, path, body); status != 0 && status != http.StatusInternalServerError {
			return status, said, nil
		}
		select {
		case <-ctx.Done():
			return 0, "", ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
	return status, said, fmt.Errorf("%s: the shop does not answer", path)
}

// call calls the shop; status 0 means that no answer came.
func (s *system) call(ctx context.Context, method, path, body string) (status int, said string) {
	r, err := http.NewRequestWithContext(ctx, method, "http://"+s.shopAddr+path, strings.NewReader(body))
	if err != nil {
		return 0, err.Error()
	}
	return do(r)
}

func do(r *http.Request) (status int, said string) {
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err.Error()
	}
	return response.StatusCode, string(raw)
}

// killBoth kills the shop and then a consumer, each in the middle of closing bookings, and starts them again.
func (s *system) killBoth() {
	s.t.Helper()
	for _, k := range []struct {
		after   int // bookings that have lapsed
		process **process.Process
		start   func()
	}{
		{100, &s.shop, s.startBookings},
		{300, &s.consumers[0], func() { s.startConsumer(0) }},
	} {
		s.await(endBound, fmt.Sprintf("%d bookings have lapsed", k.after), func() bool {
			return s.count("SELECT COUNT(*) FROM bookings WHERE state = 'lapsed'") >= k.after
		})
		if s.count("SELECT COUNT(*) FROM bookings WHERE state = 'open'") == 0 {
			s.t.Fatal("nothing was open any more: there was nothing to disturb")
		}
		(*k.process).Kill()
		time.Sleep(down) // others go on meanwhile
		k.start()
	}
}

// judge looks at what the shop's tables say at the end.
func (s *system) judge(paid int) {
	all := booked + old + missed
	for what, want := range map[string]int{
		"SELECT COUNT(*) FROM bookings":                                                                                    all,
		"SELECT COUNT(*) FROM bookings WHERE state = 'paid'":                                                               paid,
		"SELECT COUNT(*) FROM bookings WHERE state = 'lapsed'":                                                             all - paid,
		"SELECT COUNT(*) FROM booking_log":                                                                                 all,
		"SELECT COUNT(DISTINCT ref) FROM booking_log":                                                                      all, // each ended once
		"SELECT COUNT(*) FROM bookings b JOIN booking_log l ON l.ref = b.ref AND l.state = b.state":                        all,
		"SELECT COUNT(*) FROM bookings b JOIN booking_log l ON l.ref = b.ref WHERE l.state = 'lapsed' AND l.at < b.pay_by": 0,
		"SELECT COUNT(*) FROM bookings b JOIN booking_log l ON l.ref = b.ref WHERE l.state = 'paid' AND l.at >= b.pay_by":  0,
		"SELECT COUNT(*) FROM t_order":                                                                                     0,
		"SELECT COUNT(*) FROM t_quarantine":                                                                                0,
	} {
		if got := s.count(what); got != want {
			s.t.Errorf("%d, want %d: %s", got, want, what)
		}
	}
	if paid < booked/6 {
		s.t.Errorf("only %d bookings were paid", paid)
	}
	s.lateness()
}

// lateness tells how late bookings lapsed, by how Lapse knew of them.
func (s *system) lateness() {
	for _, prefix := range []string{"new", "old", "missed"} {
		rows, err := s.db.QueryContext(s.t.Context(), `SELECT l.at - b.pay_by FROM bookings b JOIN booking_log l ON l.ref = b.ref
WHERE l.state = 'lapsed' AND b.ref LIKE ? ORDER BY 1`, prefix+"-%")
		if err != nil {
			s.t.Fatal(err)
		}
		defer rows.Close()
		var late []time.Duration
		for rows.Next() {
			var ms int64
			if err := rows.Scan(&ms); err != nil {
				s.t.Fatal(err)
			}
			late = append(late, time.Duration(ms)*time.Millisecond)
		}
		if err := rows.Err(); err != nil || len(late) == 0 {
			s.t.Fatal(len(late), err)
		}
		s.t.Logf("%-6s %4d lapsed, late by: P50 %v, P90 %v, most %v", prefix, len(late), late[len(late)/2], late[len(late)*9/10], late[len(late)-1])
	}
}

func (s *system) count(query string) (n int) {
	s.t.Helper()
	if err := s.db.QueryRowContext(s.t.Context(), query).Scan(&n); err != nil {
		s.t.Errorf("%s: %v", query, err)
	}
	return n
}

// await polls until done.
func (s *system) await(bound time.Duration, what string, done func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(bound); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within %v: %s", bound, what)
		}
	}
}
