package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// report is what a run found. Its JSON is for machines: names say the unit, and a figure that could not be
// measured is missing.
type report struct {
	Started  time.Time        `json:"started"`
	Seconds  float64          `json:"seconds"`
	Scale    float64          `json:"scale"` // 1 is the whole amount of work
	Machine  machine          `json:"machine"`
	Create   *createFigures   `json:"create,omitempty"`
	Close    *closeFigures    `json:"close,omitempty"`
	Lateness *latenessFigures `json:"lateness,omitempty"`
	Burst    *burstFigures    `json:"burst,omitempty"`
	Sweep    *sweepFigures    `json:"sweep,omitempty"`
	Memory   *memoryFigures   `json:"memory,omitempty"`
	Goals    []goal           `json:"goals"`
}

// machine is where and beside what it was measured.
type machine struct {
	CPU        string   `json:"cpu"`
	Cores      int      `json:"cores"`
	Go         string   `json:"go"`
	Database   string   `json:"database"`
	Broker     []string `json:"broker"`
	LoadBefore string   `json:"load_before"` // 1, 5 and 15 minutes
	LoadAfter  string   `json:"load_after"`
	Durable    bool     `json:"durable_commits"`
}

// work is what so many orders took.
type work struct {
	Orders    int     `json:"orders"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"orders_per_second"`
	Database  float64 `json:"db_cpu_us_per_order,omitempty"`
	Broker    float64 `json:"broker_cpu_us_per_order,omitempty"`
	Program   float64 `json:"go_cpu_us_per_order"` // with the callers' own
}

// add makes the work of several rounds one.
func (w work) add(orders int, took time.Duration, c cost) work {
	total := w.Orders + orders
	mean := func(before float64, more time.Duration) float64 {
		return (before*float64(w.Orders) + float64(more.Microseconds())) / float64(total)
	}
	return work{
		Orders: total, Seconds: w.Seconds + took.Seconds(), PerSecond: float64(total) / (w.Seconds + took.Seconds()),
		Database: mean(w.Database, c.database), Broker: mean(w.Broker, c.broker), Program: mean(w.Program, c.program),
	}
}

// spread is a distribution of times in milliseconds.
type spread struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50_ms"`
	P99   float64 `json:"p99_ms"`
	Max   float64 `json:"max_ms"`
}

func spreadOf(times []time.Duration) spread {
	if len(times) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(times))
	at := func(share float64) float64 {
		i := int(math.Ceil(share*float64(len(sorted)))) - 1
		return float64(sorted[max(i, 0)].Microseconds()) / 1000
	}
	return spread{len(sorted), at(.5), at(.99), at(1)}
}

// ratio is a / b; 0, which is left out of the JSON, if either is unknown.
func ratio(a, b float64) float64 {
	if a == 0 || b == 0 {
		return 0
	}
	return a / b
}

// goal is one figure beside what it should be.
type goal struct {
	Name   string  `json:"name"` // where the figure stands in the JSON
	Says   string  `json:"says"`
	Figure float64 `json:"figure"`
	Goal   string  `json:"goal"`
	Result string  `json:"result"` // met, missed, or why there is none
}

const (
	met      = "met"
	missed   = "MISSED"
	unknown  = "unknown"
	remoteDB = "not measured: the database server is not a process of this machine"
)

// atLeast judges a figure that may be unknown.
func atLeast(name, says string, figure, least float64) goal {
	g := goal{Name: name, Says: says, Figure: figure, Goal: fmt.Sprintf("≥ %.4g", least)}
	switch {
	case figure == 0:
		g.Result = remoteDB
	case figure >= least:
		g.Result = met
	default:
		g.Result = fmt.Sprintf("%s by %.0f %%", missed, 100*(least/figure-1))
	}
	return g
}

// atMost judges a figure.
func atMost(name, says string, figure, most float64) goal {
	g := goal{Name: name, Says: says, Figure: figure, Goal: fmt.Sprintf("≤ %.4g", most), Result: met}
	switch {
	case figure > most && most == 0:
		g.Result = missed
	case figure > most:
		g.Result = fmt.Sprintf("%s by %.0f %%", missed, 100*(figure/most-1))
	}
	return g
}

