package server

import (
	"fmt"
	"time"

	"lapse/pkg/order"
	"lapse/pkg/signature"
)

const (
	codeBadSignature = "bad_signature"
	signHint         = `Sign timestamp + "." + raw body with HMAC-SHA256. Send the timestamp (Unix seconds) as Lapse-Timestamp and the ` +
		`hexadecimal digits as Lapse-Signature; over gRPC they are the fields timestamp and signature.`
)

// verifier checks signatures against secrets, any one of which may have signed.
type verifier struct {
	secrets []string
	age     time.Duration // how far the time stamp may be from now, either way
	now     func() time.Time
}

func newVerifier(secrets []string, age time.Duration) (verifier, error) {
	for i, s := range secrets {
		if len(s) < signature.MinSecret {
			return verifier{}, fmt.Errorf("payment secret %d: needs at least %d characters", i, signature.MinSecret)
		}
	}
	return verifier{secrets, age, time.Now}, nil
}

// verify refuses a body that no holder of a secret signed within the last age. The signature comes first:
// only who knows the secret learns anything about the time stamp.
func (v verifier) verify(timestamp int64, given string, body []byte) error {
	if !signature.Valid(given, timestamp, body, v.secrets...) {
		return order.Errorf(order.Unauthenticated, codeBadSignature, "the notification is not signed with a known secret").WithHint(signHint)
	}
	if off := v.now().Sub(time.Unix(timestamp, 0)).Abs(); off > v.age {
		return order.Errorf(order.Unauthenticated, "stale_timestamp", "the notification was signed more than %v from now", v.age).
			WithHint("Sign each attempt anew, and check the clock.")
	}
	return nil
}
