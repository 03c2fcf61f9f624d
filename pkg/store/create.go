package store

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"lapse/pkg/order"
)

// birth is a draft that becomes an order, unless a resource refuses it.
type birth struct {
	order order.Order
	draft order.Draft
	at    int   // index of its draft
	err   error // why it does not
}

func (b *birth) refused() bool { return b.err != nil }

// Create writes drafts, each with its reservations, order log and time-out row, in one transaction. Answers come in the
// order of drafts. Orders in the answer have no ID yet unless Repeated.
func (s *Store) Create(ctx context.Context, drafts []order.Draft, first order.Schedule) (answers []order.Created, err error) {
	if len(drafts) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		answers, err = t.create(ctx, drafts, first)
		return err
	})
	return answers, err
}

// create writes the order rows first: a number that another producer has just taken fails the transaction (it is run
// again and finds the number taken) before any resource is locked. Orders that a resource then refuses are removed
// again; nothing but their row was written by then.
func (t tx) create(ctx context.Context, drafts []order.Draft, first order.Schedule) ([]order.Created, error) {
	existing, err := t.existing(ctx, drafts)
	if err != nil {
		return nil, err
	}
	births := t.births(drafts, existing)
	if err := t.ration(ctx, births); err != nil {
		return nil, err
	}
	admitted := slices.DeleteFunc(slices.Clone(births), (*birth).refused)
	if err := t.insertOrders(ctx, admitted); err != nil {
		return nil, err
	}
	if err := t.reserve(ctx, admitted); err != nil {
		return nil, err
	}
	messages, err := t.furnish(ctx, admitted, first)
	if err != nil {
		return nil, err
	}
	return answersTo(drafts, existing, births, messages), nil
}

// existing finds the orders that drafts name already, with their items.
func (t tx) existing(ctx context.Context, drafts []order.Draft) (map[string]order.Order, error) {
	nos := make([]string, len(drafts))
	for i, d := range drafts {
		nos[i] = d.OrderNo
	}
	found, err := t.orders(ctx, lookSQL, nos)
	if err != nil {
		return nil, err
	}
	if err := t.loadItems(ctx, found); err != nil {
		return nil, err
	}
	byNo := make(map[string]order.Order, len(found))
	for _, o := range found {
		byNo[o.OrderNo] = o
	}
	return byNo, nil
}

// births are the new orders, in the order of drafts; of several drafts with one number the first.
func (t tx) births(drafts []order.Draft, existing map[string]order.Order) []*birth {
	var births []*birth
	seen := make(map[string]bool, len(drafts))
	for i, d := range drafts {
		if _, exists := existing[d.OrderNo]; exists || seen[d.OrderNo] {
			continue
		}
		seen[d.OrderNo] = true
		b := &birth{draft: d, at: i, order: order.Order{
			OrderNo: d.OrderNo, Caller: d.Caller, RequestHash: d.Hash(), UserID: d.UserID, BizType: d.BizType,
			Status: order.Pending, Items: d.Items, Amount: d.Amount, Currency: d.Currency,
			CreatedAt: t.now, ExpireAt: t.now.Add(d.Timeout), Round: 1, Version: 1,
			RemindLead: d.Rule.RemindLead, SecondChance: d.Rule.SecondChance,
		}}
		if d.Amount == 0 {
			b.order.Status, b.order.PaidAt = order.Paid, t.now
		}
		births = append(births, b)
	}
	return births
}

// quotaWindow is how far back orders are counted that wait to be paid: longer than the longest time to pay.
const quotaWindow = 91 * 24 * time.Hour

// usageSQL counts what users have made: orders that wait to be paid, and those of the last minute. Args: a minute ago, users,
// since.
const usageSQL = `SELECT user_id, SUM(CASE WHEN status IN (0, 5) THEN 1 ELSE 0 END), SUM(CASE WHEN created_at > ? THEN 1 ELSE 0 END)
FROM t_order WHERE user_id IN (?*) AND created_at > ? GROUP BY user_id`

