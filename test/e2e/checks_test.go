package e2e

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"
)

// check is one statement about the stored data, looked at by SQL that owes nothing to pkg/store.
type check struct {
	invariant, name string
	looked          string // how many there are to look at
	bad             string // query of the names of those for which it does not hold; one statement, so one consistent view
	always          bool   // holds at every moment of a run; else only once nothing is due or to be sent
}

// Statuses as they are stored.
//
//	0 pending, 10 paid, 20 cancelled
//
// left is what the order log says about the end of each order's only round: how often it left pending, and to where.
const left = `(SELECT order_no, COUNT(*) AS times, MAX(to_status) AS went_to, MAX(at) AS at, MAX(reason) AS reason,
	SUM(event_sent_at IS NOT NULL) AS told FROM t_order_log WHERE version > 1 GROUP BY order_no)`

// ledger adds up the resource log.
const ledger = `(SELECT kind, ref, SUM(IF(op = 'adjust', quantity, 0)) AS supplied, SUM(IF(op = 'reserve', quantity, 0)) AS reserved,
	SUM(IF(op = 'sell', quantity, 0)) AS sold, SUM(IF(op = 'release', quantity, 0)) AS released FROM t_resource_log GROUP BY kind, ref)`

// inOrders adds up what the orders themselves hold and have bought.
const inOrders = `(SELECT i.kind, i.ref, SUM(IF(o.status = 0, i.quantity, 0)) AS held, SUM(IF(o.status = 10, i.quantity, 0)) AS sold
	FROM t_order o JOIN t_order_item i ON i.order_no = o.order_no GROUP BY i.kind, i.ref)`

const (
	countOrders    = "SELECT COUNT(*) FROM t_order"
	countClosed    = "SELECT COUNT(*) FROM t_order WHERE cancel_reason IN ('TIMEOUT', 'COMPENSATE')"
	countCancelled = "SELECT COUNT(*) FROM t_order WHERE status = 20"
	countResources = "SELECT COUNT(*) FROM t_resource"
	countItems     = "SELECT COUNT(*) FROM t_order_item"
	countPayments  = "SELECT COUNT(*) FROM t_payment"
	countMessages  = "SELECT COUNT(*) FROM t_local_message"
)

