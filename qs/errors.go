package qs

import (
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Code says why a call failed. It is an error, for errors.Is.
type Code = hg.Code

// Codes for handlers to give, by Errorf. 64 to 127 mean the same in every program; 128 to 255 are
// the program's own (DefineCode).
//
// Some resemble codes that the library gives:
//
//   - ErrNotFound: a key that a handler does not know. ErrNoMethod: a method that the server does
//     not have.
//   - ErrDenied: a handler or an authorizer has refused. ErrPermission: an authorizer has refused
//     without a code, or the peer has rejected this side's certificate. (A peer whose own
//     certificate is bad is ErrUnreachable.)
//   - ErrExhausted: a limit at the server is reached, MaxConcurrent of a method among them.
//     hg.ErrNoCredit: this process has used its envelopes there, and does not wait for one
//     (hg.WithNoWait). hg.ErrAgain: a limit of this process is reached.
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
	ErrDraining      = hg.ErrDraining // the server shuts down: see Draining
)

// Codes for what happened here or on the way, those that programs handle. Package hg has the
// others, which a call may end with, too: hg.ErrAgain, hg.ErrOverflow, hg.ErrUnsupported and
// hg.ErrNoCredit.
//
//   - hg.ErrRemote matches everything that a server has answered; ErrRefused what it has answered
//     without having run the handler.
//   - ErrNoMethod, ErrDraining, ErrTimeout, ErrPermission, hg.ErrOverflow, hg.ErrUnsupported and
//     ErrInvalid may also be the answer of the library at the server when it refuses a call.
//     errors.Is matches them and CodeOf returns them as if it had happened here; hg.RemoteOf says
//     that it was there.
//   - What a handler's error says matches hg.ErrRemote only, unless its code is 64 to 255.
const (
	ErrCanceled    = hg.ErrCanceled
	ErrTimeout     = hg.ErrTimeout
	ErrPeerLost    = hg.ErrPeerLost
	ErrUnreachable = hg.ErrUnreachable
	// The server has no handler for a method of this name: of a C server, what Mercury calls
	// HG_NOENTRY.
	ErrNoMethod   = hg.ErrNoMethod
	ErrNoEntry    = hg.ErrNoEntry // no such host
	ErrClosed     = hg.ErrClosed
	ErrInvalid    = hg.ErrInvalid
	ErrPermission = hg.ErrPermission
	ErrRefused    = hg.ErrRefused
)

// DefineCode names a code of the program's own, 128 to 255, and returns it. Call it for a package
// variable that both programs import. Errors, logs, the debug page and metrics of those processes
// then show the name, and so do the tools that ask a node with Config.Inspect.
//
// A name has 1 to 64 bytes of printable ASCII. DefineCode panics for another code or name, and if
// the code has another name already.
//
//	var ErrQuota = qs.DefineCode(200, "quota used up")
func DefineCode(code Code, name string) Code { return hg.DefineCode(code, name) }

type (
	// A Fate says what became of a request at its target.
	Fate = hg.Fate
	// A Caller is the sender of a request. Trust only what its Identity reports as verified: a
	// caller chooses the rest.
	Caller = hg.Caller
)

// The fates of a request.
const (
	NotRun   = hg.NotRun
	MaybeRan = hg.MaybeRan
	Ran      = hg.Ran
)

// Errorf is fmt.Errorf, %w included, for an error that also matches code. A handler that returns it
// answers with the code and the text; what %w wraps stays at the server.
func Errorf(code Code, format string, args ...any) error { return hg.Errorf(code, format, args...) }

// Refuse marks the error of a handler that has done nothing. The caller gets NotRun, and may safely
// repeat the call.
//
// Retry repeats it, at another address if there is one, if err has no code, or one that may be
// temporary: ErrNotReady, ErrDraining, ErrExhausted, ErrUnavailable, ErrAborted or ErrInternal. It
// does not for the others, where a repetition does not help: ErrNotFound, ErrAlreadyExists,
// ErrBadInput, ErrDenied, and the program's own codes, 128 to 255. So use ErrDenied, or a code of
// your own, for a spent quota, and ErrExhausted for one that refills soon.
func Refuse(err error) error { return hg.Refuse(err) }

// WithDetail attaches a value to the error of a handler, for the caller to read with DetailOf. The
// codec of the method encodes it. A detail of more than 1,024 bytes, or one that does not encode,
// is left out, which is logged. WithDetail(nil, detail) is nil.
func WithDetail(err error, detail any) error { return hg.WithDetail(err, detail) }

// DetailOf returns the value that the handler has attached by WithDetail; ok is false if there is
// none, or if it does not decode into T.
func DetailOf[T any](err error) (detail T, ok bool) {
	r, ok := hg.RemoteOf(err)
	if !ok || r.Detail(&detail) != nil {
		return *new(T), false
	}
	return detail, true
}

// CodeOf returns the code of err, for a switch:
//
//   - 0 for nil,
//   - the code that the handler gave, 64 to 255,
//   - the code with which the library at the server refused the call, such as ErrNoMethod,
//   - hg.ErrRemote for everything else that a server has answered,
//   - ErrTimeout and ErrCanceled for the errors of package context,
//   - the code of what happened here, such as ErrUnreachable; na.ErrIO for an error without a code.
func CodeOf(err error) Code { return hg.CodeOf(err) }

// FateOf returns what happened to the request of a call that ended with err; it is Ran for nil. If
// err joins several errors, or a call made several attempts, it is Ran if one ran, MaybeRan if one
// may have run, and NotRun only if none did.
func FateOf(err error) Fate { return hg.FateOf(err) }
