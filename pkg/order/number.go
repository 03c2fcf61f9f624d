package order

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"strings"
)

// Shards is the number of shards of t_order. It is stored with every row: never change it.
const Shards = 64

// Bounds of an order number: what the common payment channels accept as a merchant's order number
// (WeChat Pay: 6 to 32 characters of digits, letters and "_-*").
const (
	minNumber = 6
	maxNumber = 32
)

// CheckNumber refuses an order number that could not be used everywhere: 6 to 32 letters, digits, "_" or "-".
func CheckNumber(no string) error {
	if len(no) < minNumber || len(no) > maxNumber || !onlyOf(no, numberAlphabet) {
		return Errorf(Invalid, "invalid_order_no", "an order number has %d to %d letters, digits, _ or -", minNumber, maxNumber)
	}
	return nil
}

const numberAlphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-"

func onlyOf(s, alphabet string) bool {
	for i := range len(s) {
		if strings.IndexByte(alphabet, s[i]) < 0 {
			return false
		}
	}
	return true
}

// DeriveNumber makes the order number that belongs to a caller's idempotency key: the same two always
// give the same number, so that the number's own uniqueness makes the key idempotent.
func DeriveNumber(caller, key string) string {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%d:%s%s", len(caller), caller, key)))
	return "K" + base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:15])
}

// ShardOf is the shard of an order number.
func ShardOf(orderNo string) int {
	h := fnv.New32a()
	h.Write([]byte(orderNo))
	return int(h.Sum32() % Shards)
}

// EventID is the id of the one event of a type in a round of an order.
func EventID(orderNo string, round int, eventType string) string {
	return fmt.Sprintf("%s:%d:%s", orderNo, round, eventType)
}

// Hash tells a repeated request from another one that uses the same number.
func (d Draft) Hash() string {
	var asked []Item
	for _, it := range d.Items {
		asked = append(asked, Item{Kind: it.Kind, Ref: it.Ref, Quantity: it.Quantity}) // the rest is not the caller's
	}
	raw, err := json.Marshal([]any{d.UserID, d.BizType, asked, d.Amount, d.Currency, d.Timeout.Milliseconds()})
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}
