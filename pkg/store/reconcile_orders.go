package store

import (
	"context"
	"slices"

	"lapse/pkg/order"
)

// orderPageSQL reads a page of orders by number.
const orderPageSQL = "SELECT " + orderColumns + " FROM t_order WHERE order_no > ? ORDER BY order_no LIMIT ?"

func (s *Store) walkOrders(ctx context.Context, after string, limit int, m order.Mending, first order.Schedule) (w order.Walked, err error) {
	suspicions := map[string][]order.Suspicion{}
	var page []order.Order
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		brakes, err := q.readBrakes(ctx, readBrakesSQL)
		if err != nil {
			return err
		}
		if page, err = q.orders(ctx, orderPageSQL, after, limit); err != nil {
			return err
		}
		facts, err := q.facts(ctx, page, brakes)
		for _, f := range facts {
			suspicions[f.OrderNo] = f.Examine(q.now, m.Patience)
		}
		return err
	})
	if err != nil {
		return w, err
	}
	w.Looked = len(page)
	if len(page) == limit {
		w.Last = page[limit-1].OrderNo
	}
	for _, o := range page {
		for _, seen := range suspicions[o.OrderNo] {
			suspect := order.Finding{Kind: seen.Kind, Subject: o.OrderNo, Detail: seen.Detail}
			err := s.mend(ctx, m, &w, suspect, func(ctx context.Context, t tx, f *order.Finding) ([]order.Message, error) {
				return t.mendOrder(ctx, seen, f, m, first)
			})
			if err != nil {
				return w, err
			}
		}
	}
	return w, nil
}

const (
	messagesOfSQL = "SELECT " + messageColumns + ", state FROM t_local_message WHERE dedup_key IN (?*)"
	logOfSQL      = "SELECT order_no, version, round, from_status, to_status, event, reason, at, expire_at, event_sent_at FROM t_order_log WHERE order_no IN (?*) ORDER BY order_no, version"
	ledgerOfSQL   = "SELECT order_no, round, op, kind, ref, quantity, remote, at, acked_at FROM t_resource_log WHERE order_no IN (?*) AND round > 0 ORDER BY order_no, round, op, kind, ref"
)

// facts reads all that is stored about orders. Messages come first: an event that is gone by then was sent, and its stamp is
// in the log that is read after.
func (t tx) facts(ctx context.Context, orders []order.Order, brakes order.Brakes) ([]order.Facts, error) {
	if len(orders) == 0 {
		return nil, nil
	}
	facts := make([]order.Facts, len(orders))
	index := make(map[string]*order.Facts, len(orders))
	nos := numbers(orders)
	keys := timeoutKeys(nos)
	for i, o := range orders {
		facts[i] = order.Facts{Order: o, Braked: brakes.On(o) != order.Go}
		index[o.OrderNo] = &facts[i]
		for round := 1; round <= o.Round; round++ {
			keys = append(keys, order.EventID(o.OrderNo, round, order.TypeCancelled))
		}
	}
	err := t.query(ctx, func(scan func(...any) error) error {
		var m order.Scheduled
		err := scan(append(messageFields(&m.Message), &m.State)...)
		if f := index[m.OrderNo]; f != nil {
			f.Messages = append(f.Messages, m)
		}
		return err
	}, messagesOfSQL, keys)
	if err != nil {
		return nil, err
	}
	err = t.query(ctx, func(scan func(...any) error) error {
		var e order.LogEntry
		err := scan(&e.OrderNo, &e.Version, &e.Round, &e.From, &e.To, &e.Event, &e.Reason, at(&e.At), at(&e.ExpireAt), at(&e.EventSentAt))
		f := index[e.OrderNo]
		f.Log = append(f.Log, e)
		return err
	}, logOfSQL, nos)
	if err != nil {
		return nil, err
	}
	return facts, t.query(ctx, func(scan func(...any) error) error {
		var no string
		var e order.Entry
		err := scan(&no, &e.Round, &e.Op, &e.Item.Kind, &e.Item.Ref, &e.Item.Quantity, &e.Item.Remote, at(&e.At), at(&e.AckedAt))
		f := index[no]
		f.Ledger = append(f.Ledger, e)
		return err
	}, ledgerOfSQL, nos)
}

