// Package server shows Lapse to the outside: gRPC and HTTP/JSON on one port, from the one contract in api.
//
//	I8.  What a caller is told about a create is what was committed; a repeated call is told so.
//	I12. Malformed, forged or oversized input is refused before it reaches an order.
//
// A call comes in by one of two faces, is admitted by one table (auth.go), reaches one method of the
// services (orders.go, attempts.go, byhand.go, payments.go, late.go, resources.go, brakes.go, sweeps.go), and
// its error leaves by one table (errors.go). The package holds no rule about orders and keeps nothing: the ports below do.
package server

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// Orders is what the services need of the lifecycle. Errors are *order.Error where a caller can act on them.
type Orders interface {
	// Create validates a draft and makes its order. A number that exists already is Created.Repeated when
	// the content is the same, else Created.Err is the Conflict "order_no_taken".
	Create(ctx context.Context, d order.Draft) (order.Created, error)
	// Cancel validates and cancels a pending or confirming order; with a payment in flight it is confirming first.
	// Of a cancelled one it returns the order. NotFound also for another user's order; Conflict when it is paid.
	Cancel(ctx context.Context, c order.Cancelling) (order.Order, error)
	// StartPayment validates and records an attempt; a lifetime of 0 means the default. The same number again is
	// the same attempt. NotFound also for another user's order; Conflict when it is not payable.
	StartPayment(ctx context.Context, a order.Attempting) (order.Attempt, order.Order, error)
	// FailPayment ends an open attempt; one that has ended already is returned as it is.
	FailPayment(ctx context.Context, orderNo, attemptNo string) (order.Attempt, error)
	// Acknowledge notes that a remote service has given back what a cancelled round held of a kind.
	Acknowledge(ctx context.Context, orderNo string, round int, kind string) error
	// Restore validates a restore and opens a cancelled order again; a time-out of 0 means the default.
	Restore(ctx context.Context, r order.Restoring) (order.Order, error)
	// Extend validates an extension and moves the deadlines of all orders that it names, in as many transactions as it
	// takes; those before an error are moved.
	Extend(ctx context.Context, e order.Extending) (order.Extended, error)
	// Archive closes an order whose retention since its cancellation is over; one that is archived is returned as it is.
	Archive(ctx context.Context, orderNo string, act order.Act) (order.Order, error)
	// Pay validates and records a captured payment; refused ones are kept for a human.
	Pay(ctx context.Context, p order.Payment) (order.PaymentResult, error)
	// LatePayments returns cases of a status ("" for all), oldest first, and the cursor of the next page.
	LatePayments(ctx context.Context, status order.LateStatus, size int, cursor string) ([]order.LatePayment, string, error)
	// Decide validates and applies a decision about an open case.
	Decide(ctx context.Context, d order.Deciding) (order.LatePayment, error)
	// Refund validates and records that a refund was completed, and returns the payment's order.
	Refund(ctx context.Context, r order.Refunding) (order.Order, error)
	// KeepUnread keeps a payment notification that cannot be read for a human, and returns why: cause, or
	// Unavailable if it could not be kept.
	KeepUnread(ctx context.Context, body []byte, cause error) error
	// Get returns an order and the database's now.
	Get(ctx context.Context, orderNo string) (order.Order, time.Time, error)
	// List returns a user's orders, newest first, the cursor of the next page ("" at the end) and now.
	List(ctx context.Context, userID string, size int, cursor string) ([]order.Order, string, time.Time, error)
	// Timeline returns an order's transitions, oldest first, and its scheduled messages.
	Timeline(ctx context.Context, orderNo string) ([]order.LogEntry, []order.Scheduled, error)
	// Attempts returns an order's payment attempts, oldest first.
	Attempts(ctx context.Context, orderNo string) ([]order.Attempt, error)
	// Payments returns an order's captured payments, and the cases of those that it could not take, each oldest first.
	Payments(ctx context.Context, orderNo string) ([]order.KeptPayment, []order.LatePayment, error)
	// Adjust validates and applies a change of a resource, once per adjustment id.
	Adjust(ctx context.Context, a order.Adjustment) (order.Resource, error)
	// Resource reads a resource.
	Resource(ctx context.Context, kind, ref string) (order.Resource, error)
}

// Sweeper closes overdue orders at once.
type Sweeper interface {
	// Now sweeps all shards and returns the record of the run. An error comes with a record that says
	// why the run ended early, or means that the run could not be recorded.
	Now(ctx context.Context) (order.SweepRun, error)
}

// Reconciler looks for damage in what is stored at once.
type Reconciler interface {
	// Now looks everywhere and mends what it finds unless it is a dry run. Errors are as those of Sweeper.
	Now(ctx context.Context, dryRun bool) (order.ReconcileRun, error)
}

// Brakes are what stops the closing of due orders.
type Brakes interface {
	Get(ctx context.Context) (order.Brakes, error)
	// Set validates and sets them, and returns those in force then. Conflict when they are of another version.
	Set(ctx context.Context, c order.BrakeChange) (order.Brakes, error)
	// ShadowReport compares what was decided in shadow with what was really closed. A tolerance of 0 means the default.
	ShadowReport(ctx context.Context, c order.Comparing) (order.ShadowReport, error)
}

// Services are what the server serves.
type Services struct {
	Orders     Orders
	Sweeper    Sweeper
	Reconciler Reconciler
	Brakes     Brakes
}
