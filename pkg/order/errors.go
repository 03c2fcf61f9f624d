package order

import (
	"errors"
	"fmt"
)

// Kind is the class of an error; it survives HTTP and gRPC through one table in pkg/server.
type Kind uint8

const (
	Internal         Kind = iota // a defect or damaged data; somebody has to look
	Invalid                      // the input is wrong and will stay wrong
	Unauthenticated              // no credential, or a wrong one
	PermissionDenied             // the credential lacks the scope
	NotFound
	Conflict    // the current state does not allow it
	KeyReused   // the idempotency key was used with other content
	Exhausted   // a limit is reached: try later
	Unavailable // database or broker cannot answer now: try again
)

// Field is one field that was refused.
type Field struct {
	Name   string // path in the request, like items[2].quantity
	Reason string // what would be right
}

// Error is an error that a person can act on.
type Error struct {
	Kind    Kind
	Code    string // stable, snake_case
	Message string
	Hint    string  // what to do; may be empty
	Fields  []Field // refused fields; only with Invalid
	Err     error   // the cause; may be nil
}

func (e *Error) Error() string {
	msg := e.Message
	for _, f := range e.Fields {
		msg += "; " + f.Name + ": " + f.Reason
	}
	if e.Err != nil {
		msg += ": " + e.Err.Error()
	}
	return msg
}

func (e *Error) Unwrap() error { return e.Err }

// WithHint returns e with a hint.
func (e *Error) WithHint(hint string) *Error {
	e.Hint = hint
	return e
}

// Wrap returns e with its cause.
func (e *Error) Wrap(cause error) *Error {
	e.Err = cause
	return e
}

// Errorf makes an Error.
func Errorf(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Message: fmt.Sprintf(format, args...)}
}

// KindOf returns the kind of err; Internal if it has none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// invalid makes the error for refused fields, or nil if there are none.
func invalid(fields []Field) error {
	if len(fields) == 0 {
		return nil
	}
	return &Error{Kind: Invalid, Code: "invalid_argument", Message: "the request is not valid", Fields: fields}
}
