package sim

import (
	"fmt"
	"strings"

	"lapse/pkg/order"
)

// check is one statement about the stored data, looked at by SQL that owes nothing to pkg/store: a query of the names of
// those for which it does not hold.
type check struct{ invariant, name, bad string }

// Statuses as they are stored: 0 pending, 5 confirming, 10 paid, 20 cancelled, 30 closed. States of messages: 0 to send, 1 sent,
// 2 set aside, 3 to be asked about.

// byTime are the reasons of what a deadline has brought about.
const byTime = "('TIMEOUT', 'COMPENSATE')"

// cheapChecks are looked at after each call.
var cheapChecks = []check{
	{"I1", "a round ends once", `
		SELECT order_no FROM t_order_log WHERE to_status IN (10, 20) AND from_status <> to_status GROUP BY order_no, round HAVING COUNT(*) > 1`},
	{"I2", "nothing is ended or doubted before its deadline", `
		SELECT order_no FROM t_order_log WHERE to_status IN (5, 20) AND reason IN ` + byTime + ` AND at < expire_at`},
	{"I4", "no counter is negative, and nothing is lost or made", `
		SELECT r.ref FROM t_resource r WHERE r.available < 0 OR r.held < 0 OR r.sold < 0 OR r.available + r.held + r.sold <>
			(SELECT COALESCE(SUM(CASE op WHEN 'adjust' THEN quantity ELSE -quantity END), 0) FROM t_resource_log l
			WHERE l.kind = r.kind AND l.ref = r.ref AND l.op IN ('adjust', 'forfeit') AND l.remote = 0)`},
	{"I8", "an order has a time-out row exactly while it is pending or confirming", `
		SELECT o.order_no FROM t_order o LEFT JOIN t_local_message m ON m.dedup_key = o.order_no || ':timeout'
		WHERE (m.dedup_key IS NOT NULL) <> (o.status IN (0, 5))`},
}

