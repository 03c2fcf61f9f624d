package store

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"slices"
	"strings"
	"time"

	"lapse/pkg/order"
)

// resourceKey is the primary key of t_resource.
type resourceKey struct{ kind, ref string }

func keyOf(it order.Item) resourceKey { return resourceKey{it.Kind, it.Ref} }

// entry is one row of t_resource_log.
type entry struct {
	orderNo string
	round   int
	op      order.Op
	item    order.Item // with Quantity as entered
	user    string     // of reservations: who reserves
}

const resourceColumns = "kind, ref, available, held, sold, owner, valid_until"

func scanResource(scan func(...any) error) (*order.Resource, error) {
	r := &order.Resource{}
	err := scan(&r.Kind, &r.Ref, &r.Available, &r.Held, &r.Sold, &r.Owner, at(&r.ValidUntil))
	return r, err
}

// lockResourcesSQL locks counters in the order of their key. Its WHERE is one branch a kind (see byKind).
const lockResourcesSQL = "SELECT " + resourceColumns + " FROM t_resource WHERE BRANCHES ORDER BY kind, ref {update}"

// freeResourcesSQL is lockResourcesSQL, but passes over what others have locked.
const freeResourcesSQL = "SELECT " + resourceColumns + " FROM t_resource WHERE BRANCHES ORDER BY kind, ref {skip}"

// lockResources locks the resources of items. Those that do not exist are left out, and in a transaction that was
// blocked also those that others have locked.
func (t tx) lockResources(ctx context.Context, items []order.Item) (map[resourceKey]*order.Resource, error) {
	sorted := order.MergeItems(items)
	locked := make(map[resourceKey]*order.Resource, len(sorted))
	text := lockResourcesSQL
	if t.blocked {
		text = freeResourcesSQL
	}
	const atOnce = 200 // of many more, the optimizer would read and lock all of the kind
	for chunk := range slices.Chunk(sorted, atOnce) {
		where, args := byKind(chunk)
		err := t.query(ctx, func(scan func(...any) error) error {
			r, err := scanResource(scan)
			locked[resourceKey{r.Kind, r.Ref}] = r
			return err
		}, strings.Replace(text, "BRANCHES", where, 1), args...)
		if err != nil {
			return nil, err
		}
	}
	return locked, nil
}

// unblocked are those of locked orders whose resources can be locked; in a transaction that was not blocked all of them.
func (t tx) unblocked(ctx context.Context, orders []order.Order) ([]order.Order, error) {
	if !t.blocked || len(orders) == 0 {
		return orders, nil
	}
	withItems := slices.Clone(orders)
	if err := t.loadHeld(ctx, withItems); err != nil {
		return nil, err
	}
	var items []order.Item
	for _, o := range withItems {
		items = append(items, o.Items...)
	}
	free, err := t.lockResources(ctx, items)
	var able []order.Order
	for i, o := range withItems {
		if !slices.ContainsFunc(o.Items, func(it order.Item) bool { return !it.Remote && free[keyOf(it)] == nil }) {
			able = append(able, orders[i])
		}
	}
	return able, err
}

// byKind is the condition for the keys of sorted items: pairs in an IN list are not portable, and MariaDB would lock
// the whole table for them.
func byKind(items []order.Item) (where string, args []any) {
	var branches []string
	for len(items) > 0 {
		kind := items[0].Kind
		var refs []string
		for len(items) > 0 && items[0].Kind == kind {
			refs = append(refs, items[0].Ref)
			items = items[1:]
		}
		branches = append(branches, "kind = ? AND ref IN (?*)")
		args = append(args, kind, refs)
	}
	return strings.Join(branches, " OR "), args
}

// saveCountersSQL sets counters of rows that the transaction has locked, so it never makes one. The table's CHECK keeps
// them from going negative.
const saveCountersSQL = "INSERT INTO t_resource (kind, ref, available, held, sold) VALUES "

func (t tx) saveCounters(ctx context.Context, changed map[resourceKey]*order.Resource) error {
	rows := make([][]any, 0, len(changed))
	for _, r := range changed {
		rows = append(rows, []any{r.Kind, r.Ref, r.Available, r.Held, r.Sold})
	}
	slices.SortFunc(rows, func(a, b []any) int {
		return cmp.Or(cmp.Compare(a[0].(string), b[0].(string)), cmp.Compare(a[1].(string), b[1].(string)))
	})
	return t.insert(ctx, saveCountersSQL, rows, t.dialect.upsert("available", "held", "sold"))
}

const enterSQL = "INSERT INTO t_resource_log (order_no, round, op, kind, ref, quantity, at, remote) VALUES "

// enter writes ledger rows. Its key is the proof that nothing is reserved, sold or released twice (I5).
func (t tx) enter(ctx context.Context, entries []entry) error {
	rows := make([][]any, len(entries))
	for i, e := range entries {
		rows[i] = []any{e.orderNo, e.round, string(e.op), e.item.Kind, e.item.Ref, e.item.Quantity, t.now, e.item.Remote}
	}
	return t.insert(ctx, enterSQL, rows, "")
}