// goals collects those of all parts that ran.
func (r *report) goals() (all []goal) {
	if r.Create != nil {
		all = append(all, r.Create.goals()...)
	}
	if r.Close != nil {
		all = append(all, r.Close.goals()...)
	}
	if r.Lateness != nil {
		all = append(all, r.Lateness.goals()...)
	}
	if r.Burst != nil {
		all = append(all, r.Burst.goals()...)
	}
	if r.Sweep != nil {
		all = append(all, r.Sweep.goals()...)
	}
	if r.Memory != nil {
		all = append(all, r.Memory.goals()...)
	}
	return all
}

// print writes the report for people.
func (r *report) print(w io.Writer) {
	m := r.Machine
	fmt.Fprintf(w, "\n%s, %d cores, %s; %s, durable commits; RocketMQ %s\nload before %s, after %s; %s; scale %g\n",
		m.CPU, m.Cores, m.Go, m.Database, strings.Join(m.Broker, ", "), m.LoadBefore, m.LoadAfter,
		time.Duration(r.Seconds*float64(time.Second)).Round(time.Second), r.Scale)
	if r.Create != nil {
		r.Create.print(w)
	}
	if r.Close != nil {
		r.Close.print(w)
	}
	if r.Lateness != nil {
		r.Lateness.print(w)
	}
	if r.Burst != nil {
		r.Burst.print(w)
	}
	if r.Sweep != nil {
		r.Sweep.print(w)
	}
	if r.Memory != nil {
		r.Memory.print(w)
	}
	goals := newTable("goals", "figure", "", "goal", "")
	for _, g := range r.Goals {
		goals.AppendRow(table.Row{g.Says, fmt.Sprintf("%.3g", g.Figure), g.Goal, g.Result})
	}
	goals.render(w)
}

// grid is a table with a title.
type grid struct{ table.Writer }

func newTable(title string, columns ...any) grid {
	t := table.NewWriter()
	t.SetTitle(title)
	t.Style().Title.Format = text.FormatDefault
	t.Style().Format.Header = text.FormatDefault
	t.AppendHeader(columns)
	return grid{t}
}

func (g grid) render(w io.Writer) { fmt.Fprintf(w, "\n%s\n", g.Render()) }

// workRow is a line about work.
func workRow(name string, w work) table.Row {
	return table.Row{name, w.Orders, whole(w.PerSecond), whole(w.Database), whole(w.Program), whole(w.Broker)}
}

// workColumns belong to workRow.
var workColumns = []any{"", "orders", "orders/s", "db CPU µs/order", "Go CPU µs/order", "broker CPU µs/order"}

// whole is a figure without decimals; unknown ones are a dash.
func whole(f float64) string {
	if f == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f", f)
}

// ms is a time in milliseconds with as many decimals as say something.
func ms(f float64) string {
	if f < 10 {
		return fmt.Sprintf("%.1f", f)
	}
	return fmt.Sprintf("%.0f", f)
}

// save writes the report as latest.json and under its date.
func (r *report) save(folder string) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	dated := r.Started.UTC().Format("2006-01-02T150405Z") + ".json"
	return errors.Join(
		os.WriteFile(filepath.Join(folder, dated), raw, 0o644),
		os.WriteFile(filepath.Join(folder, "latest.json"), raw, 0o644))
}

// describe fills in the machine, and refuses a database that does not commit durably.
func (l *lab) describe(ctx context.Context) (machine, error) {
	m := machine{CPU: cpuModel(), Cores: runtime.NumCPU(), Go: runtime.Version(), LoadBefore: load()}
	db, err := plainPool(l.dsn)
	if err != nil {
		return m, err
	}
	defer db.Close()
	var flush int
	const serverSQL = "SELECT VERSION(), @@global.innodb_flush_log_at_trx_commit"
	if err := db.QueryRowContext(ctx, serverSQL).Scan(&m.Database, &flush); err != nil {
		return m, err
	}
	if m.Durable = flush == 1; !m.Durable {
		return m, fmt.Errorf("innodb_flush_log_at_trx_commit is %d: commits have to be durable (1) to be compared", flush)
	}
	m.Broker, err = l.brokers(ctx)
	return m, err
}

// cpuModel is the processor's name.
func cpuModel() string {
	file, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// load is the load average of 1, 5 and 15 minutes.
func load() string {
	raw, err := os.ReadFile("/proc/loadavg")
	fields := strings.Fields(string(raw))
	if err != nil || len(fields) < 3 {
		return unknown
	}
	return strings.Join(fields[:3], " ")
}
