package main

import (
	"bytes"
	"context"
	secret "crypto/rand"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/server"
)

const (
	callers      = 64
	createRounds = 3 // the contestants take turns
	payTimeout   = 30 * time.Minute
	lease        = 10 * time.Second // of the row that a create leaves to its own process, as in Lapse
)

// createFigures are those of part a. Ratios say how many times better Lapse is.
type createFigures struct {
	StoreThroughputRatio float64 `json:"store_throughput_ratio"`
	StoreDBCPURatio      float64 `json:"store_db_cpu_ratio,omitempty"`
	HTTPThroughputRatio  float64 `json:"http_throughput_ratio"`
	HTTPDBCPURatio       float64 `json:"http_db_cpu_ratio,omitempty"`
	// HTTPDBCPURatioRelay is the same beside a plain server that uses Lapse's relay, which settles in batches.
	HTTPDBCPURatioRelay float64 `json:"http_db_cpu_ratio_same_relay,omitempty"`
	Store               struct {
		Lapse work `json:"lapse"`
		Plain work `json:"plain"`
	} `json:"store"`
	HTTP struct {
		Lapse     calls `json:"lapse"`
		Plain     calls `json:"plain"`
		SameRelay calls `json:"plain_same_relay"`
	} `json:"http"`
}

// calls is work through the API, with the time that a call took.
type calls struct {
	work
	Call spread `json:"call"`
}

// creates measures part a.
func (l *lab) creates(ctx context.Context) (*createFigures, error) {
	f := &createFigures{}
	if err := l.createsAtStore(ctx, f); err != nil {
		return nil, fmt.Errorf("at the store: %w", err)
	}
	if err := l.createsOverHTTP(ctx, f); err != nil {
		return nil, fmt.Errorf("over HTTP: %w", err)
	}
	f.StoreThroughputRatio = ratio(f.Store.Lapse.PerSecond, f.Store.Plain.PerSecond)
	f.StoreDBCPURatio = ratio(f.Store.Plain.Database, f.Store.Lapse.Database)
	f.HTTPThroughputRatio = ratio(f.HTTP.Lapse.PerSecond, f.HTTP.Plain.PerSecond)
	f.HTTPDBCPURatio = ratio(f.HTTP.Plain.Database, f.HTTP.Lapse.Database)
	f.HTTPDBCPURatioRelay = ratio(f.HTTP.SameRelay.Database, f.HTTP.Lapse.Database)
	return f, nil
}

// creator makes one order; it is called by many at once.
type creator func(ctx context.Context, d order.Draft) error

// createsAtStore lets both write into a database of their own, in turn.
func (l *lab) createsAtStore(ctx context.Context, f *createFigures) error {
	lapse, err := l.open(ctx, "create")
	if err != nil {
		return err
	}
	defer l.close(lapse)
	plain, err := l.open(ctx, "plain")
	if err != nil {
		return err
	}
	defer l.close(plain)

	team := &crew{ctx: ctx}
	defer team.stop()
	m := metrics()
	relay := lifecycle.NewRelay(lapse, nowhere{}, defaults[lifecycle.RelayOptions], m, l.log) // never run: rows stay
	orders := lifecycle.NewOrders(lapse, relay, order.Limits{}, defaults[lifecycle.Terms], defaults[lifecycle.CreateOptions], m, l.log)
	team.start(orders.Run)
	ref, err := newReference(ctx, plain.dsn)
	if err != nil {
		return err
	}
	team.then(ref.Close)

	grouped := func(ctx context.Context, d order.Draft) error {
		_, err := orders.Create(ctx, d)
		return err
	}
	single := func(ctx context.Context, d order.Draft) error {
		_, _, err := ref.Create(ctx, d, lease)
		return err
	}
	n, warm := l.scaled(12_000), l.scaled(2_000)
	for _, create := range []creator{grouped, single} {
		if _, _, err := hammer(ctx, warm, 0, create); err != nil {
			return err
		}
	}
	for round := 1; round <= createRounds; round++ {
		say("creates at the store, round %d of %d", round, createRounds)
		err := l.profiled(fmt.Sprintf("create-store-%d", round), func() (err error) {
			f.Store.Lapse, err = l.createRound(ctx, f.Store.Lapse, n, round, grouped)
			return err
		})
		if err != nil {
			return err
		}
		if f.Store.Plain, err = l.createRound(ctx, f.Store.Plain, n, round, single); err != nil {
			return err
		}
	}
	for _, s := range []*shop{lapse, plain} {
		if err := s.audited(ctx, order.Pending, warm+createRounds*n); err != nil {
			return err
		}
	}
	return nil
}

