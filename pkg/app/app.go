package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"lapse/pkg/gateway"
	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/server"
	"lapse/pkg/store"
)

// App is one process in one role.
type App struct {
	role    Role
	live    *Live
	hooks   DevHooks
	log     *zap.Logger
	level   zap.AtomicLevel
	reg     *prometheus.Registry
	health  *health
	metrics *lifecycle.Metrics
}

// Producer is the order side: it serves the API and sends what its orders give to send. Logs go to out.
func Producer(live *Live, out io.Writer) *App { return newApp(RoleProducer, live, DevHooks{}, out) }

// Consumer closes orders when their time-out messages come.
func Consumer(live *Live, out io.Writer) *App { return newApp(RoleConsumer, live, DevHooks{}, out) }

// Compensator closes orders whose messages did not come.
func Compensator(live *Live, out io.Writer) *App {
	return newApp(RoleCompensator, live, DevHooks{}, out)
}

// Dev is all three in one process, on a database that it migrates itself.
func Dev(live *Live, hooks DevHooks, out io.Writer) *App { return newApp(RoleDev, live, hooks, out) }

func newApp(role Role, live *Live, hooks DevHooks, out io.Writer) *App {
	log, level := newLogger(live.Config(), out)
	reg := newRegistry(role)
	return &App{
		role: role, live: live, hooks: hooks, log: log, level: level, reg: reg,
		health: newHealth(role), metrics: lifecycle.NewMetrics(reg),
	}
}

func (r Role) serves() bool { return r == RoleProducer || r == RoleDev }
func (r Role) closes() bool { return r == RoleConsumer || r == RoleDev }
func (r Role) sweeps() bool { return r == RoleCompensator || r == RoleDev }

// Run waits for what the process needs, works until ctx ends or a part fails, and stops everything in
// order. It returns nil after an orderly stop, also one that was asked for while it still waited.
func (a *App) Run(ctx context.Context) error {
	c := a.live.Config()
	if err := c.CheckFor(a.role); err != nil {
		return err
	}
	unlock, err := a.lockData()
	if err != nil {
		return err
	}
	defer unlock()
	b := BuildInfo()
	a.log.Info("starting", zap.String("role", string(a.role)), zap.String("version", b.Version), zap.String("revision", b.Revision))
	p := newParts(a.log)
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.over, cancel)() // a part that fails ends the start, too
	err = a.start(running, p)
	if running.Err() != nil {
		err = nil // a start that was broken off: whoever did it knows why
	}
	if err == nil {
		<-running.Done()
	}
	a.health.enter(stopping)
	a.log.Info("stopping")
	err = errors.Join(err, p.stop(c.Shutdown.Timeout))
	if err != nil {
		a.log.Error("stopped", zap.Error(err))
		return err
	}
	a.log.Info("stopped")
	return nil
}

// lockData keeps a second process off the data directory of `lapse dev`.
func (a *App) lockData() (unlock func(), err error) {
	if a.role != RoleDev || a.live.src.Data == "" {
		return func() {}, nil
	}
	return lockData(a.live.src.Data)
}

// start starts the parts, each after what it needs.
func (a *App) start(ctx context.Context, p *parts) error {
	c := a.live.Config()
	ops, err := listen("ops.addr", c.Ops.Addr)
	if err != nil {
		return err
	}
	if a.role.serves() { // whatever waits for the database or changes it comes after
		if err := checkFree("server.addr", c.Server.Addr); err != nil {
			return errors.Join(err, ops.Close())
		}
	}
	p.start(part{"operations server", func(ctx context.Context) error {
		return serveOps(ctx, ops, opsHandler(a.health, a.reg, c.Ops.Pprof))
	}})
	p.start(part{"configuration watcher", newWatcher(a.live, a.reloaded, a.reg, a.log.Named("config")).Run})
	st, err := a.openStore(ctx, p)
	if err != nil {
		return err
	}
	b, err := a.newBroker(c)
	if err != nil {
		return err
	}
	monitor := newMonitor(probes{now: st.Now, backlog: st.Backlog, broker: b.probe}, a.health, a.reg, a.log.Named("monitor"))
	p.start(part{"monitor", monitor.Run})
	if err := b.start(ctx, p); err != nil {
		return err
	}
	api, err := a.startRole(p, c, st, b)
	if err != nil {
		return err
	}
	monitor.ask(ctx) // so that readiness does not wait for the next round
	a.health.enter(serving)
	a.log.Info("ready", zap.String("ops_addr", ops.Addr().String()), zap.String("api_addr", api))
	if data := a.live.src.Data; data != "" {
		if err := leaveAddress(data, api); err != nil {
			return err
		}
	}
	if a.hooks.Serving != nil {
		a.hooks.Serving(api, ops.Addr().String())
	}
	return nil
}

// reloaded puts settings in force that nobody reads at each use.
func (a *App) reloaded() { a.level.SetLevel(levelOf(a.live.Config())) }

