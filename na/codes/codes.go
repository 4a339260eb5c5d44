package codes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// A Code is the reason why an operation failed. Codes are part of the wire protocol, so new ones
// are appended and existing ones never renumbered. Codes up to 24 have the meaning of C Mercury's
// return codes with the same number.
type Code uint8

// Codes of this library. A Code is an error and can be tested for with errors.Is.
const (
	OK            Code = 0
	ErrPermission Code = 1 // the access mode or the owner does not allow the operation
	// the target serves no method of this name; HG_NOENTRY, which a C target returns only for this
	// reason
	ErrNoMethod    Code = 2
	ErrAgain       Code = 4  // a bounded resource is currently full
	ErrNoMemory    Code = 5  // a budget is exhausted
	ErrFault       Code = 7  // memory could not be read or written
	ErrBusy        Code = 8  // the object is in use by an operation in progress
	ErrExists      Code = 9  // the name is already taken
	ErrInvalid     Code = 11 // an argument is invalid
	ErrProtocol    Code = 12 // the peer violated the protocol
	ErrOverflow    Code = 13 // more bytes than the receiver permits
	ErrMsgSize     Code = 14 // longer than the maximum message size
	ErrVersion     Code = 15 // the two sides have no protocol version in common
	ErrUnsupported Code = 16 // not supported by this plugin or system
	ErrAddrInUse   Code = 17 // the address is in use by another listener
	ErrAddrInvalid Code = 18 // the address does not belong to this machine
	ErrUnreachable Code = 19 // no connection could be established; the operation certainly did not run
	ErrTimeout     Code = 20 // the time limit has expired
	ErrCanceled    Code = 21 // canceled by this process
	ErrIO          Code = 22 // the system reported an input or output error
	ErrChecksum    Code = 24 // bytes were damaged in transit

	ErrPeerLost   Code = 32 // the connection was lost, or the peer was silent for PeerTimeout
	ErrClosed     Code = 33 // the class, context, or handle has been closed
	ErrNoResponse Code = 34 // the handler returned without a response
	ErrPanic      Code = 35 // the handler panicked
	ErrHandler    Code = 36 // the handler returned an error
	ErrNoCredit   Code = 37 // the peer currently guarantees no more envelopes
	ErrRevoked    Code = 38 // the memory is no longer registered
	ErrDuplicate  Code = 39 // another connection between the same two peers is used instead
	ErrTooLate    Code = 40 // the message has been accepted for dispatch or has already been handled

	// The next three are used only by origins and are never sent.

	ErrAnswered Code = 41 // the request has been answered or is no longer in progress
	ErrRemote   Code = 42 // the target answered with an error
	ErrRefused  Code = 43 // the target answered with an error and did not run the request

	ErrNoEntry Code = 44 // no such host, context, connection, ID, or file
)

// Codes for handlers to return. Codes 128 through 255 are defined by the program.
const (
	ErrNotFound Code = 64 + iota
	ErrAlreadyExists
	ErrBadInput
	ErrDenied
	ErrNotReady
	ErrExhausted
	ErrUnavailable
	ErrAborted
	ErrInternal
	ErrDraining // the target is shutting down; it completes running requests and accepts no new ones
)

var codeText = map[Code]string{
	OK:               "success",
	ErrPermission:    "permission denied",
	ErrNoMethod:      "no such method",
	ErrAgain:         "resource temporarily unavailable",
	ErrNoMemory:      "memory budget exhausted",
	ErrFault:         "memory fault",
	ErrBusy:          "busy: operation in progress",
	ErrExists:        "exists already",
	ErrInvalid:       "invalid argument",
	ErrProtocol:      "protocol error",
	ErrOverflow:      "larger than the receiver's limit",
	ErrMsgSize:       "message too long",
	ErrVersion:       "no common protocol version",
	ErrUnsupported:   "not supported",
	ErrAddrInUse:     "address in use",
	ErrAddrInvalid:   "address not available",
	ErrUnreachable:   "peer unreachable",
	ErrTimeout:       "deadline exceeded",
	ErrCanceled:      "operation canceled",
	ErrIO:            "input/output error",
	ErrChecksum:      "checksum mismatch",
	ErrPeerLost:      "peer lost",
	ErrClosed:        "closed",
	ErrNoResponse:    "the handler gave no response",
	ErrPanic:         "the handler panicked",
	ErrHandler:       "the handler failed",
	ErrNoCredit:      "no credit left at the peer",
	ErrRevoked:       "memory is no longer registered",
	ErrDuplicate:     "duplicate connection",
	ErrTooLate:       "the message has been dispatched already",
	ErrAnswered:      "the request has been answered",
	ErrRemote:        "the target returned an error",
	ErrRefused:       "the target refused the request",
	ErrNoEntry:       "no such entry",
	ErrNotFound:      "not found",
	ErrAlreadyExists: "already exists",
	ErrBadInput:      "bad input",
	ErrDenied:        "denied",
	ErrNotReady:      "not ready",
	ErrExhausted:     "exhausted",
	ErrUnavailable:   "unavailable",
	ErrAborted:       "aborted",
	ErrInternal:      "internal error",
	ErrDraining:      "draining",
}

