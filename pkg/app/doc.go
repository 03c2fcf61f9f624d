// Package app turns the parts into processes: configuration, logs, telemetry, start-up, and the order in
// which everything stops.
//
//	I14. Goroutines, connections and memory stay under their caps: every long-running part is a
//	     Run(ctx) error owned by one group, and Run returns only once all of them have ended.
//	I15. A setting in force is one whole, validated Config: a bad file changes nothing and says so.
//
// It holds no business rule and no SQL.
package app

//go:generate sh -c "go run ../../cmd/lapse config docs > ../../docs/configuration.md"
