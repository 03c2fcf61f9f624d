package store

import (
	"context"
	"encoding/base64"
	"fmt"
	"time"

	"lapse/pkg/order"
)

const orderColumns = "id, order_no, caller, request_hash, user_id, biz_type, status, amount, currency, created_at, expire_at, " +
	"paid_at, cancelled_at, cancel_reason, closed_at, confirm_until, paying_until, remind_ms, second_ms, round, version"

func scanOrder(scan func(...any) error) (order.Order, error) {
	var o order.Order
	err := scan(&o.ID, &o.OrderNo, &o.Caller, &o.RequestHash, &o.UserID, &o.BizType, &o.Status, &o.Amount, &o.Currency,
		at(&o.CreatedAt), at(&o.ExpireAt), at(&o.PaidAt), at(&o.CancelledAt), &o.CancelReason, at(&o.ClosedAt),
		at(&o.ConfirmUntil), at(&o.PayingUntil), ms(&o.RemindLead), ms(&o.SecondChance), &o.Round, &o.Version)
	return o, err
}

// orders runs a query of orderColumns.
func (t tx) orders(ctx context.Context, text string, args ...any) (found []order.Order, err error) {
	err = t.query(ctx, func(scan func(...any) error) error {
		o, err := scanOrder(scan)
		found = append(found, o)
		return err
	}, text, args...)
	return found, err
}

func numbers(orders []order.Order) []string {
	nos := make([]string, len(orders))
	for i, o := range orders {
		nos[i] = o.OrderNo
	}
	return nos
}

const itemsSQL = "SELECT order_no, kind, ref, quantity, remote, at_payment FROM t_order_item WHERE order_no IN (?*) ORDER BY order_no, kind, ref"

// loadItems fills in the items of orders, in resource order.
func (t tx) loadItems(ctx context.Context, orders []order.Order) error {
	if len(orders) == 0 {
		return nil
	}
	index := make(map[string]int, len(orders))
	for i := range orders {
		index[orders[i].OrderNo] = i
		orders[i].Items = nil
	}
	return t.query(ctx, func(scan func(...any) error) error {
		var no string
		var it order.Item
		if err := scan(&no, &it.Kind, &it.Ref, &it.Quantity, &it.Remote, &it.AtPayment); err != nil {
			return err
		}
		o := &orders[index[no]]
		o.Items = append(o.Items, it)
		return nil
	}, itemsSQL, numbers(orders))
}

const lookSQL = "SELECT " + orderColumns + " FROM t_order WHERE order_no IN (?*)"

// Look reads orders without locks and without items; unknown numbers are left out.
func (s *Store) Look(ctx context.Context, orderNos []string) (found []order.Order, now time.Time, err error) {
	if len(orderNos) == 0 {
		now, err = s.Now(ctx)
		return nil, now, err
	}
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		found, err = q.orders(ctx, lookSQL, orderNos)
		return err
	})
	return found, now, err
}

// Get reads one order, and the clock by which it is payable or not.
func (s *Store) Get(ctx context.Context, orderNo string) (o order.Order, now time.Time, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		found, err := q.orders(ctx, lookSQL, []string{orderNo})
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return notFound(orderNo)
		}
		if err := q.loadItems(ctx, found); err != nil {
			return err
		}
		o, now = found[0], q.now
		return nil
	})
	return o, now, err
}

func notFound(orderNo string) error {
	return order.Errorf(order.NotFound, "order_not_found", "there is no order %q", orderNo)
}

// listSQL reads a page by index k_user. Args: user, position (time twice, id), size.
const listSQL = "SELECT " + orderColumns + ` FROM t_order
WHERE user_id = ? AND created_at <= ? AND (created_at < ? OR id < ?) ORDER BY created_at DESC, id DESC LIMIT ?`

// List returns a user's orders, newest first, and the cursor of the next page ("" at the end).
func (s *Store) List(ctx context.Context, userID string, size int, cursor string) (page []order.Order, next string, now time.Time, err error) {
	after, err := decodeCursor(cursor)
	if err != nil {
		return nil, "", now, err
	}
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		now = q.now
		page, err = q.orders(ctx, listSQL, userID, after.ExpireAt, after.ExpireAt, after.ID, size+1)
		if err != nil {
			return err
		}
		next = ""
		if len(page) > size {
			page = page[:size]
			last := page[size-1]
			next = encodeCursor(order.Cursor{ExpireAt: last.CreatedAt, ID: last.ID})
		}
		return q.loadItems(ctx, page)
	})
	return page, next, now, err
}

// A list cursor is a position (created_at, id); callers must not look into it.
func encodeCursor(c order.Cursor) string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%d.%d", c.ExpireAt.UnixMilli(), c.ID))
}

// decodeCursor returns the position of cursor; of "" one that is after all orders.
func decodeCursor(cursor string) (order.Cursor, error) {
	if cursor == "" {
		return order.Cursor{ExpireAt: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)}, nil
	}
	var ms, id int64
	raw, err := base64.RawURLEncoding.DecodeString(cursor)
	if err == nil {
		_, err = fmt.Sscanf(string(raw), "%d.%d", &ms, &id)
	}
	c := order.Cursor{ExpireAt: time.UnixMilli(ms).UTC(), ID: id}
	if err != nil || encodeCursor(c) != cursor || c.ExpireAt.Year() < 1971 || c.ExpireAt.Year() > 9999 {
		return c, badPageToken()
	}
	return c, nil
}

func badPageToken() error {
	return &order.Error{Kind: order.Invalid, Code: "invalid_argument", Message: "the request is not valid",
		Fields: []order.Field{{Name: "page_token", Reason: "the next_page_token of an earlier answer, unchanged"}}}
}

const orderLogSQL = `SELECT order_no, version, round, from_status, to_status, event, reason, note, actor, at, expire_at, event_sent_at
FROM t_order_log WHERE order_no = ? ORDER BY version`

const scheduledSQL = "SELECT " + messageColumns + ", state, message_id, offset_message_id, last_error" + ` FROM t_local_message
WHERE KEYS* ORDER BY dedup_key`

// Timeline returns an order's transitions, oldest first, and its scheduled messages.
func (s *Store) Timeline(ctx context.Context, orderNo string) (log []order.LogEntry, scheduled []order.Scheduled, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		log, scheduled = nil, nil
		err := q.query(ctx, func(scan func(...any) error) error {
			var e order.LogEntry
			err := scan(&e.OrderNo, &e.Version, &e.Round, &e.From, &e.To, &e.Event, &e.Reason, &e.Note, &e.Actor, at(&e.At), at(&e.ExpireAt), at(&e.EventSentAt))
			log = append(log, e)
			return err
		}, orderLogSQL, orderNo)
		if err != nil {
			return err
		}
		if len(log) == 0 {
			return notFound(orderNo)
		}
		return q.query(ctx, func(scan func(...any) error) error {
			var m order.Scheduled
			err := scan(append(messageFields(&m.Message), &m.State, &m.Receipt.MessageID, &m.Receipt.OffsetMessageID, &m.LastError)...)
			scheduled = append(scheduled, m)
			return err
		}, scheduledSQL, keysOf{orderNo})
	})
	return log, scheduled, err
}
