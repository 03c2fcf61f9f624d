// Package api holds the contract: lapse/v1/lapse.proto is its source, everything else here is generated
// from it by `go generate ./api`.
package api

import _ "embed"

//go:generate go tool -modfile=../tools.mod buf generate

// OpenAPI is the HTTP form of the contract, an OpenAPI 3.1 document in YAML.
//
//go:embed openapi.yaml
var OpenAPI []byte
