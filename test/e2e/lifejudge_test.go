package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// lifeChecks are statements about a whole-life run when it is over; like checks, they owe nothing to pkg/store.
var lifeChecks = []check{
	{"I1", "a round ends once, by a payment or by a cancellation", "SELECT COUNT(DISTINCT order_no, round) FROM t_order_log", `
		SELECT CONCAT(order_no, '/', round) FROM t_order_log GROUP BY order_no, round
		HAVING SUM(to_status IN (10, 20) AND from_status <> to_status) <> 1 OR SUM(from_status = 0 AND to_status <> 0) > 1`, false},
	{"I1", "every version is one step, and none is missing", countOrders, `
		SELECT o.order_no FROM t_order o JOIN t_order_log l ON l.order_no = o.order_no GROUP BY o.order_no, o.version
		HAVING COUNT(*) <> o.version OR MAX(l.version) <> o.version`, false},
	{"I2", "no round was ended or doubted before its deadline", "SELECT COUNT(*) FROM t_order_log WHERE reason IN ('TIMEOUT', 'COMPENSATE')", `
		SELECT order_no FROM t_order_log WHERE to_status IN (5, 20) AND reason IN ('TIMEOUT', 'COMPENSATE') AND at < expire_at`, false},
	{"I3", "every order has ended", countOrders, "SELECT order_no FROM t_order WHERE status NOT IN (10, 20, 30)", false},
	{"I4", "counters equal the ledger and are not negative", countResources, `
		SELECT CONCAT(r.kind, '/', r.ref) FROM t_resource r LEFT JOIN (SELECT kind, ref,
			SUM(CASE WHEN op IN ('adjust', 'release', 'restock') THEN quantity WHEN op IN ('reserve', 'forfeit') THEN -quantity ELSE 0 END) AS available,
			SUM(CASE WHEN op = 'reserve' THEN quantity WHEN op IN ('sell', 'release') THEN -quantity ELSE 0 END) AS held,
			SUM(CASE op WHEN 'sell' THEN quantity WHEN 'restock' THEN -quantity ELSE 0 END) AS sold
			FROM t_resource_log WHERE NOT remote GROUP BY kind, ref) l ON l.kind = r.kind AND l.ref = r.ref
		WHERE l.kind IS NULL OR r.available <> l.available OR r.held <> l.held OR r.sold <> l.sold OR r.available < 0 OR r.held < 0 OR r.sold < 0`, false},
	{"I4", "nothing is held any more", countResources, "SELECT CONCAT(kind, '/', ref) FROM t_resource WHERE held <> 0", false},
	{"I5", "the ledger of a cancelled round sums to zero, for each thing", "SELECT COUNT(DISTINCT order_no, round) FROM t_order_log WHERE to_status = 20 AND from_status <> 20", `
		SELECT CONCAT(l.order_no, '/', l.round, ' ', l.kind) FROM t_resource_log l
			JOIN (SELECT DISTINCT order_no, round FROM t_order_log WHERE to_status = 20 AND from_status <> 20) c ON c.order_no = l.order_no AND c.round = l.round
		GROUP BY l.order_no, l.round, l.kind, l.ref
		HAVING SUM(CASE op WHEN 'reserve' THEN quantity WHEN 'release' THEN -quantity WHEN 'sell' THEN 1000000 ELSE 0 END) <> 0`, false},
	{"I5", "no paid round gave anything back", "SELECT COUNT(*) FROM t_order_log WHERE to_status = 10", `
		SELECT p.order_no FROM t_order_log p JOIN t_resource_log l ON l.order_no = p.order_no AND l.round = p.round AND l.op IN ('release', 'forfeit')
		WHERE p.to_status = 10`, false},
	{"I6", "each cancelled round was told", "SELECT COUNT(*) FROM t_order_log WHERE to_status = 20 AND from_status <> 20", `
		SELECT order_no FROM t_order_log WHERE to_status = 20 AND from_status <> 20 AND event_sent_at IS NULL`, false},
	{"I7", "each payment is in exactly one place", countPayments, `
		SELECT p.payment_no FROM t_payment p JOIN t_order o ON o.order_no = p.order_no LEFT JOIN t_late_payment l ON l.payment_no = p.payment_no
		WHERE (p.outcome = 'paid' AND o.status = 10) + (p.outcome = 'refunded' AND o.status = 30) + (COALESCE(l.status, 'consumed') <> 'consumed') <> 1
			OR (p.outcome = 'late') <> (COALESCE(l.status, 'consumed') <> 'consumed')`, false},
	{"I7", "a paid order was paid by one payment, a cancelled one by none", countOrders, `
		SELECT o.order_no FROM t_order o LEFT JOIN t_payment p ON p.order_no = o.order_no AND p.outcome = 'paid'
		WHERE o.amount > 0 GROUP BY o.order_no, o.status HAVING COUNT(p.payment_no) <> (o.status = 10)`, false},
	{"I7", "no case is left open", "SELECT COUNT(*) FROM t_late_payment", "SELECT payment_no FROM t_late_payment WHERE status NOT IN ('refunded', 'consumed')", false},
	{"I9", "no message is left", countMessages, "SELECT dedup_key FROM t_local_message", false},
	{"I9", "nothing was set aside", "SELECT COUNT(*) FROM t_quarantine", "SELECT CONCAT(source, ': ', order_no, ': ', reason) FROM t_quarantine WHERE source <> 'timeout'", false},
	{"I5", "each release of another service was acknowledged", "SELECT COUNT(*) FROM t_resource_log WHERE remote AND op = 'release'", `
		SELECT order_no FROM t_resource_log WHERE remote AND op = 'release' AND acked_at IS NULL`, false},
}

