package hg

import (
	"errors"
	"fmt"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Code is the reason why a call failed; see [na.Code]. Codes below 64 are defined by the library
// and describe a failure in this process, in transit, or at the target. Codes from 64 are chosen by
// handlers.
type Code = na.Code

// The most common codes. Package na/codes has the complete list.
const (
	ErrCanceled    = na.ErrCanceled
	ErrTimeout     = na.ErrTimeout
	ErrPeerLost    = na.ErrPeerLost
	ErrUnreachable = na.ErrUnreachable
	ErrNoMethod    = na.ErrNoMethod // the target does not serve a method with this name
	ErrNoEntry     = na.ErrNoEntry  // no such host, or an RPC ID that is not registered locally
	ErrClosed      = na.ErrClosed
	ErrInvalid     = na.ErrInvalid
	ErrOverflow    = na.ErrOverflow
	ErrNoCredit    = na.ErrNoCredit
	ErrAgain       = na.ErrAgain
	ErrPanic       = na.ErrPanic
	ErrHandler     = na.ErrHandler
	ErrUnsupported = na.ErrUnsupported
	ErrPermission  = na.ErrPermission
	ErrRemote      = na.ErrRemote
	ErrRefused     = na.ErrRefused
)

// Codes that handlers return. Codes 64 to 127 have the same meaning everywhere. Codes 128 to 255
// are defined by the program.
const (
	ErrNotFound      = codes.ErrNotFound
	ErrAlreadyExists = codes.ErrAlreadyExists
	ErrBadInput      = codes.ErrBadInput
	ErrDenied        = codes.ErrDenied
	ErrNotReady      = codes.ErrNotReady
	ErrExhausted     = codes.ErrExhausted
	ErrUnavailable   = codes.ErrUnavailable
	ErrAborted       = codes.ErrAborted
	ErrInternal      = codes.ErrInternal
	// ErrDraining means that the target is shutting down. The library at the target returns it when
	// it refuses a call. Handlers may return it as well.
	ErrDraining = codes.ErrDraining
)

// DefineCode assigns a name to a program-defined code, 128 to 255, and returns the code. It is
// meant to initialize a package variable that both origin and target import. Errors, logs, the
// debug page, and metrics of processes that have defined the code print its name, as do tools that
// query a class with Config.Reflect. name is 1 to 64 bytes of printable ASCII, and applies to all
// classes of the process. DefineCode panics if code or name is out of range, or if code already has
// another name.
//
//	var ErrQuota = hg.DefineCode(200, "quota used up")
func DefineCode(code Code, name string) Code {
	if err := codes.SetName(code, name); err != nil {
		panic("hg: DefineCode: " + err.Error())
	}
	return code
}

// CodeNames returns the codes that this process has named with DefineCode, and their names. The
// caller owns the returned map.
func CodeNames() map[uint8]string { return codes.Names() }

// A Fate states whether the target ran a request; see [na.Fate].
type Fate = na.Fate

// Possible fates of a request.
const (
	MaybeRan = na.MaybeRan
	NotRun   = na.NotRun
	Ran      = na.Ran
)

// A codedError is an error to which Errorf has attached a code.
type codedError struct {
	code Code
	err  error
}

func (e *codedError) Error() string   { return e.err.Error() }
func (e *codedError) Unwrap() []error { return []error{e.code, e.err} }

// Errorf returns an error formatted as by fmt.Errorf that also matches code. A handler that returns
// it responds with code and the text.
func Errorf(code Code, format string, args ...any) error {
	return &codedError{code, fmt.Errorf(format, args...)}
}

// A refusal wraps the error of a handler that had no effect; see Refuse.
type refusal struct {
	err       error
	byLibrary bool // the error is one of package qs, which called no function of the program
}

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// Refuse marks err as the response to a request that the handler did not act on. The origin
// receives NotRun and may safely retry the call. It is meant for handlers that perform a check
// first, such as a quota check. Refuse(nil) returns nil.
func Refuse(err error) error {
	if err == nil {
		return nil
	}
	return &refusal{err: err}
}

// refuseByLibrary implements hghook.RefuseByLibrary.
func refuseByLibrary(err error) error { return &refusal{err, true} }

// A detailedError is an error to which WithDetail has attached a value for the origin.
type detailedError struct {
	err    error
	detail any
}

func (e *detailedError) Error() string { return e.err.Error() }
func (e *detailedError) Unwrap() error { return e.err }

// WithDetail attaches a value to err, which the origin can read with [RemoteError.Detail]. The
// value is encoded with the RPC's codec when a handler responds with err. If encoding fails or
// yields more than 1,024 bytes, the detail is omitted and the omission is logged. WithDetail(nil,
// detail) returns nil.
func WithDetail(err error, detail any) error {
	if err == nil {
		return nil
	}
	return &detailedError{err, detail}
}

// A RemoteError is an error response from the target. Nothing failed in this process or in transit.
type RemoteError struct {
	Code Code
	// Text is the text of the target's error. It may be empty. If the target does not serve the
	// method, this side prepends the method's name.
	Text string
	// Refused reports that the request did not run: either the library at the target refused it, or
	// its handler responded with Refuse.
	Refused bool

	byLibrary bool // reports whether Code was set by the library at the target rather than by a handler
	detail    []byte
	codec     codec.Codec
	codecID   uint8
}

// Error returns Text. If the target sent no text, it returns the text of Code.
func (e *RemoteError) Error() string {
	if e.Text == "" {
		return "target: " + e.Code.Error()
	}
	return "target: " + e.Text
}

// nameMethod prepends the method's name to the text of an ErrNoMethod refusal by peer. The target
// cannot do so, because it receives only the hash of the name. The ID in the target's text is
// dropped; see registry.noMethodError.
func (e *RemoteError) nameMethod(method string, peer na.Addr) {
	said := e.Text
	if strings.HasPrefix(said, noMethodText) {
		_, said, _ = strings.Cut(said, ", ")
	}
	e.Text = fmt.Sprintf("method %s is not served by %s", method, peer.Label())
	if said != "" {
		e.Text += "; target: " + said
	}
}

// Is reports whether e matches target. It matches
//
//   - ErrRemote;
//   - ErrRefused, if the request was refused;
//   - Code, if it is 64 to 255, or if only a target can produce it: ErrHandler, ErrPanic, and
//     na.ErrNoResponse;
//   - Code, and the standard library errors that it matches, if the library at the target refused
//     or ended this request: ErrNoMethod (the RPC is not registered), ErrTimeout (the handler did
//     not begin in time, or failed after the target's RPC.Timeout), ErrPermission (denied by an
//     authorizer), ErrOverflow (the input or the output exceeds a limit of the target),
//     ErrUnsupported, ErrInvalid, and na.ErrProtocol. An error returned by a handler does not match
//     these, since its ErrNoMethod, for example, may concern a peer of the target.
func (e *RemoteError) Is(target error) bool {
	switch target {
	case ErrRemote:
		return true
	case ErrRefused:
		return e.Refused
	}
	return e.isCodeKnown() && (target == e.Code || e.byLibrary && e.Code.Is(target))
}

// isCodeKnown reports whether Code has the same meaning on this side as at the target.
func (e *RemoteError) isCodeKnown() bool {
	switch e.Code {
	case ErrHandler, ErrPanic, na.ErrNoResponse:
		return true
	case ErrNoMethod, ErrTimeout, ErrPermission, ErrOverflow, ErrUnsupported, ErrInvalid, na.ErrProtocol:
		return e.byLibrary
	}
	return e.Code >= codes.ErrNotFound
}

// Detail decodes the value that the handler attached with WithDetail into v. The error matches
// ErrNoEntry if there is no detail, and na.ErrProtocol if the target used another codec.
func (e *RemoteError) Detail(v any) error {
	if e.detail == nil {
		return fmt.Errorf("hg: error has no detail: %w", ErrNoEntry)
	}
	if err := checkCodec(e.codec, e.codecID); err != nil {
		return err
	}
	return e.codec.Decode(e.detail, v)
}

// As implements errors.As for a *Code. The code is ErrRemote, or Code if the library at the target
// refused the request.
func (e *RemoteError) As(target any) bool {
	code, ok := target.(*Code)
	if ok {
		if *code = ErrRemote; e.byLibrary && e.isCodeKnown() {
			*code = e.Code
		}
	}
	return ok
}

// CodeOf returns the code of err:
//
//   - OK if err is nil;
//   - the code of a handler, from 64 to 255;
//   - the code with which the library at the target refused the request (see [RemoteError.Is]);
//   - ErrRemote for any other error of a target;
//   - a local code for a failure on this side;
//   - ErrIO if err has no code.
func CodeOf(err error) Code {
	code := na.CodeOf(err)
	if code == ErrRemote {
		if r, ok := RemoteOf(err); ok && r.Code >= codes.ErrNotFound {
			return r.Code
		}
	}
	return code
}

// RemoteOf returns the target's error response that err is or wraps, if any.
func RemoteOf(err error) (*RemoteError, bool) { return errors.AsType[*RemoteError](err) }

// FateOf returns the fate recorded in err: Ran for nil, and MaybeRan for an error without a fate,
// such as one that the program made itself. Errors of calls and lookups have a fate.
// If err joins several errors, for example with errors.Join, the result is Ran if any of them is,
// otherwise MaybeRan if any of them is, and NotRun only if all of them are.
func FateOf(err error) Fate {
	if err == nil {
		return Ran
	}
	if fate, ok := fateIn(err); ok {
		return fate
	}
	return MaybeRan
}

// fateIn returns the worst fate recorded in err and in the errors that it wraps, and reports
// whether there is one. Ran is worse than MaybeRan, which is worse than NotRun.
func fateIn(err error) (worst Fate, found bool) {
	switch e := err.(type) {
	case *Error:
		return e.Fate, true
	case *na.OpError:
		return e.Fate, true
	case interface{ Unwrap() error }:
		return fateIn(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, err := range e.Unwrap() {
			fate, ok := fateIn(err)
			if ok && (!found || worst == NotRun || fate == Ran) {
				worst, found = fate, true
			}
		}
	}
	return worst, found
}

// An errorBody holds the contents of an error response.
type errorBody struct {
	code      Code
	fate      Fate
	text      string
	detail    any
	byLibrary bool // reports whether the library set the code; see flagByLibrary
}

// failureOf returns the error response for a handler's error. Its code is the outermost one in
// err's chain. The code is ErrHandler if there is none, or if that code is OK or one that only
// origins use.
func failureOf(err error) errorBody {
	f := errorBody{code: ErrHandler, fate: Ran, text: err.Error()}
	if c, ok := errors.AsType[Code](err); ok {
		switch c {
		case na.OK:
			f.text = "error of code 0: " + f.text
		case na.ErrAnswered, ErrRemote, ErrRefused:
		default:
			f.code = c
		}
	}
	if r, ok := errors.AsType[*refusal](err); ok {
		f.fate, f.byLibrary = NotRun, r.byLibrary
	}
	if d, ok := errors.AsType[*detailedError](err); ok {
		f.detail = d.detail
	}
	// The handler returned the error of Respond as it is, so the error is the library's.
	if e, ok := err.(*Error); ok && e.Op == "respond" {
		if over, ok := e.Err.(*outputLimitError); ok {
			f.text, f.byLibrary = over.text("the target's"), true
		}
	}
	return f
}
