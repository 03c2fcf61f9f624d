package sim

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"lapse/pkg/order"
)

// judge looks at the world from outside, by a connection of its own.
type judge struct {
	w     *world
	stmts map[string]*sql.Stmt
}

func newJudge(w *world) judge { return judge{w: w, stmts: map[string]*sql.Stmt{}} }

func (j judge) close() {
	for _, s := range j.stmts {
		s.Close()
	}
}

// row reads one row; zero values if there is none.
func (j judge) row(query string, args []any, into ...any) {
	stmt := j.stmts[query]
	if stmt == nil {
		var err error
		if stmt, err = j.w.db.Prepare(query); err != nil {
			panic(fmt.Sprintf("%v: %s", err, query))
		}
		j.stmts[query] = stmt
	}
	err := stmt.QueryRowContext(context.Background(), args...).Scan(into...)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		panic(fmt.Sprintf("%v: %s", err, query))
	}
}

func (j judge) number(query string, args ...any) (n int64) {
	var found sql.NullInt64
	j.row(query, args, &found)
	return found.Int64
}

// each reads all rows.
func (j judge) each(query string, row func(rows *sql.Rows) error) {
	rows, err := j.w.db.QueryContext(context.Background(), query)
	if err != nil {
		panic(fmt.Sprintf("%v: %s", err, query))
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			panic(fmt.Sprintf("%v: %s", err, query))
		}
	}
	if err := rows.Err(); err != nil {
		panic(fmt.Sprintf("%v: %s", err, query))
	}
}

var (
	cheapSQL = union(cheapChecks)
	allSQL   = union(allChecks)
)

// saw hears of each call that has had its effect.
func (j judge) saw(c *call, err error) {
	switch c.role {
	case "sender", "gateway":
		return
	case "closer":
		for _, name := range strings.Split(c.key, ",") {
			no, _, _ := strings.Cut(name, "#")
			c.p.failed[no] = err != nil
		}
	}
	for _, q := range j.w.procs {
		if c.role == "orders" || c.role == "brakes" || c.role == "reconciler" || c.role == "closer" && q != c.p {
			q.crossed = true
		}
	}
	j.look(cheapSQL, cheapChecks)
}

// everything looks at all that is stored, and at what those outside know.
func (j judge) everything() {
	j.look(allSQL, allChecks)
	j.outside()
}

func (j judge) look(query string, checks []check) {
	n, name := -1, ""
	j.row(query, nil, &n, &name)
	if n >= 0 {
		j.w.fail(checks[n].invariant, "%s: not so for %s", checks[n].name, name)
	}
}

// outside compares what is stored with what those outside know.
func (j judge) outside() {
	for _, s := range j.w.shop.sold {
		var amount int64
		var user string
		j.row("SELECT amount, user_id FROM t_order WHERE order_no = ?", []any{s.OrderNo}, &amount, &user)
		if s.answered && (amount != s.Amount || user != s.UserID) {
			j.w.fail("I8", "order %s was promised, but is not there, or another one", s.OrderNo)
		}
	}
	for _, c := range j.w.bank.captured {
		if c.told && !c.wrong && j.number("SELECT COUNT(*) FROM t_payment WHERE payment_no = ?", c.PaymentNo) != 1 {
			j.w.fail("I7", "payment %s of order %s was taken, and is nowhere", c.PaymentNo, c.OrderNo)
		}
		if c.wrong && j.number("SELECT COUNT(*) FROM t_payment WHERE payment_no = ?", c.PaymentNo) != 0 {
			j.w.fail("I7", "payment %s of order %s has another amount, and was taken", c.PaymentNo, c.OrderNo)
		}
		j.asked(c)
	}
	j.each("SELECT order_no || ':' || round || ':cancelled' FROM t_order_log WHERE to_status = 20 AND event_sent_at IS NOT NULL", func(rows *sql.Rows) error {
		id := ""
		err := rows.Scan(&id)
		if _, told := j.w.broker.told[id]; !told {
			j.w.fail("I6", "event %s is said to be sent, but the broker never took it", id)
		}
		return err
	})
}