// judge checks all that must hold and prints what the run has shown.
func (l *life) judge(s scenario) {
	ctx, t := l.t.Context(), l.t
	v := &verdict{t: t}
	for _, c := range lifeChecks {
		var looked int64
		broken, err := c.broken(ctx, l.sys.db.DB)
		if err == nil {
			err = l.sys.db.QueryRowContext(ctx, c.looked).Scan(&looked)
		}
		if err != nil {
			t.Errorf("%s %s: %v", c.invariant, c.name, err)
			continue
		}
		v.holds(c.invariant, c.name, looked, broken)
	}
	l.byMoney(ctx, v)
	l.byTold(ctx, v)
	if said, err := l.sys.programs.Run(ctx, l.sys.env, "lapse", "audit"); err != nil {
		t.Errorf("the program's own audit does not agree: %v\n%s", err, said)
	}
	l.print(ctx, s, v)
	l.sys.stop()
}

// byMoney judges that exactly what was captured is recorded: what was reported, and what the bank has told.
func (l *life) byMoney(ctx context.Context, v *verdict) {
	recorded, err := names(ctx, l.sys.db.DB, "SELECT payment_no FROM t_payment")
	if err != nil {
		v.t.Error(err)
		return
	}
	known := map[string]bool{}
	for _, no := range recorded {
		known[no] = true
	}
	var broken []string
	captured := 0
	expect := func(no string) {
		captured++
		if !known[no] {
			broken = append(broken, no+" is not recorded")
		}
		delete(known, no)
	}
	for _, g := range l.guests {
		for _, no := range g.payments {
			expect(no)
		}
	}
	for no := range l.bank.captured() {
		expect(no)
	}
	for no := range known {
		broken = append(broken, no+" was never captured")
	}
	v.holds("I7", "what was captured, and nothing else, is recorded", int64(captured), broken)
}

// byTold judges the events as an independent subscriber had them: one id, one body, for each cancelled round and each
// refund, and none of a reminder for what was paid.
func (l *life) byTold(ctx context.Context, v *verdict) {
	heard, _ := l.events.messages()
	bodies := map[string]string{}
	byType := map[string]map[string]bool{}
	var broken []string
	for _, m := range heard {
		var e toldEvent
		if err := json.Unmarshal([]byte(m.body), &e); err != nil || e.ID == "" {
			continue
		}
		if before, again := bodies[e.ID]; again && before != m.body {
			broken = append(broken, e.ID+" has two bodies")
		}
		bodies[e.ID] = m.body
		if byType[e.Type] == nil {
			byType[e.Type] = map[string]bool{}
		}
		byType[e.Type][e.ID] = true
	}
	v.holds("I6", "an event has one body however often it is heard", int64(len(bodies)), broken)
	l.same(ctx, v, "each cancelled round was heard, and no other", byType["cancelled"],
		"SELECT CONCAT(order_no, ':', round, ':cancelled') FROM t_order_log WHERE to_status = 20 AND from_status <> 20")
	l.same(ctx, v, "each restored round was heard, and no other", byType["restored"],
		"SELECT CONCAT(order_no, ':', round, ':restored') FROM t_order_log WHERE event IN ('restored', 'reopened')")
	l.same(ctx, v, "each second chance was heard, and no other", byType["expired"],
		"SELECT CONCAT(order_no, ':', round, ':expired') FROM t_order_log WHERE event = 'reminded'")
	var refunds int
	if err := l.sys.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM t_late_payment WHERE status = 'refunded'").Scan(&refunds); err != nil {
		v.t.Error(err)
	}
	if got := len(byType["refund_requested"]); got != refunds {
		v.t.Errorf("%d refunds were asked for, %d cases were refunded", got, refunds)
	}
	v.lines = append(v.lines, fmt.Sprintf("events heard: %s", counts(byType)))
}