// mendOrder locks an order, looks at it again, and mends what is still wrong with it.
func (t tx) mendOrder(ctx context.Context, seen order.Suspicion, f *order.Finding, m order.Mending, first order.Schedule) ([]order.Message, error) {
	brakes, err := t.brakes(ctx)
	if err != nil {
		return nil, err
	}
	locked, err := t.orders(ctx, lockOrderSQL, f.Subject)
	if err != nil || len(locked) == 0 { // it was purged
		return nil, err
	}
	facts, err := t.facts(ctx, locked, brakes)
	if err != nil {
		return nil, err
	}
	for _, s := range facts[0].Examine(t.now, m.Patience) {
		if s.Kind == seen.Kind && s.Round == seen.Round {
			f.Detail = s.Detail
			var rows []order.Message
			f.Action, rows, err = t.mendSuspicion(ctx, facts[0], s, m, first)
			return rows, err
		}
	}
	return nil, nil
}

// mendSuspicion mends one damage of a locked order and says what it did; "" if it is none.
func (t tx) mendSuspicion(ctx context.Context, f order.Facts, s order.Suspicion, m order.Mending, first order.Schedule) (string, []order.Message, error) {
	switch s.Kind {
	case order.CancelUnlogged:
		action, err := t.logCancel(ctx, f, m)
		return action, nil, err
	case order.ReleaseWithoutCancel:
		action, err := t.takeBack(ctx, f, s)
		return action, nil, err
	case order.ReleaseMissing:
		return "entered as given back", nil, t.giveBack(ctx, f, s)
	case order.TimeoutMissing:
		rows, err := t.makeTimeout(ctx, f.Order, first)
		return "its time-out row was written again", rows, err
	case order.OverduePending:
		return t.closeOverdue(ctx, f.OrderNo, m, first)
	case order.ConfirmingStuck:
		_, err := t.exec(ctx, toAskSQL, t.now, t.now, timeoutKeys([]string{f.OrderNo}))
		return "to be asked about again", nil, err
	}
	o, _ := f.Cancellation(s.Round)
	event := order.CancelledMessage(o)
	event.NextAt = first(event, t.now)
	rows, err := t.insertMessages(ctx, []order.Message{event})
	return "its cancelled event was written again", rows, err
}

// closeOverdue closes a locked order as the compensator would have.
func (t tx) closeOverdue(ctx context.Context, orderNo string, m order.Mending, first order.Schedule) (string, []order.Message, error) {
	batch, err := t.closeDue(ctx, order.Closing{OrderNos: []string{orderNo}, Reason: order.ReasonCompensate, Actor: m.Actor, Confirm: m.Confirm}, first)
	switch {
	case len(batch.Closed) > 0:
		return "closed", batch.Messages, err
	case batch.Doubtful > 0:
		return "confirming now: its payment is in flight", batch.Messages, err
	case batch.Reminded > 0:
		return "reminded", batch.Messages, err
	}
	return "", nil, err // somebody holds what it holds
}

// unloggedSQL brings a row up to the log that is completed. Args: version, cancelled at, reason, number. No row: it is not cancelled.
const unloggedSQL = `UPDATE t_order SET version = ?, cancelled_at = ?, cancel_reason = ?, confirm_until = NULL, paying_until = NULL
WHERE order_no = ? AND status = 20`

