// Package adopt tests Lapse with the rows of somebody else: the shop of examples/bookings keeps its own table and runs as
// a process of its own, which is killed, as is the consumer that calls it.
//
// It needs what test/e2e needs, and is run like it.
package adopt