func counts(byType map[string]map[string]bool) string {
	n := map[string]int{}
	for what, ids := range byType {
		n[what] = len(ids)
	}
	return list(n)
}

// same judges that what was heard is what a query says.
func (l *life) same(ctx context.Context, v *verdict, name string, heard map[string]bool, query string) {
	stored, err := names(ctx, l.sys.db.DB, query)
	if err != nil {
		v.t.Error(err)
		return
	}
	left := maps.Clone(heard)
	var broken []string
	for _, id := range stored {
		if !heard[id] {
			broken = append(broken, id+" was not heard")
		}
		delete(left, id)
	}
	for id := range left {
		broken = append(broken, id+" never happened")
	}
	v.holds("I6", name, int64(len(stored)), broken)
}

// print says what the run has shown.
func (l *life) print(ctx context.Context, s scenario, v *verdict) {
	refused, made := map[string]int{}, 0
	for _, g := range l.guests {
		if g.order != nil {
			made++
		}
		for _, code := range g.refusals {
			refused[g.fate+": "+code]++
		}
	}
	say := func(format string, args ...any) { v.lines = append(v.lines, fmt.Sprintf(format, args...)) }
	say("seed %d, %d orders asked for, %d made, over %d business types", l.seed, s.orders, made, len(lifeTypeNames))
	say("bills at the gateway, by its answers: %s", l.bank.asked())
	say("refused: %s", list(refused))
	for _, table := range []struct{ name, query string }{
		{"late-payment cases by policy and end", "SELECT CONCAT(o.biz_type, ' / ', l.policy, ' / ', l.status, ' ', COUNT(*)) FROM t_late_payment l JOIN t_order o ON o.order_no = l.order_no GROUP BY o.biz_type, l.policy, l.status ORDER BY 1"},
		{"payments by outcome", "SELECT CONCAT(outcome, ' ', COUNT(*)) FROM t_payment GROUP BY outcome ORDER BY 1"},
		{"orders by status, reason and round", "SELECT CONCAT(status, ' ', cancel_reason, ' round ', round, ' ', COUNT(*)) FROM t_order GROUP BY status, cancel_reason, round ORDER BY 1"},
		{"transitions", "SELECT CONCAT(from_status, ' ', event, ' ', to_status, ' ', COUNT(*)) FROM t_order_log GROUP BY from_status, event, to_status ORDER BY 1"},
		{"attempts by end", "SELECT CONCAT(channel, ' ', state, ' ', COUNT(*)) FROM t_payment_attempt GROUP BY channel, state ORDER BY 1"},
	} {
		lines, err := names(ctx, l.sys.db.DB, table.query)
		if err != nil {
			v.t.Error(err)
		}
		say("%s:\n    %s", table.name, strings.Join(lines, "\n    "))
	}
	late, err := names(ctx, l.sys.db.DB, `SELECT LPAD(TIMESTAMPDIFF(MICROSECOND, expire_at, at) DIV 1000, 8, '0') FROM t_order_log
		WHERE to_status = 20 AND from_status = 0 AND reason IN ('TIMEOUT', 'COMPENSATE') ORDER BY 1`)
	if err != nil {
		v.t.Error(err)
	}
	if n := len(late); n > 0 {
		say("lateness of those without a payment in flight, ms: p50 %s, p99 %s, max %s, of %d", late[n/2], late[n*99/100], late[n-1], n)
	}
	v.t.Logf("what the run has shown:\n%s", strings.Join(v.lines, "\n"))
}
