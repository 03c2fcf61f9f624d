package store

import (
	"context"

	"lapse/pkg/order"
)

// jobClosedSQL is what the existing job has closed: the round of each cancellation by staff.
const jobClosedSQL = `(SELECT order_no, round, at FROM t_order_log WHERE to_status = 20 AND from_status IN (0, 5) AND reason = 'MANUAL')`

// shadowSQL compares each decision with what became of its round. Args: from, to, tolerance in ms. kind: agreed, late,
// missed or wrong.
const shadowSQL = `SELECT s.order_no AS order_no, s.expire_at AS expire_at, s.decided_at AS decided_at, COALESCE(j.at, p.at) AS ended_at,
	CASE WHEN p.at IS NOT NULL THEN 'wrong' WHEN j.at IS NULL THEN 'missed'
		WHEN {millis s.decided_at j.at} > ? THEN 'late' ELSE 'agreed' END AS kind
FROM t_shadow s
LEFT JOIN ` + jobClosedSQL + ` j ON j.order_no = s.order_no AND j.round = s.round
LEFT JOIN (SELECT order_no, round, at FROM t_order_log WHERE to_status = 10) p ON p.order_no = s.order_no AND p.round = s.round
WHERE s.decided_at >= ? AND s.decided_at < ?`

// earlySQL are rounds that the job closed before their deadline, so that nothing was decided. Args: from, to.
const earlySQL = `SELECT j.order_no AS order_no, l.expire_at AS expire_at, s.decided_at AS decided_at, j.at AS ended_at, 'early' AS kind
FROM ` + jobClosedSQL + ` j
JOIN t_order_log l ON l.order_no = j.order_no AND l.round = j.round AND l.to_status = 20 AND l.from_status IN (0, 5)
LEFT JOIN t_shadow s ON s.order_no = j.order_no AND s.round = j.round
WHERE j.at >= ? AND j.at < ? AND j.at < l.expire_at`

// uncoveredSQL counts rounds that the job closed in time, and those of them that were decided. Args: from, to.
const uncoveredSQL = `SELECT COUNT(*), COUNT(s.order_no) FROM ` + jobClosedSQL + ` j
JOIN t_order_log l ON l.order_no = j.order_no AND l.round = j.round AND l.to_status = 20 AND l.from_status IN (0, 5)
LEFT JOIN t_shadow s ON s.order_no = j.order_no AND s.round = j.round
WHERE j.at >= ? AND j.at < ? AND j.at >= l.expire_at`

// ShadowReport compares what was decided in shadow with what the existing job, which cancels as staff, did close. It
// reads without locks, and takes as long as it needs.
func (s *Store) ShadowReport(ctx context.Context, c order.Comparing) (r order.ShadowReport, err error) {
	db, err := s.slow()
	if err != nil {
		return r, badDSN(err)
	}
	defer db.Close()
	if c.From.IsZero() {
		c.From = beginning
	}
	if c.To.IsZero() {
		c.To = order.Never
	}
	q := runner{db, s.dialect}
	if err := q.compare(ctx, &r, c); err != nil {
		return r, s.answer(err)
	}
	var inTime, decided int64
	if err := q.QueryRowContext(ctx, uncoveredSQL, c.From, c.To).Scan(&inTime, &decided); err != nil {
		return r, s.answer(err)
	}
	r.Closed = inTime + r.Early
	if inTime > 0 {
		r.Coverage = float64(decided) / float64(inTime)
	}
	return r, nil
}

// compare counts the kinds, and keeps the first of those that do not agree.
func (r runner) compare(ctx context.Context, report *order.ShadowReport, c order.Comparing) error {
	counts := map[string]*int64{
		"agreed": &report.Agreed, "late": &report.Late, "missed": &report.Missed, "wrong": &report.Wrong, "early": &report.Early,
	}
	one := func(scan func(...any) error) error {
		var found order.ShadowCase
		if err := scan(&found.OrderNo, at(&found.ExpireAt), at(&found.DecidedAt), at(&found.EndedAt), &found.Kind); err != nil {
			return err
		}
		*counts[found.Kind]++
		if found.Kind != "agreed" && len(report.Examples) < order.MaxShadowCases {
			report.Examples = append(report.Examples, found)
		}
		return nil
	}
	if err := r.query(ctx, one, r.dialect.spans(shadowSQL), c.Tolerance.Milliseconds(), c.From, c.To); err != nil {
		return err
	}
	report.Decided = report.Agreed + report.Late + report.Missed + report.Wrong
	return r.query(ctx, one, earlySQL, c.From, c.To)
}