// allChecks are looked at now and then, and in the end.
var allChecks = append([]check{
	{"I1", "a round leaves pending once", `
		SELECT order_no FROM t_order_log WHERE from_status = 0 AND to_status <> 0 GROUP BY order_no, round HAVING COUNT(*) > 1`},
	{"I1", "no order is both paid and cancelled", `
		SELECT order_no FROM t_order o WHERE paid_at IS NOT NULL AND cancelled_at IS NOT NULL
			OR status IN (0, 5, 20) AND EXISTS (SELECT 1 FROM t_payment p WHERE p.order_no = o.order_no AND p.outcome = 'paid')`},
	{"I1", "every step is one of the state machine", `
		SELECT order_no FROM t_order_log WHERE version > 1 AND from_status || ' ' || event || ' ' || to_status NOT IN (` + transitions() + `)`},
	{"I1", "an order is where its log says, by steps without a gap", `
		SELECT o.order_no FROM t_order o LEFT JOIN t_order_log l ON l.order_no = o.order_no AND l.version = o.version
		WHERE l.order_no IS NULL OR l.to_status <> o.status OR l.round <> o.round
			OR (SELECT COUNT(*) FROM t_order_log a WHERE a.order_no = o.order_no) <> o.version
			OR EXISTS (SELECT 1 FROM t_order_log a JOIN t_order_log b ON b.order_no = a.order_no AND b.version = a.version + 1
				WHERE a.order_no = o.order_no AND (b.from_status <> a.to_status OR b.at < a.at))`},
	{"I2", "no order was cancelled before its deadline", `
		SELECT order_no FROM t_order WHERE cancel_reason IN ` + byTime + ` AND cancelled_at < expire_at`},
	{"I13", "the deadline that ended a round is the last one that was committed", `
		SELECT b.order_no FROM t_order_log b JOIN t_order_log a ON a.order_no = b.order_no AND a.version = b.version - 1
		WHERE b.reason IN ` + byTime + ` AND b.to_status IN (5, 20) AND (b.expire_at IS NOT a.expire_at OR b.at < a.expire_at)`},
	{"I13", "an extension brings no deadline nearer", `
		SELECT b.order_no FROM t_order_log b JOIN t_order_log a ON a.order_no = b.order_no AND a.version = b.version - 1
		WHERE b.event = 'extended' AND b.expire_at < a.expire_at`},
	{"I4", "counters equal the ledger", `
		SELECT r.ref FROM t_resource r LEFT JOIN (SELECT kind, ref,
			SUM(CASE WHEN op IN ('adjust', 'release', 'restock') THEN quantity WHEN op IN ('reserve', 'forfeit') THEN -quantity ELSE 0 END) AS available,
			SUM(CASE WHEN op = 'reserve' THEN quantity WHEN op IN ('release', 'sell') THEN -quantity ELSE 0 END) AS held,
			SUM(CASE op WHEN 'sell' THEN quantity WHEN 'restock' THEN -quantity ELSE 0 END) AS sold
			FROM t_resource_log WHERE remote = 0 GROUP BY kind, ref) l ON l.kind = r.kind AND l.ref = r.ref
		WHERE r.available <> COALESCE(l.available, 0) OR r.held <> COALESCE(l.held, 0) OR r.sold <> COALESCE(l.sold, 0)`},
	{"I4", "what is held is in orders that are pending or confirming", `
		SELECT r.ref FROM t_resource r WHERE r.held <> (SELECT COALESCE(SUM(i.quantity), 0) FROM t_order_item i JOIN t_order o ON o.order_no = i.order_no
			WHERE i.kind = r.kind AND i.ref = r.ref AND i.remote = 0 AND i.at_payment = 0 AND o.status IN (0, 5))`},
	{"I5", "what a round reserved is released exactly if it was cancelled, and sold exactly if it was paid", `
		SELECT r.order_no || ' ' || r.round FROM t_resource_log r
		LEFT JOIN t_resource_log x ON x.order_no = r.order_no AND x.round = r.round AND x.op = 'release' AND x.kind = r.kind AND x.ref = r.ref
		LEFT JOIN t_resource_log s ON s.order_no = r.order_no AND s.round = r.round AND s.op = 'sell' AND s.kind = r.kind AND s.ref = r.ref
		WHERE r.op = 'reserve' AND r.round > 0 AND (
			COALESCE(x.quantity, 0) <> r.quantity * EXISTS (SELECT 1 FROM t_order_log c WHERE c.order_no = r.order_no AND c.round = r.round AND c.to_status = 20)
			OR COALESCE(s.quantity, 0) <> r.quantity * EXISTS (SELECT 1 FROM t_order_log c WHERE c.order_no = r.order_no AND c.round = r.round AND c.to_status = 10))`},
	{"I5", "nothing is released, sold, forfeited or restocked that was not reserved", `
		SELECT x.order_no || ' ' || x.round FROM t_resource_log x
		LEFT JOIN t_resource_log r ON r.order_no = x.order_no AND r.round = x.round AND r.op = 'reserve' AND r.kind = x.kind AND r.ref = x.ref
		WHERE x.op IN ('release', 'sell', 'forfeit', 'restock') AND x.round > 0 AND COALESCE(r.quantity, 0) <> x.quantity`},
	{"I6", "a cancelled round's event is to be sent, or was sent", `
		SELECT c.order_no || ' ' || c.round FROM t_order_log c
		LEFT JOIN t_local_message m ON m.dedup_key = c.order_no || ':' || c.round || ':cancelled'
		WHERE c.to_status = 20 AND c.from_status <> 20 AND (m.dedup_key IS NULL) = (c.event_sent_at IS NULL)`},
	{"I6", "no other round has a cancelled event", `
		SELECT m.dedup_key FROM t_local_message m WHERE m.type = 'cancelled'
			AND NOT EXISTS (SELECT 1 FROM t_order_log c WHERE c.order_no = m.order_no AND c.round = m.round AND c.to_status = 20)`},
	{"I7", "a payment is in one place", `
		SELECT p.payment_no FROM t_payment p LEFT JOIN t_order o ON o.order_no = p.order_no LEFT JOIN t_late_payment l ON l.payment_no = p.payment_no
		WHERE o.order_no IS NULL OR p.amount <> o.amount OR NOT CASE p.outcome
			WHEN 'paid' THEN o.status = 10 AND COALESCE(l.status, 'consumed') = 'consumed'
			WHEN 'refunded' THEN o.status = 30 AND COALESCE(l.status, 'consumed') = 'consumed'
			WHEN 'late' THEN l.order_no = p.order_no AND l.status <> 'consumed' END`},
	{"I7", "an order that was paid was paid once", `
		SELECT o.order_no FROM t_order o WHERE o.paid_at IS NOT NULL
			AND (SELECT COUNT(*) FROM t_payment p WHERE p.order_no = o.order_no AND p.outcome IN ('paid', 'refunded')) <> (o.amount > 0)`},
	{"I7", "a late-payment case has its payment", `
		SELECT l.payment_no FROM t_late_payment l LEFT JOIN t_payment p ON p.payment_no = l.payment_no
		WHERE p.order_no IS NOT l.order_no OR (p.outcome = 'late') <> (l.status <> 'consumed')`},
	{"I8", "an order has its creation in the log and its items", `
		SELECT o.order_no FROM t_order o LEFT JOIN t_order_log l ON l.order_no = o.order_no AND l.version = 1
		WHERE l.order_no IS NULL OR l.at <> o.created_at OR NOT EXISTS (SELECT 1 FROM t_order_item i WHERE i.order_no = o.order_no)`},
	{"I8", "an item is reserved, or taken when its order is paid", `
		SELECT i.order_no FROM t_order_item i LEFT JOIN t_order o ON o.order_no = i.order_no
		LEFT JOIN t_resource_log r ON r.order_no = i.order_no AND r.round = o.round AND r.op = 'reserve' AND r.kind = i.kind AND r.ref = i.ref
		WHERE o.order_no IS NULL OR COALESCE(r.quantity, 0) <> CASE WHEN i.at_payment = 1 AND o.paid_at IS NULL THEN 0 ELSE i.quantity END`},
	{"I8", "a reservation is of an item of an order", `
		SELECT r.order_no FROM t_resource_log r LEFT JOIN t_order_item i ON i.order_no = r.order_no AND i.kind = r.kind AND i.ref = r.ref
		WHERE r.op = 'reserve' AND r.round > 0 AND i.order_no IS NULL`},
	{"I8", "an order waits for exactly its open attempts", `
		SELECT o.order_no FROM t_order o WHERE o.status IN (0, 5) AND o.paying_until IS NOT
			(SELECT MAX(deadline) FROM t_payment_attempt a WHERE a.order_no = o.order_no AND a.round = o.round AND a.state = 'open')`},
	{"I9", "a message has its order", `
		SELECT m.dedup_key FROM t_local_message m LEFT JOIN t_order o ON o.order_no = m.order_no WHERE o.order_no IS NULL`},
	{"I9", "what is set aside is in the quarantine", `
		SELECT m.dedup_key FROM t_local_message m WHERE m.state = 2 AND NOT EXISTS (SELECT 1 FROM t_quarantine q WHERE q.order_no = m.order_no)`},
	{"I15", "no deadline has closed anything while closing was off or in shadow", `
		SELECT c.order_no FROM t_order_log c WHERE c.reason IN ` + byTime + ` AND c.to_status IN (5, 20) AND EXISTS (
			SELECT 1 FROM t_setting_log b WHERE b.name = 'brakes' AND b.value NOT LIKE '%"mode":"enforce"%' AND b.at < c.at
				AND NOT EXISTS (SELECT 1 FROM t_setting_log n WHERE n.name = 'brakes' AND n.version = b.version + 1 AND n.at <= c.at))`},
}, cheapChecks...)

// transitions are those that there are.
func transitions() string {
	lines := make([]string, len(order.Transitions))
	for i, t := range order.Transitions {
		lines[i] = fmt.Sprintf("'%d %s %d'", t.From, t.Event, t.To)
	}
	return strings.Join(lines, ", ")
}

// union is one query for the first that any of checks does not hold for.
func union(checks []check) string {
	parts := make([]string, len(checks))
	for i, c := range checks {
		parts[i] = fmt.Sprintf("SELECT %d AS n, * FROM (%s)", i, c.bad)
	}
	return strings.Join(parts, "\nUNION ALL ") + "\nLIMIT 1"
}

var businessTables = []string{"t_order", "t_order_item", "t_order_log", "t_resource", "t_resource_log", "t_payment", "t_payment_attempt", "t_late_payment"}

var allTables = append([]string{"t_local_message", "t_quarantine", "t_shadow", "t_setting_log", "t_lease"}, businessTables...)
