package demo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"

	lapsev1 "lapse/api/lapse/v1"
)

// report is what the demo says in the end; with --json it is all that is printed on stdout.
type report struct {
	Holds     bool           `json:"holds"` // every check does
	Seconds   float64        `json:"seconds"`
	Orders    []orderLine    `json:"orders"`
	Answers   []answer       `json:"answers"`
	Events    events         `json:"events"`
	GraceMs   int64          `json:"grace_ms"` // part of the lateness by message: it is sent that much later
	ByMessage spread         `json:"lateness_by_message"`
	BySweep   spread         `json:"lateness_by_compensator"`
	Resources []resourceLine `json:"resources"`
	Stories   []story        `json:"stories"`
	Late      []caseLine     `json:"late_payments"`
	Gateway   string         `json:"gateway"`
	LostTold  float64        `json:"lost_messages_counted"`
	Checks    []check        `json:"checks"`
}

type orderLine struct {
	OrderNo    string `json:"order_no"`
	BizType    string `json:"biz_type"`
	UserID     string `json:"user_id"`
	TimeoutMs  int64  `json:"timeout_ms"`
	Status     string `json:"status"`
	Reason     string `json:"reason,omitempty"`
	LatenessMs *int64 `json:"lateness_ms,omitempty"` // only of orders that lapsed
	Version    int32  `json:"version"`
	AsPlanned  bool   `json:"as_planned"`
}

type resourceLine struct {
	Name   string `json:"name"`
	Before level  `json:"before"`
	After  level  `json:"after"`
}

type level struct {
	Available int64 `json:"available"`
	Held      int64 `json:"held"`
	Sold      int64 `json:"sold"`
}

// story is what happened to one order of which there is something to tell.
type story struct {
	Title   string          `json:"title"`
	OrderNo string          `json:"order_no"`
	Steps   []transitionRow `json:"steps"`
}

// caseLine is one late payment.
type caseLine struct {
	PaymentNo string `json:"payment_no"`
	OrderNo   string `json:"order_no"`
	Policy    string `json:"policy"`
	Status    string `json:"status"`
}

// told is the title of the order's story; "" if there is none to tell.
func (o *order) told() string {
	return map[act]string{
		lose:          "The order whose time-out message the broker lost",
		startOnly:     "A payment was started and never made: the gateway closes its bill first",
		paySilently:   "A payment was made, and its notification lost: the gateway tells",
		payLate:       "Late money, for a person to decide",
		payLateRefund: "Late money, refunded",
		payLateReopen: "Late money, which opens the order again",
		restore:       "Opened again by staff",
	}[o.act]
}

type transitionRow struct {
	At     time.Time `json:"at"`
	Event  string    `json:"event"`
	To     string    `json:"to"`
	Reason string    `json:"reason,omitempty"`
	Note   string    `json:"note,omitempty"`
	Actor  string    `json:"actor"`
}

// spread is a distribution of milliseconds.
type spread struct {
	Count int   `json:"count"`
	P50   int64 `json:"p50_ms"`
	P99   int64 `json:"p99_ms"`
	Max   int64 `json:"max_ms"`
}

func spreadOf(ms []int64) spread {
	if len(ms) == 0 {
		return spread{}
	}
	slices.Sort(ms)
	at := func(percent int) int64 { return ms[(len(ms)*percent+99)/100-1] } // nearest rank
	return spread{len(ms), at(50), at(99), ms[len(ms)-1]}
}

