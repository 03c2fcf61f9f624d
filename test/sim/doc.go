// Package sim lets the whole closing life be lived in worlds in which everything goes wrong, each decided by one number.
//
// A world (world_test.go) has a database (disk_test.go: SQLite in memory), a broker (broker_test.go), a bank (bank_test.go),
// customers and staff (plan_test.go) and two or three processes of Lapse (process_test.go). The processes are pkg/lifecycle
// and pkg/store as they are: relay, confirmer, sweeper and reconciler in their own Run, creates and closes by their Flush.
//
// Whatever a process wants of the world, it waits for at the border (gate_test.go). One goroutine moves the world, a step at
// a time: it lets one of those that wait through, lets a customer or an operator ask for something, hands a message over, lets
// time pass, or ends a process. With a call it may lose or double a message, fail a statement or a commit, done or not, crash
// the process before or after, or keep the answer back for as long as it likes: meanwhile leases run out, and others go on.
// The clocks of processes and of the broker are off by up to an hour. All choices of step n come from the seed and n.
//
// So the same seed is the same world, to the last line of its trace, and a step can be left out without changing the others.
// What is random or concurrent in production is kept out of that: everybody else's waits end on a grid of the bubble's time
// (testing/synctest) that no jitter crosses, and those that arrive at the border together stand in line by name.
//
// A world lives in two phases. With faults nothing wrong may happen (I1, I2, I4 to I8, I10 to I13, I15): some of it is looked
// at after each call, by SQL that owes nothing to pkg/store, all of it at crashes and in the end (checks_test.go, judge_test.go).
// Then the faults cease, time goes on, and everything that was due has to come about within its bound (rest_test.go: I3, I6, I7,
// I9). In the end all messages that ever were come once more, and change nothing (I11).
//
// # How to read a failure
//
// A failure names the seed and the promise, and shows a trace of as few steps as a short search needs to break the same
// promise (shrink_test.go). A line of it is
//
//	21.086 b2 closer.CloseDue ORDER-1-19 (done): ok
//
// the seconds since noon by the database's clock; the process, b, in its second life; the part of it that called; what it
// called, about what; and the answer. "b2: pay B-7 of ORDER-1-19" is a wish of somebody outside, and the same with an answer
// its end. To see the same world in full, and to go on from there:
//
//	go test ./test/sim -run TestSim -seeds=1 -start=SEED -trace -v
//
// What is not simulated: the lapser and adopted items, the breaker, purges, MySQL's locks (here one transaction
// writes at a time), the caps of I14, and what the server makes of answers.
package sim
