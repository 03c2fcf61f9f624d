package store

import (
	"context"

	"lapse/pkg/order"
)

// readBrakesSQL reads the brakes without a lock.
const readBrakesSQL = "SELECT value, version FROM t_setting WHERE name = 'brakes'"

// Brakes returns the brakes in force.
func (s *Store) Brakes(ctx context.Context) (b order.Brakes, err error) {
	err = s.read(ctx, func(ctx context.Context, q reader) error {
		b, err = q.readBrakes(ctx, readBrakesSQL)
		return err
	})
	return b, err
}

// lockBrakesSQL waits for the closing transactions that are under way; those that come later see the change (I15).
const lockBrakesSQL = "SELECT value, version FROM t_setting WHERE name = 'brakes' {update}"

const (
	setBrakesSQL = "UPDATE t_setting SET value = ?, version = ?, updated_at = ? WHERE name = 'brakes'"
	logBrakesSQL = "INSERT INTO t_setting_log (name, version, value, actor, note, at) VALUES ('brakes', ?, ?, ?, ?, ?)"
)

// ChangeBrakes applies change to the brakes in force and returns them as they are then. They hold from its return on: no
// closing transaction commits against them any more. An error of change is returned as it is, and a change to what is
// there already is none.
func (s *Store) ChangeBrakes(ctx context.Context, act order.Act, change func(order.Brakes) (order.Brakes, error)) (b order.Brakes, err error) {
	err = s.write(ctx, func(ctx context.Context, t tx) error {
		b, err = t.changeBrakes(ctx, act, change)
		return err
	})
	return b, err
}

func (t tx) changeBrakes(ctx context.Context, act order.Act, change func(order.Brakes) (order.Brakes, error)) (order.Brakes, error) {
	before, err := t.readBrakes(ctx, lockBrakesSQL)
	if err != nil {
		return before, err
	}
	now, err := t.dialect.clock(ctx, t.queryer) // it has waited for others
	if err != nil {
		return before, err
	}
	after, err := change(before)
	if err != nil {
		return before, err
	}
	after = after.Following(before, now)
	was, err := encodeBrakes(before)
	if err != nil {
		return before, err
	}
	value, err := encodeBrakes(after)
	if err != nil || value == was {
		return before, err
	}
	after.Version = before.Version + 1
	if err := t.execAll(ctx, 1, setBrakesSQL, value, after.Version, now); err != nil {
		return before, err
	}
	_, err = t.exec(ctx, logBrakesSQL, after.Version, value, act.Actor, clip(act.Note, maxNote), now)
	return after, err
}
