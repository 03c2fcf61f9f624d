package signature_test

import (
	"strings"
	"testing"

	"lapse/pkg/signature"
)

const (
	secret = "0123456789abcdef"
	// what `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef` prints
	signed = "9eb18f493f8ec135d9eb2dad817c369bb4e9cbfa818657897a7437c1cd8c3a23"
)

func TestTheSignatureIsThatOfOtherTools(t *testing.T) {
	if got := signature.Sign(secret, 1700000000, []byte(`{"a":1}`)); got != signed {
		t.Errorf("%s, want %s", got, signed)
	}
}

func TestOnlyTheWholeSignatureOfOneOfTheSecretsIsValid(t *testing.T) {
	for name, c := range map[string]struct {
		given     string
		timestamp int64
		content   string
		secrets   []string
		want      bool
	}{
		"signed":                 {signed, 1700000000, `{"a":1}`, []string{secret}, true},
		"with the second of two": {signed, 1700000000, `{"a":1}`, []string{"fedcba9876543210", secret}, true},
		"in capital letters":     {strings.ToUpper(signed), 1700000000, `{"a":1}`, []string{secret}, true},
		"for another moment":     {signed, 1700000001, `{"a":1}`, []string{secret}, false},
		"for another content":    {signed, 1700000000, `{"a":2}`, []string{secret}, false},
		"with another secret":    {signed, 1700000000, `{"a":1}`, []string{"fedcba9876543210"}, false},
		"with no secret known":   {signed, 1700000000, `{"a":1}`, nil, false},
		"a part of it":           {signed[:32], 1700000000, `{"a":1}`, []string{secret}, false},
		"nothing":                {"", 1700000000, `{"a":1}`, []string{secret}, false},
		"no hexadecimal digits":  {"x" + signed[1:], 1700000000, `{"a":1}`, []string{secret}, false},
	} {
		if got := signature.Valid(c.given, c.timestamp, []byte(c.content), c.secrets...); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
