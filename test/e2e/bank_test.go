package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// temper is how a bank answers about one bill.
type temper string

const (
	tellsPaid    temper = "paid"            // captured, though no notification has come yet
	closesBill   temper = "unpaid"          // unpaid, and closes it when asked to
	paidAtClose  temper = "paid at close"   // unpaid when asked, but captured when it is to be closed
	talks        temper = "error text"      // an error text in a 200
	talksHTML    temper = "HTML"            // a page of somebody in between
	breaksOff    temper = "cut"             // half a JSON
	refuses      temper = "500"             // no answer
	hangs        temper = "hang"            // never answers
	comesToSense temper = "unknown, closes" // garbage twice, then as closesBill
)

// tempers with their weights; a channel is the name of its temper, so that one that hangs stands alone.
var tempers = []temper{tellsPaid, tellsPaid, closesBill, closesBill, closesBill, paidAtClose, talks, talksHTML, breaksOff, refuses, hangs, comesToSense}

// bill is what the bank knows of one attempt.
type bill struct {
	temper    temper
	asked     int
	closeAsks int
	paymentNo string // once captured
	paidAt    time.Time
}

// bank is a payment gateway with moods.
type bank struct {
	mu    sync.Mutex
	bills map[string]*bill // by attempt number
	url   string
	over  chan struct{}
}

func newBank(t *testing.T) *bank {
	b := &bank{bills: map[string]*bill{}, over: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /query", func(w http.ResponseWriter, r *http.Request) { b.answer(w, r, false) })
	mux.HandleFunc("POST /close", func(w http.ResponseWriter, r *http.Request) { b.answer(w, r, true) })
	server := httptest.NewUnstartedServer(mux)
	server.Listener = listenLocal(t)
	server.Start()
	t.Cleanup(func() {
		close(b.over)
		server.Close()
	})
	b.url = server.URL
	return b
}

func listenLocal(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// open notes a bill before its attempt is started.
func (b *bank) open(attemptNo string, how temper) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.bills[attemptNo] = &bill{temper: how}
}

// captured are the payments that the bank has told Lapse about, by number, with the attempt.
func (b *bank) captured() map[string]string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := map[string]string{}
	for attempt, bill := range b.bills {
		if bill.paymentNo != "" {
			out[bill.paymentNo] = attempt
		}
	}
	return out
}

// asked counts the bills of each temper and those that were asked about.
func (b *bank) asked() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	counts := map[string]int{}
	for _, bill := range b.bills {
		what := string(bill.temper) + " (not asked)"
		if bill.asked > 0 {
			what = string(bill.temper)
		}
		counts[what]++
	}
	return list(counts)
}

func (b *bank) answer(w http.ResponseWriter, r *http.Request, toClose bool) {
	var ask struct {
		AttemptNo string      `json:"attempt_no"`
		Amount    json.Number `json:"amount"`
		Currency  string      `json:"currency"`
	}
	raw := json.NewDecoder(r.Body)
	if err := raw.Decode(&ask); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	state, how := b.decide(ask.AttemptNo, toClose)
	switch how {
	case talks:
		fmt.Fprint(w, "SYSTEM BUSY, try again")
	case talksHTML:
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, `<html><body>{"state":"closed"}</body></html>`)
	case breaksOff:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"state":"paid","payment":{"payment_no":"x`)
	case refuses:
		http.Error(w, `{"state":"closed"}`, http.StatusInternalServerError)
	case hangs:
		select {
		case <-r.Context().Done():
		case <-b.over:
		}
	default:
		w.Header().Set("Content-Type", "application/json")
		answer := map[string]any{"state": state}
		if state == "paid" {
			b.mu.Lock()
			bill := b.bills[ask.AttemptNo]
			answer["payment"] = map[string]any{"payment_no": bill.paymentNo, "amount": ask.Amount.String(), "currency": ask.Currency, "paid_at": bill.paidAt}
			b.mu.Unlock()
		}
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// decide moves a bill on and returns its state, or the temper in which nothing can be learned of it.
func (b *bank) decide(attemptNo string, toClose bool) (state string, how temper) {
	b.mu.Lock()
	defer b.mu.Unlock()
	bill := b.bills[attemptNo]
	if bill == nil {
		return "", refuses
	}
	bill.asked++
	if toClose {
		bill.closeAsks++
	}
	switch bill.temper {
	case tellsPaid:
		b.capture(attemptNo, bill)
	case paidAtClose:
		if toClose {
			b.capture(attemptNo, bill)
		}
	case closesBill:
	case comesToSense:
		if bill.asked <= 2 {
			return "", talks
		}
	default:
		return "", bill.temper
	}
	switch {
	case bill.paymentNo != "":
		return "paid", ""
	case bill.closeAsks > 0:
		return "closed", ""
	}
	return "unpaid", ""
}

// capture takes the money, once.
func (b *bank) capture(attemptNo string, bill *bill) {
	if bill.paymentNo == "" {
		bill.paymentNo, bill.paidAt = "bank-"+attemptNo, time.Now().UTC()
	}
}