// apply makes ledger entries of locked orders in their sequence, and moves the counters of what is ours: of remote things
// the ledger alone speaks. Something that is released after its validity has run out is forfeited at once; those entries
// are returned. Where a reservation is refused nothing has been written.
func (t tx) apply(ctx context.Context, entries []entry) (forfeited []entry, err error) {
	resources, err := t.lockResources(ctx, localItems(entries))
	if err != nil {
		return nil, err
	}
	all := make([]entry, 0, len(entries))
	for _, e := range entries {
		all = append(all, e)
		if e.item.Remote {
			continue
		}
		r := resources[keyOf(e.item)]
		if err := t.move(r, e); err != nil {
			return nil, err
		}
		if e.op == order.OpRelease && r.Expired(t.now) {
			e.op = order.OpForfeit
			if err := t.move(r, e); err != nil {
				return nil, err
			}
			forfeited, all = append(forfeited, e), append(all, e)
		}
	}
	if err := t.saveCounters(ctx, resources); err != nil {
		return nil, err
	}
	return forfeited, t.enter(ctx, all)
}

func localItems(entries []entry) []order.Item {
	items := make([]order.Item, 0, len(entries))
	for _, e := range entries {
		if !e.item.Remote {
			items = append(items, e.item)
		}
	}
	return items
}

// move moves one counter. The only refusal that is an answer is that of a reservation; another one is damage.
func (t tx) move(r *order.Resource, e entry) error {
	it, err := e.item, error(nil)
	switch {
	case r == nil && t.blocked:
		return resourceLocked(it)
	case r == nil && e.op == order.OpReserve:
		return unknownResource(it)
	case r == nil:
		err = damaged("%s %q is held but does not exist", it.Kind, it.Ref)
	case e.op == order.OpReserve:
		return r.Reserve(it.Quantity, e.user, t.now)
	case e.op == order.OpSell:
		err = r.Sell(it.Quantity)
	case e.op == order.OpRelease:
		err = r.Release(it.Quantity)
	case e.op == order.OpForfeit:
		err = r.Forfeit(it.Quantity)
	case e.op == order.OpRestock:
		err = r.Restock(it.Quantity)
	}
	if err != nil {
		err = order.Errorf(order.Internal, "data_damaged", "order %s", e.orderNo).Wrap(err)
	}
	return err
}

func unknownResource(it order.Item) error {
	return order.Errorf(order.Conflict, "unknown_resource", "there is no %s %q", it.Kind, it.Ref).
		WithHint("Make the resource first, or correct the item.")
}

// ops are the ledger entries of one operation on all items of an order.
func ops(o order.Order, items []order.Item, op order.Op) []entry {
	entries := make([]entry, len(items))
	for i, it := range items {
		entries[i] = entry{orderNo: o.OrderNo, round: o.Round, op: op, item: it, user: o.UserID}
	}
	return entries
}

// release gives back what locked orders hold, and fills in their items with what became of each.
func (t tx) release(ctx context.Context, orders []order.Order) error {
	if err := t.loadHeld(ctx, orders); err != nil {
		return err
	}
	var entries []entry
	for _, o := range orders {
		entries = append(entries, ops(o, o.Items, order.OpRelease)...)
	}
	forfeited, err := t.apply(ctx, entries)
	for _, e := range forfeited {
		i := slices.IndexFunc(orders, func(o order.Order) bool { return o.OrderNo == e.orderNo })
		at := slices.IndexFunc(orders[i].Items, func(it order.Item) bool { return keyOf(it) == keyOf(e.item) })
		orders[i].Items[at].Forfeited = true
	}
	return err
}

const atPaymentSQL = "SELECT order_no, kind, ref, quantity FROM t_order_item WHERE order_no = ? AND at_payment = 1 ORDER BY kind, ref"

// sell sells what a locked order holds, and takes what it has to get at its payment. Conflict, before anything is written,
// when that is not to be had any more. It fills in the order's items.
func (t tx) sell(ctx context.Context, o *order.Order) error {
	held := []order.Order{*o}
	if err := t.loadHeld(ctx, held); err != nil {
		return err
	}
	var atPayment []order.Item
	err := t.query(ctx, func(scan func(...any) error) error {
		var no string
		it := order.Item{AtPayment: true}
		err := scan(&no, &it.Kind, &it.Ref, &it.Quantity)
		atPayment = append(atPayment, it)
		return err
	}, atPaymentSQL, o.OrderNo)
	if err != nil {
		return err
	}
	o.Items = append(held[0].Items, atPayment...)
	entries := append(ops(*o, atPayment, order.OpReserve), ops(*o, o.Items, order.OpSell)...)
	_, err = t.apply(ctx, entries)
	return err
}

const ledgerSQL = "SELECT order_no, round, op, kind, ref, quantity, remote FROM t_resource_log WHERE order_no IN (?*) AND round > 0"

