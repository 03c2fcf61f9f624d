package demo

import (
	"encoding/json"
	"sync"
	"time"
)

// cloudEvent is what a subscriber reads of an event, written from the contract and not shared with the
// sender.
type cloudEvent struct {
	ID      string `json:"id"`
	Type    string `json:"type"`
	Subject string `json:"subject"`
	Data    struct {
		OrderNo     string    `json:"order_no"`
		Reason      string    `json:"reason"`
		ExpireAt    time.Time `json:"expire_at"`
		CancelledAt time.Time `json:"cancelled_at"`
	} `json:"data"`
}

// inbox is an independent subscriber of the event topic. It keeps all that comes.
type inbox struct {
	mu       sync.Mutex
	first    map[string]string // body by event id
	orders   map[string][]cloudEvent
	received int
	strange  []string // bodies that are no cancelled event, or differ from an earlier one of the same id
}

func newInbox() *inbox {
	return &inbox{first: map[string]string{}, orders: map[string][]cloudEvent{}}
}

// take receives one delivery.
func (b *inbox) take(raw []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received++
	var e cloudEvent
	if err := json.Unmarshal(raw, &e); err != nil || e.Type != "cancelled" || e.Subject != e.Data.OrderNo || e.ID == "" {
		b.strange = append(b.strange, string(raw))
		return
	}
	first, known := b.first[e.ID]
	switch {
	case !known:
		b.first[e.ID] = string(raw)
		b.orders[e.Data.OrderNo] = append(b.orders[e.Data.OrderNo], e)
	case first != string(raw):
		b.strange = append(b.strange, string(raw))
	}
}

// distinct is how many events came, each counted once however often it was delivered.
func (b *inbox) distinct() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.first)
}

// of returns the distinct events of an order.
func (b *inbox) of(orderNo string) []cloudEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.orders[orderNo]
}

// events is what the report says about the inbox.
type events struct {
	Received   int      `json:"received"`
	Distinct   int      `json:"distinct"`
	Duplicates int      `json:"duplicates"`
	Strange    []string `json:"strange,omitempty"`
}

func (b *inbox) summary() events {
	b.mu.Lock()
	defer b.mu.Unlock()
	return events{b.received, len(b.first), b.received - len(b.first) - len(b.strange), b.strange}
}
