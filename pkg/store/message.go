package store

import (
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"lapse/pkg/order"
)

const (
	keepQuarantined = 10_000
	maxQuarantined  = 64 << 10 // bytes kept of one input
	maxErrorText    = 500      // width of last_error, reason and error columns
)

const messageColumns = "dedup_key, kind, order_no, round, type, hop, due_at, next_at, attempts, payload"

func messageFields(m *order.Message) []any {
	return []any{&m.Key, &m.Kind, &m.OrderNo, &m.Round, &m.Type, &m.Hop, at(&m.DueAt), at(&m.NextAt), &m.Attempts, &m.Payload}
}

// messages runs a query of messageColumns.
func (t tx) messages(ctx context.Context, text string, args ...any) (found []order.Message, err error) {
	err = t.query(ctx, func(scan func(...any) error) error {
		var m order.Message
		err := scan(messageFields(&m)...)
		found = append(found, m)
		return err
	}, text, args...)
	return found, err
}

const insertMessageSQL = "INSERT INTO t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, next_at, payload) VALUES "

// insertMessages writes rows by key and returns them as they were written.
func (t tx) insertMessages(ctx context.Context, messages []order.Message) ([]order.Message, error) {
	slices.SortFunc(messages, func(a, b order.Message) int { return strings.Compare(a.Key, b.Key) })
	rows := make([][]any, len(messages))
	for i := range messages {
		m := &messages[i]
		m.NextAt = m.NextAt.Truncate(time.Millisecond) // as stored: a settlement names it
		if m.Payload == nil {
			m.Payload = []byte{}
		}
		rows[i] = []any{m.Key, string(m.Kind), m.OrderNo, m.Round, m.Type, m.Hop, m.DueAt, m.NextAt, m.Payload}
	}
	return messages, t.insert(ctx, insertMessageSQL, rows, "")
}

func timeoutKeys(orderNos []string) []string {
	keys := make([]string, len(orderNos))
	for i, no := range orderNos {
		keys[i] = order.TimeoutKey(no)
	}
	slices.Sort(keys)
	return keys
}

// deleteTimeoutsSQL takes back the time-out rows of orders that have just left pending (I9). One that is missing is no
// reason to refuse: the audit names it.
const deleteTimeoutsSQL = "DELETE FROM t_local_message WHERE dedup_key IN (?*)"

func (t tx) deleteTimeouts(ctx context.Context, orderNos []string) error {
	_, err := t.exec(ctx, deleteTimeoutsSQL, timeoutKeys(orderNos))
	return err
}

// Rows wait by state and kind, and each kind is looked for by itself, so that nobody looks through the rows of others,
// however many they are.
const (
	// earliestSQL is the plain look that is all an idle claimer does. Args: state, kind, after.
	earliestSQL = "SELECT next_at FROM t_local_message WHERE state = ? AND kind = ? AND next_at > ? ORDER BY next_at LIMIT 1"
	// claimSQL locks due rows, passing over those that others are claiming. Args: state, kind, now, limit.
	claimSQL = "SELECT " + messageColumns + ` FROM t_local_message
WHERE state = ? AND kind = ? AND next_at <= ? ORDER BY next_at LIMIT ? {skip}`
)

// leaseSQL makes locked rows the claimer's until the end of its lease. Args: end, keys.
const leaseSQL = "UPDATE t_local_message SET next_at = ? WHERE dedup_key IN (?*)"

// Claim leases up to limit rows of a kind that are to be sent and due: their NextAt becomes now + lease. wake is the NextAt
// of the earliest row that is not due yet; zero if there is none.
func (s *Store) Claim(ctx context.Context, kind order.MessageKind, limit int, lease time.Duration) (rows []order.Message, now, wake time.Time, err error) {
	now, wake, err = s.claim(ctx, order.ToSend, kind, limit, lease, func(_ context.Context, _ tx, claimed []order.Message) error {
		rows = claimed
		return nil
	})
	return rows, now, wake, err
}

