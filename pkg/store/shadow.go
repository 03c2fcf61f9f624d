package store

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// jobClosedSQL is what the existing job has closed: the round of each cancellation by staff, and its deadline then. One with a
// payment in flight was asked for before it happened. Args: the job twice, "" for all of staff.
const jobClosedSQL = `(SELECT c.order_no, c.round, c.at, c.expire_at FROM t_order_log c
	WHERE c.to_status = 20 AND c.from_status IN (0, 5) AND c.reason = 'MANUAL' AND (? = '' OR EXISTS (
		SELECT 1 FROM t_order_log w WHERE w.order_no = c.order_no AND w.round = c.round AND w.reason = 'MANUAL' AND w.actor = ?)))`

// decidedSQL compares each decision with what became of its round. Args: tolerance in ms, the job twice, from, to.
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
// the job twice, from, to.
const countClosedSQL = `SELECT COUNT(*), COALESCE(SUM(CASE WHEN j.at < j.expire_at THEN 1 ELSE 0 END), 0),
	COALESCE(SUM(CASE WHEN j.at >= j.expire_at AND s.order_no IS NOT NULL THEN 1 ELSE 0 END), 0)
FROM ` + jobClosedSQL + ` j LEFT JOIN t_shadow s ON s.order_no = j.order_no AND s.round = j.round
WHERE j.at >= ? AND j.at < ?`

// someEarlySQL are rounds that the job closed before their deadline. Args: the job twice, from, to, how many.
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
	noting, err := q.noting(ctx, c)
	if err == nil {
		err = q.compare(ctx, &r, c, noting)
	}
	if err == nil {
		err = q.examples(ctx, &r, c, noting)
	}
	return r, s.answer(err)
}

// brakeLogSQL is every setting that the brakes were changed to, and when. A new installation notes nothing.
const brakeLogSQL = "SELECT value, at FROM t_setting_log WHERE name = 'brakes' ORDER BY version"

// stretch is a time from an instant until before another.
type stretch struct{ from, to time.Time }

// noting are the times of c in which due orders were noted: what the job closes in others cannot be compared.
func (r runner) noting(ctx context.Context, c order.Comparing) (noting []stretch, err error) {
	var since time.Time // zero while they are not
	until := func(end time.Time) {
		s := stretch{since, end}
		if s.from.Before(c.From) {
			s.from = c.From
		}
		if s.to.After(c.To) {
			s.to = c.To
		}
		if !since.IsZero() && s.from.Before(s.to) {
			noting = append(noting, s)
		}
		since = time.Time{}
	}
	err = r.query(ctx, func(scan func(...any) error) error {
		var value string
		var changed time.Time
		if err := scan(&value, at(&changed)); err != nil {
			return err
		}
		b, err := decodeBrakes(value)
		until(changed)
		if b.Notes() {
			since = changed
		}
		return err
	}, brakeLogSQL)
	until(c.To)
	return noting, err
}

// compare counts.
func (r runner) compare(ctx context.Context, report *order.ShadowReport, c order.Comparing, noting []stretch) error {
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
	}, r.dialect.spans(countDecidedSQL), c.Tolerance.Milliseconds(), c.Job, c.Job, c.From, c.To)
	if err != nil {
		return err
	}
	var covered int64
	for _, s := range noting {
		var closed, early, both int64
		if err := r.QueryRowContext(ctx, countClosedSQL, c.Job, c.Job, s.from, s.to).Scan(&closed, &early, &both); err != nil {
			return err
		}
		report.Closed, report.Early, covered = report.Closed+closed, report.Early+early, covered+both
	}
	if inTime := report.Closed - report.Early; inTime > 0 {
		report.Coverage = float64(covered) / float64(inTime)
	}
	return nil
}

// examples gives some of each kind that does not agree, the gravest first.
func (r runner) examples(ctx context.Context, report *order.ShadowReport, c order.Comparing, noting []stretch) error {
	for _, kind := range []string{"wrong", "early", "late", "missed"} {
		var found []order.ShadowCase
		var err error
		if kind == "early" {
			found, err = r.someEarly(ctx, c, noting)
		} else {
			found, err = r.cases(ctx, kind, r.dialect.spans(someDecidedSQL), c.Tolerance.Milliseconds(), c.Job, c.Job, c.From, c.To, kind, someCases)
		}
		if err != nil {
			return err
		}
		report.Examples = append(report.Examples, found...)
	}
	return nil
}

// someCases is how many examples of each of the four kinds a report has.
const someCases = order.MaxShadowCases / 4

func (r runner) someEarly(ctx context.Context, c order.Comparing, noting []stretch) (found []order.ShadowCase, err error) {
	for _, s := range noting {
		more, err := r.cases(ctx, "early", someEarlySQL, c.Job, c.Job, s.from, s.to, someCases-len(found))
		if err != nil {
			return nil, err
		}
		if found = append(found, more...); len(found) == someCases {
			break
		}
	}
	return found, nil
}

// cases runs a query of cases of a kind.
func (r runner) cases(ctx context.Context, kind, text string, args ...any) (found []order.ShadowCase, err error) {
	err = r.query(ctx, func(scan func(...any) error) error {
		c := order.ShadowCase{Kind: kind}
		err := scan(&c.OrderNo, at(&c.ExpireAt), at(&c.DecidedAt), at(&c.EndedAt))
		found = append(found, c)
		return err
	}, text, args...)
	return found, err
}
