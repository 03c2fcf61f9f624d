package lifecycle

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"lapse/pkg/order"
)

// HouseStore deletes and closes what is over, a short transaction at a time; several may do so at once.
type HouseStore interface {
	// ArchiveDue closes up to limit of a shard's orders that were cancelled at least retention ago.
	ArchiveDue(ctx context.Context, shard int, retention time.Duration, limit int, act order.Act) (int, error)
	// PurgeOrders deletes those of a page of at most limit of a shard's orders that ended in a status at least retention
	// ago, with all that belongs to them, unless their money or a message waits for somebody. It returns their number and
	// where the next page goes on; nil at the end.
	PurgeOrders(ctx context.Context, shard int, status order.Status, retention time.Duration, from order.Cursor, limit int) (int, *order.Cursor, error)
	// PurgeRecords deletes up to limit records of each kind that are older than retention, and returns their numbers.
	PurgeRecords(ctx context.Context, retention time.Duration, limit int) (map[string]int, error)
}

// HouseOptions tunes the housekeeping.
type HouseOptions struct {
	Interval     time.Duration // between two rounds; 0 means 1 h
	ArchiveAfter time.Duration // how long a cancelled order may be restored; 0 means 180 days
	Retention    time.Duration // how long what has ended is kept; 0 means 400 days
}

func (o HouseOptions) withDefaults() HouseOptions {
	o.Interval = or(o.Interval, time.Hour)
	o.ArchiveAfter = or(o.ArchiveAfter, 180*24*time.Hour)
	o.Retention = or(o.Retention, 400*24*time.Hour)
	return o
}

const (
	housePage  = 200                    // orders or records of one transaction
	housePause = 100 * time.Millisecond // after each, to spare the database
)

// Housekeeper closes cancelled orders for good once nobody may restore them any more, and deletes what is long over, so
// that tables grow with the trade and not with its history.
type Housekeeper struct {
	store   HouseStore
	options func() HouseOptions
	metrics *Metrics
	log     *zap.Logger
}

// NewHousekeeper makes a housekeeper; options are read at each round.
func NewHousekeeper(store HouseStore, options func() HouseOptions, metrics *Metrics, log *zap.Logger) *Housekeeper {
	return &Housekeeper{store: store, metrics: metrics, log: log, options: func() HouseOptions { return options().withDefaults() }}
}

// Run makes a round every interval until ctx ends.
func (h *Housekeeper) Run(ctx context.Context) error {
	for {
		if err := h.Round(ctx); err != nil && ctx.Err() == nil {
			h.log.Error("housekeeping failed in part, the next round is due as usual", zap.Error(err))
		}
		if !sleep(ctx, jitter(h.options().Interval)) {
			return nil
		}
	}
}

// Round closes and deletes all that is over by now. A step that fails costs the others nothing, unless the database is away.
func (h *Housekeeper) Round(ctx context.Context) error {
	var errs []error
	for _, step := range h.steps(h.options()) {
		err := guard(func() error { return step(ctx) })
		if err == nil {
			continue
		}
		errs = append(errs, err)
		if ctx.Err() != nil || order.KindOf(err) == order.Unavailable {
			break
		}
	}
	return errors.Join(errs...)
}

// steps are what a round does, each by itself.
func (h *Housekeeper) steps(opts HouseOptions) []func(context.Context) error {
	steps := []func(context.Context) error{func(ctx context.Context) error { return h.records(ctx, opts) }}
	for shard := range order.Shards {
		steps = append(steps,
			func(ctx context.Context) error { return h.archive(ctx, shard, opts) },
			func(ctx context.Context) error { return h.purge(ctx, shard, order.Paid, opts) },
			func(ctx context.Context) error { return h.purge(ctx, shard, order.Closed, opts) },
		)
	}
	return steps
}

func (h *Housekeeper) records(ctx context.Context, opts HouseOptions) error {
	return h.drain(ctx, "records", func() (all int, more bool, err error) {
		purged, err := h.store.PurgeRecords(ctx, opts.Retention, housePage)
		for _, n := range purged {
			all, more = all+n, more || n == housePage
		}
		return all, more, err
	})
}

func (h *Housekeeper) archive(ctx context.Context, shard int, opts HouseOptions) error {
	return h.drain(ctx, "archived", func() (int, bool, error) {
		n, err := h.store.ArchiveDue(ctx, shard, opts.ArchiveAfter, housePage, order.Act{Actor: "housekeeper"})
		return n, n == housePage, err
	})
}

func (h *Housekeeper) purge(ctx context.Context, shard int, status order.Status, opts HouseOptions) error {
	from := order.Cursor{}
	return h.drain(ctx, "orders", func() (int, bool, error) {
		n, next, err := h.store.PurgeOrders(ctx, shard, status, opts.Retention, from, housePage)
		if next != nil {
			from = *next
		}
		return n, next != nil, err
	})
}

// drain repeats a step until it says that there is no more.
func (h *Housekeeper) drain(ctx context.Context, what string, step func() (done int, more bool, err error)) error {
	for {
		n, more, err := step()
		h.metrics.Kept.WithLabelValues(what).Add(float64(n))
		if err != nil || !more {
			return err
		}
		if !sleep(ctx, housePause) {
			return ctx.Err()
		}
	}
}