// claim leases up to limit due rows and hands them to add, in one transaction. It looks before it writes.
func (s *Store) claim(ctx context.Context, state order.MessageState, kind order.MessageKind, limit int, lease time.Duration, add func(ctx context.Context, t tx, rows []order.Message) error) (now, wake time.Time, err error) {
	due := false
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		wake, err = q.earliest(ctx, state, kind, beginning)
		due = !wake.IsZero() && !wake.After(now)
		return err
	})
	if err != nil || !due {
		return now, wake, err
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		now = t.now
		rows, err := t.messages(ctx, claimSQL, uint8(state), string(kind), t.now, limit)
		if err != nil {
			return err
		}
		if err := t.lease(ctx, rows, lease); err != nil {
			return err
		}
		if err := add(ctx, t, rows); err != nil {
			return err
		}
		wake, err = t.earliest(ctx, state, kind, t.now)
		return err
	})
	return now, wake, err
}

// lease makes locked rows the caller's.
func (t tx) lease(ctx context.Context, rows []order.Message, lease time.Duration) error {
	if len(rows) == 0 {
		return nil
	}
	until := t.now.Add(lease).Truncate(time.Millisecond)
	keys := make([]string, len(rows))
	for i := range rows {
		rows[i].NextAt = until
		keys[i] = rows[i].Key
	}
	slices.Sort(keys)
	return t.execAll(ctx, len(rows), leaseSQL, until, keys)
}

// earliest is the NextAt of the first row after a time; zero if there is none.
func (t tx) earliest(ctx context.Context, state order.MessageState, kind order.MessageKind, after time.Time) (next time.Time, err error) {
	err = t.QueryRowContext(ctx, earliestSQL, uint8(state), string(kind), after).Scan(at(&next))
	if errors.Is(err, sql.ErrNoRows) {
		err = nil
	}
	return next, err
}

// beginning is before all times that are stored.
var beginning = time.Unix(0, 0).UTC()

// lockMessagesSQL locks rows by key.
const lockMessagesSQL = "SELECT " + messageColumns + " FROM t_local_message WHERE dedup_key IN (?*) AND state IN (0, 1) ORDER BY dedup_key {update}"

// lockLeasedSQL locks rows whose lease still runs. Args: keys, now.
const lockLeasedSQL = `SELECT dedup_key, hop, next_at FROM t_local_message
WHERE dedup_key IN (?*) AND state = 0 AND next_at > ? ORDER BY dedup_key {update}`

// fence is what a worker must name to change a row: where it was scheduled and the lease it was given (I10, I11).
type fence struct {
	key    string
	hop    int
	nextAt int64 // unix milliseconds
}

func fenceOf(m order.Message) fence { return fence{m.Key, m.Hop, m.NextAt.UnixMilli()} }

// fences are rows that are locked and the caller's.
type fences map[fence]bool

// pass reports whether m is the caller's, once: a row named twice in one call is settled by the first.
func (f fences) pass(m order.Message) bool {
	own := f[fenceOf(m)]
	delete(f, fenceOf(m))
	return own
}

// lockOwn locks those of messages that are still the caller's.
func (t tx) lockOwn(ctx context.Context, messages []order.Message) (fences, error) {
	keys := make([]string, len(messages))
	for i, m := range messages {
		keys[i] = m.Key
	}
	slices.Sort(keys)
	own := make(fences, len(messages))
	err := t.query(ctx, func(scan func(...any) error) error {
		var m order.Message
		err := scan(&m.Key, &m.Hop, at(&m.NextAt))
		own[fenceOf(m)] = true
		return err
	}, lockLeasedSQL, keys, t.now)
	return own, err
}

// Settle marks time-out rows as sent and deletes event rows, stamping their order-log entry, in one transaction. Rows
// whose hop or NextAt is not the given one, and rows whose lease has run out, are left alone (I10).
func (s *Store) Settle(ctx context.Context, sent []order.Sent) error {
	if len(sent) == 0 {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(sent), func(a, b order.Sent) int { return strings.Compare(a.Key, b.Key) })
	return s.write(ctx, func(ctx context.Context, t tx) error { return t.settle(ctx, sorted) })
}

