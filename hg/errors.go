package hg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// An Error ends a call: which operation of which RPC with whom, how long it took, what became of the request, and why.
type Error struct {
	Op   string // "forward", "respond" or "lookup"
	RPC  string
	Peer na.Addr
	Took time.Duration // since it began; 0 when it was refused and did not begin
	Fate na.Fate       // of the request; a lookup has none, and says NotRun
	Err  error         // a code, a *RemoteError, or an error that wraps one
}

// Error returns for example
// "hg: forward math/sum to tcp://10.0.0.7:9000: operation canceled after 2.03s (may have run)".
func (e *Error) Error() string {
	s := "hg: " + e.Op
	if e.RPC != "" {
		s += " " + e.RPC
	}
	if !e.Peer.IsZero() {
		s += " to " + e.Peer.String()
	}
	s += ": " + e.Err.Error()
	if e.Took > 0 {
		s += " after " + e.Took.Round(round(e.Took)).String()
	}
	if e.Op == "forward" || e.Took > 0 && e.Op != "lookup" {
		s += " (" + e.Fate.String() + ")"
	}
	return s
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

// endedBy returns the error of a call that may have ended because ctx did. A passed deadline is a time-out and not a cancel.
func endedBy(ctx context.Context, err error) error {
	code := na.CodeOf(err)
	late := ctx.Err() == context.DeadlineExceeded
	if ctx.Err() == nil || code != ErrCanceled && !(late && code == ErrTimeout) {
		return err
	}
	if e, ok := errors.AsType[*Error](err); ok && late && code == ErrCanceled {
		timedOut := *e
		timedOut.Err = errTooLong
		err = &timedOut
	}
	cause := context.Cause(ctx)
	if errors.Is(err, cause) {
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// bare takes the wrapping of package na off an error, which hg.Error says again and better.
func bare(err error) error {
	if e, ok := err.(*na.OpError); ok {
		return e.Err
	}
	return err
}

// since is the time that something took which has begun, at least 1 ns.
func (c *Context) since(begun time.Duration) time.Duration { return max(c.Now()-begun, 1) }

func misuse(op, rpc string, peer na.Addr, code na.Code, format string, args ...any) error {
	return &Error{Op: op, RPC: rpc, Peer: peer, Fate: na.NotRun, Err: na.WithText(code, fmt.Sprintf(format, args...))}
}