// Error returns the text of c. If c has none, it returns a text that contains the number of c.
func (c Code) Error() string {
	switch s, ok := codeText[c]; {
	case ok:
		return s
	case c >= firstOwn:
		if name := names[c-firstOwn].Load(); name != nil {
			return *name
		}
		return "application error code " + strconv.Itoa(int(c))
	}
	return "unknown error code " + strconv.Itoa(int(c))
}

// firstOwn is the first code that programs may define.
const firstOwn Code = 128

// names holds the names of the program's codes, starting at firstOwn.
var names [256 - int(firstOwn)]atomic.Pointer[string]

// SetName sets the text that Error returns, in this process, for a code defined by the program, 128
// through 255. name must be 1 to 64 bytes of printable ASCII. SetName is safe for concurrent use.
// The error matches ErrInvalid if c or name is out of range, and ErrExists if the code already has
// another name.
func SetName(c Code, name string) error {
	if c < firstOwn {
		return WithText(ErrInvalid, fmt.Sprintf("code %d is reserved, want 128 to 255", uint8(c)))
	}
	if name == "" || len(name) > 64 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return WithText(ErrInvalid, fmt.Sprintf("name %.100q of code %d, want 1 to 64 printable characters", name, uint8(c)))
	}
	at := &names[c-firstOwn]
	if !at.CompareAndSwap(nil, &name) && *at.Load() != name {
		return WithText(ErrExists, fmt.Sprintf("code %d is already named %q, not %q", uint8(c), *at.Load(), name))
	}
	return nil
}

// Names returns the names set with SetName, by code. The caller owns the map.
func Names() map[uint8]string {
	all := map[uint8]string{}
	for i := range names {
		if name := names[i].Load(); name != nil {
			all[uint8(int(firstOwn)+i)] = *name
		}
	}
	return all
}

// Is reports whether target is an error of the standard library that has the same meaning as c. It
// is used by errors.Is.
func (c Code) Is(target error) bool {
	switch c {
	case ErrCanceled:
		return target == context.Canceled
	case ErrTimeout:
		return target == os.ErrDeadlineExceeded || target == context.DeadlineExceeded
	case ErrPermission:
		return target == fs.ErrPermission
	case ErrClosed:
		return target == net.ErrClosed || target == fs.ErrClosed
	case ErrAddrInUse:
		return target == syscall.EADDRINUSE
	case ErrUnsupported:
		return target == errors.ErrUnsupported
	}
	return false
}

// Timeout reports whether c is ErrTimeout. It is part of net.Error.
func (c Code) Timeout() bool { return c == ErrTimeout }

// Of returns the code of err, or OK if err is nil. If err has no code, Of returns ErrTimeout if err
// matches context.DeadlineExceeded, ErrCanceled if it matches context.Canceled, and ErrIO
// otherwise.
func Of(err error) Code {
	if err == nil {
		return OK
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return ErrTimeout
	case errors.Is(err, context.Canceled):
		return ErrCanceled
	}
	return ErrIO
}

// A Fate reports whether the target ran a request, as far as this side can know. Fates are part of
// the wire protocol, so new values are appended and existing ones never renumbered.
type Fate uint8

// Fates of a request.
const (
	MaybeRan Fate = iota // it was sent and no answer arrived: it ran once or not at all
	NotRun               // it certainly did not run: it was never sent, was refused, or was dropped before its handler started
	Ran                  // its handler started
)

// String returns "may have run", "did not run", or "ran".
func (f Fate) String() string {
	switch f {
	case NotRun:
		return "did not run"
	case Ran:
		return "ran"
	}
	return "may have run"
}

// A detailError is an error that matches a code but has a different text.
type detailError struct {
	code Code
	text string
}

func (e *detailError) Error() string { return e.text }
func (e *detailError) Unwrap() error { return e.code }

// WithText returns an error that has the given text and matches code.
func WithText(code Code, text string) error { return &detailError{code, text} }
