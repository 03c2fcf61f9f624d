package store

import (
	"context"

	"lapse/pkg/order"
)

// jobClosedSQL is what the existing job has closed: the round of each cancellation by staff, and its deadline then.
const jobClosedSQL = `(SELECT order_no, round, at, expire_at FROM t_order_log WHERE to_status = 20 AND from_status IN (0, 5) AND reason = 'MANUAL')`

// decidedSQL compares each decision with what became of its round. Args: tolerance in ms, from, to.
const decidedSQL = `SELECT s.order_no AS order_no, s.expire_at AS expire_at, s.decided_at AS decided_at, COALESCE(j.at, p.at) AS ended_at,
	CASE WHEN p.at IS NOT NULL THEN 'wrong' WHEN j.at IS NULL THEN 'missed'
		WHEN {millis s.decided_at j.at} > ? THEN 'late' ELSE 'agreed' END AS kind
FROM t_shadow s
LEFT JOIN ` + jobClosedSQL + ` j ON j.order_no = s.order_no AND j.round = s.round
LEFT JOIN (SELECT order_no, round, at FROM t_order_log WHERE to_status = 10) p ON p.order_no = s.order_no AND p.round = s.round
WHERE s.decided_at >= ? AND s.decided_at < ?`

// countDecidedSQL counts the kinds. Args: as decidedSQL.
const countDecidedSQL = "SELECT kind, COUNT(*) FROM (" + decidedSQL + ") d GROUP BY kind"

// someDecidedSQL are some of a kind. Args: as decidedSQL, kind, how many.
const someDecidedSQL = "SELECT order_no, expire_at, decided_at, ended_at FROM (" + decidedSQL + ") d WHERE kind = ? ORDER BY decided_at, order_no LIMIT ?"

// countClosedSQL counts rounds that the job closed: all, those that were early, and those in time that had been decided. Args:
// from, to.
const countClosedSQL = `SELECT COUNT(*), COALESCE(SUM(CASE WHEN j.at < j.expire_at THEN 1 ELSE 0 END), 0),
	COALESCE(SUM(CASE WHEN j.at >= j.expire_at AND s.order_no IS NOT NULL THEN 1 ELSE 0 END), 0)
FROM ` + jobClosedSQL + ` j LEFT JOIN t_shadow s ON s.order_no = j.order_no AND s.round = j.round
WHERE j.at >= ? AND j.at < ?`

// someEarlySQL are rounds that the job closed before their deadline. Args: from, to, how many.
const someEarlySQL = `SELECT j.order_no, j.expire_at, s.decided_at, j.at FROM ` + jobClosedSQL + ` j
LEFT JOIN t_shadow s ON s.order_no = j.order_no AND s.round = j.round
WHERE j.at >= ? AND j.at < ? AND j.at < j.expire_at ORDER BY j.at, j.order_no LIMIT ?`

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
	if err = q.compare(ctx, &r, c); err == nil {
		err = q.examples(ctx, &r, c)
	}
	return r, s.answer(err)
}

// compare counts.
func (r runner) compare(ctx context.Context, report *order.ShadowReport, c order.Comparing) error {
	counts := map[string]*int64{"agreed": &report.Agreed, "late": &report.Late, "missed": &report.Missed, "wrong": &report.Wrong}
	err := r.query(ctx, func(scan func(...any) error) error {
		var kind string
		var n int64
		if err := scan(&kind, &n); err != nil {
			return err
		}
		*counts[kind] = n
		report.Decided += n
		return nil
	}, r.dialect.spans(countDecidedSQL), c.Tolerance.Milliseconds(), c.From, c.To)
	if err != nil {
		return err
	}
	var covered int64
	if err := r.QueryRowContext(ctx, countClosedSQL, c.From, c.To).Scan(&report.Closed, &report.Early, &covered); err != nil {
		return err
	}
	if inTime := report.Closed - report.Early; inTime > 0 {
		report.Coverage = float64(covered) / float64(inTime)
	}
	return nil
}

// examples gives some of each kind that does not agree, the gravest first.
func (r runner) examples(ctx context.Context, report *order.ShadowReport, c order.Comparing) error {
	kinds := []string{"wrong", "early", "late", "missed"}
	some := order.MaxShadowCases / len(kinds)
	for _, kind := range kinds {
		text, args := r.dialect.spans(someDecidedSQL), []any{c.Tolerance.Milliseconds(), c.From, c.To, kind, some}
		if kind == "early" {
			text, args = someEarlySQL, []any{c.From, c.To, some}
		}
		err := r.query(ctx, func(scan func(...any) error) error {
			found := order.ShadowCase{Kind: kind}
			err := scan(&found.OrderNo, at(&found.ExpireAt), at(&found.DecidedAt), at(&found.EndedAt))
			report.Examples = append(report.Examples, found)
			return err
		}, text, args...)
		if err != nil {
			return err
		}
	}
	return nil
}
