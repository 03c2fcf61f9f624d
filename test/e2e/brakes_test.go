package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/durationpb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/test/process"
	"lapse/test/services"
)

// shadowed is how many orders fall due in shadow, and unclosed how many while closing is off.
const (
	shadowed = 2_000
	unclosed = 500
	// jobTolerance is how late the existing job may be.
	jobTolerance = 10 * time.Second
)

// switchOver is a shop that moves onto Lapse.
type switchOver struct {
	t    *testing.T
	sys  *system
	face lifeFace
	dice dice
}

func TestAShopMovesOverInShadowAndNothingIsClosedWhileClosingIsOff(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("minutes on a real database and broker")
	}
	services.Need(t, "LAPSE_TEST_MYSQL_DSN", "LAPSE_TEST_ROCKETMQ")
	s := &switchOver{t: t, sys: startSystem(t, process.Build(t), scenario{broker: "5.5.0", delay: "timer"}), dice: dice{rand.New(rand.NewPCG(seedOfRun(t), 3))}}
	conn, err := dial(s.sys.node("producer-1").api)
	if err != nil {
		t.Fatal(err)
	}
	s.face = lifeFace{orders: lapsev1.NewOrderServiceClient(conn), operator: lapsev1.NewOperatorServiceClient(conn), face: newGRPCFace(conn, s.sys.secrets)}

	s.brakes("--mode", "shadow", "--reason", "the old job closes")
	orders := s.create("shadow", shadowed)
	s.nothingChangesInShadow(orders)
	s.reportAgrees(orders)
	s.offAndOn()
	s.sys.stop()
}

// brakes sets the brakes by the command.
func (s *switchOver) brakes(args ...string) {
	s.t.Helper()
	args = append([]string{"brakes", "set", "--server", s.sys.node("producer-1").api, "--token", s.sys.secrets.staff}, args...)
	if said, err := s.sys.programs.Run(s.t.Context(), s.sys.env, "lapse", args...); err != nil {
		s.t.Fatalf("%v\n%s", err, said)
	}
}

