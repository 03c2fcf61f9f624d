package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lapse/pkg/gateway"
	"lapse/pkg/order"
)

var attempt = order.Attempt{AttemptNo: "ATTEMPT-1", OrderNo: "ORDER-000001", Channel: "card", Amount: 1999, Currency: "CNY"}

// answering is a gateway that answers every question with one handler.
func answering(t *testing.T, handler http.HandlerFunc) *gateway.HTTP {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	g, err := gateway.New(server.URL+"/pay/", "secret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.CloseIdle)
	return g
}

func says(contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		fmt.Fprint(w, body)
	}
}

// channelOf is the channel that a question is about.
func channelOf(t *testing.T, r *http.Request) string {
	var q struct{ Channel string }
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		t.Error(err)
	}
	return q.Channel
}

const paid = `{"state":"paid","payment":{"payment_no":"P1","amount":%s,"currency":"CNY","paid_at":"2026-03-29T12:00:00Z"},"more":1}`

func TestAnExplicitAnswerIsTakenAsItIs(t *testing.T) {
	for body, want := range map[string]order.BillState{
		`{"state":"unpaid"}`:        order.BillUnpaid,
		`{"state":"closed"}`:        order.BillClosed,
		fmt.Sprintf(paid, `"1999"`): order.BillPaid,
		fmt.Sprintf(paid, `1999`):   order.BillPaid,
	} {
		bill, err := answering(t, says("application/json; charset=utf-8", body)).Query(t.Context(), attempt)
		if err != nil || bill.State != want {
			t.Errorf("%s: %+v, %v", body, bill, err)
		}
		if p := bill.Payment; want == order.BillPaid && (p.PaymentNo != "P1" || p.OrderNo != attempt.OrderNo || p.AttemptNo != attempt.AttemptNo || p.Amount != 1999 || p.Currency != "CNY" || p.PaidAt.Year() != 2026) {
			t.Errorf("payment %+v", p)
		}
	}
}

func TestTheQuestionNamesTheBillAndCarriesTheToken(t *testing.T) {
	asked := make(chan string, 2)
	g := answering(t, func(w http.ResponseWriter, r *http.Request) {
		var q map[string]string
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		asked <- fmt.Sprint(r.Method, " ", r.URL.Path, " ", r.Header.Get("Authorization"), " ", q)
		says("application/json", `{"state":"closed"}`)(w, r)
	})
	for _, question := range []func(context.Context, order.Attempt) (order.Bill, error){g.Query, g.Close} {
		if _, err := question(t.Context(), attempt); err != nil {
			t.Fatal(err)
		}
	}
	const q = " Bearer secret map[amount:1999 attempt_no:ATTEMPT-1 channel:card currency:CNY order_no:ORDER-000001]"
	for _, want := range []string{"POST /pay/query" + q, "POST /pay/close" + q} {
		if got := <-asked; got != want {
			t.Errorf("asked %s\nwant  %s", got, want)
		}
	}
}

func TestWhateverIsNotExplicitIsUnknown(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			fmt.Fprint(w, `{"state":"closed"}`)
		}
	}
	for name, handler := range map[string]http.HandlerFunc{
		"an error text in a 200":    says("text/plain", "SYSTEM BUSY"),
		"an error text as JSON":     says("application/json", "SYSTEM BUSY"),
		"a page":                    says("text/html", `<html>{"state":"closed"}</html>`),
		"no type":                   says("", `{"state":"closed"}`),
		"nothing":                   says("application/json", ""),
		"null":                      says("application/json", "null"),
		"a list":                    says("application/json", `[{"state":"closed"}]`),
		"half a JSON":               says("application/json", `{"state":"closed"`),
		"two answers":               says("application/json", `{"state":"closed"}{"state":"paid"}`),
		"no state":                  says("application/json", `{}`),
		"a state that is not known": says("application/json", `{"state":"CLOSED"}`),
		"too long":                  says("application/json", `{"state":"closed","x":"`+strings.Repeat("x", 70_000)+`"}`),
		"paid, but no payment":      says("application/json", `{"state":"paid"}`),
		"paid, but no number":       says("application/json", `{"state":"paid","payment":{"amount":1999,"currency":"CNY","paid_at":"2026-03-29T12:00:00Z"}}`),
		"paid, but no time":         says("application/json", `{"state":"paid","payment":{"payment_no":"P1","amount":1999,"currency":"CNY"}}`),
		"paid, but less":            says("application/json", fmt.Sprintf(paid, "1998")),
		"paid, but a fraction":      says("application/json", fmt.Sprintf(paid, "1999.5")),
		"paid, in other money":      says("application/json", strings.Replace(fmt.Sprintf(paid, "1999"), "CNY", "USD", 1)),
		"500":                       status(http.StatusInternalServerError),
		"404":                       status(http.StatusNotFound),
		"201":                       status(http.StatusCreated),
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"a connection that breaks": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			bill, err := answering(t, handler).Close(t.Context(), attempt)
			if order.KindOf(err) != order.Unavailable || bill.State != "" {
				t.Errorf("%+v, %v", bill, err)
			}
		})
	}
}

