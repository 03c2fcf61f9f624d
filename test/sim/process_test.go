package sim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"lapse/pkg/lifecycle"
	"lapse/pkg/order"
	"lapse/pkg/store"
)

// process is one process of Lapse with all its parts, each of which runs as it does in production. Only creates and closes
// are written when the world says so, since what shares a transaction must not depend on the scheduler of goroutines.
type process struct {
	world *world
	name  string
	life  int // how often it was started
	skew  time.Duration
	ctx   context.Context
	stop  context.CancelFunc
	gone  bool // guarded by world.mu

	orders  *lifecycle.Orders
	closer  *lifecycle.Closer
	relay   *lifecycle.Relay
	sweeper *lifecycle.Sweeper
	brakes  *lifecycle.BrakeControl
	waiting map[string]int // jobs that wait for a flush: "create", "close"
	busy    map[string]bool
	failed  map[string]bool // orders of messages whose last handling failed
	crossed bool            // somebody else may have changed an order since the flush of messages began
}

func (p *process) String() string { return fmt.Sprintf("%s%d", p.name, p.life) }

// metrics are everybody's: nobody looks at them.
var metrics = sync.OnceValue(func() *lifecycle.Metrics { return lifecycle.NewMetrics(prometheus.NewRegistry()) })

// start starts a process under a name.
func (w *world) start(name string) *process {
	w.lives[name]++
	p := &process{world: w, name: name, life: w.lives[name], waiting: map[string]int{}, busy: map[string]bool{}, failed: map[string]bool{}}
	p.ctx, p.stop = context.WithCancel(context.Background())
	part := func(role string) ledger { return ledger{w.store, border{p, role}} }
	log, m, c := zap.NewNop(), metrics(), w.terms
	p.relay = lifecycle.NewRelay(part("relay"), sender{border{p, "sender"}}, func() lifecycle.RelayOptions {
		o := c.relay
		o.Now, o.Retry = p.clock, steadily
		return o
	}, m, log)
	p.orders = lifecycle.NewOrders(part("orders"), p.relay, order.Limits{}, func() lifecycle.Terms {
		return lifecycle.Terms{Rules: c.rules, Confirm: c.confirm, ArchiveAfter: time.Hour}
	}, func() lifecycle.CreateOptions { return lifecycle.CreateOptions{} }, m, log)
	p.closer = lifecycle.NewCloser(part("closer"), p.relay, func() lifecycle.CloseOptions {
		return lifecycle.CloseOptions{BatchSize: c.closeBatch, Confirm: c.confirm}
	}, m, log)
	p.brakes = lifecycle.NewBrakeControl(part("brakes"))
	confirmer := lifecycle.NewConfirmer(part("confirmer"), gateway{border{p, "gateway"}}, p.relay, func() lifecycle.ConfirmOptions {
		return lifecycle.ConfirmOptions{End: c.end, Rules: c.rules}
	}, m, log)
	p.sweeper = lifecycle.NewSweeper(part("sweeper"), p.relay, p.String(), func() lifecycle.SweepOptions {
		return lifecycle.SweepOptions{Interval: sweepEvery, Overdue: c.overdue, Limit: c.sweepLimit, Confirm: c.confirm}
	}, m, log)
	reconciler := lifecycle.NewReconciler(part("reconciler"), p.relay, p.String(), store.ReconcileWalks, func() lifecycle.ReconcileOptions {
		return lifecycle.ReconcileOptions{Interval: time.Hour, Confirm: c.confirm}
	}, m, log)
	for _, run := range []func(context.Context) error{p.relay.Run, confirmer.Run, p.sweeper.Run, reconciler.Run} {
		go func() { _ = run(p.ctx) }()
	}
	w.procs = append(w.procs, p)
	w.say("%s starts", p)
	w.settle()
	return p
}

// steadily waits for a broker that is away as production does, but without jitter.
func steadily() backoff.BackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval, b.Multiplier, b.RandomizationFactor = 200*time.Millisecond, 5*time.Second, 2, 0
	return b
}

// sweepEvery is the interval of rounds; see world.letTimersFire.
const sweepEvery = 7 * time.Second

// clock is this process's own clock. It goes on while timers fire, and is off by its skew.
func (p *process) clock() time.Time {
	return p.world.clock().Add(p.skew + time.Since(time.Unix(0, p.world.aligned.Load())))
}

// crash ends a process at once: whatever it does from now on reaches nobody.
func (w *world) crash(p *process, when string) {
	w.say("%s crashes %s", p, when)
	w.count("crash")
	w.end(p)
	w.judge.everything()
}

func (w *world) end(p *process) {
	w.mu.Lock()
	p.gone = true
	var gone []*call
	rest := w.waiting[:0]
	for _, c := range w.waiting {
		if c.p == p {
			gone = append(gone, c)
		} else {
			rest = append(rest, c)
		}
	}
	w.waiting = rest
	w.mu.Unlock()
	for i, q := range w.procs {
		if q == p {
			w.procs = append(w.procs[:i:i], w.procs[i+1:]...)
			break
		}
	}
	p.stop()
	for _, c := range gone {
		close(c.let)
	}
	w.letTimersFire()
}

// job is something that somebody outside wants of a process.
type job struct {
	p    *process
	what string
	err  error
	done chan struct{}
	// over hears of its end: errGone if the process has gone.
	over func(err error)
}

// ask lets a process do something. kind is what it has to be flushed for, or "".
func (w *world) ask(p *process, kind, what string, do func(ctx context.Context) error, over func(err error)) {
	j := &job{p: p, what: what, done: make(chan struct{}), over: over}
	if kind != "" {
		p.waiting[kind]++
		over := j.over
		j.over = func(err error) {
			p.waiting[kind]--
			over(err)
		}
	}
	w.say("%s: %s", p, what)
	w.jobs = append(w.jobs, j)
	go func() {
		defer close(j.done)
		j.err = do(p.ctx)
	}()
	w.settle()
}

// collect hears the answers that have come.
func (w *world) collect() {
	for {
		var ended *job
		for i, j := range w.jobs {
			select {
			case <-j.done:
				ended = j
				w.jobs = append(w.jobs[:i:i], w.jobs[i+1:]...)
			default:
			}
			if ended != nil {
				break
			}
		}
		if ended == nil {
			return
		}
		err := ended.err
		if ended.p.gone {
			err = errGone
		} else {
			w.say("%s: %s: %s", ended.p, ended.what, short(err))
		}
		ended.over(err)
	}
}

// short names an answer without what differs from run to run.
func short(err error) string {
	var answer *order.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &answer):
		return answer.Code
	}
	return "error"
}

// flush lets a process write what waits for it.
func (w *world) flush(p *process) {
	flush := func(kind string, do func(context.Context)) {
		if p.waiting[kind] == 0 || p.busy[kind] {
			return
		}
		p.busy[kind] = true
		w.ask(p, "", "flush "+kind, func(ctx context.Context) error {
			do(ctx)
			return nil
		}, func(error) { p.busy[kind] = false })
	}
	flush("create", p.orders.Flush)
	p.crossed = p.crossed && p.busy["close"]
	flush("close", p.closer.Flush)
}