// asked: an order whose bill was paid while its attempt was open is not cancelled unless the attempt, or the time to confirm it,
// was over (O01). It may be if a caller said that the attempt failed, or a transfer came that was taken for its payment.
func (j judge) asked(c *capture) {
	if c.AttemptNo == "" || j.w.terms.confirm == 0 || j.w.bank.bills[c.AttemptNo].givenUp {
		return
	}
	for _, other := range j.w.bank.captured {
		if other.OrderNo == c.OrderNo && other.AttemptNo == "" {
			return
		}
	}
	no := j.number(`SELECT COUNT(*) FROM t_payment_attempt a JOIN t_order_log l ON l.order_no = a.order_no AND l.round = a.round AND l.to_status = 20
		LEFT JOIN t_order_log d ON d.order_no = l.order_no AND d.round = l.round AND d.to_status = 5 AND d.from_status = 0
		WHERE a.attempt_no = ? AND l.at > ? AND l.at < a.deadline AND (a.ended_at IS NULL OR a.ended_at > l.at OR a.state = 'closed')
			AND l.at < COALESCE(d.at, l.at) + ?`, c.AttemptNo, c.PaidAt.UnixMilli(), j.w.terms.confirm.Milliseconds())
	if no > 0 {
		j.w.fail("O01", "order %s was cancelled although its bill %s had been paid", c.OrderNo, c.AttemptNo)
	}
}

// sent hears of a message that a relay hands to the broker: an event is one of something that was committed, and always says
// the same.
func (j judge) sent(e order.Envelope) {
	if e.Kind != order.Notice {
		return
	}
	if before, told := j.w.broker.told[e.MessageID]; told && before != string(e.Body) {
		j.w.fail("I6", "event %s was sent with two bodies", e.MessageID)
	}
	if e.Type == order.TypeCancelled && j.number(`SELECT COUNT(*) FROM t_order_log WHERE order_no = ? AND to_status = 20
		AND order_no || ':' || round || ':cancelled' = ?`, e.OrderNo, e.MessageID) != 1 {
		j.w.fail("I6", "event %s tells of what was not committed", e.MessageID)
	}
}

// acknowledged: the broker forgets a message, so it must have had its effect, and must not be the one that its order waits
// for (D08), unless somebody else has changed the order since.
func (j judge) acknowledged(p *process, d order.Delivery) {
	body, err := order.DecodeTimeout(d.Body)
	if err != nil {
		return
	}
	if p.failed[body.OrderNo] {
		j.w.fail("D08", "the message of order %s was acknowledged, but could not be handled", body.OrderNo)
	}
	if !p.crossed && j.enforced() && j.number(`SELECT COUNT(*) FROM t_order o JOIN t_local_message m ON m.dedup_key = o.order_no || ':timeout'
		WHERE o.order_no = ? AND o.status = 0 AND m.state = 1 AND m.hop = ?`, body.OrderNo, body.Hop) > 0 {
		j.w.fail("D08", "the message of order %s was acknowledged and forgotten: hop %d, and none was scheduled after it", body.OrderNo, body.Hop)
	}
}

// enforced reports whether every order is closed that is due.
func (j judge) enforced() bool {
	return j.number(`SELECT COUNT(*) FROM t_setting WHERE name = 'brakes' AND value LIKE '%"mode":"enforce","percent":100%'`) == 1
}

// stopped reports whether closing is off or in shadow.
func (j judge) stopped() bool {
	return j.number(`SELECT COUNT(*) FROM t_setting WHERE name = 'brakes' AND value NOT LIKE '%"mode":"enforce"%'`) == 1
}

const closingsSQL = "SELECT COUNT(*) FROM t_order_log WHERE to_status IN (5, 20) AND reason IN " + byTime

// closing watches a closing transaction: it closes nothing without its lease (I10) or against the brakes (I15).
func (j judge) closing(l *order.Lease, do func()) {
	held := l == nil || j.number("SELECT COUNT(*) FROM t_lease WHERE shard = ? AND owner = ? AND token = ? AND lease_until > ?",
		l.Shard, l.Owner, l.Token, j.w.now.Load()) == 1
	if !held {
		j.w.count("lease lost: sweep")
	}
	stopped, before := j.stopped(), j.number(closingsSQL)
	do()
	switch after := j.number(closingsSQL); {
	case after == before:
	case !held:
		j.w.fail("I10", "a sweep closed orders after its lease had ended")
	case stopped:
		j.w.fail("I15", "orders were closed against the brakes")
	}
}

