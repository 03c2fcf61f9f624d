package app

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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

// newSecret is 160 random bits.
func newSecret() string {
	b := make([]byte, 20)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
