package hg

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An Error is the error of a failed operation. It records the operation, the RPC, the peer, the
// elapsed time, the fate of the request, and the cause.
type Error struct {
	Op   string // "forward", "respond", or "lookup"
	RPC  string
	Peer na.Addr
	Took time.Duration // time since the operation began; 0 if it was refused and did not begin
	Fate na.Fate       // fate of the request; NotRun for a lookup, which has none
	Err  error         // a code, a *RemoteError, or an error that wraps one

	// Attempt is the number of the attempt that has this fate, counting from 1, if a higher layer
	// retried the call. It is 0 if the call was not retried.
	Attempt int
}

// Error returns a text such as "hg: forward math/sum to tcp://10.0.0.7:9000: operation canceled
// (may have run, after 2.03s)".
func (e *Error) Error() string {
	after := errtext.After(e.Took)
	if e.Attempt > 0 && after != "" {
		after = "this one ended " + after
	}
	return e.text(after)
}

// text returns the text of e with after in place of Took. If e wraps an Error of the same call, the
// text has the head and the fate of that one, and those of e only where they differ.
func (e *Error) text(after string) string {
	head, fate := e.head(), e.fateText()
	cause := e.Err
	overtaken, ended := cause.(*overtakenError)
	if ended {
		cause = overtaken.remote
	}
	if in, ok := errors.AsType[*Error](cause); ok && in.Op == e.Op && in.RPC == e.RPC {
		if in.Fate == e.Fate && e.Attempt == 0 {
			fate = ""
		}
		if !ended {
			return e.Err.Error() + errtext.Suffix(fate, after)
		}
	}
	return head + ": " + errtext.Cause(unwrapNA(e.Err)) + errtext.Suffix(fate, after)
}

// head returns the part of e's text before the cause, such as "hg: forward math/sum to
// tcp://10.0.0.7:9000".
func (e *Error) head() string {
	s := "hg: " + e.Op
	if e.RPC != "" {
		s += " " + e.RPC
	}
	if e.Peer.IsZero() {
		return s
	}
	switch e.Op {
	case "forward", "respond":
		s += " to"
	case "input of", "output of", "run", "withdraw":
		s += " from"
	case "create", "reset", "close":
		s += " for"
	}
	return s + " " + e.Peer.Label()
}

// fateText returns the fate for the text of e, such as "may have run in attempt 2". It returns ""
// if the operation has no request or did not begin.
func (e *Error) fateText() string {
	switch {
	case e.Op == "lookup", e.Op == "probe", e.Op != "forward" && e.Took <= 0:
		return ""
	case e.Attempt > 0:
		return fmt.Sprintf("%v in attempt %d", e.Fate, e.Attempt)
	}
	return e.Fate.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the cause is a timeout.
func (e *Error) Timeout() bool { return errors.Is(e.Err, os.ErrDeadlineExceeded) }

// endedBy implements hghook.EndedBy. err is the error of an operation with context ctx. If ctx is
// done, endedBy returns err in a form that matches ctx.Err() and context.Cause(ctx). An error of
// the target is kept as text and for errors.As.
func endedBy(ctx context.Context, err error) error {
	if err == nil || ctx.Err() == nil {
		return err
	}
	cause := context.Cause(ctx)
	e, ok := err.(*Error)
	if !ok {
		e = &Error{Op: "forward", Fate: FateOf(err), Err: err}
	}
	code, why := ErrCanceled, error(ErrCanceled)
	if ctx.Err() == context.DeadlineExceeded {
		code, why = ErrTimeout, errDeadlineOver
	}
	o := &overtakenError{local: []error{why}}
	was, overtook := e.Err.(*overtakenError)
	switch {
	case overtook && was.code() == code && errors.Is(was, cause):
		return err
	case overtook:
		o.remote = was.remote
	case isBareCode(e.Err, code):
		if errors.Is(e.Err, cause) {
			return err
		}
		o.local[0] = e.Err
	case !isBareCode(e.Err, ErrCanceled) && !isBareCode(e.Err, ErrTimeout):
		o.remote = e.Err
	}
	ended := *e
	if !errors.Is(o.local[0], cause) {
		o.local = append(o.local, cause)
	}
	ended.Err = o
	return &ended
}

// isBareCode reports whether err carries no information other than code.
func isBareCode(err error, code Code) bool {
	switch e := err.(type) {
	case Code:
		return e == code
	case *RemoteError:
		return false
	case interface{ Unwrap() error }:
		return isBareCode(e.Unwrap(), code)
	case interface{ Unwrap() []error }:
		for _, in := range e.Unwrap() {
			if !isBareCode(in, code) {
				return false
			}
		}
		return true
	}
	return na.CodeOf(err) == code
}

// An overtakenError is the cause of an Error for a call that this side had already ended, or whose
// deadline had already passed, when another error arrived.
type overtakenError struct {
	local  []error // a code, followed by the cause of the context if that is another error
	remote error   // the error that arrived; nil if it was the same
}

func (e *overtakenError) Error() string {
	s := e.local[0].Error()
	if len(e.local) > 1 {
		s += ": " + e.local[1].Error()
	}
	if e.remote != nil {
		s += "; " + e.remote.Error()
	}
	return s
}

// code returns the code that corresponds to the context's error.
func (e *overtakenError) code() Code { return na.CodeOf(e.local[0]) }

func (e *overtakenError) Unwrap() []error { return e.local }

// As finds a *RemoteError in remote. errors.Is does not match remote, so the code of remote cannot
// be mistaken for the local one.
func (e *overtakenError) As(target any) bool {
	r, ok := target.(**RemoteError)
	return ok && errors.As(e.remote, r)
}

// unwrapNA removes package na's wrapper from an error, because hg.Error carries the same
// information.
func unwrapNA(err error) error {
	if e, ok := err.(*na.OpError); ok {
		return e.Err
	}
	return err
}

// elapsedSince returns the time since begun. It is at least 1 ns, because 0 means that the
// operation did not begin.
func (c *Context) elapsedSince(begun time.Duration) time.Duration { return max(c.Now()-begun, 1) }

func misuseError(op, rpc string, peer na.Addr, code na.Code, format string, args ...any) error {
	return &Error{Op: op, RPC: rpc, Peer: peer, Fate: na.NotRun, Err: na.WithText(code, fmt.Sprintf(format, args...))}
}
