package store

import (
	"context"
	"strings"
	"time"

	"lapse/pkg/order"
)

// AuditOptions bound what an audit tolerates.
type AuditOptions struct {
	// Overdue: how long an order may be pending after its deadline, and a message unsent after its time; 0 means 180 s.
	Overdue time.Duration
}

// audit is one statement about the data. Its query yields a row (id, bad) for each row it looks at; bad is 1 if the
// statement does not hold there. Args: latest (see Audit), as often as the text asks for it.
type audit struct {
	invariant, name, query string
	args                   int
}

// auditSQL counts. One query is one statement, so what it sees is consistent, on a live system too.
const auditSQL = "SELECT COUNT(*), COALESCE(SUM(bad), 0), COALESCE(MIN(CASE WHEN bad = 1 THEN id END), '') FROM (AUDIT) a"

var audits = []audit{
	{"I1", "no round leaves pending twice", `
		SELECT order_no AS id, CASE WHEN SUM(CASE WHEN from_status = 0 AND to_status <> 0 THEN 1 ELSE 0 END) > 1 THEN 1 ELSE 0 END AS bad
		FROM t_order_log GROUP BY order_no, round`, 0},
	{"I1", "no round ends twice, so none holds both a payment and a cancellation", `
		SELECT order_no AS id, CASE WHEN SUM(CASE WHEN to_status IN (10, 20) AND from_status <> to_status THEN 1 ELSE 0 END) > 1 THEN 1 ELSE 0 END AS bad
		FROM t_order_log GROUP BY order_no, round`, 0},
	{"I1", "no order is both paid and cancelled", `
		SELECT o.order_no AS id, CASE WHEN (o.paid_at IS NOT NULL AND o.cancelled_at IS NOT NULL)
			OR (o.status = 20 AND p.n IS NOT NULL) THEN 1 ELSE 0 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, COUNT(*) AS n FROM t_payment WHERE outcome = 'paid' GROUP BY order_no) p
			ON p.order_no = o.order_no`, 0},
	{"I1", "final states change only by restore, refund and archive", `
		SELECT order_no AS id, CASE WHEN event IN ('restored', 'reopened', 'refunded', 'archived') THEN 0 ELSE 1 END AS bad
		FROM t_order_log WHERE from_status >= 10`, 0},
	{"I1", "an order's state is what its log says", `
		SELECT o.order_no AS id, CASE WHEN l.to_status = o.status AND l.round = o.round THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN t_order_log l ON l.order_no = o.order_no AND l.version = o.version`, 0},
	{"I2", "no order was cancelled before its deadline", `
		SELECT order_no AS id, CASE WHEN cancelled_at < expire_at THEN 1 ELSE 0 END AS bad
		FROM t_order WHERE cancel_reason IN ('TIMEOUT', 'COMPENSATE') AND cancelled_at IS NOT NULL`, 0},
	{"I2", "no round was ended or doubted by a time-out before its deadline", `
		SELECT order_no AS id, CASE WHEN at < expire_at THEN 1 ELSE 0 END AS bad
		FROM t_order_log WHERE to_status IN (5, 20) AND reason IN ('TIMEOUT', 'COMPENSATE') AND expire_at IS NOT NULL`, 0},
	{"I3", pendingBeyond, `
		SELECT order_no AS id, CASE WHEN expire_at < ? THEN 1 ELSE 0 END AS bad FROM t_order WHERE status = 0`, 1},
	{"I3", confirmingBeyond, `
		SELECT o.order_no AS id, CASE WHEN o.confirm_until < ? AND COALESCE(m.state, 0) <> 2 THEN 1 ELSE 0 END AS bad
		FROM t_order o LEFT JOIN t_local_message m ON m.order_no = o.order_no AND m.kind = 'timeout' WHERE o.status = 5`, 1},
	{"I4", "counters equal the ledger", `
		SELECT r.ref AS id, CASE WHEN r.available = COALESCE(l.available, 0) AND r.held = COALESCE(l.held, 0)
			AND r.sold = COALESCE(l.sold, 0) THEN 0 ELSE 1 END AS bad
		FROM t_resource r LEFT JOIN (SELECT kind, ref,
			SUM(CASE WHEN op IN ('adjust', 'release', 'restock') THEN quantity WHEN op IN ('reserve', 'forfeit') THEN -quantity ELSE 0 END) AS available,
			SUM(CASE WHEN op = 'reserve' THEN quantity WHEN op IN ('release', 'sell') THEN -quantity ELSE 0 END) AS held,
			SUM(CASE op WHEN 'sell' THEN quantity WHEN 'restock' THEN -quantity ELSE 0 END) AS sold
			FROM t_resource_log WHERE remote = 0 GROUP BY kind, ref) l ON l.kind = r.kind AND l.ref = r.ref`, 0},
	{"I4", "all that was put in, and did not run out, is available, held or sold", `
		SELECT r.ref AS id, CASE WHEN r.available + r.held + r.sold = COALESCE(l.put_in, 0) THEN 0 ELSE 1 END AS bad
		FROM t_resource r LEFT JOIN (SELECT kind, ref, SUM(CASE op WHEN 'adjust' THEN quantity ELSE -quantity END) AS put_in
			FROM t_resource_log WHERE op IN ('adjust', 'forfeit') AND remote = 0 GROUP BY kind, ref) l ON l.kind = r.kind AND l.ref = r.ref`, 0},
	{"I4", "no counter is negative", `
		SELECT ref AS id, CASE WHEN available < 0 OR held < 0 OR sold < 0 THEN 1 ELSE 0 END AS bad FROM t_resource`, 0},
	{"I4", "the ledger names no unknown resource", `
		SELECT l.order_no AS id, CASE WHEN r.ref IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_resource_log l LEFT JOIN t_resource r ON r.kind = l.kind AND r.ref = l.ref WHERE l.remote = 0`, 0},
	{"I5", "what a round reserved was released once if it was cancelled, else not", `
		SELECT r.order_no AS id, CASE WHEN c.order_no IS NULL AND x.order_no IS NULL THEN 0
			WHEN c.order_no IS NOT NULL AND x.quantity = r.quantity THEN 0 ELSE 1 END AS bad
		FROM t_resource_log r
		LEFT JOIN t_resource_log x ON x.order_no = r.order_no AND x.round = r.round AND x.op = 'release' AND x.kind = r.kind AND x.ref = r.ref
		LEFT JOIN (SELECT DISTINCT order_no, round FROM t_order_log WHERE to_status = 20 AND from_status <> 20) c
			ON c.order_no = r.order_no AND c.round = r.round
		WHERE r.op = 'reserve' AND r.round > 0`, 0},
	{"I5", "nothing was released, sold or forfeited that was not reserved", `
		SELECT x.order_no AS id, CASE WHEN r.order_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_resource_log x
		LEFT JOIN t_resource_log r ON r.order_no = x.order_no AND r.round = x.round AND r.op = 'reserve' AND r.kind = x.kind AND r.ref = x.ref
		WHERE x.op IN ('release', 'sell', 'forfeit') AND x.round > 0`, 0},
	{"I5", "nothing was both released and sold", `
		SELECT x.order_no AS id, CASE WHEN s.order_no IS NULL THEN 0 ELSE 1 END AS bad
		FROM t_resource_log x
		LEFT JOIN t_resource_log s ON s.order_no = x.order_no AND s.round = x.round AND s.op = 'sell' AND s.kind = x.kind AND s.ref = x.ref
		WHERE x.op = 'release' AND x.round > 0`, 0},
	{"I6", "each cancelled round has its event: still to be sent, or stamped as sent", `
		SELECT c.order_no AS id, CASE WHEN m.dedup_key IS NULL AND c.event_sent_at IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_order_log c LEFT JOIN t_local_message m ON m.order_no = c.order_no AND m.round = c.round AND m.kind = 'event' AND m.type = 'cancelled'
		WHERE c.to_status = 20 AND c.from_status <> 20`, 0},
	{"I6", "no cancelled event without a cancelled round", `
		SELECT m.dedup_key AS id, CASE WHEN c.order_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_local_message m LEFT JOIN (SELECT DISTINCT order_no, round FROM t_order_log WHERE to_status = 20) c
			ON c.order_no = m.order_no AND c.round = m.round
		WHERE m.kind = 'event' AND m.type = 'cancelled'`, 0},
	{"I7", "each payment is in one place: its paid order, its refunded order, or one late-payment case", `
		SELECT p.payment_no AS id, CASE
			WHEN p.outcome = 'paid' AND o.status = 10 AND COALESCE(l.status, 'consumed') = 'consumed' THEN 0
			WHEN p.outcome = 'refunded' AND o.status = 30 AND COALESCE(l.status, 'consumed') = 'consumed' THEN 0
			WHEN p.outcome = 'late' AND l.order_no = p.order_no AND l.status <> 'consumed' THEN 0 ELSE 1 END AS bad
		FROM t_payment p LEFT JOIN t_order o ON o.order_no = p.order_no LEFT JOIN t_late_payment l ON l.payment_no = p.payment_no`, 0},
	{"I7", "each order that was paid was paid once, and those with nothing to pay were not", `
		SELECT o.order_no AS id, CASE WHEN COALESCE(p.n, 0) = (CASE WHEN o.amount > 0 THEN 1 ELSE 0 END) THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, COUNT(*) AS n FROM t_payment WHERE outcome IN ('paid', 'refunded') GROUP BY order_no) p
			ON p.order_no = o.order_no
		WHERE o.paid_at IS NOT NULL`, 0},
	{"I7", "each late-payment case has its payment", `
		SELECT l.payment_no AS id, CASE WHEN p.order_no = l.order_no AND (p.outcome = 'late') = (l.status <> 'consumed') THEN 0 ELSE 1 END AS bad
		FROM t_late_payment l LEFT JOIN t_payment p ON p.payment_no = l.payment_no`, 0},
	{"I8", "each item of an order was reserved, or waits for the payment that takes it", `
		SELECT i.order_no AS id, CASE WHEN o.order_no IS NULL THEN 1
			WHEN i.at_payment = 1 AND o.paid_at IS NULL THEN (CASE WHEN r.order_no IS NULL THEN 0 ELSE 1 END)
			WHEN r.quantity = i.quantity THEN 0 ELSE 1 END AS bad
		FROM t_order_item i LEFT JOIN t_order o ON o.order_no = i.order_no
		LEFT JOIN t_resource_log r ON r.order_no = i.order_no AND r.round = o.round AND r.op = 'reserve' AND r.kind = i.kind AND r.ref = i.ref`, 0},
	{"I8", "each reservation is of an item of an order", `
		SELECT r.order_no AS id, CASE WHEN i.order_no IS NULL OR o.order_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_resource_log r LEFT JOIN t_order o ON o.order_no = r.order_no
		LEFT JOIN t_order_item i ON i.order_no = r.order_no AND i.kind = r.kind AND i.ref = r.ref
		WHERE r.op = 'reserve' AND r.round > 0`, 0},
	{"I8", "each order has its whole log", `
		SELECT o.order_no AS id, CASE WHEN l.n = o.version AND l.last_version = o.version THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, COUNT(*) AS n, MAX(version) AS last_version FROM t_order_log GROUP BY order_no) l
			ON l.order_no = o.order_no`, 0},
	{"I8", "each pending or confirming order has one time-out row", `
		SELECT o.order_no AS id, CASE WHEN m.n = 1 THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, COUNT(*) AS n FROM t_local_message WHERE kind = 'timeout' GROUP BY order_no) m
			ON m.order_no = o.order_no
		WHERE o.status IN (0, 5)`, 0},
	{"I8", "an order waits for exactly its open payment attempts", `
		SELECT o.order_no AS id, CASE WHEN o.paying_until = a.last_deadline OR (o.paying_until IS NULL AND a.last_deadline IS NULL) THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, round, MAX(deadline) AS last_deadline FROM t_payment_attempt WHERE state = 'open' GROUP BY order_no, round) a
			ON a.order_no = o.order_no AND a.round = o.round
		WHERE o.status IN (0, 5)`, 0},
	{"I9", "each time-out row has a pending or confirming order, or an item", `
		SELECT m.dedup_key AS id, CASE WHEN o.order_no IS NULL AND i.item_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_local_message m LEFT JOIN t_order o ON o.order_no = m.order_no AND o.status IN (0, 5)
		LEFT JOIN t_item i ON i.item_no = m.order_no
		WHERE m.kind = 'timeout'`, 0},
	{"I9", "no message is stuck", `
		SELECT dedup_key AS id, CASE WHEN next_at < ? OR failing_since < ? THEN 1 ELSE 0 END AS bad
		FROM t_local_message WHERE state IN (0, 3, 4)`, 2},
}

