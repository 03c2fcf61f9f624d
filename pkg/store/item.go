package store

import (
	"context"
	"slices"
	"strings"
	"time"

	"lapse/pkg/order"
)

const itemColumns = "item_no, kind, ref, deadline"

// adoptedSQL reads items without locks.
const adoptedSQL = "SELECT " + itemColumns + " FROM t_item WHERE item_no IN (?*)"

// items reads those of numbers that are items.
func (t tx) items(ctx context.Context, nos []string) (map[string]order.Adopted, error) {
	found := make(map[string]order.Adopted, len(nos))
	if len(nos) == 0 {
		return found, nil
	}
	err := t.query(ctx, func(scan func(...any) error) error {
		var no string
		var a order.Adopted
		err := scan(&no, &a.Kind, &a.Ref, at(&a.Deadline))
		found[no] = a
		return err
	}, adoptedSQL, nos)
	return found, err
}

// lockItemsSQL locks items that are due by a time, passing over what others have locked.
const lockItemsSQL = "SELECT item_no FROM t_item WHERE item_no IN (?*) AND deadline <= ? ORDER BY item_no {skip}"

func (t tx) lockItems(ctx context.Context, nos []string, dueBy time.Time) ([]string, error) {
	if len(nos) == 0 {
		return nil, nil
	}
	slices.Sort(nos)
	return t.ids(ctx, lockItemsSQL, nos, dueBy)
}

// ids runs a query of one text column.
func (t tx) ids(ctx context.Context, text string, args ...any) (found []string, err error) {
	err = t.query(ctx, func(scan func(...any) error) error {
		var id string
		err := scan(&id)
		found = append(found, id)
		return err
	}, text, args...)
	return found, err
}

// Ripen makes those of the numbers that are items, and due by the database's clock (I2), ready for their owners to be
// called, in one transaction. Numbers that are in none of its answers are no items.
func (s *Store) Ripen(ctx context.Context, nos []string) (r order.Ripened, err error) {
	if len(nos) == 0 {
		return r, nil
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		r, err = t.ripen(ctx, nos)
		return err
	})
	return r, err
}

func (t tx) ripen(ctx context.Context, nos []string) (r order.Ripened, err error) {
	items, err := t.items(ctx, nos)
	if err != nil {
		return r, err
	}
	var due []string
	for no, a := range items {
		if a.Deadline.After(t.now) {
			r.Early = append(r.Early, no)
		} else {
			due = append(due, no)
		}
	}
	if r.Ripe, err = t.lockItems(ctx, due, t.now); err != nil {
		return r, err
	}
	r.Locked = slices.DeleteFunc(due, func(no string) bool { return slices.Contains(r.Ripe, no) })
	return r, t.ripenRows(ctx, r.Ripe)
}

// ripenSQL makes time-out rows of locked items the lapser's, unless they are so already. Args: now, keys.
const ripenSQL = `UPDATE t_local_message SET state = 4, hop = hop + 1, attempts = 0, failing_since = NULL, last_error = '', next_at = ?
WHERE dedup_key IN (?*) AND type = 'item' AND state <> 4`

func (t tx) ripenRows(ctx context.Context, nos []string) error {
	if len(nos) == 0 {
		return nil
	}
	_, err := t.exec(ctx, ripenSQL, t.now, timeoutKeys(nos))
	return err
}

// brakedWait is how long a due item is left alone for which closing is not rolled out.
const brakedWait = time.Minute

// ClaimRipe leases up to limit items whose owners are to be called. Those that the brakes keep are not among them: from
// the commit of a brake on no claim passes it. wake is when the next one is to be called about; zero if there is none,
// and while closing is stopped for all: then nothing is touched.
func (s *Store) ClaimRipe(ctx context.Context, limit int, lease time.Duration) (ripe []order.Ripe, now, wake time.Time, err error) {
	brakes, err := s.Brakes(ctx)
	if err != nil || brakes.Mode != order.ModeEnforce || brakes.Tripped != "" {
		return nil, now, wake, err
	}
	now, wake, err = s.claim(ctx, order.ToCall, order.Timeout, limit, lease, func(ctx context.Context, t tx, rows []order.Message) error {
		ripe, err = t.ripeOf(ctx, rows)
		return err
	})
	return ripe, now, wake, err
}

func (t tx) ripeOf(ctx context.Context, rows []order.Message) ([]order.Ripe, error) {
	if len(rows) == 0 {
		return nil, nil
	}
	brakes, err := t.readBrakes(ctx, readBrakesSQL)
	if err != nil {
		return nil, err
	}
	nos := make([]string, len(rows))
	for i, m := range rows {
		nos[i] = m.OrderNo
	}
	items, err := t.items(ctx, nos)
	if err != nil {
		return nil, err
	}
	var ripe, kept []order.Ripe
	for _, m := range rows {
		a, known := items[m.OrderNo]
		switch {
		case !known: // the audit names it
		case brakes.On(order.Order{OrderNo: m.OrderNo, BizType: a.Kind, UserID: a.Ref}) == order.Go:
			ripe = append(ripe, order.Ripe{Adopted: a, Message: m})
		default:
			kept = append(kept, order.Ripe{Adopted: a, Message: m})
		}
	}
	return ripe, t.putOff(ctx, kept, brakedWait, "closing is not enforced for it")
}

