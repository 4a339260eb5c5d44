package mercury

import (
	"context"
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Code is the reason for a failure. It is an error, for use with errors.Is. Codes up to 24 have the numbers of C
// Mercury. The same codes are used by packages qs, hg and na.
type Code = codes.Code

// Codes of this package.
const (
	ErrPermission  = codes.ErrPermission
	ErrNoMethod    = codes.ErrNoMethod
	ErrAgain       = codes.ErrAgain
	ErrNoMemory    = codes.ErrNoMemory
	ErrInvalid     = codes.ErrInvalid
	ErrProtocol    = codes.ErrProtocol
	ErrOverflow    = codes.ErrOverflow
	ErrUnsupported = codes.ErrUnsupported
	ErrUnreachable = codes.ErrUnreachable
	ErrTimeout     = codes.ErrTimeout
	ErrCanceled    = codes.ErrCanceled
	ErrChecksum    = codes.ErrChecksum
	ErrExists      = codes.ErrExists
	ErrPeerLost    = codes.ErrPeerLost
	ErrClosed      = codes.ErrClosed
	ErrRevoked     = codes.ErrRevoked
	ErrAnswered    = codes.ErrAnswered
	ErrRemote      = codes.ErrRemote  // matches every error sent by a target
	ErrRefused     = codes.ErrRefused // matches errors that a target sent without running a handler
)

// A Fate reports whether a request has run at its target.
type Fate = codes.Fate

// The fates of a request.
const (
	MaybeRan = codes.MaybeRan
	NotRun   = codes.NotRun
	Ran      = codes.Ran
)

// An Error describes a failed operation with a peer.
type Error struct {
	Op   string // "open", "call", "notify", "read" or "write"
	Addr string // address of the peer
	ID   uint64 // ID of the RPC, if Op is "call" or "notify"
	Fate Fate   // fate of the request
	Err  error  // a Code, a *RemoteError, or an error that wraps one
}

// Error returns a description such as "mercury: call 0x2 at ofi+tcp://127.0.0.1:9000: peer lost (may have run)".
func (e *Error) Error() string {
	s := "mercury: " + e.Op
	if e.isCall() {
		s += fmt.Sprintf(" %#x", e.ID)
	}
	s += " at " + e.Addr + ": " + e.Err.Error()
	if e.isCall() {
		s += " (" + e.Fate.String() + ")"
	}
	return s
}

// isCall reports whether the operation is a call or a notification, and thus has an ID and a Fate.
func (e *Error) isCall() bool { return e.Op == "call" || e.Op == "notify" }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the cause is a timeout.
func (e *Error) Timeout() bool { return errors.Is(e.Err, ErrTimeout) }

// A RemoteError is an error sent by the target in its response.
type RemoteError struct {
	// Code is an hg_return_t or the code of a handler of this package. Numbers up to 21 have the same meaning in all
	// releases of Mercury. Numbers 22 to 26 have their meaning in Mercury 2.4.1. Earlier releases assign them
	// differently, and a response does not identify the release. Error lists the possible meanings.
	Code Code
}

// renumberedCodes holds the texts of the codes that were renumbered in Mercury 2.4.1, which also introduced 26. Targets
// that use this package respond with 26 if a handler fails.
var renumberedCodes = map[Code]string{
	22:         "HG_IO_ERROR, or HG_CHECKSUM_ERROR of Mercury 2.3",
	23:         "HG_HOSTFIREWALL, or HG_CHECKSUM_ERROR of Mercury 2.4.0, HG_NA_ERROR of 2.3",
	24:         "HG_CHECKSUM_ERROR, or HG_NA_ERROR of Mercury 2.4.0, HG_OTHER_ERROR of 2.3",
	25:         "HG_NA_ERROR, or HG_OTHER_ERROR of Mercury 2.4.0",
	otherError: "the handler failed",
}

// Error returns the text of the code, for example "target: deadline exceeded".
func (e *RemoteError) Error() string {
	if text := renumberedCodes[e.Code]; text != "" {
		return "target: " + text
	}
	return "target: " + e.Code.Error()
}

// isRefusal reports whether the library at the target responded without running a handler. Only the library responds
// with the codes for which isRefusal returns true.
func (e *RemoteError) isRefusal() bool {
	switch e.Code {
	case ErrNoMethod, ErrAgain, ErrInvalid, codes.ErrVersion, ErrProtocol, ErrChecksum:
		return true
	}
	return false
}

// Is reports whether target is ErrRemote, or ErrRefused if no handler ran. It also matches Code itself if that can come
// only from a target: ErrNoMethod, and 64 to 127.
func (e *RemoteError) Is(target error) bool {
	switch target {
	case ErrRemote:
		return true
	case ErrRefused:
		return e.isRefusal()
	}
	return target == e.Code && (e.Code >= codes.ErrNotFound || e.Code == ErrNoMethod)
}

// otherError is HG_OTHER_ERROR. It is sent for every error that has no number in C.
const otherError Code = 26

// codeInC returns the number to send for err, the error of a handler. It returns HG_OTHER_ERROR if err has no number in
// C, or if its number means that no handler ran. See the table in docs/MERCURY.md.
func codeInC(err error) int8 {
	code := CodeOf(err)
	if code == codes.ErrIO && !errors.Is(err, codes.ErrIO) { // CodeOf returns ErrIO for errors without a code
		code = otherError
	}
	if code == codes.OK || code > 24 && code < codes.ErrNotFound || code > 127 || (&RemoteError{code}).isRefusal() {
		return int8(otherError)
	}
	return int8(code)
}

// CodeOf returns the code of err. For a *RemoteError, it is the code in the response.
func CodeOf(err error) Code {
	if r, ok := errors.AsType[*RemoteError](err); ok {
		return r.Code
	}
	return codes.Of(err)
}

// FateOf returns the fate of the request of a call that returned err. It is Ran for nil, and MaybeRan for errors of
// other packages.
func FateOf(err error) Fate {
	if err == nil {
		return Ran
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Fate
	}
	return MaybeRan
}

// errorf returns an error with the given code and a formatted text.
func errorf(code Code, format string, args ...any) error {
	return codes.WithText(code, fmt.Sprintf(format, args...))
}

// contextError returns the error of an operation that failed because ctx is done. It matches the cause of ctx and
// exactly one of ErrTimeout and ErrCanceled.
func contextError(ctx context.Context, text string) error {
	code := ErrCanceled
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		code = ErrTimeout
	}
	if text != "" {
		text = ": " + text
	}
	if cause := context.Cause(ctx); !errors.Is(code, cause) {
		return fmt.Errorf("%w: %w%s", code, cause, text)
	}
	return errorf(code, "%v%s", code, text)
}
