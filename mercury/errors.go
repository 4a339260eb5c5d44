package mercury

import (
	"context"
	"errors"
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Code says why an operation failed. It is an error, for errors.Is. Up to 24 they are C Mercury's numbers. They are the codes
// of the packages quicksilver, hg and na.
type Code = codes.Code

// The codes of this package.
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
	ErrRemote      = codes.ErrRemote  // matches everything that a target answered
	ErrRefused     = codes.ErrRefused // matches what it answered without having run a handler
)

// A Fate says what became of a request at its target.
type Fate = codes.Fate

// The fates.
const (
	MaybeRan = codes.MaybeRan
	NotRun   = codes.NotRun
	Ran      = codes.Ran
)

// An Error ends an operation with a peer.
type Error struct {
	Op   string // "open", "call", "notify", "read" or "write"
	Addr string // of the peer
	ID   uint64 // of the RPC, if Op is "call" or "notify"
	Fate Fate   // of the request
	Err  error  // a Code, a *RemoteError, or an error that wraps one
}

// Error returns for example "mercury: call 0x2 at ofi+tcp://127.0.0.1:9000: peer lost (may have run)".
func (e *Error) Error() string {
	s := "mercury: " + e.Op
	if e.call() {
		s += fmt.Sprintf(" %#x", e.ID)
	}
	if s += " at " + e.Addr + ": " + e.Err.Error(); e.call() {
		s += " (" + e.Fate.String() + ")"
	}
	return s
}

func (e *Error) call() bool { return e.Op == "call" || e.Op == "notify" }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the cause is a timeout.
func (e *Error) Timeout() bool { return errors.Is(e.Err, ErrTimeout) }

// A RemoteError is what the target answered instead of output.
type RemoteError struct {
	// Code is hg_return_t, or what a handler of this package gave. Numbers up to 21 mean the same in all releases
	// of Mercury. Those of 22 to 26 are 2.4.1's: they were others before, and nothing that a target sends tells its
	// release. Error names what they may mean.
	Code Code
}

// shifted are the codes that were others before 2.4.1. 26 is new there, and what targets of this package answer if
// a handler fails.
var shifted = map[Code]string{
	22:         "HG_IO_ERROR, or HG_CHECKSUM_ERROR of Mercury 2.3",
	23:         "HG_HOSTFIREWALL, or HG_CHECKSUM_ERROR of Mercury 2.4.0, HG_NA_ERROR of 2.3",
	24:         "HG_CHECKSUM_ERROR, or HG_NA_ERROR of Mercury 2.4.0, HG_OTHER_ERROR of 2.3",
	25:         "HG_NA_ERROR, or HG_OTHER_ERROR of Mercury 2.4.0",
	otherError: "the handler failed",
}

// Error returns the text of the code, for example "target: timed out".
func (e *RemoteError) Error() string {
	if text := shifted[e.Code]; text != "" {
		return "target: " + text
	}
	return "target: " + e.Code.Error()
}

// refused reports whether the library at the target answered, without having run a handler: those are the codes that it uses.
func (e *RemoteError) refused() bool {
	switch e.Code {
	case ErrNoMethod, ErrAgain, ErrInvalid, codes.ErrVersion, ErrProtocol, ErrChecksum:
		return true
	}
	return false
}

// Is matches ErrRemote, ErrRefused if no handler ran, and Code if only a target can mean it: ErrNoMethod, and 64 to 127.
func (e *RemoteError) Is(target error) bool {
	switch target {
	case ErrRemote:
		return true
	case ErrRefused:
		return e.refused()
	}
	return target == e.Code && (e.Code >= codes.ErrNotFound || e.Code == ErrNoMethod)
}

// otherError is HG_OTHER_ERROR, which stands for all that C has no number for.
const otherError Code = 26

// codeInC returns the number by which the origin learns of a handler's error: HG_OTHER_ERROR if it has none, or one that says that no
// handler ran, which is not for handlers. docs/MERCURY.md has the table.
func codeInC(err error) int8 {
	code := CodeOf(err)
	if code == codes.ErrIO && !errors.Is(err, codes.ErrIO) { // what stands for errors without a code, here
		code = otherError
	}
	if code == codes.OK || code > 24 && code < codes.ErrNotFound || code > 127 || (&RemoteError{code}).refused() {
		return int8(otherError)
	}
	return int8(code)
}

// CodeOf returns the code inside err, which for a *RemoteError is what the target said.
func CodeOf(err error) Code {
	if r, ok := errors.AsType[*RemoteError](err); ok {
		return r.Code
	}
	return codes.Of(err)
}

// FateOf returns what became of the request whose call ended with err: Ran for nil, MaybeRan for errors of other packages.
func FateOf(err error) Fate {
	if err == nil {
		return Ran
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Fate
	}
	return MaybeRan
}

func errorf(code Code, format string, args ...any) error {
	return codes.WithText(code, fmt.Sprintf(format, args...))
}

// ended returns the error of what ended because ctx did: it matches the cause of ctx, and exactly one of ErrTimeout and ErrCanceled.
func ended(ctx context.Context, text string) error {
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
