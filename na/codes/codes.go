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

// A Code is the reason why an operation failed. Codes are on the wire: they are appended, never
// renumbered. Up to 24 they are C Mercury's return codes of the same number.
type Code uint8

// The codes. A Code is an error; ask with errors.Is.
const (
	OK            Code = 0
	ErrPermission Code = 1 // the access mode or the owner does not allow it
	// the target does not serve a method of this name: HG_NOENTRY, which a C target returns only
	// for that
	ErrNoMethod    Code = 2
	ErrAgain       Code = 4  // a bounded resource is full now
	ErrNoMemory    Code = 5  // a budget is exhausted
	ErrFault       Code = 7  // memory could not be read or written
	ErrBusy        Code = 8  // the object is in use by an operation that has not ended
	ErrExists      Code = 9  // the name is taken
	ErrInvalid     Code = 11 // an argument is not valid
	ErrProtocol    Code = 12 // the peer broke the protocol
	ErrOverflow    Code = 13 // more bytes than the receiver allows
	ErrMsgSize     Code = 14 // longer than one message may be
	ErrVersion     Code = 15 // the two sides have no protocol version in common
	ErrUnsupported Code = 16 // this plugin or system cannot do it
	ErrAddrInUse   Code = 17 // the address is in use by another listener
	ErrAddrInvalid Code = 18 // this machine does not have the address
	ErrUnreachable Code = 19 // no connection could be made; the operation certainly did not run
	ErrTimeout     Code = 20 // the time given has passed
	ErrCanceled    Code = 21 // canceled by this process
	ErrIO          Code = 22 // the system reported an input or output error
	ErrChecksum    Code = 24 // bytes were damaged on the way

	ErrPeerLost   Code = 32 // the connection ended, or the peer was silent for PeerTimeout
	ErrClosed     Code = 33 // the class, context or handle has been closed
	ErrNoResponse Code = 34 // the handler returned without a response
	ErrPanic      Code = 35 // the handler panicked
	ErrHandler    Code = 36 // the handler returned an error
	ErrNoCredit   Code = 37 // the peer guarantees no more envelopes now
	ErrRevoked    Code = 38 // the memory is no longer registered
	ErrDuplicate  Code = 39 // another connection of the same pair is used instead
	ErrTooLate    Code = 40 // the message has been taken for dispatch, or was dealt with before

	// The next three are used by origins only and never cross the wire.

	ErrAnswered Code = 41 // the request has been answered, or has ended
	ErrRemote   Code = 42 // the target answered with an error
	ErrRefused  Code = 43 // the target answered with an error, and did not run the request

	ErrNoEntry Code = 44 // no such host, context, connection, id, or file
)

// The codes that handlers return. Codes from 128 on are defined by the program.
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
	ErrDraining // the target is shutting down: it finishes running requests and accepts no new ones
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
	ErrTimeout:       "timed out",
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

// Error returns the text of the code; its number if it has none.
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

// names are the names of the program's codes, from firstOwn on.
var names [256 - int(firstOwn)]atomic.Pointer[string]

// SetName sets the text of Error for a code of the program's own, 128 to 255, in this process. name
// is 1 to 64 bytes of printable ASCII. It may be called from any goroutine. The error matches
// ErrInvalid if code or name is out of range, and ErrExists if the code has another name.
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

// Names returns the codes that have names, and the names. The map is the caller's.
func Names() map[uint8]string {
	all := map[uint8]string{}
	for i := range names {
		if name := names[i].Load(); name != nil {
			all[uint8(int(firstOwn)+i)] = *name
		}
	}
	return all
}

// Is makes codes match the errors of the standard library with the same meaning.
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

// Timeout reports whether c is ErrTimeout; it implements net.Error.
func (c Code) Timeout() bool { return c == ErrTimeout }

// Of returns the code inside err: OK for nil. For an error without a code it returns ErrTimeout if
// err matches context.DeadlineExceeded, ErrCanceled if it matches context.Canceled, and ErrIO
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

// A Fate states whether the target ran a request, as far as this side can know. It is on the wire:
// values are appended, never renumbered.
type Fate uint8

// The fates.
const (
	MaybeRan Fate = iota // it left this process and no answer arrived: it ran once or not at all
	NotRun               // it certainly did not run: never sent, refused, or dropped before its handler
	Ran                  // its handler started
)

// String returns "may have run", "did not run" or "ran".
func (f Fate) String() string {
	switch f {
	case NotRun:
		return "did not run"
	case Ran:
		return "ran"
	}
	return "may have run"
}

// detailError is a code with a text of its own.
type detailError struct {
	code Code
	text string
}

func (e *detailError) Error() string { return e.text }
func (e *detailError) Unwrap() error { return e.code }

// WithText returns an error with the given text that matches code.
func WithText(code Code, text string) error { return &detailError{code, text} }
