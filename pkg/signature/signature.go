// Package signature signs and checks what a shop and Lapse send each other: notifications of payments, and calls of hooks.
package signature

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
)

const (
	// TimestampHeader has Unix seconds, Header the hexadecimal digits of Sign.
	TimestampHeader = "Lapse-Timestamp"
	Header          = "Lapse-Signature"

	// MinSecret is the least number of characters of a secret: shorter ones can be guessed.
	MinSecret = 16
)

// Sign returns the hexadecimal HMAC-SHA256 of timestamp (Unix seconds) + "." + content.
func Sign(secret string, timestamp int64, content []byte) string {
	return hex.EncodeToString(mac(secret, timestamp, content))
}

// Valid tells whether given is what Sign returns for one of the secrets, in time that says nothing about them.
func Valid(given string, timestamp int64, content []byte, secrets ...string) bool {
	digits, err := hex.DecodeString(given)
	if err != nil {
		return false
	}
	valid := false
	for _, secret := range secrets {
		valid = hmac.Equal(digits, mac(secret, timestamp, content)) || valid
	}
	return valid
}

func mac(secret string, timestamp int64, content []byte) []byte {
	h := hmac.New(sha256.New, []byte(secret))
	h.Write(strconv.AppendInt(nil, timestamp, 10))
	h.Write([]byte{'.'})
	h.Write(content)
	return h.Sum(nil)
}
