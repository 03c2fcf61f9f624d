package store

import (
	"context"
	"slices"

	"lapse/pkg/order"
)

// orderPageSQL reads a page of orders by number.
const orderPageSQL = "SELECT " + orderColumns + " FROM t_order WHERE order_no > ? ORDER BY order_no LIMIT ?"

func (s *Store) walkOrders(ctx context.Context, after string, limit int, m order.Mending, first order.Schedule) (w order.Walked, err error) {
	var suspects []order.Facts
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		orders, err := q.orders(ctx, orderPageSQL, after, limit)
		if err != nil {
			return err
		}
		w = order.Walked{Looked: len(orders)}
		if len(orders) == limit {
			w.Last = orders[limit-1].OrderNo
		}
		facts, err := q.facts(ctx, orders)
		suspects = slices.DeleteFunc(facts, func(f order.Facts) bool { return len(f.Examine(q.now, m.Patience)) == 0 })
		return err
	})
	if err != nil {
		return w, err
	}
	for _, f := range suspects {
		found, rows, err := s.mend(ctx, m, f.Examine(order.Never, m.Patience)[0].Kind, f.OrderNo, func(ctx context.Context, t tx) ([]order.Finding, []order.Message, error) {
			return t.mendOrder(ctx, f.OrderNo, m, first)
		})
		if err != nil {
			return w, err
		}
		w.Findings, w.Messages = append(w.Findings, found...), append(w.Messages, rows...)
	}
	return w, nil
}

const (
	logOfSQL      = "SELECT order_no, version, round, from_status, to_status, event, reason, at, expire_at, event_sent_at FROM t_order_log WHERE order_no IN (?*) ORDER BY order_no, version"
	ledgerOfSQL   = "SELECT order_no, round, op, kind, ref, quantity, remote, at, acked_at FROM t_resource_log WHERE order_no IN (?*) AND round > 0 ORDER BY order_no, round, op, kind, ref"
	timeoutsOfSQL = "SELECT " + messageColumns + ", state FROM t_local_message WHERE dedup_key IN (?*)"
)

// facts reads all that is stored about orders.
func (t tx) facts(ctx context.Context, orders []order.Order) ([]order.Facts, error) {
	if len(orders) == 0 {
		return nil, nil
	}
	facts := make([]order.Facts, len(orders))
	index := make(map[string]*order.Facts, len(orders))
	for i, o := range orders {
		facts[i].Order = o
		index[o.OrderNo] = &facts[i]
	}
	nos := numbers(orders)
	keys := timeoutKeys(nos)
	err := t.query(ctx, func(scan func(...any) error) error {
		var e order.LogEntry
		err := scan(&e.OrderNo, &e.Version, &e.Round, &e.From, &e.To, &e.Event, &e.Reason, at(&e.At), at(&e.ExpireAt), at(&e.EventSentAt))
		f := index[e.OrderNo]
		f.Log = append(f.Log, e)
		if e.To == order.Cancelled && e.From != order.Cancelled {
			keys = append(keys, order.EventID(e.OrderNo, e.Round, order.TypeCancelled))
		}
		return err
	}, logOfSQL, nos)
	if err != nil {
		return nil, err
	}
	err = t.query(ctx, func(scan func(...any) error) error {
		var no string
		var e order.Entry
		err := scan(&no, &e.Round, &e.Op, &e.Item.Kind, &e.Item.Ref, &e.Item.Quantity, &e.Item.Remote, at(&e.At), at(&e.AckedAt))
		index[no].Ledger = append(index[no].Ledger, e)
		return err
	}, ledgerOfSQL, nos)
	if err != nil {
		return nil, err
	}
	err = t.query(ctx, func(scan func(...any) error) error {
		var m order.Scheduled
		err := scan(append(messageFields(&m.Message), &m.State)...)
		f := index[m.OrderNo]
		f.Messages = append(f.Messages, m)
		return err
	}, timeoutsOfSQL, keys)
	return facts, err
}