// createRound adds n creates to w.
func (l *lab) createRound(ctx context.Context, w work, n, round int, create creator) (work, error) {
	var took time.Duration
	c, err := l.measure(ctx, func() (err error) {
		_, took, err = hammer(ctx, n, round, create)
		return err
	})
	return w.add(n, took, c), err
}

// hammer makes n orders from all callers at once, each calling again as soon as it has its answer.
func hammer(ctx context.Context, n, seed int, create creator) (times []time.Duration, took time.Duration, err error) {
	times = make([]time.Duration, n)
	var next atomic.Int64
	start := time.Now()
	g, ctx := errgroup.WithContext(ctx)
	for c := range callers {
		g.Go(func() error {
			random := rand.New(rand.NewPCG(uint64(seed), uint64(c)))
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				d := draft(random, newNumber(), payTimeout)
				begin := time.Now()
				if err := create(ctx, d); err != nil {
					return err
				}
				times[i] = time.Since(begin)
			}
			return nil
		})
	}
	err = g.Wait()
	return times, time.Since(start), err
}

// nowhere is a broker that is never asked.
type nowhere struct{}

func (nowhere) Step(_, due time.Time) time.Time { return due }

func (nowhere) Send(context.Context, order.Envelope) (order.Receipt, error) {
	return order.Receipt{}, order.Errorf(order.Unavailable, "no_broker", "there is no broker")
}