func (t tx) settle(ctx context.Context, sent []order.Sent) error {
	messages := make([]order.Message, len(sent))
	for i, m := range sent {
		messages[i] = m.Message
	}
	own, err := t.lockOwn(ctx, messages)
	if err != nil {
		return err
	}
	var timeouts []order.Sent
	var events []order.Message
	for _, m := range sent {
		switch {
		case !own.pass(m.Message):
		case m.Kind == order.Notice:
			events = append(events, m.Message)
		default:
			timeouts = append(timeouts, m)
		}
	}
	for chunk := range slices.Chunk(timeouts, branchesAtOnce) {
		if err := t.markSent(ctx, chunk); err != nil {
			return err
		}
	}
	return t.deleteEvents(ctx, events)
}

// branchesAtOnce bounds a CASE: each row compares its key with half of the branches.
const branchesAtOnce = 64

// markSentSQL: Args: branches, branches, keys. The rows are locked and fenced.
const markSentSQL = `UPDATE t_local_message SET state = 1, failing_since = NULL, last_error = '',
message_id = CASE dedup_key WHEN* END, offset_message_id = CASE dedup_key WHEN* END WHERE dedup_key IN (?*)`

func (t tx) markSent(ctx context.Context, sent []order.Sent) error {
	keys := make([]string, len(sent))
	ids, offsets := make(cases, len(sent)), make(cases, len(sent))
	for i, m := range sent {
		keys[i] = m.Key
		ids[i] = branch{m.Key, clip(m.Receipt.MessageID, 128)}
		offsets[i] = branch{m.Key, clip(m.Receipt.OffsetMessageID, 128)}
	}
	return t.execAll(ctx, len(sent), markSentSQL, ids, offsets, keys)
}

// deleteEventsSQL removes locked and fenced event rows. Args: keys.
const deleteEventsSQL = "DELETE FROM t_local_message WHERE dedup_key IN (?*)"

// stampSentSQL notes in the order log that the cancelled event of a round was sent. Args: now, round, numbers.
const stampSentSQL = "UPDATE t_order_log SET event_sent_at = ? WHERE round = ? AND to_status = 20 AND order_no IN (?*)"

func (t tx) deleteEvents(ctx context.Context, events []order.Message) error {
	if len(events) == 0 {
		return nil
	}
	keys := make([]string, len(events))
	byRound := map[int][]string{}
	for i, m := range events {
		keys[i] = m.Key
		if m.Type == order.TypeCancelled {
			byRound[m.Round] = append(byRound[m.Round], m.OrderNo)
		}
	}
	if err := t.execAll(ctx, len(keys), deleteEventsSQL, keys); err != nil {
		return err
	}
	for round, nos := range byRound {
		// An entry that is missing is no reason to send the event for ever: the audit names it.
		if _, err := t.exec(ctx, stampSentSQL, t.now, round, nos); err != nil {
			return err
		}
	}
	return nil
}

// Defer gives rows back: NextAt becomes now + Wait. A row refused maxAttempts times is quarantined; their number is
// returned. Guarded like Settle.
func (s *Store) Defer(ctx context.Context, rows []order.Deferred, maxAttempts int) (quarantined int, err error) {
	if len(rows) == 0 {
		return 0, nil
	}
	sorted := slices.SortedFunc(slices.Values(rows), func(a, b order.Deferred) int { return strings.Compare(a.Key, b.Key) })
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		quarantined, err = t.deferRows(ctx, sorted, maxAttempts)
		return err
	})
	return quarantined, err
}

func (t tx) deferRows(ctx context.Context, rows []order.Deferred, maxAttempts int) (quarantined int, err error) {
	messages := make([]order.Message, len(rows))
	for i, r := range rows {
		messages[i] = r.Message
	}
	own, err := t.lockOwn(ctx, messages)
	if err != nil {
		return 0, err
	}
	postponed := map[string][]order.Deferred{} // by reason: an outage has few
	for _, r := range rows {
		switch {
		case !own.pass(r.Message):
		case r.Refused:
			set, err := t.refuse(ctx, r, maxAttempts)
			if err != nil {
				return 0, err
			}
			if set {
				quarantined++
			}
		default:
			postponed[r.Reason] = append(postponed[r.Reason], r)
		}
	}
	for reason, rows := range postponed {
		for chunk := range slices.Chunk(rows, branchesAtOnce) {
			if err := t.wait(ctx, chunk, reason); err != nil {
				return 0, err
			}
		}
	}
	return quarantined, nil
}

