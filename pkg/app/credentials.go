package app

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// DefaultData is the data directory of `lapse dev` if none is given.
const DefaultData = "lapse-data"

// credentialsFile is where `lapse dev` keeps the tokens and the payment secret that it made.
func credentialsFile(data string) string { return filepath.Join(data, "credentials.yaml") }

// PrepareData makes the data directory of `lapse dev` and its credentials, unless they are there.
func PrepareData(data string) error {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	// Whole or not at all, and never over one that another process has just made.
	draft, err := os.CreateTemp(data, "credentials-*")
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name())
	_, err = fmt.Fprintf(draft, `# Made by "lapse dev". Anybody who reads this file may do anything with this instance.
auth:
  tokens:
    - {name: shop, token: %s, scopes: [order]}
    - {name: gateway, token: %s, scopes: [payment]}
    - {name: staff, token: %s, scopes: [order, payment, operator]}
payment:
  secrets: [%s]
`, newSecret(), newSecret(), newSecret(), newSecret())
	if err := errors.Join(err, draft.Close()); err != nil {
		return err
	}
	if err := os.Link(draft.Name(), credentialsFile(data)); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// addressFile is where `lapse dev` leaves the address of its API, for commands that are given its data directory.
func addressFile(data string) string { return filepath.Join(data, "api-address") }

func leaveAddress(data, api string) error {
	return os.WriteFile(addressFile(data), []byte(api+"\n"), 0o600)
}

// DevAddress is the address of the API that the last `lapse dev` on a data directory left there; "" if there is none.
func DevAddress(data string) string {
	if data == "" {
		return ""
	}
	addr, err := os.ReadFile(addressFile(data))
	if err != nil {
		return "" // the settings say where it listens by default
	}
	return strings.TrimSpace(string(addr))
}

// newSecret is 160 random bits.
func newSecret() string {
	b := make([]byte, 20)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