// confirming watches the end of an order in doubt: a worker whose lease has ended changes nothing but what money does (I10).
func (j judge) confirming(v order.Verdict, do func()) {
	m := v.Message
	own := j.number("SELECT COUNT(*) FROM t_local_message WHERE dedup_key = ? AND state IN (3, 4) AND hop = ? AND next_at = ? AND next_at > ?",
		m.Key, m.Hop, m.NextAt.UnixMilli(), j.w.now.Load()) == 1
	if !own {
		j.w.count("lease lost: confirmer")
	}
	const ends = "SELECT COUNT(*) FROM t_order_log WHERE order_no = ? AND to_status = 20"
	stopped, before, closings := j.stopped(), j.number(ends, v.OrderNo), j.number(closingsSQL)
	do()
	if !own && j.number(ends, v.OrderNo) != before {
		j.w.fail("I10", "a confirmer cancelled order %s after its lease had ended", v.OrderNo)
	}
	if stopped && j.number(closingsSQL) != closings {
		j.w.fail("I15", "order %s was cancelled against the brakes", v.OrderNo)
	}
}

const imageSQL = "SELECT COALESCE(MAX(hop || ' ' || state || ' ' || next_at || ' ' || attempts || ' ' || last_error), 'none') FROM t_local_message WHERE dedup_key = ?"

// settling watches what a relay does with rows: those that are not its own any more stay as they are (I10).
func (j judge) settling(rows []order.Message, do func()) {
	own, strange := map[string]bool{}, map[string]string{}
	for _, m := range rows {
		own[m.Key] = own[m.Key] || j.number("SELECT COUNT(*) FROM t_local_message WHERE dedup_key = ? AND state = 0 AND hop = ? AND next_at = ? AND next_at > ?",
			m.Key, m.Hop, m.NextAt.UnixMilli(), j.w.now.Load()) > 0
	}
	for _, m := range rows {
		if !own[m.Key] {
			strange[m.Key] = j.image(m.Key)
		}
	}
	if len(strange) > 0 {
		j.w.count("lease lost: relay")
	}
	do()
	for key, before := range strange {
		if after := j.image(key); after != before {
			j.w.fail("I10", "a relay changed row %s after its lease had ended: from %s to %s", key, before, after)
		}
	}
}

// image is all that a relay may change of a row.
func (j judge) image(key string) (image string) {
	j.row(imageSQL, []any{key}, &image)
	return image
}

// found hears what a reconciliation has found: damage that cannot be is a defect, here or there.
func (j judge) found(page order.Walked) {
	for _, f := range page.Findings {
		j.w.count("found: " + f.Kind)
		switch f.Kind {
		case order.OverduePending, order.ConfirmingStuck, order.Unacknowledged, order.LateCaseOpen, order.MessageStuck:
		default:
			j.w.fail("audit", "a reconciliation found %s at %s: %s", f.Kind, f.Subject, f.Detail)
		}
	}
}

// never is order.Never as it is stored.
var never = order.Never.UnixMilli()

func at(ms int64) time.Time {
	if ms == 0 || ms >= never {
		return time.Time{}
	}
	return time.UnixMilli(ms).UTC()
}

// nextDeadline is the deadline that an order reaches next; zero if there is none.
func (j judge) nextDeadline() time.Time {
	return at(j.number("SELECT MIN(expire_at) FROM t_order WHERE status = 0 AND expire_at >= ?", j.w.now.Load()))
}

