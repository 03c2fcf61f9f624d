package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"golang.org/x/sync/errgroup"

	"lapse/pkg/delay/rocketmq"
	"lapse/pkg/order"
)

// memoryFigures are those of part f: real processes, built from this tree, with all of their own work to do
// while many orders are pending.
type memoryFigures struct {
	MaxMB   float64                `json:"max_mb"` // the highest peak of all roles
	Pending int                    `json:"pending"`
	Roles   map[string]roleFigures `json:"roles"`
}

// roleFigures are the resident memory of one process, in MB of 2^20 bytes.
type roleFigures struct {
	Peak float64 `json:"peak_mb"` // VmHWM
	End  float64 `json:"end_mb"`  // VmRSS when the work was done
}

const (
	memoryLead = 45 * time.Second // the consumer's orders are due so long after they were loaded
	stopMost   = 40 * time.Second // for a process to end
)

var roles = []string{"producer", "consumer", "compensator"}

// memories measures part f.
func (l *lab) memories(ctx context.Context) (*memoryFigures, error) {
	f := &memoryFigures{Pending: l.scaled(300_000), Roles: map[string]roleFigures{}}
	programs, err := os.MkdirTemp("", "lapse-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(programs)
	if err := build(ctx, programs); err != nil {
		return nil, err
	}
	s, err := l.open(ctx, "memory")
	if err != nil {
		return nil, err
	}
	defer l.close(s)
	if err := l.memoryWork(ctx, s, f); err != nil {
		return nil, err
	}
	say("memory: starting the roles")
	running := map[string]*process{}
	defer func() {
		for _, p := range running {
			p.kill()
		}
	}()
	for _, role := range roles {
		if running[role], err = l.startRole(ctx, filepath.Join(programs, role), s.dsn); err != nil {
			return nil, fmt.Errorf("%s: %w", role, err)
		}
	}
	if err := l.whileWorking(ctx, s, running["producer"].api, f); err != nil {
		return nil, err
	}
	for role, p := range running {
		figures, err := p.memory()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", role, err)
		}
		f.Roles[role] = figures
		f.MaxMB = max(f.MaxMB, figures.Peak)
		if err := p.end(); err != nil {
			return nil, fmt.Errorf("%s: %w", role, err)
		}
	}
	return f, nil
}

// build makes the programs from the tree that this one is part of.
func build(ctx context.Context, into string) error {
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "lapse")
	list.Stderr = os.Stderr
	root, err := list.Output()
	if err != nil {
		return fmt.Errorf("run it in its own folder: go list: %w", err)
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", into+string(filepath.Separator), "./producer", "./consumer", "./compensator")
	cmd.Dir = strings.TrimSpace(string(root))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// dueShare is which part of the pending orders falls due, each, at the consumer and at the compensator.
const dueShare = 15

// memoryWork loads the pending orders, whose messages the relays have to send first, orders whose messages
// will come to the consumer, and orders whose messages were lost, for the compensator.
func (l *lab) memoryWork(ctx context.Context, s *shop, f *memoryFigures) error {
	now := time.Now()
	due := now.Add(memoryLead).Truncate(time.Millisecond)
	batches := []batch{
		{name: "wait", orders: f.Pending, shape: func(_ int, r *row) { r.created, r.expire = now, now.Add(2*time.Hour) }},
		{name: "comes", orders: f.Pending / dueShare, shape: pending(now, due)},
		{name: "lost", orders: f.Pending / dueShare, shape: pending(now.Add(-2*time.Hour), now.Add(-time.Hour))},
	}
	say("memory: loading %d pending orders", f.Pending)
	for _, b := range batches {
		if err := s.load(ctx, b); err != nil {
			return err
		}
	}
	sender, err := l.sender(ctx, l.bare("memory"))
	if err != nil {
		return err
	}
	defer sender.Close()
	comes := batches[1]
	return sendAll(ctx, sender, comes.orders, func(i int) order.Envelope { return timeout(comes.number(i), due) })
}

// whileWorking makes orders through the API until every message is sent and every due order closed.
func (l *lab) whileWorking(ctx context.Context, s *shop, api string, f *memoryFigures) error {
	var g errgroup.Group
	made := l.scaled(10_000)
	client := site{s, &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}, "http://" + api + "/v1/orders"}
	g.Go(func() error {
		_, _, err := hammer(ctx, made, 0, client.create)
		return err
	})
	closed := 2 * (f.Pending / dueShare)
	err := until(ctx, "closes", func() int64 {
		sleep(ctx, time.Second)
		n, err := s.count(ctx, "SELECT COUNT(*) FROM t_order WHERE status = 20")
		if err != nil {
			return -1
		}
		return int64(n)
	}, int64(closed))
	if err := errors.Join(err, g.Wait(), s.drained(ctx)); err != nil {
		return err
	}
	return s.audited(ctx, order.Pending, f.Pending+made)
}

