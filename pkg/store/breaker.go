package store

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// cohortSQL counts some of the newest attempts that had time to be paid, and those of them whose order was. It walks k_started
// from its end and reads no more rows than it is asked for. Args: started at the latest, at the earliest, how many, how many
// newer ones to pass over.
const cohortSQL = `SELECT COUNT(*), COALESCE(SUM(CASE WHEN a.state = 'paid' OR o.paid_at IS NOT NULL THEN 1 ELSE 0 END), 0)
FROM (SELECT order_no, state FROM t_payment_attempt WHERE started_at <= ? AND started_at >= ? ORDER BY started_at DESC LIMIT ? OFFSET ?) a
JOIN t_order o ON o.order_no = a.order_no`

// cohortAge is how old an attempt may be to count.
const cohortAge = 24 * time.Hour

// Cohorts counts the newest n payment attempts that were started at least settle ago, within a day, and the baseline ones
// before those.
func (s *Store) Cohorts(ctx context.Context, settle time.Duration, n, baseline int64) (now time.Time, latest, before order.Cohort, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		settled, oldest := q.now.Add(-settle), q.now.Add(-cohortAge)
		if err := q.QueryRowContext(ctx, cohortSQL, settled, oldest, n, 0).Scan(&latest.Attempts, &latest.Paid); err != nil {
			return err
		}
		return q.QueryRowContext(ctx, cohortSQL, settled, oldest, baseline, n).Scan(&before.Attempts, &before.Paid)
	})
	return now, latest, before, err
}
