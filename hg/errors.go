package hg

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// The codes that users of this package meet; the whole list is in package na.
const (
	ErrCanceled    = na.ErrCanceled
	ErrTimeout     = na.ErrTimeout
	ErrPeerLost    = na.ErrPeerLost
	ErrUnreachable = na.ErrUnreachable
	ErrNoEntry     = na.ErrNoEntry
	ErrBusy        = na.ErrBusy
	ErrClosed      = na.ErrClosed
	ErrExists      = na.ErrExists
	ErrInvalid     = na.ErrInvalid
	ErrOverflow    = na.ErrOverflow
	ErrNoCredit    = na.ErrNoCredit
	ErrAgain       = na.ErrAgain
	ErrProtocol    = na.ErrProtocol
	ErrNoResponse  = na.ErrNoResponse
	ErrPanic       = na.ErrPanic
	ErrHandler     = na.ErrHandler
	ErrUnsupported = na.ErrUnsupported
	ErrPermission  = na.ErrPermission
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

// Timeout tells whether the cause is a timeout.
func (e *Error) Timeout() bool { return errors.Is(e.Err, os.ErrDeadlineExceeded) }

// A RemoteError is what the target answered instead of output: nothing failed on this side.
type RemoteError struct {
	Code na.Code
	Text string // the target's words; may be empty
}

// Error returns the code's text and the target's words.
func (e *RemoteError) Error() string {
	if e.Text == "" {
		return "target: " + e.Code.Error()
	}
	return "target: " + e.Text
}

// Unwrap returns the code.
func (e *RemoteError) Unwrap() error { return e.Code }

// FateOf returns the fate inside err, and MaybeRan for an error that tells none.
func FateOf(err error) na.Fate {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Fate
	}
	if e, ok := errors.AsType[*na.OpError](err); ok {
		return e.Fate
	}
	return na.MaybeRan
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