// openStore waits for the database and checks that it is as this program needs it.
func (a *App) openStore(ctx context.Context, p *parts) (*store.Store, error) {
	st, err := openStore(ctx, a.live.Config(), func(failure string) {
		a.metrics.Retries.WithLabelValues("transaction_" + failure).Inc()
	})
	if err != nil {
		return nil, err
	}
	p.start(part{"database", func(ctx context.Context) error {
		<-ctx.Done()
		return st.Close()
	}})
	log := a.log.Named("database")
	if a.role == RoleDev {
		if err := a.migrate(ctx, log, st); err != nil {
			return nil, err
		}
	}
	if err := waitFor(ctx, log, "the database", databaseHint, st.Check); err != nil {
		return nil, err
	}
	version, err := st.ServerVersion(ctx)
	if err != nil {
		return nil, err
	}
	log.Info("connected to the database", zap.String("version", version))
	return st, nil
}

// migrate waits for the database and then takes as long as it needs.
func (a *App) migrate(ctx context.Context, log *zap.Logger, st *store.Store) error {
	answers := func(ctx context.Context) error {
		_, err := st.Now(ctx)
		return err
	}
	if err := waitFor(ctx, log, "the database", databaseHint, answers); err != nil {
		return err
	}
	return st.Migrate(ctx)
}

const databaseHint = "Is it running, and is database.dsn right? `lapse config print` shows what is in force."

func openStore(ctx context.Context, c *Config, onRetry func(failure string)) (*store.Store, error) {
	return store.Open(ctx, store.Options{
		Driver: c.Database.Driver, DSN: c.Database.DSN, ReplicaDSN: c.Database.ReplicaDSN,
		ReplicaMaxLag: c.Database.ReplicaMaxLag, MaxConns: c.Database.MaxConns, OnRetry: onRetry,
	})
}

// startRole starts the parts of the role and returns the API's address, if there is one. They stop in
// reverse: intake first, then what works on, then the relay, which sends what is left.
func (a *App) startRole(p *parts, c *Config, st *store.Store, b *broker) (api string, err error) {
	relay := lifecycle.NewRelay(st, b.sender, a.relayOptions, a.metrics, a.log.Named("relay"))
	closer := lifecycle.NewCloser(st, relay, a.closeOptions, a.metrics, a.log.Named("closer"))
	sweeper := lifecycle.NewSweeper(st, relay, a.owner(), a.sweepOptions, a.metrics, a.log.Named("sweeper"))
	reconciler := lifecycle.NewReconciler(st, relay, a.owner(), store.ReconcileWalks, a.reconcileOptions, a.metrics, a.log.Named("reconciler"))
	orders := lifecycle.NewOrders(st, relay, c.limits(), a.terms, a.createOptions, a.metrics, a.log.Named("orders"))

	var consumer part
	if a.role.closes() { // before the relay, which hands messages to the closer where there is no broker
		p.start(part{"closer", closer.Run})
		if consumer, err = b.subscribe(closer.Handle); err != nil {
			return "", err
		}
	}
	p.start(part{"relay", relay.Run})
	if a.role.closes() {
		if err := errors.Join(a.startConfirmer(p, c, st, relay), a.startLapser(p, c, st, relay)); err != nil {
			return "", err
		}
	}
	if a.role.sweeps() {
		p.start(part{"sweeper", sweeper.Run})
		p.start(part{"reconciler", reconciler.Run})
		p.start(part{"housekeeper", lifecycle.NewHousekeeper(st, a.houseOptions, a.metrics, a.log.Named("housekeeper")).Run})
		p.start(part{"breaker", lifecycle.NewBreaker(st, a.breakerOptions, a.metrics, a.log.Named("breaker")).Run})
	}
	if consumer.run != nil {
		p.start(consumer)
	}
	if !a.role.serves() {
		return "", nil
	}
	p.start(part{"orders", orders.Run})
	srv, err := a.newServer(c, server.Services{Orders: orders, Sweeper: sweeper, Brakes: lifecycle.NewBrakeControl(st), Reconciler: reconciler})
	if err != nil {
		return "", err
	}
	p.start(part{"API server", srv.Run})
	a.health.follow(srv.SetReady)
	return srv.Addr(), nil
}

// startConfirmer starts asking about payments in flight. Without a gateway, orders that are in doubt from before still meet
// their confirm deadline.
func (a *App) startConfirmer(p *parts, c *Config, st *store.Store, relay *lifecycle.Relay) error {
	var bank lifecycle.Gateway = gateway.None{}
	leave := func() {}
	if c.Gateway.URL != "" {
		g, err := gateway.New(c.Gateway.URL, c.Gateway.Token)
		if err != nil {
			return err
		}
		bank, leave = g, g.CloseIdle
	}
	confirmer := lifecycle.NewConfirmer(st, bank, relay, a.confirmOptions, a.metrics, a.log.Named("confirmer"))
	p.start(part{"confirmer", func(ctx context.Context) error {
		defer leave()
		return confirmer.Run(ctx)
	}})
	return nil
}

