package store

import (
	"context"
	"encoding/json"
	"time"

	"lapse/pkg/order"
)

// brakesForm is order.Brakes as it stands in t_setting.
type brakesForm struct {
	Mode      order.Mode     `json:"mode"`
	Percent   int            `json:"percent"`
	ByType    map[string]int `json:"by_type,omitempty"`
	Tripped   string         `json:"tripped,omitempty"`
	TrippedAt time.Time      `json:"tripped_at,omitzero"`
	Normal    float64        `json:"normal,omitempty"`
	ResumedAt time.Time      `json:"resumed_at,omitzero"`
}

// brakesSQL reads the brakes and keeps them as they are until the transaction ends (I15).
const brakesSQL = "SELECT value, version FROM t_setting WHERE name = 'brakes' {share}"

// brakes are those that hold for this transaction. They are locked before anything else.
func (t tx) brakes(ctx context.Context) (order.Brakes, error) { return t.readBrakes(ctx, brakesSQL) }

func (t tx) readBrakes(ctx context.Context, text string) (order.Brakes, error) {
	var value string
	var version int
	if err := t.QueryRowContext(ctx, t.dialect.lock(text)).Scan(&value, &version); err != nil {
		return order.Brakes{}, err
	}
	b, err := decodeBrakes(value)
	b.Version = version
	return b, err
}

func decodeBrakes(value string) (order.Brakes, error) {
	var f brakesForm
	if err := json.Unmarshal([]byte(value), &f); err != nil {
		return order.Brakes{}, damaged("the setting brakes is no JSON: %v", err)
	}
	return order.Brakes{Mode: f.Mode, Percent: f.Percent, ByType: f.ByType, Tripped: f.Tripped, TrippedAt: f.TrippedAt, Normal: f.Normal,
		ResumedAt: f.ResumedAt}, nil
}

// encodeBrakes is the value of the setting.
func encodeBrakes(b order.Brakes) (string, error) {
	raw, err := json.Marshal(brakesForm{b.Mode, b.Percent, b.ByType, b.Tripped, b.TrippedAt, b.Normal, b.ResumedAt})
	return string(raw), err
}

// insertShadowSQL notes what would be closed; the first note of a round stays.
const insertShadowSQL = "INSERT INTO t_shadow (order_no, round, biz_type, expire_at, reason, decided_at) VALUES "

func (t tx) shadow(ctx context.Context, orders []order.Order, reason order.Reason) error {
	rows := make([][]any, len(orders))
	for i, o := range orders {
		rows[i] = []any{o.OrderNo, o.Round, o.BizType, o.ExpireAt, string(reason), t.now}
	}
	return t.insert(ctx, insertShadowSQL, rows, t.dialect.upsert("order_no"))
}
