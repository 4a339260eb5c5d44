package request

import (
	"context"
	"errors"
	"time"
)

// WaitAny waits like Wait until one of reqs is completed. It returns the index of that request, or
// the lowest index if several are completed, or -1 if timeout has passed. WaitAny panics if the
// requests belong to different classes. A nil request never completes, so a loop can set requests
// that it has processed to nil. If all of reqs are nil, WaitAny returns -1 immediately.
func WaitAny(timeout time.Duration, reqs ...*Request) int {
	c := classOf(reqs)
	if c == nil {
		return -1
	}
	if ok, _ := c.wait(context.Background(), timeout, true, reqs...); ok {
		for i, r := range reqs {
			if r != nil && r.Completed() {
				return i
			}
		}
	}
	return -1
}

// WaitAll waits like Wait until all of reqs are completed, and reports whether they are. The
// timeout applies to all of them together. Nil requests are ignored. WaitAll panics if the requests
// belong to different classes.
func WaitAll(timeout time.Duration, reqs ...*Request) bool {
	c := classOf(reqs)
	if c == nil {
		return true
	}
	ok, _ := c.wait(context.Background(), timeout, false, reqs...)
	return ok
}

// WaitAllContext waits for all of reqs as WaitContext does for one, and joins their errors. If ctx
// is done first, it cancels every request that is not completed, and continues until all requests
// with a cancel function are completed. The error, if any, then also matches context.Cause(ctx).
func WaitAllContext(ctx context.Context, reqs ...*Request) error {
	c := classOf(reqs)
	if c == nil {
		return nil
	}
	failed := c.waitContext(ctx, reqs...)
	var errs []error
	var cause error
	pending := false
	for _, r := range reqs {
		if r == nil {
			continue
		}
		done, canceled, err := r.result()
		if err != nil {
			errs = append(errs, err)
		}
		if canceled || !done {
			cause = context.Cause(ctx)
		}
		pending = pending || !done
	}
	if pending && failed != nil {
		errs = append(errs, failed)
	}
	switch {
	case len(errs) > 0:
		return withCause(ctx, errors.Join(errs...), cause)
	case pending:
		return cause
	default:
		return nil
	}
}

// classOf returns the class of the requests, or nil if all of them are nil. It panics if they
// belong to different classes.
func classOf(reqs []*Request) *Class {
	var c *Class
	for _, r := range reqs {
		switch {
		case r == nil:
		case c == nil:
			c = r.class
		case c != r.class:
			panic("request: requests of different classes in one wait")
		}
	}
	return c
}