// mendOrder locks an order, looks at it again, and mends what is wrong.
func (t tx) mendOrder(ctx context.Context, orderNo string, m order.Mending, first order.Schedule) (found []order.Finding, rows []order.Message, err error) {
	if _, err := t.brakes(ctx); err != nil {
		return nil, nil, err
	}
	o, err := t.lockOrder(ctx, orderNo)
	if err != nil {
		return nil, nil, err
	}
	facts, err := t.facts(ctx, []order.Order{o})
	if err != nil {
		return nil, nil, err
	}
	for _, s := range facts[0].Examine(t.now, m.Patience) {
		action, written, err := t.mendSuspicion(ctx, facts[0], s, m, first)
		if err != nil {
			return nil, nil, err
		}
		if action == "" {
			continue
		}
		found = append(found, order.Finding{Kind: s.Kind, Subject: orderNo, Detail: s.Detail, Action: action, Mended: action != leftToAPerson})
		rows = append(rows, written...)
	}
	return found, rows, nil
}

// leftToAPerson is the action for what cannot be mended without knowing more.
const leftToAPerson = "left to a person"

// mendSuspicion mends one damage and says what it did; "" if it is none.
func (t tx) mendSuspicion(ctx context.Context, f order.Facts, s order.Suspicion, m order.Mending, first order.Schedule) (string, []order.Message, error) {
	switch s.Kind {
	case order.OverduePending:
		batch, err := t.closeDue(ctx, order.Closing{OrderNos: []string{f.OrderNo}, Reason: order.ReasonCompensate, Actor: m.Actor, Confirm: m.Confirm}, first)
		if len(batch.Braked) > 0 {
			return "", nil, err
		}
		return "closed", batch.Messages, err
	case order.ConfirmingStuck:
		_, err := t.exec(ctx, toAskSQL, t.now, t.now, timeoutKeys([]string{f.OrderNo}))
		return "to be asked about again", nil, err
	case order.TimeoutMissing:
		rows, err := t.makeTimeout(ctx, f.Order, first)
		return "its time-out row was written again", rows, err
	case order.ReleaseMissing:
		return t.releaseMissing(ctx, f, s)
	case order.ReleaseWithoutCancel:
		return t.takeBack(ctx, f, s)
	}
	o, _ := f.Cancellation(s.Round)
	event := order.CancelledMessage(o)
	event.NextAt = first(event, t.now)
	rows, err := t.insertMessages(ctx, []order.Message{event})
	return "its cancelled event was written again", rows, err
}

// makeTimeout writes the time-out row of an order that has none.
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

// releaseMissing gives back what a cancelled round still holds. Where only the ledger lacks it, the counters are right
// already: comparing them comes after, and sees to them.
func (t tx) releaseMissing(ctx context.Context, f order.Facts, s order.Suspicion) (string, []order.Message, error) {
	o := f.Order
	o.Round = s.Round
	entries := ops(o, s.Items, order.OpRelease)
	if _, err := t.apply(ctx, entries); err == nil || order.KindOf(err) != order.Internal {
		return "given back", nil, err
	}
	return "entered as given back", nil, t.enter(ctx, entries)
}

// removeReleaseSQL takes a release out of the ledger. Args: order, round, kind, ref.
const removeReleaseSQL = "DELETE FROM t_resource_log WHERE order_no = ? AND round = ? AND op = 'release' AND kind = ? AND ref = ?"

// takeBack undoes releases of a round that was not cancelled, if what was released can still be had.
func (t tx) takeBack(ctx context.Context, f order.Facts, s order.Suspicion) (string, []order.Message, error) {
	for _, it := range s.Items {
		if !it.Remote {
			resources, err := t.lockResources(ctx, []order.Item{it})
			if err != nil {
				return "", nil, err
			}
			r := resources[keyOf(it)]
			if r == nil || r.Available < it.Quantity {
				return leftToAPerson, nil, nil
			}
			r.Available -= it.Quantity
			r.Held += it.Quantity
			if err := t.saveCounters(ctx, resources); err != nil {
				return "", nil, err
			}
		}
		if err := t.execAll(ctx, 1, removeReleaseSQL, f.OrderNo, s.Round, it.Kind, it.Ref); err != nil {
			return "", nil, err
		}
	}
	return "taken back", nil, nil
}