func (p *play) report(grace, took time.Duration) report {
	r := report{
		Seconds: took.Seconds(), Answers: p.answers, Events: p.inbox.summary(), GraceMs: grace.Milliseconds(),
		LostTold: p.metrics[lostMetric], Checks: p.judge(),
	}
	r.Holds = !slices.ContainsFunc(r.Checks, func(c check) bool { return !c.holds() })
	late := map[string][]int64{}
	for _, o := range p.orders {
		line := o.line()
		r.Orders = append(r.Orders, line)
		if line.LatenessMs != nil && o.act != startOnly { // its lateness is the gateway's
			late[line.Reason] = append(late[line.Reason], *line.LatenessMs)
		}
	}
	r.ByMessage, r.BySweep = spreadOf(late["TIMEOUT"]), spreadOf(late["COMPENSATE"])
	for i, s := range p.stocks {
		r.Resources = append(r.Resources, resourceLine{s.name(), levelOf(p.before[i]), levelOf(p.after[i])})
	}
	for _, o := range p.orders {
		if title := o.told(); title != "" {
			r.Stories = append(r.Stories, storyOf(title, o.no, p.stories[o.no]))
		}
	}
	for _, l := range p.cases {
		r.Late = append(r.Late, caseLine{l.PaymentNo, l.OrderNo, l.Policy, l.Status})
	}
	if p.bank != nil {
		r.Gateway = p.bank.told()
	}
	return r
}

func storyOf(title, no string, timeline []*lapsev1.Transition) story {
	s := story{Title: title, OrderNo: no}
	for _, t := range timeline {
		s.Steps = append(s.Steps, transitionRow{t.At.AsTime(), t.Event, t.To, t.Reason, t.Note, t.Actor})
	}
	return s
}

// list writes counts in the order of their names.
func list(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], name))
	}
	return cmp.Or(strings.Join(parts, ", "), "none")
}

func levelOf(r *lapsev1.Resource) level { return level{r.Available, r.Held, r.Sold} }

func (o *order) line() orderLine {
	last := o.look()
	line := orderLine{
		OrderNo: cmp.Or(last.GetOrderNo(), o.no), BizType: o.biz, UserID: o.user, TimeoutMs: o.timeout.Milliseconds(),
		Status: orNone(last.GetStatus()), Reason: last.GetCancelReason(), Version: last.GetVersion(), AsPlanned: o.met(),
	}
	if timedOut(last) {
		ms := lateness(last).Milliseconds()
		line.LatenessMs = &ms
	}
	return line
}

func (r report) writeJSON(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// tell prints the report for a person.
func (r report) tell(s *screen) {
	s.say("\n%s\n%s", s.paint(bold, "Every order and its fate"), r.orderTable(s))
	s.say("\n%s\n%s", s.paint(bold, "Resources before and after"), r.resourceTable())
	s.say("\n%s", s.paint(bold, "Cancelled events at an independent subscriber"))
	s.say("%d events received, %d of them again; %d distinct ids of cancelled rounds", r.Events.Received, r.Events.Duplicates, r.Events.Distinct)
	s.say("others: %s", list(r.Events.Others))
	s.say("\n%s", s.paint(bold, "Lateness: from the deadline to the close, by the database's clock"))
	s.say("by their message     %s; a grace of %d ms is part of it\nby the compensator   %s", r.ByMessage, r.GraceMs, r.BySweep)
	for _, one := range r.Stories {
		s.say("\n%s: %s", s.paint(bold, one.Title), one.OrderNo)
		for _, t := range one.Steps {
			s.say("%s  %-15s now %s%s", t.At.Format("15:04:05.000"), t.Event, t.To, parenthesis(cmp.Or(t.Note, t.Reason)))
		}
	}
	if len(r.Late) > 0 {
		s.say("\n%s\n%s", s.paint(bold, "Money that came too late"), r.lateTable())
	}
	s.say("\n%s; %s is %v", r.Gateway, lostMetric, r.LostTold)
	s.say("\n%s\nI1 to I9: asked of the database on the way and at the end. Rest: seen from outside.\n%s",
		s.paint(bold, "What must hold"), r.checkTable(s))
}

func (d spread) String() string {
	if d.Count == 0 {
		return "none"
	}
	return fmt.Sprintf("%d: p50 %d ms, p99 %d ms, max %d ms", d.Count, d.P50, d.P99, d.Max)
}

func parenthesis(s string) string {
	if s == "" {
		return ""
	}
	return " (" + s + ")"
}

// newTable makes a table that fits into 100 columns: no borders, two spaces between columns.
func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.Options{SeparateHeader: true}
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(header)
	return t
}