// process is a running role.
type process struct {
	cmd   *exec.Cmd
	api   string // address of its API, if it has one
	ended chan error
}

// startRole starts a program and waits until it says that it is ready.
func (l *lab) startRole(ctx context.Context, path, dsn string) (*process, error) {
	opts := l.topics("memory")
	cmd := exec.Command(path)
	cmd.Env = append(withoutLapse(os.Environ()), l.settings(opts, dsn)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, ended: make(chan error, 1)}
	ready := make(chan string, 1)
	go func() {
		p.read(stderr, ready)
		p.ended <- cmd.Wait()
	}()
	select {
	case p.api = <-ready:
		return p, nil
	case err := <-p.ended:
		return nil, fmt.Errorf("ended at once: %w", err)
	case <-ctx.Done():
	case <-time.After(time.Minute):
		err = errors.New("not ready within a minute")
	}
	p.kill()
	return nil, errors.Join(err, ctx.Err())
}

// settings are the environment of a role: defaults, but for addresses and names.
func (l *lab) settings(opts rocketmq.Options, dsn string) []string {
	return []string{
		"LAPSE_DATABASE_DSN=" + dsn,
		"LAPSE_BROKER_NAME_SERVERS=" + l.nameServer,
		"LAPSE_BROKER_TIMEOUT_TOPIC=" + opts.TimeoutTopic,
		"LAPSE_BROKER_EVENT_TOPIC=" + opts.EventTopic,
		"LAPSE_BROKER_GROUP=" + opts.Group,
		"LAPSE_SERVER_ADDR=127.0.0.1:0",
		"LAPSE_OPS_ADDR=127.0.0.1:0",
		fmt.Sprintf("LAPSE_AUTH_TOKENS=[{name: %s, token: %s, scopes: [order]}]", caller, token),
		"LAPSE_PAYMENT_SECRETS=" + token,
	}
}

// withoutLapse leaves out what this program itself was told.
func withoutLapse(env []string) (kept []string) {
	for _, v := range env {
		if !strings.HasPrefix(v, "LAPSE_") {
			kept = append(kept, v)
		}
	}
	return kept
}

// read follows a role's log until it ends; it answers on ready once, and shows errors.
func (p *process) read(log io.Reader, ready chan<- string) {
	for lines := bufio.NewScanner(log); lines.Scan(); {
		var entry struct {
			Level string `json:"level"`
			Msg   string `json:"msg"`
			API   string `json:"api_addr"`
		}
		switch {
		case json.Unmarshal(lines.Bytes(), &entry) != nil || entry.Level == "error":
			say("%s: %s", filepath.Base(p.cmd.Path), lines.Text())
		case entry.Msg == "ready":
			ready <- entry.API
		}
	}
}

// memory reads what the process needs and has needed.
func (p *process) memory() (f roleFigures, err error) {
	if f.Peak, err = memory(p.cmd.Process.Pid, "VmHWM"); err != nil {
		return f, err
	}
	f.End, err = memory(p.cmd.Process.Pid, "VmRSS")
	return f, err
}

// end asks the process to end, and fails if it does not do so in order.
func (p *process) end() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-p.ended:
		p.ended <- nil
		return err
	case <-time.After(stopMost):
		return fmt.Errorf("still running %s after SIGTERM", stopMost)
	}
}

// kill ends the process at once, if it still runs.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.ended
}

func (f *memoryFigures) goals() []goal {
	return []goal{atMost("memory.max_mb", "(f) memory of a role at its peak, MB", f.MaxMB, 100)}
}

func (f *memoryFigures) print(w io.Writer) {
	t := newTable(fmt.Sprintf("(f) resident memory with %d orders pending, MB", f.Pending), "", "at its peak", "at the end")
	for _, role := range roles {
		t.AppendRow(table.Row{role, math.Round(f.Roles[role].Peak), math.Round(f.Roles[role].End)})
	}
	t.render(w)
}
