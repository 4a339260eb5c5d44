package hg

import (
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Code is the reason of a failed call; see [na.Code]. Codes below 64 are the library's: a failure
// in this process, on the way, or at the target. Codes from 64 on are chosen by handlers.
type Code = na.Code

// The most common codes; package na/codes has the whole list.
const (
	ErrCanceled    = na.ErrCanceled
	ErrTimeout     = na.ErrTimeout
	ErrPeerLost    = na.ErrPeerLost
	ErrUnreachable = na.ErrUnreachable
	ErrNoMethod    = na.ErrNoMethod // the target does not serve a method of this name
	ErrNoEntry     = na.ErrNoEntry  // no such host, or an RPC id that is not registered here
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

// The codes that handlers return. 64 to 127 have the same meaning everywhere; 128 to 255 are
// defined by the program.
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
	// the target is shutting down: returned by the library there when it refuses a call; handlers
	// may return it too
	ErrDraining = codes.ErrDraining
)

// DefineCode names a code of the program's own, 128 to 255, and returns it, for a package variable
// that origin and target import. Errors, logs, the debug page and metrics of processes that have
// defined it print the name, and so do the tools of peers of a class with Config.Reflect. name is 1
// to 64 bytes of printable ASCII, and applies to all classes of the process. DefineCode panics if
// code or name is out of range, or the code has another name.
//
//	var ErrQuota = hg.DefineCode(200, "quota used up")
func DefineCode(code Code, name string) Code {
	if err := codes.SetName(code, name); err != nil {
		panic("hg: DefineCode: " + err.Error())
	}
	return code
}

// CodeNames returns the codes that DefineCode has named in this process, and their names. The map
// is the caller's.
func CodeNames() map[uint8]string { return codes.Names() }

// A Fate states whether the target ran a request; see [na.Fate].
type Fate = na.Fate

// The fates.
const (
	MaybeRan = na.MaybeRan
	NotRun   = na.NotRun
	Ran      = na.Ran
)

// A codedError is an error with a code.
type codedError struct {
	code Code
	err  error
}

func (e *codedError) Error() string   { return e.err.Error() }
func (e *codedError) Unwrap() []error { return []error{e.code, e.err} }

// Errorf returns an error formatted as by fmt.Errorf that also matches code. A handler that returns
// it answers with code and text.
func Errorf(code Code, format string, args ...any) error {
	return &codedError{code, fmt.Errorf(format, args...)}
}

// A refusal marks the error of a handler that had no effect.
type refusal struct{ err error }

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// Refuse marks err as the answer to a request on which the handler did not act: the origin gets
// NotRun, and may safely retry the call. Use it in handlers that first check something, a quota for
// example. Refuse(nil) returns nil.
func Refuse(err error) error {
	if err == nil {
		return nil
	}
	return &refusal{err}
}

// A detailedError is an error with a value for the origin.
type detailedError struct {
	err    error
	detail any
}

func (e *detailedError) Error() string { return e.err.Error() }
func (e *detailedError) Unwrap() error { return e.err }

// WithDetail attaches a value to err, which the origin reads with [RemoteError.Detail]. The value
// is encoded with the RPC's codec when a handler answers with err; if that fails or yields more
// than 1,024 bytes the detail is left out, and this is logged. WithDetail(nil, detail) returns nil.
func WithDetail(err error, detail any) error {
	if err == nil {
		return nil
	}
	return &detailedError{err, detail}
}

// A RemoteError is an error response of the target. Nothing failed in this process or on the way.
type RemoteError struct {
	Code Code
	// text of the target's error; may be empty. if the target does not serve the method, this side
	// prepends the name of the method
	Text string
	// the request did not run: refused by the library at the target, or by its handler with Refuse
	Refused bool

	byLibrary bool // Code was set by the library at the target, not by a handler
	detail    []byte
	codec     codec.Codec
	codecID   uint8
}

// Error returns the target's text, or that of the code.
func (e *RemoteError) Error() string {
	if e.Text == "" {
		return "target: " + e.Code.Error()
	}
	return "target: " + e.Text
}

// nameMethod adds the name of the method to the text of an ErrNoMethod refusal: the target knows
// only the hash of the name.
func (e *RemoteError) nameMethod(method string, peer na.Addr) {
	said := e.Text
	e.Text = fmt.Sprintf("method %s is not served by %s", method, peer.Label())
	if said != "" {
		e.Text += "; target: " + said
	}
}

// Is reports whether e matches target, which is one of
//
//   - ErrRemote;
//   - ErrRefused, if the request was refused;
//   - Code, if it is 64 to 255, or only a target can produce it: ErrHandler, ErrPanic and
//     na.ErrNoResponse;
//   - Code, and the errors of the standard library that it matches, if the library at the target
//     has refused this request or ended it: ErrNoMethod (the RPC is not registered), ErrTimeout
//     (the handler did not begin in time, or failed after the target's RPC.Timeout), ErrPermission
//     (denied by an authorizer), ErrOverflow, ErrUnsupported, ErrInvalid and na.ErrProtocol. An
//     error of a handler does not match these: its ErrNoMethod, for example, may be about a peer
//     of the target.
func (e *RemoteError) Is(target error) bool {
	switch target {
	case ErrRemote:
		return true
	case ErrRefused:
		return e.Refused
	}
	return e.isCodeKnown() && (target == e.Code || e.byLibrary && e.Code.Is(target))
}

// isCodeKnown reports whether Code means the same at this side as at the target.
func (e *RemoteError) isCodeKnown() bool {
	switch e.Code {
	case ErrHandler, ErrPanic, na.ErrNoResponse:
		return true
	case ErrNoMethod, ErrTimeout, ErrPermission, ErrOverflow, ErrUnsupported, ErrInvalid, na.ErrProtocol:
		return e.byLibrary
	}
	return e.Code >= codes.ErrNotFound
}

// Detail decodes into v the value that the handler has attached by WithDetail. The error matches
// ErrNoEntry if there is none, and na.ErrProtocol if the target has used another codec.
func (e *RemoteError) Detail(v any) error {
	if e.detail == nil {
		return fmt.Errorf("hg: error has no detail: %w", ErrNoEntry)
	}
	if err := checkCodec(e.codec, e.codecID); err != nil {
		return err
	}
	return e.codec.Decode(e.detail, v)
}

// As implements errors.As for a *Code: the code is ErrRemote, or Code if the library at the target
// has refused the request.
func (e *RemoteError) As(target any) bool {
	code, ok := target.(*Code)
	if ok {
		if *code = ErrRemote; e.byLibrary && e.isCodeKnown() {
			*code = e.Code
		}
	}
	return ok
}

// CodeOf returns the code of err: OK for nil; the code of a handler, 64 to 255; the code with which
// the library at the target refused the request, as [RemoteError.Is] lists them; ErrRemote for
// other errors of a target; and ErrIO for an error without a code.
func CodeOf(err error) Code {
	code := na.CodeOf(err)
	if code == ErrRemote {
		if r, ok := RemoteOf(err); ok && r.Code >= codes.ErrNotFound {
			return r.Code
		}
	}
	return code
}

// RemoteOf returns the error response of the target that err is or wraps, if there is one.
func RemoteOf(err error) (*RemoteError, bool) { return errors.AsType[*RemoteError](err) }

// FateOf returns the fate inside err: Ran for nil, MaybeRan for an error without one. If err joins
// several errors, with errors.Join for example, it is Ran if one of them is, else MaybeRan if one
// of them is, and NotRun only if all are.
func FateOf(err error) Fate {
	if err == nil {
		return Ran
	}
	if fate, ok := fateIn(err); ok {
		return fate
	}
	return MaybeRan
}

// fateIn returns the worst fate inside err, and whether there is one.
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

// An errorBody is the content of an error response.
type errorBody struct {
	code      Code
	fate      Fate
	text      string
	detail    any
	byLibrary bool // the code is set by the library: it refused the request, or RPC.Timeout ended it
}

// failureOf returns the error response to a handler's error. Its code is the outermost one in the
// chain of err; it is ErrHandler if there is none, or that is OK or one that only origins use.
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
	if _, ok := errors.AsType[*refusal](err); ok {
		f.fate = NotRun
	}
	if d, ok := errors.AsType[*detailedError](err); ok {
		f.detail = d.detail
	}
	return f
}
