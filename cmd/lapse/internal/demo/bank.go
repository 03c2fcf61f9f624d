package demo

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// bank is the payment gateway of the demo: it answers what docs/gateway.md asks for.
type bank struct {
	url    string
	server *http.Server
	mu     sync.Mutex
	paid   map[string]bool // attempts whose money it has
	asked  int
	closed int
}

// openBank makes a bank that serves until it is shut.
func openBank() (*bank, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &bank{url: "http://" + l.Addr().String(), paid: map[string]bool{}}
	b.server = &http.Server{Handler: b, ReadHeaderTimeout: callTime}
	go func() { _ = b.server.Serve(l) }() // ends with shut
	return b, nil
}

func (b *bank) shut() { _ = b.server.Close() }

// pay is the customer, who pays an attempt at the bank. Nobody tells the shop.
func (b *bank) pay(attemptNo string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paid[attemptNo] = true
}

// ServeHTTP answers how a bill stands, after closing it if that is what it was asked for.
func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var ask struct {
		AttemptNo string      `json:"attempt_no"`
		Amount    json.Number `json:"amount"`
		Currency  string      `json:"currency"`
	}
	if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	answer := map[string]any{"state": "unpaid"}
	switch {
	case b.paid[ask.AttemptNo]:
		answer["state"] = "paid"
		answer["payment"] = map[string]any{"payment_no": "bank-" + ask.AttemptNo, "amount": ask.Amount.String(), "currency": ask.Currency, "paid_at": time.Now().UTC()}
	case r.URL.Path == "/close":
		b.closed++
		answer["state"] = "closed"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // a client that went away
}

// told is how often the bank was asked, in words.
func (b *bank) told() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return fmt.Sprintf("the gateway was asked %d times and closed %d bills", b.asked, b.closed)
}