var checks = []check{
	{"I1", "an order left pending once, and is where it went", countOrders, `
		SELECT o.order_no FROM t_order o LEFT JOIN ` + left + ` l ON l.order_no = o.order_no
		WHERE o.round <> 1 OR NOT CASE
			WHEN o.status = 0 THEN l.times IS NULL AND o.version = 1
			WHEN o.amount = 0 THEN l.times IS NULL AND o.version = 1 AND o.status = 10
			ELSE l.times = 1 AND o.version = 2 AND l.went_to = o.status AND o.status IN (10, 20) END`, true},
	{"I1", "no order is both paid and cancelled", countOrders, `
		SELECT o.order_no FROM t_order o
		WHERE (o.paid_at IS NOT NULL) <> (o.status = 10) OR (o.cancelled_at IS NOT NULL) <> (o.status = 20)
			OR (o.cancel_reason <> '') <> (o.status = 20)
			OR (o.status <> 10 AND EXISTS (SELECT 1 FROM t_payment p WHERE p.order_no = o.order_no AND p.outcome = 'paid'))`, true},
	{"I2", "no order was closed a millisecond before its deadline", countClosed, `
		SELECT o.order_no FROM t_order o JOIN ` + left + ` l ON l.order_no = o.order_no
		WHERE o.cancel_reason IN ('TIMEOUT', 'COMPENSATE')
			AND (o.cancelled_at < o.expire_at OR l.at < o.expire_at OR l.at <> o.cancelled_at OR l.reason <> o.cancel_reason)`, true},
	{"I3", "no order is pending", countOrders, "SELECT order_no FROM t_order WHERE status = 0", false},
	{"I4", "counters equal the ledger and are not negative", countResources, `
		SELECT CONCAT(r.kind, '/', r.ref) FROM t_resource r LEFT JOIN ` + ledger + ` l ON l.kind = r.kind AND l.ref = r.ref
		WHERE r.available < 0 OR r.held < 0 OR r.sold < 0 OR l.kind IS NULL
			OR r.available <> l.supplied - l.reserved + l.released OR r.held <> l.reserved - l.sold - l.released OR r.sold <> l.sold`, true},
	{"I4", "what is held and sold is in the orders", countResources, `
		SELECT CONCAT(r.kind, '/', r.ref) FROM t_resource r LEFT JOIN ` + inOrders + ` o ON o.kind = r.kind AND o.ref = r.ref
		WHERE r.held <> COALESCE(o.held, 0) OR r.sold <> COALESCE(o.sold, 0)`, true},
	{"I5", "an item was reserved, then released if its order was cancelled, sold if it was paid, else neither", countItems, `
		SELECT i.order_no FROM t_order_item i LEFT JOIN t_order o ON o.order_no = i.order_no
			LEFT JOIN (SELECT order_no, kind, ref, MAX(round) AS round, SUM(op = 'reserve') AS reserved, SUM(op = 'release') AS released, SUM(op = 'sell') AS sold,
				MIN(quantity) AS least, MAX(quantity) AS most FROM t_resource_log WHERE op <> 'adjust' GROUP BY order_no, kind, ref) l
			ON l.order_no = i.order_no AND l.kind = i.kind AND l.ref = i.ref
		WHERE o.order_no IS NULL OR l.order_no IS NULL OR l.round <> 1 OR l.reserved <> 1 OR l.released <> (o.status = 20) OR l.sold <> (o.status = 10)
			OR l.least <> i.quantity OR l.most <> i.quantity`, true},
	{"I5", "the ledger has no entry without an item", "SELECT COUNT(*) FROM t_resource_log WHERE op <> 'adjust'", `
		SELECT l.order_no FROM t_resource_log l LEFT JOIN t_order_item i ON i.order_no = l.order_no AND i.kind = l.kind AND i.ref = l.ref
		WHERE l.op <> 'adjust' AND i.order_no IS NULL`, true},
	{"I6", "a cancelled order's event is to be sent or was sent", countCancelled, `
		SELECT o.order_no FROM t_order o JOIN ` + left + ` l ON l.order_no = o.order_no
			LEFT JOIN t_local_message m ON m.order_no = o.order_no AND m.kind = 'event'
		WHERE o.status = 20 AND (m.order_no IS NOT NULL) = (l.told = 1)`, true},
	{"I6", "no other order has an event", countOrders, `
		SELECT o.order_no FROM t_order o LEFT JOIN ` + left + ` l ON l.order_no = o.order_no
			LEFT JOIN t_local_message m ON m.order_no = o.order_no AND m.kind = 'event'
		WHERE o.status <> 20 AND (m.order_no IS NOT NULL OR COALESCE(l.told, 0) <> 0)`, true},
	{"I7", "a payment paid its order, or is one late-payment case", countPayments, `
		SELECT p.payment_no FROM t_payment p LEFT JOIN t_order o ON o.order_no = p.order_no
			LEFT JOIN t_late_payment l ON l.payment_no = p.payment_no AND l.order_no = p.order_no
		WHERE o.order_no IS NULL OR p.amount <> o.amount OR p.currency <> o.currency OR NOT CASE p.outcome
			WHEN 'paid' THEN o.status = 10 AND l.payment_no IS NULL
			WHEN 'late' THEN l.payment_no IS NOT NULL AND l.state_then = o.status AND o.status IN (10, 20) AND l.policy = 'manual' END`, true},
	{"I7", "a paid order has one payment, a late-payment case has its payment", "SELECT COUNT(*) FROM t_order WHERE status = 10", `
		SELECT o.order_no FROM t_order o WHERE o.status = 10
			AND (SELECT COUNT(*) FROM t_payment p WHERE p.order_no = o.order_no AND p.outcome = 'paid') <> (o.amount > 0)
		UNION ALL SELECT l.payment_no FROM t_late_payment l LEFT JOIN t_payment p ON p.payment_no = l.payment_no AND p.outcome = 'late' WHERE p.payment_no IS NULL`, true},
	{"I8", "a pending order has one time-out row, any other has none", countOrders, `
		SELECT o.order_no FROM t_order o LEFT JOIN
			(SELECT order_no, COUNT(*) AS n FROM t_local_message WHERE kind = 'timeout' GROUP BY order_no) m ON m.order_no = o.order_no
		WHERE COALESCE(m.n, 0) <> (o.status = 0)`, true},
	{"I8", "an order has its creation in the log and its items", countOrders, `
		SELECT o.order_no FROM t_order o LEFT JOIN t_order_log l ON l.order_no = o.order_no AND l.version = 1
		WHERE l.order_no IS NULL OR l.at <> o.created_at OR l.event <> IF(o.amount > 0, 'created', 'nothing_due')
			OR NOT EXISTS (SELECT 1 FROM t_order_item i WHERE i.order_no = o.order_no)`, true},
	{"I9", "no message is without its order", countMessages, `
		SELECT m.dedup_key FROM t_local_message m LEFT JOIN t_order o ON o.order_no = m.order_no WHERE o.order_no IS NULL`, true},
	{"I9", "no message is set aside", countMessages, "SELECT dedup_key FROM t_local_message WHERE state NOT IN (0, 1)", true},
	{"I9", "no message is left", countMessages, "SELECT dedup_key FROM t_local_message", false},
	{"I9", "only nonsense was set aside", "SELECT COUNT(*) FROM t_quarantine", "SELECT CONCAT(source, ': ', order_no, ': ', reason) FROM t_quarantine WHERE source <> 'timeout'", true},
}