// ration refuses births whose users have had their share. Transactions at the same time do not see each other's orders, so
// a user may have as many more as those make.
func (t tx) ration(ctx context.Context, births []*birth) error {
	type usage struct{ pending, minute int }
	used := map[string]*usage{}
	for _, b := range births {
		if b.draft.Quota != (order.Quota{}) {
			used[b.draft.UserID] = &usage{}
		}
	}
	if len(used) == 0 {
		return nil
	}
	err := t.query(ctx, func(scan func(...any) error) error {
		var user string
		var u usage
		err := scan(&user, &u.pending, &u.minute)
		used[user] = &u
		return err
	}, usageSQL, t.now.Add(-time.Minute), slices.Sorted(maps.Keys(used)), t.now.Add(-quotaWindow))
	if err != nil {
		return err
	}
	for _, b := range births {
		u := used[b.draft.UserID]
		if b.draft.Quota == (order.Quota{}) {
			continue
		}
		if b.err = b.draft.Quota.Check(u.pending, u.minute); b.err == nil {
			u.pending++
			u.minute++
		}
	}
	return nil
}

const insertOrderSQL = `INSERT INTO t_order (order_no, caller, request_hash, user_id, biz_type, status, amount, currency,
created_at, expire_at, paid_at, remind_ms, second_ms, round, version, shard) VALUES `

// insertOrders writes order rows by number, so that two groups with the same numbers wait for each other in one order.
func (t tx) insertOrders(ctx context.Context, births []*birth) error {
	sorted := slices.SortedFunc(slices.Values(births), func(a, b *birth) int { return strings.Compare(a.order.OrderNo, b.order.OrderNo) })
	rows := make([][]any, len(sorted))
	for i, b := range sorted {
		o := b.order
		rows[i] = []any{o.OrderNo, o.Caller, o.RequestHash, o.UserID, o.BizType, uint8(o.Status), o.Amount, o.Currency,
			o.CreatedAt, o.ExpireAt, orNull(o.PaidAt), inMs(o.RemindLead), inMs(o.SecondChance), o.Round, o.Version, order.ShardOf(o.OrderNo)}
	}
	return t.insert(ctx, insertOrderSQL, rows, "")
}

// reserve locks what births want, decides in their order of arrival, and moves the counters.
func (t tx) reserve(ctx context.Context, births []*birth) error {
	var wanted []order.Item
	for _, b := range births {
		wanted = append(wanted, b.wants()...)
	}
	if len(wanted) == 0 {
		return nil
	}
	resources, err := t.lockResources(ctx, wanted)
	if err != nil {
		return err
	}
	changed := make(map[resourceKey]*order.Resource, len(resources))
	for _, b := range births {
		if b.err = b.take(resources, t); b.err != nil {
			continue
		}
		for _, it := range b.wants() {
			changed[keyOf(it)] = resources[keyOf(it)]
		}
	}
	return t.saveCounters(ctx, changed)
}

// wants are the items that are ours to reserve now.
func (b *birth) wants() []order.Item {
	return slices.DeleteFunc(slices.Clone(b.order.Items), func(it order.Item) bool { return it.Remote || it.AtPayment })
}

// take moves all items that b wants, or none and says why not.
func (b *birth) take(resources map[resourceKey]*order.Resource, t tx) error {
	wants := b.wants()
	kept := make([]order.Resource, 0, len(wants))
	for _, it := range wants {
		r := resources[keyOf(it)]
		var err error
		if r == nil && t.blocked {
			err = resourceLocked(it)
		} else if r == nil {
			err = unknownResource(it)
		} else {
			kept = append(kept, *r)
			err = r.Reserve(it.Quantity, b.order.UserID, t.now)
		}
		if err == nil && b.order.Status == order.Paid {
			err = r.Sell(it.Quantity)
		}
		if err != nil {
			for _, before := range kept {
				*resources[resourceKey{before.Kind, before.Ref}] = before
			}
			return err
		}
	}
	return nil
}

// removeOrdersSQL takes back rows that this very transaction wrote.
const removeOrdersSQL = "DELETE FROM t_order WHERE order_no IN (?*)"

const insertItemSQL = "INSERT INTO t_order_item (order_no, kind, ref, quantity, remote, at_payment) VALUES "