func resourceLocked(it order.Item) error {
	return order.Errorf(order.Unavailable, "resource_locked", "%s %q has been locked by others for long", it.Kind, it.Ref).
		WithHint("Try again with the same key. If it stays, look for a transaction that somebody left open.")
}

// loadHeld fills in the items of orders from the ledger: what a round gives up is what it reserved (I5), whatever else
// says so. A round that has sold or released something already is damaged.
func (t tx) loadHeld(ctx context.Context, orders []order.Order) error {
	index := make(map[string]int, len(orders))
	for i := range orders {
		index[orders[i].OrderNo] = i
		orders[i].Items = nil
	}
	return t.query(ctx, func(scan func(...any) error) error {
		var e entry
		err := scan(&e.orderNo, &e.round, &e.op, &e.item.Kind, &e.item.Ref, &e.item.Quantity, &e.item.Remote)
		o := &orders[index[e.orderNo]]
		switch {
		case err != nil || e.round != o.Round:
			return err
		case e.op != order.OpReserve:
			return damaged("order %s is %s, but its ledger says %s of %s %q", e.orderNo, o.Status, e.op, e.item.Kind, e.item.Ref)
		}
		o.Items = append(o.Items, e.item)
		return nil
	}, ledgerSQL, numbers(orders))
}

// Adjust changes a resource once per adjustment id, and makes it if need be.
func (s *Store) Adjust(ctx context.Context, a order.Adjustment) (result order.Resource, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		result, err = t.adjust(ctx, a)
		return err
	})
	return result, err
}

func (t tx) adjust(ctx context.Context, a order.Adjustment) (order.Resource, error) {
	repeated, err := t.adjusted(ctx, a)
	if err != nil {
		return order.Resource{}, err
	}
	if repeated {
		return t.resource(ctx, a.Kind, a.Ref)
	}
	it := order.Item{Kind: a.Kind, Ref: a.Ref, Quantity: a.Delta}
	locked, err := t.lockResources(ctx, []order.Item{it})
	if err != nil {
		return order.Resource{}, err
	}
	r := locked[keyOf(it)]
	if r == nil && t.blocked {
		return order.Resource{}, resourceLocked(it)
	}
	if r == nil {
		if r, err = t.makeResource(ctx, a); err != nil {
			return order.Resource{}, err
		}
	}
	r.Available += a.Delta
	if r.Available < 0 {
		return order.Resource{}, order.Errorf(order.Conflict, "out_of_stock", "%s %q: %d available, %d cannot be taken away",
			a.Kind, a.Ref, r.Available-a.Delta, -a.Delta)
	}
	if err := t.saveCounters(ctx, map[resourceKey]*order.Resource{keyOf(it): r}); err != nil {
		return order.Resource{}, err
	}
	return *r, t.enter(ctx, []entry{{orderNo: a.ID, op: order.OpAdjust, item: it}})
}

const adjustedSQL = "SELECT kind, ref, quantity FROM t_resource_log WHERE order_no = ? AND round = 0"

// adjusted reports whether a was made before.
func (t tx) adjusted(ctx context.Context, a order.Adjustment) (bool, error) {
	var it order.Item
	err := t.QueryRowContext(ctx, adjustedSQL, a.ID).Scan(&it.Kind, &it.Ref, &it.Quantity)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, err
	case it != order.Item{Kind: a.Kind, Ref: a.Ref, Quantity: a.Delta}:
		return false, order.Errorf(order.Conflict, "adjustment_id_taken", "adjustment %s was %+d of %s %q", a.ID, it.Quantity, it.Kind, it.Ref).
			WithHint("Use a new adjustment id for each change.")
	}
	return true, nil
}

// makeResourceSQL makes a resource with nothing of it.
const makeResourceSQL = "INSERT INTO t_resource (kind, ref, available, held, sold, owner, valid_until) VALUES (?, ?, 0, 0, 0, ?, ?)"

func (t tx) makeResource(ctx context.Context, a order.Adjustment) (*order.Resource, error) {
	until := a.ValidUntil.Truncate(time.Millisecond)
	_, err := t.exec(ctx, makeResourceSQL, a.Kind, a.Ref, a.Owner, orNull(until))
	return &order.Resource{Kind: a.Kind, Ref: a.Ref, Owner: a.Owner, ValidUntil: until.UTC()}, err
}

const resourceSQL = "SELECT " + resourceColumns + " FROM t_resource WHERE kind = ? AND ref = ?"

func (t tx) resource(ctx context.Context, kind, ref string) (order.Resource, error) {
	r, err := scanResource(t.QueryRowContext(ctx, resourceSQL, kind, ref).Scan)
	if errors.Is(err, sql.ErrNoRows) {
		err = order.Errorf(order.NotFound, "resource_not_found", "there is no %s %q", kind, ref)
	}
	return *r, err
}

// Resource reads one resource.
func (s *Store) Resource(ctx context.Context, kind, ref string) (result order.Resource, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		result, err = q.resource(ctx, kind, ref)
		return err
	})
	return result, err
}
