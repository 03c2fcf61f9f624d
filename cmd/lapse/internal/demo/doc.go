// Package demo lets a stranger watch orders lapse: it runs the whole system in this process, drives it from
// the outside by its HTTP API, and then says for every order, every event, every resource and every
// invariant whether it is as it must be, each with its figure.
//
//   - plan.go    the scenario as data: what is ordered, by whom, and the fate it must have.
//   - system.go  the application, on SQLite and the local broker in a directory of its own.
//   - client.go  the HTTP calls that a shop and a payment channel would make.
//   - play.go    plays the scenario.
//   - inbox.go   an independent subscriber of the events.
//   - judge.go   compares what happened with the plan, and asks the database for the invariants.
//   - report.go  prints it.
//
// It plants nothing in the database and knows nothing about it: what it judges is what the API, the event
// topic and the audit say.
package demo
