// Package e2e proves the closing path on real processes: producers, consumers and a compensator on MariaDB and
// RocketMQ, with payments, cancels, repeated and forged messages, killed processes and a stopped broker.
//
// It runs one scenario after the other (see scenarios), each of them data: the broker's version, how it is asked to
// delay, how many orders, and the faults. What must hold, I1 to I9 of docs/decisions.md and pkg/order, is judged by
// people who do not know each other: SQL written here (checks), the shop's own records of every answer it was given
// (judge), a subscriber of the event topic, and the program's own `lapse audit`.
//
//	LAPSE_E2E_ORDERS=300   orders in each scenario, instead of its own number; the run gets shorter in proportion
//	LAPSE_E2E_SEED=7       the seed of all that is random in the workload, to see a run again
package e2e
