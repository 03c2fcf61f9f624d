package server

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	lapsev1 "lapse/api/lapse/v1"
	"lapse/pkg/order"
	"lapse/pkg/signature"
)

func notification(paymentNo, orderNo string, amount int) string {
	return fmt.Sprintf(`{"payment_no":%q,"order_no":%q,"amount":"%d","currency":"CNY","paid_at":"2026-03-01T12:00:30Z"}`, paymentNo, orderNo, amount)
}

func TestPaymentPaysItsOrderOnce(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	for _, repeated := range []bool{false, true} {
		got := r.notify(notification("p1", "order-1", 1999)).want(t, 200)
		if got.json["outcome"] != "paid" || got.json["repeated"] != repeated || got.json["order_status"] != "paid" {
			t.Errorf("answer %s, want repeated %v", got.raw, repeated)
		}
	}
}

func TestANotificationMayNameItsAttempt(t *testing.T) {
	p, err := decodePayment([]byte(strings.Replace(notification("p1", "order-1", 1999), `"order_no"`, `"attempt_no":"bill-1","order_no"`, 1)))
	if err != nil || p.AttemptNo != "bill-1" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestAKeptPaymentReadsAsItsNotification(t *testing.T) {
	p, err := decodePayment([]byte(strings.Replace(notification("p1", "order-1", 1999), `"order_no"`, `"attempt_no":"bill-1","order_no"`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := decodePayment(kept); err != nil || again != p {
		t.Errorf("%+v became %s, which is %+v, %v", p, kept, again, err)
	}
}

// curl -d says so of every body.
func TestNotificationIsNeverTakenForAForm(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	body := notification("100%;&signature=x", "order-1", 1999)
	now := time.Now().Unix()
	r.send("POST", "/v1/payments:notify", "", body, "Content-Type", "application/x-www-form-urlencoded",
		"Lapse-Timestamp", strconv.FormatInt(now, 10), "Lapse-Signature", signature.Sign(secret, now, []byte(body))).want(t, 200)
}

func TestPaymentForACancelledOrderIsLate(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	r.send("POST", "/v1/orders/order-1:cancel", orderToken, `{"user_id":"u1"}`).want(t, 200)
	got := r.notify(notification("p1", "order-1", 1999)).want(t, 200)
	if got.json["outcome"] != "late" || got.json["order_status"] != "cancelled" {
		t.Errorf("answer %s", got.raw)
	}
}

// S02: a good signature does not make a wrong payment right; the lifecycle sees it, to keep it.
func TestPaymentThatDoesNotFitIsRefusedAndHandedOn(t *testing.T) {
	r := start(t)
	r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
	r.notify(notification("p1", "order-9", 1999)).wantProblem(t, 404, "order_not_found")
	got := r.notify(notification("p1", "order-1", 2000)).wantProblem(t, 400, "invalid_argument")
	if !slices.Equal(got.fields(), []string{"amount"}) {
		t.Errorf("refused fields %v", got.fields())
	}
	if r.mem.refused != 2 {
		t.Errorf("the lifecycle saw %d of 2 refused payments", r.mem.refused)
	}
}

// S01, S03: every way to get a signature wrong, on both faces, through one verification.
func TestForgedNotificationsAreRefused(t *testing.T) {
	body := notification("p1", "order-1", 1999)
	now := time.Now().Unix()
	for _, c := range []struct {
		name      string
		timestamp int64
		signature string
		body      string
		code      string // "" when it is accepted
	}{
		{"signed with the newest secret", now, signature.Sign(secret, now, []byte(body)), body, ""},
		{"signed with a secret being replaced", now, signature.Sign(oldSecret, now, []byte(body)), body, ""},
		{"in capital digits", now, strings.ToUpper(signature.Sign(secret, now, []byte(body))), body, ""},
		{"4 minutes old", now - 240, signature.Sign(secret, now-240, []byte(body)), body, ""},
		{"unsigned", now, "", body, "bad_signature"},
		{"with the wrong key", now, signature.Sign("another-secret-0123456789", now, []byte(body)), body, "bad_signature"},
		{"not hexadecimal", now, "zz" + signature.Sign(secret, now, []byte(body))[2:], body, "bad_signature"},
		{"cut short", now, signature.Sign(secret, now, []byte(body))[:32], body, "bad_signature"},
		{"altered", now, signature.Sign(secret, now, []byte(body)), strings.Replace(body, "1999", "1998", 1), "bad_signature"},
		{"with a space more", now, signature.Sign(secret, now, []byte(body)), body + " ", "bad_signature"},
		{"not even JSON", now, signature.Sign(secret, now, []byte(body)), "{", "bad_signature"},
		{"signed for another moment", now, signature.Sign(secret, now-1, []byte(body)), body, "bad_signature"},
		{"replayed after 6 minutes", now - 360, signature.Sign(secret, now-360, []byte(body)), body, "stale_timestamp"},
		{"from the future", now + 360, signature.Sign(secret, now+360, []byte(body)), body, "stale_timestamp"},
		{"from the end of time", 1<<63 - 1, signature.Sign(secret, 1<<63-1, []byte(body)), body, "stale_timestamp"},
		{"from before time", -1 << 63, signature.Sign(secret, -1<<63, []byte(body)), body, "stale_timestamp"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			r.send("POST", "/v1/orders", orderToken, withNumber("order-1")).want(t, 200)
			got := r.send("POST", "/v1/payments:notify", "", c.body,
				"Lapse-Timestamp", strconv.FormatInt(c.timestamp, 10), "Lapse-Signature", c.signature)
			_, err := lapsev1.NewPaymentServiceClient(r.conn).NotifyPayment(as(t, paymentToken),
				&lapsev1.NotifyPaymentRequest{Body: []byte(c.body), Timestamp: c.timestamp, Signature: c.signature})
			if c.code == "" {
				if got.want(t, 200); err != nil {
					t.Errorf("gRPC: %v", err)
				}
				return
			}
			got.wantProblem(t, 401, c.code)
			if info, _ := details(t, err); status.Code(err) != codes.Unauthenticated || info.GetReason() != c.code {
				t.Errorf("gRPC: %v", err)
			}
			if len(r.mem.payments)+r.mem.refused+len(r.mem.unread) != 0 {
				t.Error("the lifecycle saw it")
			}
		})
	}
}

func TestNotificationHeadersAreChecked(t *testing.T) {
	r := start(t)
	body := notification("p1", "order-1", 1999)
	now := time.Now().Unix()
	got := r.send("POST", "/v1/payments:notify", "", body, "Lapse-Timestamp", "yesterday", "Lapse-Signature", signature.Sign(secret, now, []byte(body)))
	if got.wantProblem(t, 400, "invalid_argument"); !slices.Equal(got.fields(), []string{"Lapse-Timestamp"}) {
		t.Errorf("refused fields %v", got.fields())
	}
	query := fmt.Sprintf("?timestamp=%d&signature=%s", now, signature.Sign(secret, now, []byte(body)))
	r.send("POST", "/v1/payments:notify"+query, "", body).wantProblem(t, 400, "invalid_argument")
}

func TestAnUnsignedNotificationIsToldWhatItLacks(t *testing.T) {
	body := notification("p1", "order-1", 1999)
	now := time.Now().Unix()
	signed := signature.Sign(secret, now, []byte(body))
	for _, c := range []struct {
		name      string
		timestamp int64
		signature string
		lacks     string
	}{
		{"both", 0, "", "Lapse-Timestamp and Lapse-Signature"},
		{"the time stamp", 0, signed, "Lapse-Timestamp"},
		{"the signature", now, "", "Lapse-Signature"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := start(t)
			var headers []string
			if c.timestamp != 0 {
				headers = append(headers, "Lapse-Timestamp", strconv.FormatInt(c.timestamp, 10))
			}
			if c.signature != "" {
				headers = append(headers, "Lapse-Signature", c.signature)
			}
			want := "the notification is not signed: it lacks " + c.lacks
			got := r.send("POST", "/v1/payments:notify", "", body, headers...).wantProblem(t, 401, "bad_signature")
			if got.json["detail"] != want {
				t.Errorf("detail %q, want %q", got.json["detail"], want)
			}
			_, err := lapsev1.NewPaymentServiceClient(r.conn).NotifyPayment(as(t, paymentToken),
				&lapsev1.NotifyPaymentRequest{Body: []byte(body), Timestamp: c.timestamp, Signature: c.signature})
			if st := status.Convert(err); st.Code() != codes.Unauthenticated || st.Message() != want {
				t.Errorf("gRPC: %v", err)
			}
		})
	}
}

func TestNotificationOverGRPCNeedsATokenToo(t *testing.T) {
	r := start(t)
	body := []byte(notification("p1", "order-1", 1999))
	now := time.Now().Unix()
	req := &lapsev1.NotifyPaymentRequest{Body: body, Timestamp: now, Signature: signature.Sign(secret, now, body)}
	_, err := lapsev1.NewPaymentServiceClient(r.conn).NotifyPayment(as(t, ""), req)
	if status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
}

func TestSignedNotificationsAreStillValidated(t *testing.T) {
	r := start(t)
	good := notification("p1", "order-1", 1999)
	for _, c := range []struct{ name, old, new, code, field string }{
		{"an unknown field", `"payment_no"`, `"status":"ok","payment_no"`, "invalid_argument", "status"},
		{"no payment number", `"p1"`, `""`, "invalid_argument", "payment_no"},
		{"an amount of zero", `"1999"`, `"0"`, "invalid_argument", "amount"},
		{"a date instead of an instant", `2026-03-01T12:00:30Z`, `2026-03-01`, "invalid_argument", "paid_at"},
		{"an attempt number that could not be one", `"order_no"`, `"attempt_no":"x","order_no"`, "invalid_argument", "attempt_no"},
		{"no instant", `,"paid_at":"2026-03-01T12:00:30Z"`, ``, "invalid_argument", "paid_at"},
		{"JSON that ends too early", `}`, ``, "malformed_json", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.mem.unread = nil
			body := strings.Replace(good, c.old, c.new, 1)
			got := r.notify(body).wantProblem(t, 400, c.code)
			if !slices.Equal(r.mem.unread, []string{body}) {
				t.Errorf("kept %q", r.mem.unread)
			}
			if c.field != "" && !slices.Equal(got.fields(), []string{c.field}) {
				t.Errorf("refused fields %v, want %s", got.fields(), c.field)
			}
		})
	}
}

func TestShortPaymentSecretsAreRefused(t *testing.T) {
	if _, err := newVerifier([]string{secret, "short"}, time.Minute); err == nil || strings.Contains(err.Error(), "short") {
		t.Errorf("error %v: there must be one, and it must not show the secret", err)
	}
}

// Whatever comes in as a notification is refused as a whole or is a payment that could be sent again.
func FuzzNotification(f *testing.F) {
	f.Add([]byte(notification("p1", "order-1", 1999)))
	f.Add([]byte(`{"payment_no":"p\u2028","order_no":"order-1","amount":1e3,"currency":"CNY","paid_at":"2026-03-01T12:00:30.5+08:00"}`))
	f.Add([]byte(`{"paymentNo":"p1","payment_no":"p2"}`))
	f.Add([]byte(`{"payment_no":"p1","order_no":"order-1","attempt_no":"bill-1","amount":1,"currency":"CNY","paid_at":"2026-03-01T12:00:30Z"}`))
	f.Add([]byte(`[[[[[[[[`))
	f.Add([]byte(`{"amount":{"amount":[null]}}`))
	f.Add([]byte("\xff\xfe"))
	f.Add([]byte(``))
	f.Fuzz(func(t *testing.T, raw []byte) {
		p, err := decodePayment(raw)
		if err != nil {
			if order.KindOf(err) != order.Invalid {
				t.Errorf("refused as %v: %v", order.KindOf(err), err)
			}
			return
		}
		again := fmt.Sprintf(`{"payment_no":%q,"order_no":%q,"attempt_no":%q,"amount":"%d","currency":%q,"paid_at":%q}`,
			p.PaymentNo, p.OrderNo, p.AttemptNo, p.Amount, p.Currency, p.PaidAt.Format(time.RFC3339Nano))
		if same, err := decodePayment([]byte(again)); err != nil || same != p {
			t.Errorf("%+v came back as %+v, %v", p, same, err)
		}
	})
}
