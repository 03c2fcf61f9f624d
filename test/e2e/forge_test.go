package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// forger sends what nobody asked for to the topic of the time-outs: copies of messages, early, in time and late, as an
// operator does from RocketMQ's console (body, tag and keys, sent at once), and messages that mean nothing.
type forger struct {
	sys    *system
	out    *sender
	copies atomic.Int64
	wanted sync.Map     // number of an order whose message is to be copied when it is delivered → how much later
	again  chan message // those that were
}

func newForger(sys *system, out *sender, orders int) *forger {
	return &forger{sys: sys, out: out, again: make(chan message, orders)}
}

// timeoutBody is a time-out message, written after the docs and not after pkg/order.
type timeoutBody struct {
	Version   int       `json:"version"`
	OrderNo   string    `json:"order_no"`
	MessageID string    `json:"message_id"`
	Hop       int       `json:"hop"`
	ExpireAt  time.Time `json:"expire_at"`
	DeliverAt time.Time `json:"deliver_at"`
}

// nonsense are bodies that have to be set aside, each with a number in it.
var nonsense = []string{
	`{"version":1,"order_no":"E2E-%d`,
	`not JSON %d`,
	`{"version":99,"order_no":"FUTURE-%d","hop":0}`,
	`{"version":1,"order_no":"'; DROP TABLE t_order; -- %d"}`,
}

// nonsenseEach is how many of each are sent, and of messages for orders that do not exist.
const nonsenseEach = 5

// copyRows sends copies of messages as the table knows them, at the planned moments, and returns when all are out.
func (f *forger) copyRows(ctx context.Context, created <-chan *record) error {
	var group errgroup.Group
	for r := range created {
		switch {
		case r.copySeen != nil:
			f.wanted.Store(r.order.OrderNo, *r.copySeen)
		case r.copyRow != nil:
			for i := range r.copies {
				at := r.order.ExpireAt.AsTime().Add(*r.copyRow + time.Duration(i)*burstEvery)
				group.Go(func() error {
					if !pause(ctx, time.Until(at)) {
						return ctx.Err()
					}
					return f.copyRow(ctx, r)
				})
			}
		}
	}
	return group.Wait()
}

// copyRow sends a copy of the message that the order's row stands for; that of an order which has ended is made up
// from what its customer knows, as if it had never been scheduled again.
func (f *forger) copyRow(ctx context.Context, r *record) error {
	b := timeoutBody{Version: 1, OrderNo: r.order.OrderNo, MessageID: r.order.OrderNo + ":timeout", ExpireAt: r.order.ExpireAt.AsTime()}
	b.DeliverAt = b.ExpireAt.Add(grace)
	err := f.sys.db.QueryRowContext(ctx, "SELECT hop FROM t_local_message WHERE dedup_key = ?", b.MessageID).Scan(&b.Hop)
	if err != nil && !errors.Is(err, sql.ErrNoRows) && f.sys.server == nil { // a database that breaks leaves the hop unknown
		return err
	}
	return f.copy(ctx, message{keys: b.OrderNo + " " + b.MessageID, tag: "timeout", body: encode(b)})
}

func encode(b timeoutBody) string {
	raw, err := json.Marshal(b)
	if err != nil {
		panic(err) // numbers, texts and times of this century always marshal
	}
	return string(raw)
}

// heard takes note of a delivered time-out message; it is called while the closers get theirs.
func (f *forger) heard(m message) {
	if _, wanted := f.wanted.Load(orderOf(m)); wanted {
		f.again <- m // never full: heard once for each place, and each order is wanted once
	}
}

// copyDelivered sends delivered messages once more, byte for byte, until ctx ends and those that were heard are out.
func (f *forger) copyDelivered(ctx context.Context) error {
	var group errgroup.Group
	for {
		select {
		case m := <-f.again:
			later, wanted := f.wanted.LoadAndDelete(orderOf(m))
			if !wanted {
				continue
			}
			group.Go(func() error {
				pause(ctx, later.(time.Duration))
				return f.copy(context.WithoutCancel(ctx), m)
			})
		case <-ctx.Done():
			return group.Wait()
		}
	}
}

func (f *forger) copy(ctx context.Context, m message) error {
	f.copies.Add(1)
	return f.send(ctx, m)
}

func (f *forger) send(ctx context.Context, m message) error {
	_, err := f.out.send(ctx, timeoutTopic, m, nil)
	return err
}

// talkNonsense sends bodies that mean nothing, and some for orders that do not exist.
func (f *forger) talkNonsense(ctx context.Context) error {
	for n := range nonsenseEach {
		for _, form := range nonsense {
			if err := f.send(ctx, message{keys: fmt.Sprintf("E2E-%d", n), tag: "timeout", body: fmt.Sprintf(form, n)}); err != nil {
				return err
			}
		}
		if err := f.send(ctx, nobody); err != nil {
			return err
		}
	}
	return nil
}

// nobody is a well-formed time-out of an order that does not exist.
var nobody = message{keys: "NOBODY-1", tag: "timeout", body: encode(timeoutBody{Version: 1, OrderNo: "NOBODY-1", ExpireAt: time.Unix(1_700_000_000, 0).UTC()})}

// orderOf is the order number in a message's keys.
func orderOf(m message) string {
	no, _, _ := strings.Cut(m.keys, " ")
	return no
}