// create makes n orders that fall due within some seconds, but not before all are made.
func (s *switchOver) create(name string, n int) []*lapsev1.Order {
	s.t.Helper()
	if _, err := s.face.face.adjust(s.t.Context(), &lapsev1.AdjustResourceRequest{AdjustmentId: "fill-" + name, Kind: "stock", Ref: name, Delta: int64(n)}); err != nil {
		s.t.Fatal(err)
	}
	orders := make([]*lapsev1.Order, n)
	var group errgroup.Group
	group.SetLimit(clients)
	for i := range n {
		timeout := s.dice.between(25*time.Second, 35*time.Second)
		group.Go(func() (err error) {
			amount := int64(100)
			orders[i], err = persist(s.t.Context(), func(ctx context.Context, _ int) (*lapsev1.Order, error) {
				return s.face.face.create(ctx, fmt.Sprintf("%s-%d", name, i), &lapsev1.CreateOrderRequest{
					UserId: fmt.Sprintf("user-%d", i), BizType: "retail", Amount: &amount, Currency: "CNY", Timeout: durationpb.New(timeout),
					Items: []*lapsev1.Item{{Kind: "stock", Ref: name, Quantity: 1}},
				})
			})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		s.t.Fatal(err)
	}
	return orders
}

// checksum is that of everything that says what the shop and its customers have.
func (s *switchOver) checksum() string {
	s.t.Helper()
	rows, err := s.sys.db.QueryContext(s.t.Context(), "CHECKSUM TABLE t_order, t_order_item, t_order_log, t_resource, t_resource_log, t_payment, t_late_payment")
	if err != nil {
		s.t.Fatal(err)
	}
	defer rows.Close()
	all := ""
	for rows.Next() {
		var table, sum string
		if err := rows.Scan(&table, &sum); err != nil {
			s.t.Fatal(err)
		}
		all += table + "=" + sum + " "
	}
	if err := rows.Err(); err != nil {
		s.t.Fatal(err)
	}
	return all
}

func (s *switchOver) count(query string, args ...any) (n int) {
	s.t.Helper()
	if err := s.sys.db.QueryRowContext(s.t.Context(), query, args...).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// nothingChangesInShadow lets all orders fall due.
func (s *switchOver) nothingChangesInShadow(orders []*lapsev1.Order) {
	before := s.checksum()
	err := await(s.t.Context(), 40*time.Second+bound, "every order was decided in shadow", func(context.Context) (bool, error) {
		return s.count("SELECT COUNT(*) FROM t_shadow") == len(orders), nil
	})
	if err != nil {
		s.t.Fatalf("%v: %d of %d", err, s.count("SELECT COUNT(*) FROM t_shadow"), len(orders))
	}
	if after := s.checksum(); after != before {
		s.t.Errorf("in shadow something changed\nfrom %s\nto   %s", before, after)
	}
	if n := s.count("SELECT COUNT(*) FROM t_shadow WHERE decided_at < expire_at"); n != 0 {
		s.t.Errorf("%d decisions were early", n)
	}
	s.t.Logf("%d orders fell due in shadow, and no business row changed", len(orders))
}

// reportAgrees is the existing job at work, well and badly, and what the report says of it.
func (s *switchOver) reportAgrees(orders []*lapsev1.Order) {
	ctx := s.t.Context()
	// Two more, which the job closes long before their deadline: nothing will be decided about them.
	early := s.create("early", 20)
	want := map[string]int{"early": len(early), "decided": len(orders)}
	fates := make([]string, len(orders))
	for i := range orders {
		fates[i] = []string{"closed", "closed", "closed", "closed", "closed", "closed", "closed", "missed", "wrong", "closed"}[s.dice.IntN(10)]
	}
	var group errgroup.Group
	group.SetLimit(clients)
	closedAt := make([]time.Time, len(orders))
	byStaff := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+s.sys.secrets.staff)
	cancel := func(o *lapsev1.Order) (*lapsev1.Order, error) {
		return persist(byStaff, func(ctx context.Context, _ int) (*lapsev1.Order, error) {
			return invoke(ctx, s.face.orders.CancelOrder, &lapsev1.CancelOrderRequest{OrderNo: o.OrderNo, Reason: "not paid"})
		})
	}
	for _, o := range early {
		group.Go(func() error {
			_, err := cancel(o)
			return err
		})
	}
	for i, o := range orders {
		group.Go(func() error {
			switch fates[i] {
			case "closed":
				closed, err := cancel(o)
				closedAt[i] = closed.GetCancelledAt().AsTime()
				return err
			case "wrong":
				now := time.Now()
				body, err := jsonForm.Marshal(&lapsev1.PaymentNotification{PaymentNo: "pay-" + o.OrderNo, OrderNo: o.OrderNo, Amount: o.Amount, Currency: "CNY", PaidAt: o.CreatedAt})
				if err != nil {
					return err
				}
				_, err = persist(ctx, func(ctx context.Context, _ int) (*lapsev1.NotifyPaymentResponse, error) {
					return s.face.face.notify(ctx, &lapsev1.NotifyPaymentRequest{Body: body, Timestamp: now.Unix(), Signature: sign(s.sys.secrets.payment, now.Unix(), body)})
				})
				return err
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		s.t.Fatal(err)
	}
	for i, o := range orders {
		var decided time.Time
		if err := s.sys.db.QueryRowContext(ctx, "SELECT decided_at FROM t_shadow WHERE order_no = ?", o.OrderNo).Scan(&decided); err != nil {
			s.t.Fatal(err)
		}
		switch {
		case fates[i] != "closed":
			want[fates[i]]++
		case closedAt[i].Sub(decided) > jobTolerance:
			want["late"]++
		default:
			want["agreed"]++
		}
	}
	want["closed"] = want["agreed"] + want["late"] + want["early"]
	said, err := s.sys.programs.Run(ctx, s.sys.env, "lapse", "shadow-report", "--json", "--tolerance", jobTolerance.String(),
		"--server", s.sys.node("producer-1").api, "--token", s.sys.secrets.staff)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, said)
	}
	var report map[string]any
	if err := json.Unmarshal([]byte(said), &report); err != nil {
		s.t.Fatalf("%v in %s", err, said)
	}
	for what, n := range want {
		if fmt.Sprint(report[what]) != fmt.Sprint(n) {
			s.t.Errorf("the report says %v %s, counted were %d", report[what], what, n)
		}
	}
	s.t.Logf("the report agrees with what was counted: %v", want)
}

// offAndOn turns closing off for a while, and on again.
func (s *switchOver) offAndOn() {
	s.brakes("--mode", "off", "--reason", "a pause")
	orders := s.create("off", unclosed)
	last := orders[0].ExpireAt.AsTime()
	for _, o := range orders {
		if at := o.ExpireAt.AsTime(); at.After(last) {
			last = at
		}
	}
	// Long enough for every message and for two rounds of the compensator.
	pause(s.t.Context(), time.Until(last.Add(sweepOverdue+2*sweepInterval+2*time.Second)))
	const closed = "SELECT COUNT(*) FROM t_order_log WHERE event = 'expired'"
	if n := s.count(closed); n != 0 {
		s.t.Errorf("%d orders were closed while closing was off or in shadow", n)
	}
	pending := s.count("SELECT COUNT(*) FROM t_order WHERE status = 0")
	if pending < unclosed {
		s.t.Errorf("only %d orders are pending", pending)
	}
	s.brakes("--mode", "enforce", "--reason", "on again")
	err := await(s.t.Context(), bound, "everything that is due is closed", func(context.Context) (bool, error) {
		return s.count("SELECT COUNT(*) FROM t_order WHERE status = 0") == 0, nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	const before = `SELECT COUNT(*) FROM t_order_log WHERE event = 'expired' AND at < (SELECT at FROM t_setting_log WHERE name = 'brakes' ORDER BY version DESC LIMIT 1)`
	if n := s.count(before); n != 0 {
		s.t.Errorf("%d orders were closed before closing was on again", n)
	}
	if n := s.count(closed); n != pending {
		s.t.Errorf("%d were pending, %d were closed", pending, n)
	}
	s.t.Logf("%d orders were due when closing was switched on, and all were closed then", pending)
	if said, err := s.sys.programs.Run(s.t.Context(), s.sys.env, "lapse", "audit"); err != nil {
		s.t.Errorf("%v\n%s", err, said)
	}
}
