// Command bench measures Lapse beside the plain way to do the same work, on a real database with durable
// commits and a real broker, in one run on one machine:
//
//	a  create    orders created in groups, and one transaction an order; at the store and through HTTP
//	b  close     due orders closed by their messages, by the sweep, and one by one
//	c  lateness  how late orders close at a steady rate, and how late bare messages arrive
//	d  burst     orders that all fall due in one second, or at one instant, and as many bare messages
//	e  sweep     what the sweep costs in a small and in a large table
//	f  memory    what each role needs with many orders pending
//
// The plain way is reference.go: the same rows, well written. Single figures are as noisy as the machine;
// the ratios of one run are what is compared with the goals. No goal that is missed fails the run, but wrong
// data does: what was written is counted and audited.
//
// It needs LAPSE_TEST_MYSQL_DSN and LAPSE_TEST_ROCKETMQ, and LAPSE_TEST_MYSQL_PID to read the database
// server's CPU time from: scripts/with-services.sh sets all three.
package main