// PutOff gives items back whose owners were not called: they are claimed again after wait. Guarded by their lease (I10).
func (s *Store) PutOff(ctx context.Context, ripe []order.Ripe, wait time.Duration, why string) error {
	if len(ripe) == 0 {
		return nil
	}
	return s.write(ctx, func(ctx context.Context, t tx) error { return t.putOff(ctx, ripe, wait, why) })
}

// putOffSQL gives back rows that were claimed together. Args: next time, reason, keys, end of their lease, now. A row it
// does not touch is not the claimer's any more.
const putOffSQL = `UPDATE t_local_message SET next_at = ?, last_error = ?
WHERE dedup_key IN (?*) AND state = 4 AND next_at = ? AND next_at > ?`

func (t tx) putOff(ctx context.Context, ripe []order.Ripe, wait time.Duration, why string) error {
	byLease := map[time.Time][]string{}
	for _, r := range ripe {
		byLease[r.Message.NextAt] = append(byLease[r.Message.NextAt], r.No())
	}
	for lease, nos := range byLease {
		next := t.now.Add(wait).Truncate(time.Millisecond)
		if _, err := t.exec(ctx, putOffSQL, next, clip(why, maxErrorText), timeoutKeys(nos), lease, t.now); err != nil {
			return err
		}
	}
	return nil
}

// lockItemSQL keeps an item as it is; it is locked before its row, as its owner does.
const lockItemSQL = "SELECT item_no FROM t_item WHERE item_no = ? {update}"

const (
	deleteItemSQL    = "DELETE FROM t_item WHERE item_no = ?"
	deleteTimeoutSQL = "DELETE FROM t_local_message WHERE dedup_key = ?"
	moveItemSQL      = "UPDATE t_item SET deadline = ? WHERE item_no = ?"
	// moveTimeoutSQL takes a locked row to its next hop. Args: due, next time, key.
	moveTimeoutSQL = `UPDATE t_local_message SET state = 0, hop = hop + 1, attempts = 0, last_error = '', due_at = ?, next_at = ?
WHERE dedup_key = ?`
)

// Answered applies what came of calling an item's owner, in one transaction, fenced by the row's lease (I10): an item
// that has ended is forgotten, one that is due later is scheduled, and of any other the owner is called again after
// a.Wait. It returns the row to be sent, if there is one.
func (s *Store) Answered(ctx context.Context, a order.Asked, first order.Schedule) (rows []order.Message, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		rows, err = t.answered(ctx, a, first)
		return err
	})
	return rows, err
}

func (t tx) answered(ctx context.Context, a order.Asked, first order.Schedule) ([]order.Message, error) {
	no := a.Message.OrderNo
	if _, err := t.ids(ctx, lockItemSQL, no); err != nil {
		return nil, err
	}
	own, err := t.lockAsked(ctx, a.Message)
	if err != nil || !own {
		return nil, err
	}
	switch {
	case a.Failed != "":
		return nil, t.callAgain(ctx, a, a.Failed)
	case a.Answer.Word != order.WordLater:
		return nil, t.forget(ctx, no)
	case !a.Answer.Deadline.After(t.now):
		return nil, t.callAgain(ctx, a, "its owner says later, but names a time that has passed")
	}
	m := a.Message
	m.Hop++
	m.Attempts, m.DueAt = 0, a.Answer.Deadline
	m.NextAt = first(m, t.now).Truncate(time.Millisecond)
	if err := t.execAll(ctx, 1, moveItemSQL, m.DueAt, no); err != nil {
		return nil, err
	}
	return []order.Message{m}, t.execAll(ctx, 1, moveTimeoutSQL, m.DueAt, m.NextAt, m.Key)
}

// callAgainSQL puts a locked row off, and counts. Args: next time, reason, key.
const callAgainSQL = "UPDATE t_local_message SET next_at = ?, attempts = attempts + 1, last_error = ? WHERE dedup_key = ?"

func (t tx) callAgain(ctx context.Context, a order.Asked, why string) error {
	return t.execAll(ctx, 1, callAgainSQL, t.now.Add(a.Wait).Truncate(time.Millisecond), clip(why, maxErrorText), a.Message.Key)
}

