package store

import (
	"context"
	"time"

	"lapse/pkg/order"
)

// Not built yet: whoever builds a method removes it here.

var errTodo = order.Errorf(order.Internal, "not_built", "not built yet")

func (s *Store) StartPayment(context.Context, order.Attempting) (order.Attempt, order.Order, error) {
	return order.Attempt{}, order.Order{}, errTodo
}
func (s *Store) FailPayment(context.Context, string, string) (order.Attempt, error) {
	return order.Attempt{}, errTodo
}
func (s *Store) Restore(context.Context, order.Restoring, order.Schedule) (order.Order, []order.Message, error) {
	return order.Order{}, nil, errTodo
}
func (s *Store) Extend(context.Context, order.Extending, order.Cursor, int, order.Schedule) (order.Extended, error) {
	return order.Extended{}, errTodo
}
func (s *Store) Decide(context.Context, order.Deciding, order.Schedule) (order.LatePayment, []order.Message, error) {
	return order.LatePayment{}, nil, errTodo
}
func (s *Store) Refund(context.Context, order.Refunding, order.Rules) (order.Order, error) {
	return order.Order{}, errTodo
}
func (s *Store) Acknowledge(context.Context, string, int, string) error { return errTodo }
func (s *Store) Archive(context.Context, string, time.Duration, order.Act) (order.Order, error) {
	return order.Order{}, errTodo
}
func (s *Store) Attempts(context.Context, string) ([]order.Attempt, error) { return nil, errTodo }
func (s *Store) LatePayments(context.Context, order.LateStatus, int, string) ([]order.LatePayment, string, error) {
	return nil, "", errTodo
}
func (s *Store) Remind(context.Context, []string, order.Schedule) ([]order.Message, error) {
	return nil, errTodo
}
func (s *Store) ClaimDoubtful(context.Context, int, time.Duration) ([]order.InDoubt, time.Time, time.Time, error) {
	return nil, time.Time{}, time.Time{}, errTodo
}
func (s *Store) Confirm(context.Context, order.Verdict, order.ConfirmEnd, time.Duration, order.Rules, order.Schedule) (order.Order, []order.Message, error) {
	return order.Order{}, nil, errTodo
}
