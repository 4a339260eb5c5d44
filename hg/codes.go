package hg

import (
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Code says why a call failed; see [na.Code]. A code whose name begins with Err says what happened to this process or on
// the way. The others are what handlers say.
type Code = na.Code

// The codes that users of this package meet; the whole list is in package na/codes.
const (
	ErrCanceled    = na.ErrCanceled
	ErrTimeout     = na.ErrTimeout
	ErrPeerLost    = na.ErrPeerLost
	ErrUnreachable = na.ErrUnreachable
	ErrNoMethod    = na.ErrNoMethod // the target serves no method of this name
	ErrNoEntry     = na.ErrNoEntry  // no such host, or an id that was not registered here
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

// The codes that handlers give. 64 to 127 mean the same everywhere; 128 to 255 mean what the program says.
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
	ErrDraining      = codes.ErrDraining // the target shuts down: the library there refuses calls with it, and handlers may end with it
)

// DefineCode gives a code of the program's own, 128 to 255, a name, and returns it: a package variable that both programs import. Errors, logs,
// the debug page and metrics of processes that have it say the name, and so do the tools of peers of a class with Config.Reflect. name is 1 to
// 64 bytes of printable ASCII; it is good for all classes of the process. DefineCode panics for another code or such a name, and when the code has
// another name.
//
//	var ErrQuota = hg.DefineCode(200, "quota used up")
func DefineCode(code Code, name string) Code {
	if err := codes.SetName(code, name); err != nil {
		panic("hg: DefineCode: " + err.Error())
	}
	return code
}

// CodeNames returns the numbers of the codes that DefineCode has named in this process, and their names. The map is the caller's.
func CodeNames() map[uint8]string { return codes.Names() }

// A Fate says what became of a request at its target; see [na.Fate].
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

// Errorf is fmt.Errorf for an error that also matches code. A handler that returns it answers with code and text.
func Errorf(code Code, format string, args ...any) error {
	return &codedError{code, fmt.Errorf(format, args...)}
}

// A refusal is an error of a handler that did nothing.
type refusal struct{ err error }

func (e *refusal) Error() string { return e.err.Error() }
func (e *refusal) Unwrap() error { return e.err }

// Refuse marks err as the answer to a request with which nothing was done: the origin gets NotRun, and may repeat the call
// safely. It is for handlers that check something first, a quota for example; its code says if a repetition can help.
// Refuse(nil) returns nil.
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

// WithDetail attaches a value to err, for the origin to read with [RemoteError.Detail]. It is encoded with the RPC's codec
// when a handler answers with err; one that fails to encode or takes more than 1,024 bytes is left out and logged.
// WithDetail(nil, detail) returns nil.
func WithDetail(err error, detail any) error {
	if err == nil {
		return nil
	}
	return &detailedError{err, detail}
}

// A RemoteError is what the target answered instead of output. Nothing failed in this process or on the way.
type RemoteError struct {
	Code    Code
	Text    string // the target's words; may be empty. If it does not serve the method they come after a sentence of this side that names it
	Refused bool   // the request did not run: the library at the target refused it, or its handler did with Refuse

	early   bool // Code is the library's
	detail  []byte
	codec   codec.Codec
	codecID uint8
}

// Error returns the code's text or the target's words.
func (e *RemoteError) Error() string {
	if e.Text == "" {
		return "target: " + e.Code.Error()
	}
	return "target: " + e.Text
}

// nameMethod has the text of a refusal with ErrNoMethod say which method it is about: the target knows only the hash of its name.
func (e *RemoteError) nameMethod(method string, peer na.Addr) {
	said := e.Text
	e.Text = fmt.Sprintf("method %s is not served by %s: is it registered there under this name?", method, peer.Label())
	if said != "" {
		e.Text += " It says: " + said
	}
}

// Is matches
//
//   - ErrRemote;
//   - ErrRefused, if the request was refused;
//   - Code, if it is 64 to 255, or only a target can produce it: ErrHandler, ErrPanic and na.ErrNoResponse;
//   - Code, and the errors of the standard library that it matches, if the library at the target has refused this request: ErrNoMethod (it
//     has no such RPC), ErrTimeout (the handler could not begin in time; or it did, and has failed since RPC.Timeout of the target was over), ErrPermission (by an authorizer), ErrOverflow,
//     ErrUnsupported, ErrInvalid and na.ErrProtocol. What a handler returns does not match these: its ErrNoMethod, for example, may be
//     about a peer of the target.
func (e *RemoteError) Is(target error) bool {
	switch target {
	case ErrRemote:
		return true
	case ErrRefused:
		return e.Refused
	}
	return e.isCodeKnown() && (target == e.Code || e.early && e.Code.Is(target))
}

// isCodeKnown reports whether Code says here what it says at the target.
func (e *RemoteError) isCodeKnown() bool {
	switch e.Code {
	case ErrHandler, ErrPanic, na.ErrNoResponse:
		return true
	case ErrNoMethod, ErrTimeout, ErrPermission, ErrOverflow, ErrUnsupported, ErrInvalid, na.ErrProtocol:
		return e.early
	}
	return e.Code >= codes.ErrNotFound
}

// Detail decodes into v what the handler has attached by WithDetail. The error matches ErrNoEntry when there is nothing, and
// na.ErrProtocol when the target has used another codec.
func (e *RemoteError) Detail(v any) error {
	if e.detail == nil {
		return fmt.Errorf("hg: the target's error has no detail: %w", ErrNoEntry)
	}
	if err := checkCodec(e.codec, e.codecID); err != nil {
		return err
	}
	return e.codec.Decode(e.detail, v)
}

// As makes ErrRemote the code of e, or Code if the library at the target has refused the request with that.
func (e *RemoteError) As(target any) bool {
	code, ok := target.(*Code)
	if ok {
		if *code = ErrRemote; e.early && e.isCodeKnown() {
			*code = e.Code
		}
	}
	return ok
}

// CodeOf returns the code of err: OK for nil; the code that a handler gave, 64 to 255; that with which the library at the target
// refused the request, as [RemoteError.Is] lists them; ErrRemote for what a target said otherwise; and ErrIO for an error that has none.
func CodeOf(err error) Code {
	code := na.CodeOf(err)
	if code == ErrRemote {
		if r, ok := RemoteOf(err); ok && r.Code >= codes.ErrNotFound {
			return r.Code
		}
	}
	return code
}

// RemoteOf returns what a target said, if err is or wraps that.
func RemoteOf(err error) (*RemoteError, bool) { return errors.AsType[*RemoteError](err) }

// FateOf returns the fate inside err: Ran for nil, MaybeRan for an error without one. If err joins several, with errors.Join for
// example, it is Ran if one of them ran, else MaybeRan if one may have, and NotRun only if none did.
func FateOf(err error) Fate {
	if err == nil {
		return Ran
	}
	if fate, ok := fateIn(err); ok {
		return fate
	}
	return MaybeRan
}

// fateIn returns the fate inside err, if there is one.
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

// A errorBody is what an error response says.
type errorBody struct {
	code   Code
	fate   Fate
	text   string
	detail any
	early  bool // the code is the library's: it has refused the request, or RPC.Timeout has ended it
}

// failureOf returns what a handler's error says to the origin: the outermost code in its chain, unless that is OK or a code
// which only origins use.
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