// forget deletes an item and its row, where they are.
func (t tx) forget(ctx context.Context, no string) error {
	if _, err := t.exec(ctx, deleteItemSQL, no); err != nil {
		return err
	}
	_, err := t.exec(ctx, deleteTimeoutSQL, order.TimeoutKey(no))
	return err
}

// Backfill schedules those of items that are not scheduled, in one transaction, and returns their number. An item that
// is scheduled already keeps its deadline, which may be younger.
func (s *Store) Backfill(ctx context.Context, items []order.Adopted) (added int, err error) {
	if len(items) == 0 {
		return 0, nil
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		missing, _, err := t.unscheduled(ctx, items)
		if err != nil {
			return err
		}
		added = len(missing)
		return t.adopt(ctx, missing, order.ToSend)
	})
	return added, err
}

// Overdue makes those of items that are due, and of which their owners are not being called, ready for that, in one
// transaction, and returns their number: their messages were lost, or they were never scheduled. Deadlines are the
// owner's. Items that others have locked are left out.
func (s *Store) Overdue(ctx context.Context, items []order.Adopted) (ripened int, err error) {
	if len(items) == 0 {
		return 0, nil
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		ripened, err = t.overdue(ctx, slices.DeleteFunc(slices.Clone(items), func(a order.Adopted) bool { return a.Deadline.After(t.now) }))
		return err
	})
	return ripened, err
}

func (t tx) overdue(ctx context.Context, items []order.Adopted) (int, error) {
	missing, waiting, err := t.unscheduled(ctx, items)
	if err != nil {
		return 0, err
	}
	if err := t.adopt(ctx, missing, order.ToCall); err != nil { // first: later on it would wait with locks
		return 0, err
	}
	// What is scheduled for later was moved since the list was made.
	locked, err := t.lockItems(ctx, itemNos(waiting), t.now)
	if err != nil {
		return 0, err
	}
	return len(missing) + len(locked), t.ripenRows(ctx, locked)
}

// rowStatesSQL says how rows stand, without locks. Args: keys.
const rowStatesSQL = "SELECT order_no, state FROM t_local_message WHERE dedup_key IN (?*)"

// unscheduled are, of items, those without a time-out row, and those whose row waits for their time.
func (t tx) unscheduled(ctx context.Context, items []order.Adopted) (missing, waiting []order.Adopted, err error) {
	if len(items) == 0 {
		return nil, nil, nil
	}
	states := make(map[string]order.MessageState, len(items))
	err = t.query(ctx, func(scan func(...any) error) error {
		var no string
		var state order.MessageState
		err := scan(&no, &state)
		states[no] = state
		return err
	}, rowStatesSQL, timeoutKeys(itemNos(items)))
	for _, a := range items {
		state, scheduled := states[a.No()]
		switch {
		case !scheduled:
			missing = append(missing, a)
		case state != order.ToCall:
			waiting = append(waiting, a)
		}
		states[a.No()] = order.ToCall // one that is named twice counts once
	}
	return missing, waiting, err
}

func itemNos(items []order.Adopted) []string {
	nos := make([]string, len(items))
	for i, a := range items {
		nos[i] = a.No()
	}
	return nos
}

const (
	adoptItemsSQL = "INSERT INTO t_item (item_no, kind, ref, deadline, created_at) VALUES "
	adoptRowsSQL  = "INSERT INTO t_local_message (dedup_key, kind, order_no, round, type, hop, due_at, state, next_at, payload) VALUES "
)

// adopt writes items that have no time-out rows, and their rows, to be looked at now.
func (t tx) adopt(ctx context.Context, items []order.Adopted, state order.MessageState) error {
	slices.SortFunc(items, func(a, b order.Adopted) int { return strings.Compare(a.No(), b.No()) })
	kept, rows := make([][]any, len(items)), make([][]any, len(items))
	for i, a := range items {
		no := a.No()
		kept[i] = []any{no, a.Kind, a.Ref, a.Deadline, t.now}
		rows[i] = []any{order.TimeoutKey(no), string(order.Timeout), no, 0, order.AdoptedType, 0, a.Deadline, uint8(state), t.now, []byte{}}
	}
	if err := t.insert(ctx, adoptItemsSQL, kept, t.dialect.upsert("deadline")); err != nil {
		return err
	}
	return t.insert(ctx, adoptRowsSQL, rows, "")
}

// unansweredSQL counts items whose owners were called in vain; of very many the first 100,000. Args: attempts.
const unansweredSQL = `SELECT COUNT(*) FROM (SELECT dedup_key FROM t_local_message
WHERE state = 4 AND attempts >= ? LIMIT 100000) AS unanswered`

// Unanswered counts items whose owners were called at least so many times without an answer; 100,000 also means more.
func (s *Store) Unanswered(ctx context.Context, attempts int) (n int64, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		return q.QueryRowContext(ctx, unansweredSQL, attempts).Scan(&n)
	})
	return n, err
}