// furnish writes what belongs to the orders that got what they want, and removes the others. It returns the time-out
// messages by order number.
func (t tx) furnish(ctx context.Context, births []*birth, first order.Schedule) (map[string]*order.Message, error) {
	var refused []string
	var items [][]any
	var ledger []entry
	var log []order.LogEntry
	var messages []order.Message
	for _, b := range births {
		o := b.order
		if b.err != nil {
			refused = append(refused, o.OrderNo)
			continue
		}
		log = append(log, birthEntry(o))
		for _, it := range o.Items {
			items = append(items, []any{o.OrderNo, it.Kind, it.Ref, it.Quantity, it.Remote, it.AtPayment})
		}
		held := slices.DeleteFunc(slices.Clone(o.Items), func(it order.Item) bool { return it.AtPayment })
		ledger = append(ledger, ops(o, held, order.OpReserve)...)
		if o.Status == order.Paid {
			ledger = append(ledger, ops(o, held, order.OpSell)...)
		}
		if o.Status == order.Pending {
			m := order.Message{Key: order.TimeoutKey(o.OrderNo), Kind: order.Timeout, OrderNo: o.OrderNo, Round: o.Round,
				Type: string(order.Timeout), DueAt: o.WakeAt(), Payload: []byte(b.draft.TraceParent)}
			m.NextAt = first(m, t.now)
			messages = append(messages, m)
		}
	}
	if len(refused) > 0 {
		if err := t.execAll(ctx, len(refused), removeOrdersSQL, refused); err != nil {
			return nil, err
		}
	}
	if err := t.insert(ctx, insertItemSQL, items, ""); err != nil {
		return nil, err
	}
	if err := t.enter(ctx, ledger); err != nil {
		return nil, err
	}
	if err := t.log(ctx, log); err != nil {
		return nil, err
	}
	written, err := t.insertMessages(ctx, messages)
	byNo := make(map[string]*order.Message, len(written))
	for i := range written {
		byNo[written[i].OrderNo] = &written[i]
	}
	return byNo, err
}

func birthEntry(o order.Order) order.LogEntry {
	event := order.EventCreated
	if o.Status == order.Paid {
		event = order.EventNothingDue
	}
	return order.LogEntry{OrderNo: o.OrderNo, Version: o.Version, Round: o.Round, From: order.Pending, To: o.Status, Event: event,
		Actor: o.Caller, At: o.CreatedAt, ExpireAt: o.ExpireAt}
}

const insertLogSQL = "INSERT INTO t_order_log (order_no, version, round, from_status, to_status, event, reason, note, actor, at, expire_at) VALUES "

func (t tx) log(ctx context.Context, entries []order.LogEntry) error {
	rows := make([][]any, len(entries))
	for i, e := range entries {
		rows[i] = []any{e.OrderNo, e.Version, e.Round, uint8(e.From), uint8(e.To), string(e.Event), e.Reason, e.Note, e.Actor, e.At, orNull(e.ExpireAt)}
	}
	return t.insert(ctx, insertLogSQL, rows, "")
}

// answersTo gives each draft its answer: its order, an earlier one with the same content, or why not.
func answersTo(drafts []order.Draft, existing map[string]order.Order, births []*birth, messages map[string]*order.Message) []order.Created {
	born := make(map[string]*birth, len(births))
	for _, b := range births {
		born[b.order.OrderNo] = b
	}
	answers := make([]order.Created, len(drafts))
	for i, d := range drafts {
		b := born[d.OrderNo]
		switch {
		case b == nil:
			answers[i] = repeat(existing[d.OrderNo], d)
		case b.at == i && b.err == nil:
			answers[i] = order.Created{Order: &b.order, Message: messages[d.OrderNo]}
		case b.err == nil:
			answers[i] = repeat(b.order, d)
		case d.Hash() == b.order.RequestHash:
			answers[i] = order.Created{Err: b.err}
		default:
			answers[i] = order.Created{Err: order.Errorf(order.Unavailable, "order_no_in_flight",
				"another order with the number %s was being made at the same time", d.OrderNo).WithHint("Try again.")}
		}
	}
	return answers
}

func repeat(o order.Order, d order.Draft) order.Created {
	if o.RequestHash != d.Hash() {
		return order.Created{Err: order.Errorf(order.Conflict, "order_no_taken", "order %s exists with other content", d.OrderNo).
			WithHint("Use a new order number for a new order.")}
	}
	return order.Created{Order: &o, Repeated: true}
}