func TestAnErrorShowsTheBeginningOfAStrangeAnswerOnOneLine(t *testing.T) {
	_, err := answering(t, says("text/plain", "SYSTEM\nBUSY\x1b[0m "+strings.Repeat("x", 5000))).Query(t.Context(), attempt)
	if text := fmt.Sprint(err); !strings.Contains(text, `ATTEMPT-1`) || !strings.Contains(text, `200 OK "SYSTEM\nBUSY\x1b[0m xxx`) || len(text) > 400 {
		t.Error(text)
	}
}

func TestAGatewayThatCannotBeReachedIsUnknown(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	g, err := gateway.New(server.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Query(t.Context(), attempt); order.KindOf(err) != order.Unavailable {
		t.Error(err)
	}
}

func TestAGatewayThatHangsIsGivenUpInTime(t *testing.T) {
	over := make(chan struct{})
	g := answering(t, func(http.ResponseWriter, *http.Request) { <-over })
	defer close(over)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := g.Query(ctx, attempt); order.KindOf(err) != order.Unavailable {
		t.Errorf("%v", err)
	}
}

func TestAChannelThatFailsIsLeftAloneAndOnlyThatOne(t *testing.T) {
	var asked atomic.Int64
	g := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if channelOf(t, r) == "sick" {
			asked.Add(1)
			http.Error(w, "no", http.StatusInternalServerError)
			return
		}
		says("application/json", `{"state":"unpaid"}`)(w, r)
	})
	sick := attempt
	sick.Channel = "sick"
	for range 20 {
		if _, err := g.Query(t.Context(), sick); order.KindOf(err) != order.Unavailable {
			t.Fatal(err)
		}
	}
	if n := asked.Load(); n != 5 {
		t.Errorf("the sick channel was asked %d times", n)
	}
	if bill, err := g.Query(t.Context(), attempt); err != nil || bill.State != order.BillUnpaid {
		t.Errorf("the other channel: %+v, %v", bill, err)
	}
}

func TestAChannelThatHangsOpensItsOwnBreakerAndNoOther(t *testing.T) {
	over := make(chan struct{})
	var hung atomic.Int64
	g := answering(t, func(w http.ResponseWriter, r *http.Request) {
		if channelOf(t, r) == "hangs" {
			hung.Add(1)
			<-over
			return
		}
		says("application/json", `{"state":"unpaid"}`)(w, r)
	})
	defer close(over)
	hangs := attempt
	hangs.Channel = "hangs"
	for range 8 {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		if _, err := g.Query(ctx, hangs); order.KindOf(err) != order.Unavailable {
			t.Error(err)
		}
		cancel()
		if bill, err := g.Query(t.Context(), attempt); err != nil || bill.State != order.BillUnpaid {
			t.Errorf("the other channel: %+v, %v", bill, err)
		}
	}
	if n := hung.Load(); n != 5 {
		t.Errorf("the channel that hangs was asked %d times", n)
	}
}

func TestChannelsBeyondTheHundredthShareABreaker(t *testing.T) {
	var asked atomic.Int64
	g := answering(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if channelOf(t, r) == "channel-120" {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		says("application/json", `{"state":"unpaid"}`)(w, r)
	})
	ask := func(n int) error {
		a := attempt
		a.Channel = fmt.Sprintf("channel-%d", n)
		_, err := g.Query(t.Context(), a)
		return err
	}
	for n := range 110 {
		if err := ask(n); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		if err := ask(120); err == nil {
			t.Fatal("it answered")
		}
	}
	before := asked.Load()
	if err := ask(109); order.KindOf(err) != order.Unavailable || asked.Load() != before {
		t.Errorf("one that shares it: %v, asked %d times", err, asked.Load()-before)
	}
	if err := ask(99); err != nil {
		t.Errorf("one with its own: %v", err)
	}
}

func TestWithoutAGatewayNothingIsKnown(t *testing.T) {
	for _, question := range []func(context.Context, order.Attempt) (order.Bill, error){gateway.None{}.Query, gateway.None{}.Close} {
		if bill, err := question(t.Context(), attempt); order.KindOf(err) != order.Unavailable || bill.State != "" {
			t.Errorf("%+v, %v", bill, err)
		}
	}
}

func TestOnlyAURLIsAGateway(t *testing.T) {
	for _, base := range []string{"", "pay.example", "ftp://pay.example", "http://", "http://pay.example?x=1", "http://pay.example/#x", "://"} {
		if _, err := gateway.New(base, ""); order.KindOf(err) != order.Invalid {
			t.Errorf("%q: %v", base, err)
		}
	}
}