// waitSQL gives locked and fenced rows back. Args: branches, error ("" if they are only not due yet), now, error, keys.
const waitSQL = `UPDATE t_local_message SET next_at = CASE dedup_key WHEN* END,
failing_since = CASE WHEN ? = '' THEN NULL ELSE COALESCE(failing_since, ?) END, last_error = ? WHERE dedup_key IN (?*)`

func (t tx) wait(ctx context.Context, rows []order.Deferred, reason string) error {
	keys, next := make([]string, len(rows)), make(cases, len(rows))
	for i, r := range rows {
		keys[i] = r.Key
		next[i] = branch{r.Key, t.now.Add(r.Wait).Truncate(time.Millisecond)}
	}
	reason = clip(reason, maxErrorText)
	return t.execAll(ctx, len(rows), waitSQL, next, reason, t.now, reason, keys)
}

// refuseSQL counts an attempt. Args: new state, next_at, now, error, attempts, key.
const refuseSQL = `UPDATE t_local_message SET state = ?, next_at = ?, failing_since = COALESCE(failing_since, ?), last_error = ?, attempts = ?
WHERE dedup_key = ?`

// refuse counts an attempt of a row that the broker refused, and sets it aside if that was the last one.
func (t tx) refuse(ctx context.Context, r order.Deferred, maxAttempts int) (setAside bool, err error) {
	state, attempts := order.ToSend, r.Attempts+1
	if attempts >= maxAttempts {
		state = order.SetAside
		q := order.Quarantined{Source: "relay", OrderNo: r.OrderNo, Reason: r.Reason, Body: r.Payload}
		if _, err := t.quarantine(ctx, q); err != nil {
			return false, err
		}
	}
	next := t.now.Add(r.Wait).Truncate(time.Millisecond)
	err = t.execAll(ctx, 1, refuseSQL, uint8(state), next, t.now, clip(r.Reason, maxErrorText), attempts, r.Key)
	return state == order.SetAside, err
}

// Postpone makes the time-out rows whose hop is the message's ready for their next hop, in one transaction, and returns
// them; others are left alone.
func (s *Store) Postpone(ctx context.Context, early []order.Early, next order.Schedule) (rows []order.Message, err error) {
	if len(early) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		rows, err = t.postpone(ctx, early, next)
		return err
	})
	return rows, err
}

// postponeSQL takes locked rows to their next hop. Args: branches, keys.
const postponeSQL = `UPDATE t_local_message SET hop = hop + 1, state = 0, failing_since = NULL, next_at = CASE dedup_key WHEN* END
WHERE dedup_key IN (?*)`

func (t tx) postpone(ctx context.Context, early []order.Early, next order.Schedule) ([]order.Message, error) {
	type hop struct {
		key string
		n   int
	}
	named := make(map[hop]bool, len(early))
	keys := make([]string, 0, len(early))
	for _, e := range early {
		key := order.TimeoutKey(e.OrderNo)
		named[hop{key, e.Hop}] = true
		keys = append(keys, key)
	}
	slices.Sort(keys)
	locked, err := t.messages(ctx, lockMessagesSQL, slices.Compact(keys))
	if err != nil {
		return nil, err
	}
	rows := slices.DeleteFunc(locked, func(m order.Message) bool { return !named[hop{m.Key, m.Hop}] })
	for chunk := range slices.Chunk(rows, branchesAtOnce) {
		keys, due := make([]string, len(chunk)), make(cases, len(chunk))
		for i := range chunk {
			m := &chunk[i]
			m.Hop++
			m.NextAt = next(*m, t.now).Truncate(time.Millisecond)
			keys[i], due[i] = m.Key, branch{m.Key, m.NextAt}
		}
		if err := t.execAll(ctx, len(chunk), postponeSQL, due, keys); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// Quarantine keeps an input for a human (the newest 10,000).
func (s *Store) Quarantine(ctx context.Context, q order.Quarantined) (fresh bool, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		fresh, err = t.quarantine(ctx, q)
		return err
	})
	return fresh, err
}

