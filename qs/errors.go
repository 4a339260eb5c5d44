package qs

import (
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Code says why a call failed. It is an error, for errors.Is.
type Code = hg.Code

// Codes that handlers return with Errorf. Codes 64 to 127 have the same meaning in every program;
// codes 128 to 255 are defined by the program (DefineCode).
//
// Some resemble codes that the library returns:
//
//   - ErrNotFound: the handler did not find a key. ErrNoMethod: the server has no such method.
//   - ErrDenied: a handler or an authorizer refused the request. ErrPermission: an authorizer
//     refused it without a code, or the peer rejected the local certificate. (If the peer's
//     certificate is invalid, the error is ErrUnreachable.)
//   - ErrExhausted: a limit of the server is reached, such as MaxConcurrent of a method.
//     hg.ErrNoCredit: the server has no free envelope for this process, and the call does not wait
//     for one (hg.WithNoWait). hg.ErrAgain: a limit of this process is reached.
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

// Codes of local and network errors. Package hg has the others with which a call may end:
// hg.ErrAgain, hg.ErrOverflow, hg.ErrUnsupported and hg.ErrNoCredit.
//
//   - hg.ErrRemote matches every error response of a server. ErrRefused matches those that were
//     sent without running the handler.
//   - The library at the server may also refuse a call with ErrNoMethod, ErrDraining, ErrTimeout,
//     ErrPermission, hg.ErrOverflow, hg.ErrUnsupported or ErrInvalid. errors.Is and CodeOf treat
//     such an error like a local one; hg.RemoteOf distinguishes them.
//   - A handler's error matches only hg.ErrRemote, unless its code is 64 to 255.
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
	// A Fate reports whether a request ran at its target.
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

// Errorf formats an error as fmt.Errorf does, %w included. The error also matches code. If a
// handler returns it, the caller gets the code and the text, but not the wrapped errors.
func Errorf(code Code, format string, args ...any) error { return hg.Errorf(code, format, args...) }

// Refuse marks the error of a handler that had no effect. The caller gets NotRun and may safely
// repeat the call.
//
// Retry repeats it, at another address if there is one, if err has no code, or one that may be
// temporary: ErrNotReady, ErrDraining, ErrExhausted, ErrUnavailable, ErrAborted or ErrInternal. It
// does not repeat it for the other codes: ErrNotFound, ErrAlreadyExists, ErrBadInput, ErrDenied,
// and the codes of the program, 128 to 255. So use ErrDenied, or a code of the program, for an
// exhausted quota, and ErrExhausted for one that refills soon.
func Refuse(err error) error { return hg.Refuse(err) }

// WithDetail attaches a value to the error of a handler. The caller reads it with DetailOf. The
// codec of the method encodes it. A detail of more than 1,024 bytes, or one that fails to encode,
// is omitted and logged. WithDetail(nil, detail) returns nil.
func WithDetail(err error, detail any) error { return hg.WithDetail(err, detail) }

// DetailOf returns the value that the handler attached with WithDetail. ok is false if there is
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
//   - the code of the handler's error, 64 to 255,
//   - the code with which the library at the server refused the call, such as ErrNoMethod,
//   - hg.ErrRemote for every other error response of a server,
//   - ErrTimeout and ErrCanceled for the errors of package context,
//   - the code of a local error, such as ErrUnreachable; na.ErrIO for an error without a code.
func CodeOf(err error) Code { return hg.CodeOf(err) }

// FateOf returns the fate of the request of a call that ended with err; Ran for nil. If err joins
// several errors, or the call made several attempts, it is Ran if one ran, MaybeRan if one may have
// run, and NotRun otherwise.
func FateOf(err error) Fate { return hg.FateOf(err) }
