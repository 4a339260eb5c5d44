package request

import (
	"context"
	"errors"
	"fmt"
	"reflect"
)

// withCause adds why a wait has ended, unless err says so already.
func withCause(ctx context.Context, err, cause error) error {
	switch {
	case cause == nil:
		return err
	case ctx.Err() == context.DeadlineExceeded && errors.Is(err, context.Canceled):
		return &lateError{err, cause}
	case errors.Is(err, cause):
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// A lateError is the end of an operation that was canceled because a deadline had passed. It matches what a passed deadline
// does, and not what a cancel does.
type lateError struct{ err, cause error }

func (e *lateError) Error() string { return e.err.Error() + ": " + e.cause.Error() }
func (e *lateError) Unwrap() error { return e.cause }

// Is matches errors that mean a passed deadline, of other packages too.
func (e *lateError) Is(target error) bool { return errors.Is(target, context.DeadlineExceeded) }

// As finds the types in err, except one that only says that it was canceled: target stays as it is then.
func (e *lateError) As(target any) bool {
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