// broken returns up to three of those for which c does not hold.
func (c check) broken(ctx context.Context, db *sql.DB) ([]string, error) {
	found, err := names(ctx, db, "SELECT * FROM ("+c.bad+") bad LIMIT 3")
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", c.invariant, c.name, err)
	}
	return found, nil
}

// names reads one column of texts.
func names(ctx context.Context, db *sql.DB, query string, args ...any) (all []string, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		all = append(all, name)
	}
	return all, rows.Err()
}

// watchEvery leaves the database to the work that is watched: one look at 10,000 orders costs it about a second.
const watchEvery = 8 * time.Second

// watch looks again and again at what must hold at every moment, until ctx ends; it returns how often it looked. Where the
// database breaks, a look that fails shows nothing.
func (s *system) watch(ctx context.Context) (rounds int, err error) {
	for pause(ctx, watchEvery) {
		err := s.look(ctx)
		var seen violation
		if errors.As(err, &seen) || err != nil && s.server == nil && ctx.Err() == nil {
			return rounds, err
		}
		if err == nil {
			rounds++
		}
	}
	return rounds, nil
}

// violation is what must never be seen.
type violation struct{ said string }

func (v violation) Error() string { return v.said }

// look looks once.
func (s *system) look(ctx context.Context) error {
	for _, c := range checks {
		if !c.always {
			continue
		}
		broken, err := c.broken(ctx, s.db.DB)
		if err != nil {
			return err
		}
		if broken != nil {
			return violation{fmt.Sprintf("in the middle of the run %s does not hold: %s: %v", c.invariant, c.name, broken)}
		}
	}
	return nil
}

// verdict is what a run's judges have found.
type verdict struct {
	t     *testing.T
	lines []string
}

// holds notes a statement that was looked at for so many, with those that break it.
func (v *verdict) holds(invariant, name string, looked int64, broken []string) {
	v.lines = append(v.lines, fmt.Sprintf("%-3s  %-104s %7d looked at, %d broken", invariant, name, looked, len(broken)))
	if len(broken) > 0 {
		v.t.Errorf("%s does not hold: %s: %d, like %v", invariant, name, len(broken), broken[:min(3, len(broken))])
	}
}

// byQuery judges the stored data at the end of a run.
func (v *verdict) byQuery(ctx context.Context, s *system) {
	for _, c := range checks {
		var looked int64
		broken, err := c.broken(ctx, s.db.DB)
		err = errors.Join(err, s.db.QueryRowContext(ctx, c.looked).Scan(&looked))
		if err != nil {
			v.t.Errorf("%s %s: %v", c.invariant, c.name, err)
			continue
		}
		v.holds(c.invariant, c.name, looked, broken)
	}
}

// storm are windows that leave no time to recover between them.
type storm struct {
	window
	faults int
}

// stormsOf are the storms that windows make.
func stormsOf(windows []window) (storms []storm) {
	for _, w := range windows {
		if n := len(storms); n > 0 && w.begin.Before(storms[n-1].end.Add(bound)) {
			storms[n-1].end = w.end
			storms[n-1].faults++
			continue
		}
		storms = append(storms, storm{w, 1})
	}
	return storms
}

// lapsed reports whether the order was closed for its deadline.
func (o *row) lapsed() bool { return o.reason == "TIMEOUT" || o.reason == "COMPENSATE" }

// inTime judges I3: everything that fell due was closed within the bound, counted from its deadline and the grace or, of
// what fell due in a storm, from the storm's end.
func (v *verdict) inTime(orders map[string]*row, windows []window) {
	storms := stormsOf(windows)
	var looked int64
	var late []string
	for no, o := range orders {
		if !o.lapsed() {
			continue
		}
		looked++
		from := o.expireAt.Add(grace)
		for _, s := range storms {
			if from.Before(s.end) && o.cancelledAt.After(s.begin) {
				from = s.end
			}
		}
		if o.cancelledAt.After(from.Add(bound)) {
			late = append(late, no)
		}
	}
	v.holds("I3", fmt.Sprintf("what fell due was closed within %v and the grace after its deadline or the storm it fell due in", bound), looked, late)
}