// next is when something is to happen next, and whether nothing is left that could.
func (j judge) next() (next time.Time, over bool) {
	now := j.w.now.Load()
	times := []time.Time{j.nextDeadline(), at(j.number("SELECT MIN(next_at) FROM t_local_message WHERE state IN (0, 3) AND next_at > ?", now))}
	for _, p := range j.w.broker.parcels {
		times = append(times, p.due)
	}
	for _, t := range times {
		if t.After(j.w.clock()) && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	open := j.number(`SELECT COUNT(*) FROM t_order o LEFT JOIN t_local_message m ON m.dedup_key = o.order_no || ':timeout'
		WHERE o.status = 0 AND o.expire_at < ? OR o.status = 5 AND m.state <> 2`, never)
	unsent := j.number("SELECT COUNT(*) FROM t_local_message WHERE state <> 2 AND next_at < ? AND kind = 'event'", never)
	return next, open+unsent == 0
}

// overdue reports whether something is to be done now.
func (j judge) overdue() bool {
	now := j.w.now.Load()
	return j.number(`SELECT COUNT(*) FROM t_order o LEFT JOIN t_local_message m ON m.dedup_key = o.order_no || ':timeout'
		WHERE o.status = 0 AND o.expire_at <= ? OR o.status = 5 AND m.state <> 2`, now)+
		j.number("SELECT COUNT(*) FROM t_local_message WHERE state IN (0, 3) AND next_at <= ?", now) > 0
}

// inBound looks whether what was due has come about in time, given when the faults ceased (I3, I9).
func (j judge) inBound(ceased time.Time) {
	now := j.w.now.Load()
	if now <= ceased.Add(bound).UnixMilli() {
		return
	}
	name := ""
	j.row("SELECT order_no FROM t_order WHERE status = 0 AND expire_at + ? < ?", []any{(bound + j.w.terms.grace()).Milliseconds(), now}, &name)
	if name != "" {
		j.w.fail("I3", "order %s is pending %v after the faults ceased", name, j.w.clock().Sub(ceased))
	}
	j.row(`SELECT o.order_no FROM t_order o JOIN t_local_message m ON m.dedup_key = o.order_no || ':timeout'
		WHERE o.status = 5 AND o.confirm_until + ? < ? AND m.state <> 2`, []any{bound.Milliseconds(), now}, &name)
	if name != "" {
		j.w.fail("I3", "order %s is confirming %v after the faults ceased", name, j.w.clock().Sub(ceased))
	}
	j.row("SELECT dedup_key FROM t_local_message WHERE state = 0 AND next_at + ? < ?", []any{bound.Milliseconds(), now}, &name)
	if name != "" {
		j.w.fail("I9", "message %s is not sent %v after the faults ceased", name, j.w.clock().Sub(ceased))
	}
}

// tally counts what has happened to orders and payments.
func (j judge) tally() {
	for _, query := range []string{
		"SELECT 'step: ' || from_status || ' ' || event || ' ' || to_status || ' ' || reason, COUNT(*) FROM t_order_log GROUP BY 1",
		"SELECT 'payment: ' || outcome, COUNT(*) FROM t_payment GROUP BY 1",
		"SELECT 'late payment: ' || policy || ' ' || status, COUNT(*) FROM t_late_payment GROUP BY 1",
		"SELECT 'attempt: ' || state, COUNT(*) FROM t_payment_attempt GROUP BY 1",
		"SELECT 'set aside: ' || source, COUNT(*) FROM t_quarantine GROUP BY 1",
		"SELECT 'in the end: ' || status, COUNT(*) FROM t_order GROUP BY 1",
	} {
		j.each(query, func(rows *sql.Rows) error {
			what, n := "", 0
			err := rows.Scan(&what, &n)
			j.w.counts[what] += n
			return err
		})
	}
}

// dump is the content of tables.
func (j judge) dump(tables ...string) string {
	var out strings.Builder
	for _, table := range tables {
		j.each("SELECT * FROM "+table+" ORDER BY 1, 2, 3, 4, 5", func(rows *sql.Rows) error {
			columns, err := rows.Columns()
			if err != nil {
				return err
			}
			values, into := make([]any, len(columns)), make([]any, len(columns))
			for i := range values {
				into[i] = &values[i]
			}
			err = rows.Scan(into...)
			fmt.Fprintf(&out, "%s %v\n", table, values)
			return err
		})
	}
	return out.String()
}
