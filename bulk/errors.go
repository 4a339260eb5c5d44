package bulk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An Error ends a transfer: in which direction, with whom, how long it took, how far it came, and why.
type Error struct {
	Dir   Dir
	Peer  na.Addr
	Took  time.Duration // since it began; 0 when it was refused and did not begin
	Moved int64         // bytes in whole pieces; what else was written at the destination is undefined
	Size  int64
	Err   error
}

// Error returns for example
// "bulk: pull from tcp://10.0.0.7:9000: operation canceled after 2.03s (moved 3145728 of 16777216 bytes)".
func (e *Error) Error() string {
	prep := "from"
	if e.Dir == Push {
		prep = "to"
	}
	peer := e.Peer.Label()
	if e.Peer.IsZero() { // an adaptor of local memory
		peer = "local memory"
	}
	cause := e.Err
	if op, ok := cause.(*na.OpError); ok {
		cause = op.Err
	}
	after := ""
	if e.Took > 0 {
		after = " after " + e.Took.Round(round(e.Took)).String()
	}
	return fmt.Sprintf("bulk: %v %s %s: %v%s (moved %d of %d bytes)", e.Dir, prep, peer, cause, after, e.Moved, e.Size)
}

// round keeps about three digits.
func round(d time.Duration) time.Duration {
	r := time.Nanosecond
	for d/r >= 1000 {
		r *= 10
	}
	return r
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the cause is a timeout.
func (e *Error) Timeout() bool { return errors.Is(e.Err, os.ErrDeadlineExceeded) }

// endedBy returns why something was canceled, if ctx ended it. A passed deadline is a time-out and not a cancel.
func endedBy(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil || na.CodeOf(err) != hg.ErrCanceled:
		return err
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("%w: %w", hg.ErrTimeout, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", hg.ErrCanceled, context.Cause(ctx))
}