// logCancel completes the log of a locked order that was cancelled by hand-made means.
func (t tx) logCancel(ctx context.Context, f order.Facts, m order.Mending) (string, error) {
	e, ok := f.Unlogged()
	if !ok {
		return leftToAPerson, nil
	}
	if e.At.IsZero() {
		e.At = t.now
	}
	e.Actor, e.Note = m.Actor, "it was cancelled without an entry"
	if err := t.execAll(ctx, 1, unloggedSQL, e.Version, e.At, e.Reason, f.OrderNo); err != nil {
		return "", err
	}
	return "its log was completed", t.log(ctx, []order.LogEntry{e})
}

// makeTimeout writes the time-out row of a locked order that has none.
func (t tx) makeTimeout(ctx context.Context, o order.Order, first order.Schedule) ([]order.Message, error) {
	row := order.Message{Key: order.TimeoutKey(o.OrderNo), Kind: order.Timeout, OrderNo: o.OrderNo, Round: o.Round, Type: string(order.Timeout), DueAt: o.WakeAt()}
	row.NextAt = first(row, t.now)
	rows, err := t.insertMessages(ctx, []order.Message{row})
	if err == nil && o.Status == order.Confirming {
		_, err = t.exec(ctx, toAskSQL, t.now, t.now, timeoutKeys([]string{o.OrderNo}))
		rows = nil
	}
	return rows, err
}

// addReleaseSQL changes a release. Args: quantity, order, round, kind, ref. No row: there is none yet.
const addReleaseSQL = `UPDATE t_resource_log SET quantity = quantity + ?
WHERE order_no = ? AND round = ? AND op = 'release' AND kind = ? AND ref = ?`

// giveBack enters what a cancelled round has not given back. It moves no counter, since whether they were moved then is not
// known here: until the counters are compared with the ledger, something may seem to be held that is not, and never the
// other way round.
func (t tx) giveBack(ctx context.Context, f order.Facts, s order.Suspicion) error {
	o, _ := f.Cancellation(s.Round)
	var entries []entry
	for _, it := range s.Items {
		n, err := t.exec(ctx, addReleaseSQL, it.Quantity, o.OrderNo, o.Round, it.Kind, it.Ref)
		if err != nil {
			return err
		}
		if n == 0 {
			entries = append(entries, ops(o, []order.Item{it}, order.OpRelease)...)
		}
	}
	resources, err := t.lockResources(ctx, localItems(entries))
	if err != nil {
		return err
	}
	for _, e := range slices.Clone(entries) {
		if r := resources[keyOf(e.item)]; r != nil && r.Expired(o.CancelledAt) && !f.Forfeits(s.Round, e.item) {
			e.op = order.OpForfeit
			entries = append(entries, e)
		}
	}
	return t.enter(ctx, entries)
}

// emptyReleaseSQL removes a release of which nothing is left. Args: order, round, kind, ref.
const emptyReleaseSQL = "DELETE FROM t_resource_log WHERE order_no = ? AND round = ? AND op = 'release' AND kind = ? AND ref = ? AND quantity = 0"

// takeBack undoes releases that had no reason, if all that was released can still be had.
func (t tx) takeBack(ctx context.Context, f order.Facts, s order.Suspicion) (string, error) {
	ours := slices.DeleteFunc(slices.Clone(s.Items), func(it order.Item) bool { return it.Remote })
	resources, err := t.lockResources(ctx, ours)
	if err != nil {
		return "", err
	}
	for _, it := range ours {
		r := resources[keyOf(it)]
		if r == nil || r.Available < it.Quantity || f.Forfeits(s.Round, it) {
			return leftToAPerson, nil
		}
		r.Available -= it.Quantity
		r.Held += it.Quantity
	}
	if err := t.saveCounters(ctx, resources); err != nil {
		return "", err
	}
	for _, it := range s.Items {
		if err := t.execAll(ctx, 1, addReleaseSQL, -it.Quantity, f.OrderNo, s.Round, it.Kind, it.Ref); err != nil {
			return "", err
		}
		if _, err := t.exec(ctx, emptyReleaseSQL, f.OrderNo, s.Round, it.Kind, it.Ref); err != nil {
			return "", err
		}
	}
	return "taken back", nil
}
