package demo

import (
	"encoding/json"
	"maps"
	"slices"
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
		PaymentNo   string    `json:"payment_no"`
		Reason      string    `json:"reason"`
		ExpireAt    time.Time `json:"expire_at"`
		CancelledAt time.Time `json:"cancelled_at"`
	} `json:"data"`
}

// inbox is an independent subscriber of the event topic. It keeps all that comes.
type inbox struct {
	mu       sync.Mutex
	first    map[string]string       // body by event id
	orders   map[string][]cloudEvent // cancelled events by order
	refund   []string                // payments of which it was heard that they are to be refunded
	others   map[string]int          // events of other types, each once
	received int
	strange  []string // bodies that are no event, or differ from an earlier one of the same id
}

func newInbox() *inbox {
	return &inbox{first: map[string]string{}, orders: map[string][]cloudEvent{}, others: map[string]int{}}
}

// take receives one delivery.
func (b *inbox) take(raw []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.received++
	var e cloudEvent
	if err := json.Unmarshal(raw, &e); err != nil || e.Type == "" || e.Subject != e.Data.OrderNo || e.ID == "" {
		b.strange = append(b.strange, string(raw))
		return
	}
	first, known := b.first[e.ID]
	switch {
	case !known:
		b.first[e.ID] = string(raw)
		b.sort(e)
	case first != string(raw):
		b.strange = append(b.strange, string(raw))
	}
}

// sort files an event that came for the first time.
func (b *inbox) sort(e cloudEvent) {
	switch e.Type {
	case "cancelled":
		b.orders[e.Data.OrderNo] = append(b.orders[e.Data.OrderNo], e)
		return
	case "refund_requested":
		b.refund = append(b.refund, e.Data.PaymentNo)
	}
	b.others[e.Type]++
}

// refunds are the payments of which it was heard that they are to be refunded.
func (b *inbox) refunds() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.refund)
}

// distinct is how many cancelled events came, each counted once however often it was delivered.
func (b *inbox) distinct() (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, events := range b.orders {
		n += len(events)
	}
	return n
}

// of returns the distinct cancelled events of an order.
func (b *inbox) of(orderNo string) []cloudEvent {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.orders[orderNo]
}

// events is what the report says about the inbox.
type events struct {
	Received   int            `json:"received"`
	Distinct   int            `json:"distinct"`
	Duplicates int            `json:"duplicates"`
	Others     map[string]int `json:"others"` // distinct events that are not cancelled ones, by type
	Strange    []string       `json:"strange,omitempty"`
}

func (b *inbox) summary() events {
	b.mu.Lock()
	defer b.mu.Unlock()
	others := 0
	for _, n := range b.others {
		others += n
	}
	return events{b.received, len(b.first) - others, b.received - len(b.first) - len(b.strange), maps.Clone(b.others), b.strange}
}
