package store

import (
	"context"
	"database/sql"
	"time"

	"lapse/pkg/order"
)

// payTimesSQL counts, in one shard, by how many seconds after its creation, rounded up, an order of the first round was
// paid, and the longest time to pay among them. It walks k_due. Args: shard, deadline at the earliest.
const payTimesSQL = `SELECT biz_type, {seconds created_at paid_at} AS took, COUNT(*), MAX({seconds created_at expire_at}) FROM t_order
WHERE shard = ? AND status = 10 AND expire_at >= ? AND round = 1 AND amount > 0 GROUP BY biz_type, took`

// lateTimesSQL is payTimesSQL for money that came too late for a cancelled first round: its channel says when.
const lateTimesSQL = `SELECT o.biz_type, {seconds o.created_at p.paid_at} AS took, COUNT(*), MAX({seconds o.created_at o.expire_at}) FROM t_late_payment l
JOIN t_order o ON o.order_no = l.order_no JOIN t_payment p ON p.payment_no = l.payment_no
WHERE l.created_at >= ? AND l.state_then = 20 AND l.round_then = 1 GROUP BY o.biz_type, took`

// PayTimes reads how long the payers since a time took, by business type: a shard at a time with a rest in between,
// without locks, as long as it takes.
func (s *Store) PayTimes(ctx context.Context, since time.Time) (map[string]order.PayTimes, error) {
	db, err := s.slow()
	if err != nil {
		return nil, badDSN(err)
	}
	defer db.Close()
	times := map[string]order.PayTimes{}
	for shard := range order.Shards {
		if err := s.payTimes(ctx, db, times, payTimesSQL, shard, since); err != nil {
			return nil, err
		}
		pause(ctx, shardRest)
	}
	return times, s.payTimes(ctx, db, times, lateTimesSQL, since)
}

// shardRest is the pause between two shards of a long read.
const shardRest = 5 * time.Millisecond

func (s *Store) payTimes(ctx context.Context, db *sql.DB, times map[string]order.PayTimes, text string, args ...any) error {
	r := runner{db, s.dialect}
	return s.answer(r.query(ctx, func(scan func(...any) error) error {
		var biz string
		var took, payers, longest int64
		if err := scan(&biz, &took, &payers, &longest); err != nil {
			return err
		}
		t, known := times[biz]
		if !known {
			t = order.PayTimes{BizType: biz, Payers: map[int64]int64{}}
		}
		t.Payers[max(took, 0)] += payers // a channel's clock may be behind
		t.Longest = max(t.Longest, time.Duration(longest)*time.Second)
		times[biz] = t
		return nil
	}, s.dialect.spans(text), args...))
}
