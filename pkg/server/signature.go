package server

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"time"

	"lapse/pkg/order"
)

const (
	codeBadSignature = "bad_signature"
	signHint         = `Sign timestamp + "." + raw body with HMAC-SHA256. Send the timestamp (Unix seconds) as Lapse-Timestamp and the ` +
		`hexadecimal digits as Lapse-Signature; over gRPC they are the fields timestamp and signature.`
)

// Sign returns the signature of a payment notification: the hexadecimal HMAC-SHA256 of timestamp (Unix
// seconds) + "." + body.
func Sign(secret string, timestamp int64, body []byte) string {
	return hex.EncodeToString(mac(secret, timestamp, body))
}

func mac(secret string, timestamp int64, body []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write(strconv.AppendInt(nil, timestamp, 10))
	h.Write([]byte{'.'})
	h.Write(body)
	return h.Sum(nil)
}

// verifier checks signatures against secrets, any one of which may have signed.
type verifier struct {
	secrets []string
	age     time.Duration // how far the time stamp may be from now, either way
	now     func() time.Time
}

func newVerifier(secrets []string, age time.Duration) (verifier, error) {
	for i, s := range secrets {
		if len(s) < minSecret {
			return verifier{}, fmt.Errorf("payment secret %d: needs at least %d characters", i, minSecret)
		}
	}
	return verifier{secrets, age, time.Now}, nil
}

// verify refuses a body that no holder of a secret signed within the last age. The signature comes first:
// only who knows the secret learns anything about the time stamp.
func (v verifier) verify(timestamp int64, signature string, body []byte) error {
	if !v.signed(timestamp, signature, body) {
		return order.Errorf(order.Unauthenticated, codeBadSignature, "the notification is not signed with a known secret").WithHint(signHint)
	}
	if off := v.now().Sub(time.Unix(timestamp, 0)).Abs(); off > v.age {
		return order.Errorf(order.Unauthenticated, "stale_timestamp", "the notification was signed more than %v from now", v.age).
			WithHint("Sign each attempt anew, and check the clock.")
	}
	return nil
}

func (v verifier) signed(timestamp int64, signature string, body []byte) bool {
	given, err := hex.DecodeString(signature)
	if err != nil {
		return false
	}
	ok := false
	for _, secret := range v.secrets {
		ok = hmac.Equal(given, mac(secret, timestamp, body)) || ok
	}
	return ok
}
