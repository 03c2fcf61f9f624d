package app

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// bankOf is a payment gateway whose channels are named by how it answers about their bills.
func bankOf(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var q struct{ Channel, Amount, Currency string }
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil || r.Header.Get("Authorization") != "Bearer "+goodToken {
			t.Errorf("asked %+v, with %q, %v", q, r.Header.Get("Authorization"), err)
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case q.Channel == "paid":
			fmt.Fprintf(w, `{"state":"paid","payment":{"payment_no":"P1","amount":%q,"currency":%q,"paid_at":"2026-03-29T12:00:00Z"}}`, q.Amount, q.Currency)
		case q.Channel == "garbage":
			fmt.Fprint(w, "SYSTEM BUSY")
		case r.URL.Path == "/close":
			fmt.Fprint(w, `{"state":"closed"}`)
		default:
			fmt.Fprint(w, `{"state":"unpaid"}`)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// doubt makes an order that its user leaves while a payment by a channel is in flight, and returns what it is then.
func (p *process) doubt(no, channel string) any {
	p.t.Helper()
	p.create(no, "3600s")
	p.call("POST", "/v1/orders/"+no+"/attempts", "order", fmt.Sprintf(`{"user_id":"u1","channel":%q}`, channel))
	p.call("POST", "/v1/orders/"+no+":cancel", "order", `{"user_id":"u1"}`)
	return p.status(no)
}

func TestPaymentsInFlightAreAskedAboutAtTheConfiguredGateway(t *testing.T) {
	asking := map[string]string{"gateway.url": bankOf(t), "gateway.token": goodToken}
	for end, want := range map[string]struct {
		status  string
		metrics []string
	}{
		"cancel": {"cancelled", []string{`lapse_confirms_total{result="expired"} 1`}},
		"hold":   {"confirming", []string{`lapse_confirms_total{result="held"} 1`, `lapse_confirming{waits_for="person"} 1`}},
	} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			set := maps.Clone(asking)
			maps.Copy(set, map[string]string{"confirm.end": end, "confirm.for": "2s"})
			p := startDev(t, t.TempDir(), set).wait()
			for _, channel := range []string{"paid", "unpaid", "garbage"} {
				p.doubt("order-"+channel, channel)
			}
			eventually(t, "paid", func() bool { return p.status("order-paid") == "paid" })
			eventually(t, "unpaid", func() bool { return p.status("order-unpaid") == "cancelled" })
			for _, line := range append(want.metrics, "lapse_reconcile_interval_seconds 86400", "lapse_late_open 0", `lapse_confirms_total{result="paid"} 1`, `lapse_confirms_total{result="closed"} 1`) {
				eventually(t, line, func() bool { return strings.Contains(p.metrics(), line) })
			}
			if got := p.status("order-garbage"); got != want.status {
				t.Errorf("the order in doubt is %v", got)
			}
			p.end()
		})
	}
}

func TestWhatIsInDoubtWhenTheGatewayIsTakenOutEndsAtItsConfirmDeadline(t *testing.T) {
	data := t.TempDir()
	first := startDev(t, data, map[string]string{"gateway.url": bankOf(t), "gateway.token": goodToken, "confirm.for": "3s"}).wait()
	if got := first.doubt("order-1", "garbage"); got != "confirming" {
		t.Errorf("with a gateway to ask it is %v", got)
	}
	first.end()
	second := startDev(t, data, nil).wait()
	eventually(t, "it is cancelled", func() bool { return second.status("order-1") == "cancelled" })
	if got := second.doubt("order-2", "garbage"); got != "cancelled" {
		t.Errorf("with nobody to ask it is %v", got)
	}
	second.end()
}