// The statements that hold only while closing is enforced.
const (
	pendingBeyond    = "no order is pending beyond the bound, while closing is enforced"
	confirmingBeyond = "no order is confirming beyond the bound but for a person to decide, while closing is enforced"
)

// Audit looks at all stored data and says for each invariant, as far as SQL can tell, how many rows it looked at and how
// many violate it. It reads without locks, and takes as long as it needs: whole tables are read.
func (s *Store) Audit(ctx context.Context, o AuditOptions) ([]order.Check, error) {
	if o.Overdue == 0 {
		o.Overdue = 180 * time.Second
	}
	db, err := s.slow()
	if err != nil {
		return nil, badDSN(err)
	}
	defer db.Close()
	now, err := s.dialect.clock(ctx, db)
	if err != nil {
		return nil, s.answer(err)
	}
	brakes, err := s.Brakes(ctx)
	if err != nil {
		return nil, err
	}
	latest := now.Add(-o.Overdue)
	checks := make([]order.Check, 0, len(audits))
	for _, a := range audits {
		c := order.Check{Invariant: a.invariant, Name: a.name}
		args := make([]any, a.args)
		for i := range args {
			args[i] = latest
			if whileEnforced := a.name == pendingBeyond || a.name == confirmingBeyond; whileEnforced && !brakes.Full() {
				args[i] = beginning
			}
		}
		err := db.QueryRowContext(ctx, strings.Replace(auditSQL, "AUDIT", a.query, 1), args...).Scan(&c.Checked, &c.Violations, &c.Example)
		if err != nil {
			return nil, s.answer(err)
		}
		checks = append(checks, c)
	}
	return checks, nil
}
