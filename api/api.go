// Package api holds the contract: lapse/v1/lapse.proto is its source, everything else here is generated
// from it by `go generate ./api`.
package api

//go:generate go tool -modfile=../tools.mod buf generate
