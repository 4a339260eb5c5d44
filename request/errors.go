package request

import (
	"context"
	"errors"
	"fmt"
	"reflect"
)

// withCause returns an error that matches both err and cause, which is the cause of ctx. If err
// already matches cause, or cause is nil, it returns err.
func withCause(ctx context.Context, err, cause error) error {
	switch {
	case cause == nil:
		return err
	case ctx.Err() == context.DeadlineExceeded && errors.Is(err, context.Canceled):
		return &deadlineError{err, cause}
	case errors.Is(err, cause):
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// A deadlineError is returned when an operation was canceled because a context's deadline passed.
// It matches context.DeadlineExceeded, and does not match context.Canceled.
type deadlineError struct{ err, cause error }

func (e *deadlineError) Error() string { return e.err.Error() + ": " + e.cause.Error() }
func (e *deadlineError) Unwrap() error { return e.cause }

// Is reports whether target is, or matches, context.DeadlineExceeded.
func (e *deadlineError) Is(target error) bool { return errors.Is(target, context.DeadlineExceeded) }

// As finds an error assignable to target in e.err, but rejects one that matches context.Canceled.
// In that case it leaves target unchanged.
func (e *deadlineError) As(target any) bool {
	to := reflect.ValueOf(target).Elem()
	found := reflect.New(to.Type())
	if !errors.As(e.err, found.Interface()) {
		return false
	}
	if one, ok := found.Elem().Interface().(interface{ Is(error) bool }); ok && one.Is(context.Canceled) {
		return false
	}
	to.Set(found.Elem())
	return true
}
