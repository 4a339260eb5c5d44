package quicksilver

import "github.com/quicksilver-rpc/quicksilver/hg"

// A Code says why a call failed. It is an error, for errors.Is.
type Code = hg.Code

// Codes that handlers give, with Errorf. 64 to 127 mean the same everywhere, 128 to 255 what the program says.
const (
	NotFound      = hg.NotFound
	AlreadyExists = hg.AlreadyExists
	BadInput      = hg.BadInput
	Denied        = hg.Denied
	NotReady      = hg.NotReady
	Exhausted     = hg.Exhausted
	Unavailable   = hg.Unavailable
	Aborted       = hg.Aborted
	Internal      = hg.Internal
)

// Codes of what happened to this process or on the way. ErrRemote matches everything that a target answered, ErrRefused what
// it answered without having run the handler.
const (
	ErrCanceled    = hg.ErrCanceled
	ErrTimeout     = hg.ErrTimeout
	ErrPeerLost    = hg.ErrPeerLost
	ErrUnreachable = hg.ErrUnreachable
	ErrNoEntry     = hg.ErrNoEntry
	ErrClosed      = hg.ErrClosed
	ErrInvalid     = hg.ErrInvalid
	ErrOverflow    = hg.ErrOverflow
	ErrUnsupported = hg.ErrUnsupported
	ErrPermission  = hg.ErrPermission
	ErrHandler     = hg.ErrHandler
	ErrPanic       = hg.ErrPanic
	ErrRemote      = hg.ErrRemote
	ErrRefused     = hg.ErrRefused
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

// Refuse marks the error of a handler that has done nothing: the caller gets NotRun, and may repeat the call safely.
func Refuse(err error) error { return hg.Refuse(err) }

// CodeOf returns the code of err: 0 for nil, ErrRemote for what a target said.
func CodeOf(err error) Code { return hg.CodeOf(err) }

// FateOf returns what became of the request of a call that ended with err: Ran for nil.
func FateOf(err error) hg.Fate { return hg.FateOf(err) }

// RemoteOf returns what the target said, if err is or wraps that; hg.WithDetail adds a value to it.
func RemoteOf(err error) (*hg.RemoteError, bool) { return hg.RemoteOf(err) }