func rightAligned(columns ...int) []table.ColumnConfig {
	var configs []table.ColumnConfig
	for _, n := range columns {
		configs = append(configs, table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight})
	}
	return configs
}

func (r report) orderTable(s *screen) string {
	t := newTable("order", "type", "user", "time-out", "status", "reason", "late ms", "ver", "ok")
	t.SetColumnConfigs(rightAligned(4, 7, 8))
	for _, o := range r.Orders {
		late := ""
		if o.LatenessMs != nil {
			late = fmt.Sprint(*o.LatenessMs)
		}
		timeout := time.Duration(o.TimeoutMs) * time.Millisecond
		t.AppendRow(table.Row{o.OrderNo, o.BizType, o.UserID, timeout, o.Status, o.Reason, late, o.Version, s.verdict(o.AsPlanned, "yes", "NO")})
	}
	return t.Render()
}

func (s *screen) verdict(ok bool, yes, no string) string {
	if ok {
		return s.paint(green, yes)
	}
	return s.paint(red, no)
}

func (r report) resourceTable() string {
	t := newTable("resource", "available", "held", "sold", "after: available", "held", "sold")
	t.SetColumnConfigs(rightAligned(2, 3, 4, 5, 6, 7))
	for _, l := range r.Resources {
		t.AppendRow(table.Row{l.Name, l.Before.Available, l.Before.Held, l.Before.Sold, l.After.Available, l.After.Held, l.After.Sold})
	}
	return t.Render()
}

func (r report) lateTable() string {
	t := newTable("payment", "order", "policy", "case")
	for _, l := range r.Late {
		t.AppendRow(table.Row{l.PaymentNo, l.OrderNo, l.Policy, l.Status})
	}
	return t.Render()
}

func (r report) checkTable(s *screen) string {
	t := newTable("", "what must hold", "checked", "violated", "")
	t.SetColumnConfigs(append(rightAligned(3, 4), table.ColumnConfig{Number: 2, WidthMax: nameWidth, WidthMaxEnforcer: text.WrapSoft}))
	for _, c := range r.Checks {
		verdict := s.verdict(c.holds(), "holds", "FAILS")
		if c.idle() {
			verdict = "none"
		}
		t.AppendRow(table.Row{c.ID, c.Name, c.Checked, c.Violations, verdict})
	}
	return t.Render()
}

// nameWidth leaves the other columns of a check their place in 100 columns.
const nameWidth = 66

// shown counts the statements that something was checked for.
func (r report) shown() (n int) {
	for _, c := range r.Checks {
		if !c.idle() {
			n++
		}
	}
	return n
}

// failing names what does not hold.
func (r report) failing() []string {
	var lines []string
	for _, c := range r.Checks {
		if !c.holds() {
			lines = append(lines, fmt.Sprintf("%s %s: %d of %d, like %s", c.ID, c.Name, c.Violations, c.Checked, c.Example))
		}
	}
	return lines
}

// next is what to try after the demo. The ports are the defaults of `lapse dev`.
const next = `
What to try next:
  go run ./cmd/lapse dev     the same system on http://127.0.0.1:8080, until Ctrl-C; it prints the
                             tokens of the shop and of the staff. With them, in another terminal:
  curl -H "Authorization: Bearer $STAFF" http://127.0.0.1:8080/v1/resources/stock/mug:adjust \
       -d '{"adjustment_id": "first", "delta": "10"}'
  curl -H "Authorization: Bearer $SHOP" http://127.0.0.1:8080/v1/orders -d '{"user_id": "me",
       "biz_type": "retail", "amount": "4900", "currency": "CNY", "timeout": "10s",
       "items": [{"kind": "stock", "ref": "mug", "quantity": "1"}]}'
  curl -H "Authorization: Bearer $SHOP" "http://127.0.0.1:8080/v1/orders?user_id=me"
  curl http://127.0.0.1:9090/metrics
  go run ./cmd/lapse audit --data lapse-data
  README.md                  how it works, and how to run it for real`
