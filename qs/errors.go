package qs

import (
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Code identifies the reason why a call failed. It is an error, for use with errors.Is.
type Code = hg.Code

// Codes that handlers return with Errorf. Codes 64 to 127 have the same meaning in every program.
// Codes 128 to 255 are defined by the program (see DefineCode).
//
// Some of them resemble codes that the library returns:
//
//   - ErrNotFound: the handler did not find a key. ErrNoMethod: the server has no such method.
//   - ErrDenied: a handler or an authorizer refused the request. ErrPermission: an authorizer
//     refused it without a code, or the certificate of an existing session is not valid for another
//     host name of the server. A TLS handshake that fails, at either side, is ErrUnreachable.
//   - ErrExhausted: a limit of the server has been reached, such as a method's MaxConcurrent.
//     hg.ErrNoCredit: the server has no free envelope (room for a request) for this process, and the
//     call does not wait for one (hg.WithNoWait). hg.ErrAgain: a limit of this process has been
//     reached.
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
	ErrDraining      = hg.ErrDraining // the server is shutting down; see Draining
)

// Codes of local and network errors. Calls may also fail with codes that only package hg defines:
// hg.ErrAgain, hg.ErrOverflow, hg.ErrUnsupported and hg.ErrNoCredit.
//
//   - hg.ErrRemote matches every error response of a server. ErrRefused matches those that were
//     sent without running the handler.
//   - The library at the server may also refuse or end a call with ErrNoMethod, ErrDraining,
//     ErrTimeout, ErrPermission, hg.ErrOverflow, hg.ErrUnsupported, ErrInvalid or na.ErrProtocol.
//     errors.Is and CodeOf treat such an error like a local one. Use hg.RemoteOf to distinguish them.
//   - A handler's error matches only hg.ErrRemote, unless its code is 64 to 255.
const (
	ErrCanceled    = hg.ErrCanceled
	ErrTimeout     = hg.ErrTimeout
	ErrPeerLost    = hg.ErrPeerLost
	ErrUnreachable = hg.ErrUnreachable
	// The server has no handler for a method of this name. A C server reports this as Mercury's
	// HG_NOENTRY.
	ErrNoMethod   = hg.ErrNoMethod
	ErrNoEntry    = hg.ErrNoEntry // no such host
	ErrClosed     = hg.ErrClosed
	ErrInvalid    = hg.ErrInvalid
	ErrPermission = hg.ErrPermission
	ErrRefused    = hg.ErrRefused
)

// DefineCode assigns a name to a program-defined code in the range 128 to 255, and returns the
// code. Use it to initialize a package variable that both programs import. Errors, logs, the debug
// page and metrics of those processes then show the name, as do tools that query a node with
// Config.Inspect.
//
// A name has 1 to 64 bytes of printable ASCII. DefineCode panics if the code or the name is
// invalid, or if the code already has another name.
//
//	var ErrQuota = qs.DefineCode(200, "quota used up")
func DefineCode(code Code, name string) Code { return hg.DefineCode(code, name) }

type (
	// A Fate reports whether a request ran at its target.
	Fate = hg.Fate
	// A Caller is the sender of a request. Trust only what its Identity reports as verified. The
	// caller chooses everything else.
	Caller = hg.Caller
)

// The fates of a request.
const (
	NotRun   = hg.NotRun
	MaybeRan = hg.MaybeRan
	Ran      = hg.Ran
)

// Errorf formats an error like fmt.Errorf, including support for %w. The error also matches code.
// If a handler returns it, the caller receives the code and the text, but not the wrapped errors.
func Errorf(code Code, format string, args ...any) error { return hg.Errorf(code, format, args...) }

// Refuse marks err as the error of a handler that had no effect. The caller's error has the fate
// NotRun, so the caller may safely repeat the call.
//
// Retry repeats the call, at another address if there is one, unless err has a code that indicates
// a permanent failure. Codes that may be temporary are ErrNotReady, ErrDraining, ErrExhausted,
// ErrUnavailable, ErrAborted and ErrInternal. All others prevent a retry: ErrNotFound,
// ErrAlreadyExists, ErrBadInput, ErrDenied, and the program-defined codes 128 to 255. For a used-up
// quota, for example, return ErrDenied or a program-defined code, and ErrExhausted only if the
// quota is soon replenished.
func Refuse(err error) error { return hg.Refuse(err) }

// WithDetail attaches a value, encoded by the method's codec, to the error of a handler. The caller
// reads it with DetailOf. A detail that exceeds 1,024 bytes or fails to encode is omitted and
// logged. WithDetail(nil, detail) returns nil.
func WithDetail(err error, detail any) error { return hg.WithDetail(err, detail) }

// DetailOf returns the value that the handler attached to err with WithDetail. ok is false if there
// is no value or if it cannot be decoded into a T.
func DetailOf[T any](err error) (detail T, ok bool) {
	r, ok := hg.RemoteOf(err)
	if !ok || r.Detail(&detail) != nil {
		return *new(T), false
	}
	return detail, true
}

// CodeOf returns the code of err, for use in a switch:
//
//   - 0 for nil,
//   - the code of the handler's error, 64 to 255,
//   - the code with which the library at the server refused the call, such as ErrNoMethod,
//   - hg.ErrRemote for every other error response of a server,
//   - ErrTimeout and ErrCanceled for the errors of package context,
//   - the code of a local error, such as ErrUnreachable; na.ErrIO for an error without a code.
func CodeOf(err error) Code { return hg.CodeOf(err) }

// FateOf returns the fate of the request of a call that returned err. FateOf(nil) is Ran. If err
// joins several errors, or if the call made several attempts, FateOf returns Ran if one ran,
// MaybeRan if one may have run, and NotRun otherwise.
//
// The errors of Node.Peer and Node.PeerWith have the fate NotRun. For an error that neither a call
// nor Peer returned, such as one that the program made itself, FateOf returns MaybeRan.
func FateOf(err error) Fate { return hg.FateOf(err) }
