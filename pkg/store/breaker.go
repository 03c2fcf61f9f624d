package store

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// cohortSQL counts some of the newest attempts that had time to be paid, and those of them that were within it: older ones had
// more time, and are judged by no more. It walks k_started from its end and reads no more rows than it is asked for. Args: the
// time in ms, twice, started at the latest, at the earliest, how many, how many newer ones to pass over.
const cohortSQL = `SELECT COUNT(*), COALESCE(SUM(CASE WHEN (a.state = 'paid' AND {millis a.started_at a.ended_at} <= ?)
	OR {millis a.started_at o.paid_at} <= ? THEN 1 ELSE 0 END), 0)
FROM (SELECT order_no, state, started_at, ended_at FROM t_payment_attempt WHERE started_at <= ? AND started_at >= ? ORDER BY started_at DESC LIMIT ? OFFSET ?) a
JOIN t_order o ON o.order_no = a.order_no`

// cohortAge is how old an attempt may be to count.
const cohortAge = 24 * time.Hour

// Cohorts counts the newest n payment attempts that were started at least settle ago, within a day and not before since, and
// the baseline ones before those.
func (s *Store) Cohorts(ctx context.Context, settle time.Duration, since time.Time, n, baseline int64) (latest, before order.Cohort, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		oldest := q.now.Add(-cohortAge)
		if since.After(oldest) {
			oldest = since
		}
		count := func(c *order.Cohort, n, newer int64) error {
			return q.QueryRowContext(ctx, q.dialect.spans(cohortSQL), settle.Milliseconds(), settle.Milliseconds(), q.now.Add(-settle), oldest, n, newer).
				Scan(&c.Attempts, &c.Paid)
		}
		if err := count(&latest, n, 0); err != nil {
			return err
		}
		return count(&before, baseline, n)
	})
	return latest, before, err
}
