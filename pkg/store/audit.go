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
	{"I1", "no round holds both a payment and a cancellation", `
		SELECT o.order_no AS id, CASE WHEN (o.paid_at IS NOT NULL AND o.cancelled_at IS NOT NULL)
			OR (o.status = 20 AND p.n IS NOT NULL) THEN 1 ELSE 0 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, COUNT(*) AS n FROM t_payment WHERE outcome = 'paid' GROUP BY order_no) p
			ON p.order_no = o.order_no`, 0},
	{"I1", "an order's state is what its log says", `
		SELECT o.order_no AS id, CASE WHEN l.to_status = o.status AND l.round = o.round THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN t_order_log l ON l.order_no = o.order_no AND l.version = o.version`, 0},
	{"I2", "no order was cancelled before its deadline", `
		SELECT order_no AS id, CASE WHEN cancelled_at < expire_at THEN 1 ELSE 0 END AS bad
		FROM t_order WHERE cancel_reason IN ('TIMEOUT', 'COMPENSATE')`, 0},
	{"I3", "no order is pending beyond the bound", `
		SELECT order_no AS id, CASE WHEN expire_at < ? THEN 1 ELSE 0 END AS bad FROM t_order WHERE status = 0`, 1},
	{"I4", "counters equal the ledger", `
		SELECT r.ref AS id, CASE WHEN r.available = COALESCE(l.available, 0) AND r.held = COALESCE(l.held, 0)
			AND r.sold = COALESCE(l.sold, 0) THEN 0 ELSE 1 END AS bad
		FROM t_resource r LEFT JOIN (SELECT kind, ref,
			SUM(CASE op WHEN 'adjust' THEN quantity WHEN 'reserve' THEN -quantity WHEN 'release' THEN quantity ELSE 0 END) AS available,
			SUM(CASE op WHEN 'reserve' THEN quantity WHEN 'release' THEN -quantity WHEN 'sell' THEN -quantity ELSE 0 END) AS held,
			SUM(CASE op WHEN 'sell' THEN quantity ELSE 0 END) AS sold
			FROM t_resource_log GROUP BY kind, ref) l ON l.kind = r.kind AND l.ref = r.ref`, 0},
	{"I4", "all that was put in is available, held or sold", `
		SELECT r.ref AS id, CASE WHEN r.available + r.held + r.sold = COALESCE(l.put_in, 0) THEN 0 ELSE 1 END AS bad
		FROM t_resource r LEFT JOIN (SELECT kind, ref, SUM(quantity) AS put_in FROM t_resource_log WHERE op = 'adjust' GROUP BY kind, ref) l
			ON l.kind = r.kind AND l.ref = r.ref`, 0},
	{"I4", "no counter is negative", `
		SELECT ref AS id, CASE WHEN available < 0 OR held < 0 OR sold < 0 THEN 1 ELSE 0 END AS bad FROM t_resource`, 0},
	{"I4", "the ledger names no unknown resource", `
		SELECT l.order_no AS id, CASE WHEN r.ref IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_resource_log l LEFT JOIN t_resource r ON r.kind = l.kind AND r.ref = l.ref`, 0},
	{"I5", "what a round reserved was released once if it was cancelled, else not", `
		SELECT r.order_no AS id, CASE WHEN c.order_no IS NULL AND x.order_no IS NULL THEN 0
			WHEN c.order_no IS NOT NULL AND x.quantity = r.quantity THEN 0 ELSE 1 END AS bad
		FROM t_resource_log r
		LEFT JOIN t_resource_log x ON x.order_no = r.order_no AND x.round = r.round AND x.op = 'release' AND x.kind = r.kind AND x.ref = r.ref
		LEFT JOIN (SELECT DISTINCT order_no, round FROM t_order_log WHERE to_status = 20) c ON c.order_no = r.order_no AND c.round = r.round
		WHERE r.op = 'reserve'`, 0},
	{"I5", "nothing was released that was not reserved", `
		SELECT x.order_no AS id, CASE WHEN r.order_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_resource_log x
		LEFT JOIN t_resource_log r ON r.order_no = x.order_no AND r.round = x.round AND r.op = 'reserve' AND r.kind = x.kind AND r.ref = x.ref
		WHERE x.op = 'release'`, 0},
	{"I6", "each cancelled round has one event: still to be sent, or stamped as sent", `
		SELECT c.order_no AS id, CASE WHEN COALESCE(m.n, 0) + (CASE WHEN c.event_sent_at IS NULL THEN 0 ELSE 1 END) = 1 THEN 0 ELSE 1 END AS bad
		FROM t_order_log c LEFT JOIN (SELECT order_no, round, COUNT(*) AS n FROM t_local_message WHERE kind = 'event' GROUP BY order_no, round) m
			ON m.order_no = c.order_no AND m.round = c.round
		WHERE c.to_status = 20`, 0},
	{"I6", "no event without a cancelled round", `
		SELECT m.dedup_key AS id, CASE WHEN c.order_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_local_message m LEFT JOIN (SELECT DISTINCT order_no, round FROM t_order_log WHERE to_status = 20) c
			ON c.order_no = m.order_no AND c.round = m.round
		WHERE m.kind = 'event'`, 0},
	{"I7", "each payment is of one paid order or one late-payment case", `
		SELECT p.payment_no AS id, CASE WHEN p.outcome = 'paid' AND o.status = 10 AND l.payment_no IS NULL THEN 0
			WHEN p.outcome = 'late' AND l.order_no = p.order_no THEN 0 ELSE 1 END AS bad
		FROM t_payment p LEFT JOIN t_order o ON o.order_no = p.order_no LEFT JOIN t_late_payment l ON l.payment_no = p.payment_no`, 0},
	{"I7", "each paid order was paid once, and those with nothing to pay were not", `
		SELECT o.order_no AS id, CASE WHEN COALESCE(p.n, 0) = (CASE WHEN o.amount > 0 THEN 1 ELSE 0 END) THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, COUNT(*) AS n FROM t_payment WHERE outcome = 'paid' GROUP BY order_no) p
			ON p.order_no = o.order_no
		WHERE o.status = 10`, 0},
	{"I7", "each late-payment case has its payment", `
		SELECT l.payment_no AS id, CASE WHEN p.payment_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_late_payment l LEFT JOIN t_payment p ON p.payment_no = l.payment_no AND p.outcome = 'late'`, 0},
	{"I8", "each item of an order was reserved", `
		SELECT i.order_no AS id, CASE WHEN r.quantity = i.quantity AND o.order_no IS NOT NULL THEN 0 ELSE 1 END AS bad
		FROM t_order_item i LEFT JOIN t_order o ON o.order_no = i.order_no
		LEFT JOIN t_resource_log r ON r.order_no = i.order_no AND r.round = o.round AND r.op = 'reserve' AND r.kind = i.kind AND r.ref = i.ref`, 0},
	{"I8", "each reservation is of an item of an order", `
		SELECT r.order_no AS id, CASE WHEN i.order_no IS NULL OR o.order_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_resource_log r LEFT JOIN t_order o ON o.order_no = r.order_no
		LEFT JOIN t_order_item i ON i.order_no = r.order_no AND i.kind = r.kind AND i.ref = r.ref
		WHERE r.op = 'reserve'`, 0},
	{"I8", "each order has its whole log", `
		SELECT o.order_no AS id, CASE WHEN l.n = o.version AND l.last_version = o.version THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, COUNT(*) AS n, MAX(version) AS last_version FROM t_order_log GROUP BY order_no) l
			ON l.order_no = o.order_no`, 0},
	{"I8", "each pending order has one time-out row", `
		SELECT o.order_no AS id, CASE WHEN m.n = 1 THEN 0 ELSE 1 END AS bad
		FROM t_order o LEFT JOIN (SELECT order_no, COUNT(*) AS n FROM t_local_message WHERE kind = 'timeout' GROUP BY order_no) m
			ON m.order_no = o.order_no
		WHERE o.status = 0`, 0},
	{"I9", "each time-out row has a pending order", `
		SELECT m.dedup_key AS id, CASE WHEN o.order_no IS NULL THEN 1 ELSE 0 END AS bad
		FROM t_local_message m LEFT JOIN t_order o ON o.order_no = m.order_no AND o.status = 0
		WHERE m.kind = 'timeout'`, 0},
	{"I9", "no message is stuck", `
		SELECT dedup_key AS id, CASE WHEN next_at < ? OR failing_since < ? THEN 1 ELSE 0 END AS bad
		FROM t_local_message WHERE state = 0`, 2},
}

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
	checks := make([]order.Check, 0, len(audits))
	for _, a := range audits {
		c := order.Check{Invariant: a.invariant, Name: a.name}
		args := make([]any, a.args)
		for i := range args {
			args[i] = now.Add(-o.Overdue)
		}
		err := db.QueryRowContext(ctx, strings.Replace(auditSQL, "AUDIT", a.query, 1), args...).Scan(&c.Checked, &c.Violations, &c.Example)
		if err != nil {
			return nil, s.answer(err)
		}
		checks = append(checks, c)
	}
	return checks, nil
}
