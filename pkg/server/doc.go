// Package server shows Lapse to the outside: gRPC and HTTP/JSON on one port, from the one contract in api.
//
//	I8.  What a caller is told about a create is what was committed; a repeated call is told so.
//	I12. Malformed, forged or oversized input is refused before it reaches an order.
//
// A call comes in by one of two faces, is admitted by one table (auth.go), reaches one method of the
// services (orders.go, payments.go, resources.go, sweeps.go), and its error leaves by one table
// (errors.go). The package holds no rule about orders and keeps nothing: the ports below do.
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
	// Cancel cancels a pending order of userID; of a cancelled one it returns the order. NotFound also for
	// another user's order; Conflict when it is paid.
	Cancel(ctx context.Context, c order.Cancelling) (order.Order, error)
	// Pay validates and records a captured payment; refused ones are kept for a human.
	Pay(ctx context.Context, p order.Payment) (order.PaymentResult, error)
	// KeepUnread keeps a payment notification that cannot be read for a human, and returns why: cause, or
	// Unavailable if it could not be kept.
	KeepUnread(ctx context.Context, body []byte, cause error) error
	// Get returns an order and the database's now.
	Get(ctx context.Context, orderNo string) (order.Order, time.Time, error)
	// List returns a user's orders, newest first, the cursor of the next page ("" at the end) and now.
	List(ctx context.Context, userID string, size int, cursor string) ([]order.Order, string, time.Time, error)
	// Timeline returns an order's transitions, oldest first, and its scheduled messages.
	Timeline(ctx context.Context, orderNo string) ([]order.LogEntry, []order.Scheduled, error)
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

// Services are what the server serves.
type Services struct {
	Orders  Orders
	Sweeper Sweeper
}