func (a *App) newServer(c *Config, services server.Services) (*server.Server, error) {
	opts := server.Options{
		Addr: c.Server.Addr, PaymentSecrets: c.Payment.Secrets, SignatureAge: c.Payment.Tolerance, CallerRate: c.Limit.CallerRate,
		ShutdownTimeout: c.Shutdown.Timeout / stopShare,
	}
	for _, t := range c.Auth.Tokens {
		token := server.Token{Name: t.Name, Token: t.Token}
		for _, s := range t.Scopes {
			token.Scopes = append(token.Scopes, server.Scope(s))
		}
		opts.Tokens = append(opts.Tokens, token)
	}
	var err error
	if opts.TLS, err = c.Server.TLS.config(); err != nil {
		return nil, fmt.Errorf("server.tls: %w", err)
	}
	return server.New(opts, services, a.log.Named("server"), a.reg)
}

// config is how the API speaks TLS; nil in plain text.
func (t ServerTLS) config() (*tls.Config, error) {
	if t.CertFile == "" {
		return nil, nil
	}
	cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, err
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}, nil
}

// stopShare: the API server and the consumer each may use a third of the time to stop; the questions to
// gateway and hook that are open, the relay and the database have the rest.
const stopShare = 3

// owner names this process in leases and in the order log.
func (a *App) owner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	const longest = 32
	return fmt.Sprintf("%s-%s-%d", a.role, host[:min(len(host), longest)], os.Getpid())
}

func (c *Config) limits() order.Limits {
	t := c.Order.Timeout
	return order.Limits{DefaultTimeout: t.Default, MinTimeout: t.Min, MaxTimeout: t.Max}
}

// terms are what orders are subject to.
func (a *App) terms() lifecycle.Terms {
	c := a.live.Config()
	return lifecycle.Terms{Rules: c.rules(), Confirm: c.confirmFor(), AttemptDefault: c.Attempt.Default, AttemptLongest: c.Attempt.Longest, ArchiveAfter: c.House.ArchiveAfter}
}

func (a *App) confirmOptions() lifecycle.ConfirmOptions {
	c := a.live.Config()
	return lifecycle.ConfirmOptions{End: order.ConfirmEnd(c.Confirm.End), Timeout: c.Gateway.Timeout, Rules: c.rules()}
}

// The options of the lifecycle are read at each use, so a reload takes effect with the next one.

func (a *App) createOptions() lifecycle.CreateOptions {
	c := a.live.Config().Create
	return lifecycle.CreateOptions{GroupSize: c.GroupSize, Linger: given(c.Linger)}
}

func (a *App) closeOptions() lifecycle.CloseOptions {
	c := a.live.Config()
	return lifecycle.CloseOptions{BatchSize: c.Close.BatchSize, Linger: given(c.Close.Linger), Confirm: c.confirmFor()}
}

func (a *App) relayOptions() lifecycle.RelayOptions {
	c := a.live.Config()
	return lifecycle.RelayOptions{
		Grace: c.Delay.Grace, Horizon: c.Delay.Horizon,
		Poll: c.Relay.PollInterval, Lease: c.Relay.Lease, MaxAttempts: c.Relay.MaxAttempts,
	}
}

func (a *App) houseOptions() lifecycle.HouseOptions {
	h := a.live.Config().House
	return lifecycle.HouseOptions{Interval: h.Interval, ArchiveAfter: h.ArchiveAfter, Retention: h.Retention}
}

func (a *App) reconcileOptions() lifecycle.ReconcileOptions {
	c := a.live.Config()
	r := c.Reconcile
	return lifecycle.ReconcileOptions{
		Interval: r.Interval, Rate: r.Rate, Confirm: c.confirmFor(), Patience: order.Patience{Overdue: r.Overdue, Ack: r.Ack, Case: r.Case},
	}
}

func (a *App) breakerOptions() lifecycle.BreakerOptions {
	b := a.live.Config().Breaker
	return lifecycle.BreakerOptions{
		Off: !b.Enabled, Interval: b.Interval, Settle: b.Settle, Resume: b.Resume == "auto",
		Rule: order.TripRule{Attempts: int64(b.Attempts), Drop: float64(b.Drop) / 100, Floor: float64(b.Floor) / 100},
	}
}

func (a *App) sweepOptions() lifecycle.SweepOptions {
	c := a.live.Config()
	s := c.Sweep
	return lifecycle.SweepOptions{
		Interval: s.Interval, Overdue: given(c.Delay.Grace + s.Overdue), Limit: s.Limit, Pause: given(s.Pause), Cap: s.Cap, Rate: s.Rate, Lease: s.Lease,
		Confirm: c.confirmFor(),
	}
}

// given is d for options whose zero means a default: a configured 0 is a nanosecond there.
func given(d time.Duration) time.Duration { return max(d, time.Nanosecond) }
