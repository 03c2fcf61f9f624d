// Package lifecycle is the story of an order that is not paid, one file a step:
//
//  1. create.go  concurrent creates share a transaction: order, reservations and a time-out row.
//  2. relay.go   what was committed is sent: time-outs to be delivered when due, events at once.
//  3. close.go   time-out messages are gathered and their orders closed in one transaction.
//  4. pay.go     a payment ends the order first, or comes too late.
//  5. confirm.go a payment that is under way at the deadline is asked about before anything is cancelled.
//  6. byhand.go  users and staff cancel, extend, restore, and decide about late money.
//  7. sweep.go   the compensator closes what the messages missed.
//  8. brakes.go, reconcile.go, house.go  closing can be stopped, damage is mended, what is over is cleared away.
//  9. lapse.go   things that others keep lapse, too: their owners are called.
//
// The promises it keeps with the help of the store: nothing is closed early (I2) or twice (I1), nothing
// due stays open (I3), whatever was committed is sent or visibly set aside (I9), one bad order or message
// never costs its neighbours (I12), and queues are bounded (I14).
//
// It holds no transaction, names no broker and knows no wire format but order's. The database clock
// decides; the local clock only measures how long ago the database was asked.
package lifecycle
