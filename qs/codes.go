package qs

import (
	"context"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Code says why a call failed. It is an error, for errors.Is.
type Code = hg.Code

// Codes that handlers give, with Errorf. 64 to 127 mean the same everywhere, 128 to 255 what the program says. Some resemble those
// that begin with Err, which this library gives: ErrNotFound is a key that a handler does not know, ErrNoEntry a method that the server does not
// have, or a host that nobody knows; Denied is a handler's or an authorizer's no, ErrPermission that of an authorizer without a code, or of a peer's TLS to
// the certificate of this side (a peer whose own does not fit is ErrUnreachable); ErrExhausted is a limit at the target (MaxConcurrent of a method among them), ErrNoCredit the envelopes of this process
// there, of a call that does not wait for one, ErrAgain a limit of this process.
const (
	ErrNotFound      = hg.ErrNotFound
	ErrAlreadyExists = hg.ErrAlreadyExists
	ErrBadInput      = hg.ErrBadInput
	ErrDenied        = hg.ErrDenied
	ErrNotReady      = hg.ErrNotReady
	ErrExhausted     = hg.ErrExhausted
	ErrUnavailable   = hg.ErrUnavailable
	ErrAborted       = hg.ErrAborted
	ErrInternal      = hg.ErrInternal
)

// Codes of what happened to this process or on the way. ErrRemote matches everything that a target answered, ErrRefused what
// it answered without having run the handler. Of the others ErrNoEntry, ErrTimeout, ErrPermission, ErrOverflow, ErrUnsupported and
// ErrInvalid may also be what the library at the target has refused the call with: errors.Is matches them and CodeOf returns them, as if
// it had happened here, and RemoteOf tells that it was there. A server that shuts down refuses with ErrNotReady. What a handler's error says
// matches ErrRemote only, unless its code is 64 to 255.
const (
	ErrCanceled    = hg.ErrCanceled
	ErrTimeout     = hg.ErrTimeout
	ErrPeerLost    = hg.ErrPeerLost
	ErrUnreachable = hg.ErrUnreachable
	ErrNoEntry     = hg.ErrNoEntry
	ErrNoCredit    = hg.ErrNoCredit
	ErrAgain       = hg.ErrAgain
	ErrClosed      = hg.ErrClosed
	ErrInvalid     = hg.ErrInvalid
	ErrOverflow    = hg.ErrOverflow
	ErrUnsupported = hg.ErrUnsupported
	ErrPermission  = hg.ErrPermission
	ErrAddrInUse   = na.ErrAddrInUse // of Open: somebody else listens there; it matches syscall.EADDRINUSE, too
	ErrHandler     = hg.ErrHandler
	ErrPanic       = hg.ErrPanic
	ErrRemote      = hg.ErrRemote
	ErrRefused     = hg.ErrRefused
)

type (
	// A Fate says what became of a request at its target.
	Fate = hg.Fate
	// A RemoteError is what a target answered instead of output.
	RemoteError = hg.RemoteError
	// A Caller is the sender of a request. Trust only what its Identity reports as verified: a caller chooses the rest.
	Caller = hg.Caller
	// An Identity is what is known of the process at the other end of a session.
	Identity = na.Identity
	// Local is what Config.Local says.
	Local = na.Local
)

// What Config.Local may be.
const (
	LocalAuto   = na.LocalAuto
	LocalNever  = na.LocalNever
	LocalAlways = na.LocalAlways
)

// The fates of a request, and the results of Future.Withdraw.
const (
	NotRun   = hg.NotRun
	MaybeRan = hg.MaybeRan
	Ran      = hg.Ran

	Withdrawn     = hg.Withdrawn
	TooLate       = hg.TooLate
	Indeterminate = hg.Indeterminate
	NotSupported  = hg.NotSupported
)

// Errorf is fmt.Errorf for an error that also matches code. A handler that returns it answers with code and text.
func Errorf(code Code, format string, args ...any) error { return hg.Errorf(code, format, args...) }

// Refuse marks the error of a handler that has done nothing: the caller gets NotRun, and may repeat the call safely. Retry does so,
// at another address if there is one, when err has no code or ErrNotReady, ErrExhausted, ErrUnavailable, ErrAborted or Internal. The others say
// that no repetition helps: ErrNotFound, ErrAlreadyExists, ErrBadInput, ErrDenied, and the program's own, 128 to 255. So a quota that is used up
// is Denied or a code of yours, one that is full for a moment ErrExhausted.
func Refuse(err error) error { return hg.Refuse(err) }

// WithDetail attaches a value to the error of a handler, for the caller to read with DetailOf; see hg.WithDetail.
func WithDetail(err error, detail any) error { return hg.WithDetail(err, detail) }

// DetailOf returns what a handler has attached to its error; false if there is nothing, or nothing that T takes.
func DetailOf[T any](err error) (detail T, ok bool) {
	r, ok := RemoteOf(err)
	if !ok || r.Detail(&detail) != nil {
		return *new(T), false
	}
	return detail, true
}

// WithNoWait returns a context whose calls end with ErrNoCredit, and NotRun, where the target has no envelope free for them, instead of
// waiting for one.
func WithNoWait(ctx context.Context) context.Context { return hg.WithNoWait(ctx) }

// CodeOf returns the code of err: 0 for nil, the code that a handler gave (64 to 255), that with which the library at the target refused
// the call (ErrNoEntry: it has no such method), ErrRemote for what a target said otherwise.
func CodeOf(err error) Code { return hg.CodeOf(err) }

// FateOf returns what became of the request of a call that ended with err: Ran for nil. Of several, joined errors or the attempts of
// one call, it is Ran if one ran, else MaybeRan if one may have, and NotRun only if none did.
func FateOf(err error) Fate { return hg.FateOf(err) }

// RemoteOf returns what the target said, if err is or wraps that.
func RemoteOf(err error) (*RemoteError, bool) { return hg.RemoteOf(err) }