const (
	// alikeSQL finds an input that is kept already. Args: order number, source, reason, body.
	alikeSQL      = "SELECT EXISTS (SELECT 1 FROM t_quarantine WHERE order_no = ? AND source = ? AND reason = ? AND body = ?)"
	quarantineSQL = "INSERT INTO t_quarantine (source, order_no, reason, body, at) VALUES (?, ?, ?, ?, ?)"
	// dropQuarantinedSQL drops what is older than the newest 10,000, but never evidence of money. Args: highest id to drop.
	dropQuarantinedSQL = "DELETE FROM t_quarantine WHERE id <= ? AND source <> 'payment'"
	countDroppedSQL    = "UPDATE t_counter SET value = value + ? WHERE name = 'quarantine_dropped'"
)

func (t tx) quarantine(ctx context.Context, q order.Quarantined) (fresh bool, err error) {
	body := q.Body[:min(len(q.Body), maxQuarantined)]
	if body == nil {
		body = []byte{}
	}
	source, orderNo, reason, alike := clip(q.Source, 32), clip(q.OrderNo, 128), clip(q.Reason, maxErrorText), false
	if orderNo != "" { // what names no order is not looked for: there may be much of it
		err = t.QueryRowContext(ctx, alikeSQL, orderNo, source, reason, body).Scan(&alike)
	}
	if err != nil || alike {
		return false, err
	}
	return true, t.setAside(ctx, source, orderNo, reason, body)
}

func (t tx) setAside(ctx context.Context, source, orderNo, reason string, body []byte) error {
	res, err := t.ExecContext(ctx, quarantineSQL, source, orderNo, reason, body, t.now)
	if err != nil {
		return err
	}
	id, err := res.LastInsertId()
	if err != nil {
		return err
	}
	dropped, err := t.exec(ctx, dropQuarantinedSQL, id-keepQuarantined)
	if err != nil || dropped == 0 {
		return err
	}
	_, err = t.exec(ctx, countDroppedSQL, dropped)
	return err
}

// backlogWindow is how far ahead rows that wait after a failure are looked for; back-offs and leases are shorter. Rows
// that wait for a far deadline lie behind it, however many they are.
const backlogWindow = 5 * time.Minute

// backlogSQL counts rows that are due, or would be, had sending them not failed; of a huge backlog the first 100,000 of each
// kind, so that asking does not add to the trouble. Args: end of the window and now, twice.
const (
	backlogSQL = "SELECT COUNT(*), MIN(since) FROM (" + backlogOfSQL + "'timeout'" + backlogEndSQL + " UNION ALL " + backlogOfSQL + "'event'" + backlogEndSQL + ") AS oldest"

	backlogOfSQL  = "SELECT since FROM (SELECT COALESCE(failing_since, next_at) AS since FROM t_local_message WHERE state = 0 AND kind = "
	backlogEndSQL = " AND next_at <= ? AND (next_at <= ? OR failing_since IS NOT NULL) ORDER BY next_at LIMIT 100000) AS looked"
)

// waitingSQL counts what waits for a person or the gateway: quarantined inputs, orders in doubt that are asked about and that
// were set aside, and open late-payment cases; of many only the first.
const waitingSQL = `SELECT (SELECT COUNT(*) FROM t_quarantine),
  (SELECT COUNT(*) FROM (SELECT state FROM t_local_message WHERE state = 3 LIMIT 100000) AS asked),
  (SELECT COUNT(*) FROM (SELECT order_no FROM t_local_message WHERE state = 2 AND kind = 'timeout' LIMIT 10000) AS aside
    JOIN t_order AS o ON o.order_no = aside.order_no WHERE o.status = 5),
  (SELECT COUNT(*) FROM (SELECT payment_no FROM t_late_payment WHERE status = 'open' LIMIT 100000) AS late)`

// Backlog counts what waits.
func (s *Store) Backlog(ctx context.Context) (b order.Backlog, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		var oldest time.Time
		until := q.now.Add(backlogWindow)
		if err := q.QueryRowContext(ctx, backlogSQL, until, q.now, until, q.now).Scan(&b.Rows, at(&oldest)); err != nil {
			return err
		}
		if b.Age = 0; b.Rows > 0 {
			b.Age = max(0, q.now.Sub(oldest))
		}
		return q.QueryRowContext(ctx, waitingSQL).Scan(&b.Quarantined, &b.Doubtful, &b.Held, &b.LateOpen)
	})
	return b, err
}