// createsOverHTTP runs three servers in turn, each on a database of its own with its relay sending to the
// broker: Lapse's, one that makes and settles one order a transaction, and one that makes them so but settles
// with Lapse's relay.
func (l *lab) createsOverHTTP(ctx context.Context, f *createFigures) error {
	team := &crew{ctx: ctx}
	defer team.stop()
	contestants := []struct {
		name  string
		plain bool // one order a transaction
		one   bool // one row settled a transaction
		calls *calls
		times []time.Duration
		site  *site
	}{
		{name: "http", calls: &f.HTTP.Lapse},
		{name: "httpplain", plain: true, one: true, calls: &f.HTTP.Plain},
		{name: "httprelay", plain: true, calls: &f.HTTP.SameRelay},
	}
	n, warm := l.scaled(6_000), l.scaled(1_000)
	for i := range contestants {
		c := &contestants[i]
		var err error
		if c.site, err = l.serve(ctx, team, c.name, c.plain, c.one); err != nil {
			return err
		}
		if _, _, err := hammer(ctx, warm, 0, c.site.create); err != nil {
			return err
		}
		if err := c.site.drained(ctx); err != nil {
			return err
		}
	}
	for round := 1; round <= createRounds; round++ {
		say("creates over HTTP, round %d of %d", round, createRounds)
		for i := range contestants {
			c := &contestants[i]
			var took time.Duration
			var times []time.Duration
			spent, err := l.measure(ctx, func() error {
				return l.profiled(fmt.Sprintf("create-%s-%d", c.name, round), func() (err error) {
					if times, took, err = hammer(ctx, n, round, c.site.create); err != nil {
						return err
					}
					return c.site.drained(ctx)
				})
			})
			if err != nil {
				return err
			}
			c.calls.work = c.calls.add(n, took, spent)
			c.times = append(c.times, times...)
			c.calls.Call = spreadOf(c.times)
		}
	}
	for _, c := range contestants {
		if err := c.site.audited(ctx, order.Pending, warm+createRounds*n); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// site is a server with its database, and a client of it.
type site struct {
	*shop
	client *http.Client
	url    string
}

// token is the bearer token of this run's servers.
var token = secret.Text()

// serve starts a server with its relay.
func (l *lab) serve(ctx context.Context, team *crew, name string, plain, one bool) (*site, error) {
	s, err := l.open(ctx, name)
	if err != nil {
		return nil, err
	}
	team.then(func() error { return l.close(s) })
	sender, err := l.sender(ctx, l.topics(name))
	if err != nil {
		return nil, err
	}
	team.then(sender.Close)
	var ref *reference
	if plain {
		if ref, err = newReference(ctx, s.dsn); err != nil {
			return nil, err
		}
		team.then(ref.Close)
	}
	var messages lifecycle.MessageStore = s.Store
	if one {
		messages = oneByOne{s.Store, ref}
	}
	m := metrics()
	relay := lifecycle.NewRelay(messages, sender, defaults[lifecycle.RelayOptions], m, l.log)
	team.start(relay.Run)
	orders := lifecycle.NewOrders(s.Store, relay, order.Limits{}, defaults[lifecycle.Terms], defaults[lifecycle.CreateOptions], m, l.log)
	team.start(orders.Run)
	services := server.Services{Orders: orders}
	if plain {
		services.Orders = plainOrders{orders, ref, relay}
	}
	api, err := server.New(server.Options{
		Addr: "127.0.0.1:0", Tokens: []server.Token{{Name: caller, Token: token, Scopes: []server.Scope{server.ScopeOrder}}},
	}, services, l.log, prometheus.NewRegistry())
	if err != nil {
		return nil, err
	}
	team.start(api.Run)
	transport := &http.Transport{MaxIdleConnsPerHost: callers}
	return &site{s, &http.Client{Transport: transport}, "http://" + api.Addr() + "/v1/orders"}, nil
}

// create calls the API.
func (s *site) create(ctx context.Context, d order.Draft) error {
	body := &lapsev1.CreateOrderRequest{
		OrderNo: d.OrderNo, UserId: d.UserID, BizType: d.BizType, Amount: &d.Amount, Currency: d.Currency, Timeout: durationpb.New(d.Timeout),
	}
	for _, it := range d.Items {
		body.Items = append(body.Items, &lapsev1.Item{Kind: it.Kind, Ref: it.Ref, Quantity: it.Quantity})
	}
	raw, err := protojson.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := s.client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode/100 != 2 {
		err = fmt.Errorf("%s: %s", res.Status, answer)
	}
	return err
}

// plainOrders makes one order a transaction; all else is Lapse.
type plainOrders struct {
	*lifecycle.Orders
	ref   *reference
	relay *lifecycle.Relay
}

func (p plainOrders) Create(ctx context.Context, d order.Draft) (order.Created, error) {
	d, err := order.Limits{}.Validate(d)
	if err != nil {
		return order.Created{}, err
	}
	o, m, err := p.ref.Create(ctx, d, lease)
	if err != nil {
		return order.Created{}, err
	}
	p.relay.Offer(m)
	return order.Created{Order: &o, Message: &m}, nil
}

// oneByOne settles each row in a transaction of its own, several at a time.
type oneByOne struct {
	lifecycle.MessageStore
	ref *reference
}

func (s oneByOne) Settle(ctx context.Context, sent []order.Sent) error {
	var g errgroup.Group
	g.SetLimit(connections / 2) // the relay settles two batches at a time
	for _, m := range sent {
		g.Go(func() error { return s.ref.Settle(ctx, m) })
	}
	return g.Wait()
}

func (f *createFigures) goals() []goal {
	return []goal{
		atLeast("create.store_throughput_ratio", "(a) creates at the store: times the orders/s", f.StoreThroughputRatio, 4),
		atLeast("create.store_db_cpu_ratio", "(a) creates at the store: times less database CPU", f.StoreDBCPURatio, 4),
		atLeast("create.http_db_cpu_ratio", "(a) creates over HTTP: times less database CPU", f.HTTPDBCPURatio, 3),
	}
}

func (f *createFigures) print(w io.Writer) {
	t := newTable(fmt.Sprintf("(a) creates, %d callers", callers), append(workColumns, "call p50 ms", "p99 ms")...)
	t.AppendRow(workRow("store seam: Lapse, in groups", f.Store.Lapse))
	t.AppendRow(workRow("store seam: one order a transaction", f.Store.Plain))
	for _, c := range []struct {
		name string
		calls
	}{
		{"HTTP and relay: Lapse", f.HTTP.Lapse},
		{"HTTP and relay: created and settled one by one", f.HTTP.Plain},
		{"HTTP and relay: created one by one, Lapse's relay", f.HTTP.SameRelay},
	} {
		t.AppendRow(append(workRow(c.name, c.work), ms(c.Call.P50), ms(c.Call.P99)))
	}
	t.render(w)
}
