package na

import (
	"errors"
	"os"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Code is the reason why an operation failed. It is an error, to be tested with errors.Is. Codes
// are on the wire: they are appended, never renumbered. Those up to 24 are C Mercury's return codes
// of the same number.
type Code = codes.Code

// The codes.
const (
	OK             = codes.OK
	ErrPermission  = codes.ErrPermission  // the access mode or the owner does not allow it
	ErrNoMethod    = codes.ErrNoMethod    // the target serves no method of this name
	ErrAgain       = codes.ErrAgain       // a bounded resource is full now
	ErrNoMemory    = codes.ErrNoMemory    // a budget is exhausted
	ErrFault       = codes.ErrFault       // memory could not be read or written
	ErrBusy        = codes.ErrBusy        // the object is in use by an operation that has not ended
	ErrExists      = codes.ErrExists      // the name is taken
	ErrInvalid     = codes.ErrInvalid     // an argument is not valid
	ErrProtocol    = codes.ErrProtocol    // the peer broke the protocol
	ErrOverflow    = codes.ErrOverflow    // more bytes than the receiver allows
	ErrMsgSize     = codes.ErrMsgSize     // longer than one message may be
	ErrVersion     = codes.ErrVersion     // the two sides have no protocol version in common
	ErrUnsupported = codes.ErrUnsupported // this plugin or system cannot do it
	ErrAddrInUse   = codes.ErrAddrInUse   // another process listens on the address
	ErrAddrInvalid = codes.ErrAddrInvalid // this machine does not have the address
	ErrUnreachable = codes.ErrUnreachable // no connection could be made; the operation certainly did not run
	ErrTimeout     = codes.ErrTimeout     // the time given has passed
	ErrCanceled    = codes.ErrCanceled    // canceled by this process
	ErrIO          = codes.ErrIO          // the system reported an input or output error
	ErrChecksum    = codes.ErrChecksum    // bytes were damaged on the way

	ErrPeerLost   = codes.ErrPeerLost   // the connection ended, or the peer was silent for PeerTimeout
	ErrClosed     = codes.ErrClosed     // the class, context or handle has been closed
	ErrNoResponse = codes.ErrNoResponse // the handler released its handle without a response
	ErrPanic      = codes.ErrPanic      // the handler panicked
	ErrHandler    = codes.ErrHandler    // the handler returned an error
	ErrNoCredit   = codes.ErrNoCredit   // the peer guarantees no more envelopes now
	ErrRevoked    = codes.ErrRevoked    // the memory is no longer registered
	ErrDuplicate  = codes.ErrDuplicate  // another connection of the same pair is used instead
	ErrTooLate    = codes.ErrTooLate    // the message was accepted, or handled before
	ErrNoEntry    = codes.ErrNoEntry    // no such host, context, connection, id, or file
	ErrNotReady   = codes.ErrNotReady   // the peer's program is not ready: see Context.Probe
	// the peer shuts down: it completes running requests and accepts no new ones
	ErrDraining = codes.ErrDraining

	// The next three are used by origins only, and are never on the wire.

	ErrAnswered = codes.ErrAnswered // the request has been answered, or has ended
	ErrRemote   = codes.ErrRemote   // the error comes from the target
	ErrRefused  = codes.ErrRefused  // the error comes from the target, which did not run the request
)

// CodeOf returns the code inside err. It is OK for nil and, for an error that carries none,
// ErrTimeout for context.DeadlineExceeded, ErrCanceled for context.Canceled and otherwise ErrIO.
func CodeOf(err error) Code { return codes.Of(err) }

// A Fate is what happened to a request at its target, as far as this side can know. It is on the
// wire: values are appended, never renumbered.
type Fate = codes.Fate

// The fates.
const (
	MaybeRan = codes.MaybeRan // it was sent and no answer arrived: it ran once or not at all
	NotRun   = codes.NotRun   // it certainly did not run: never sent, refused, or dropped before its handler
	Ran      = codes.Ran      // its handler started
)

// An OpError is the error of an operation: its kind, its peer and the cause.
type OpError struct {
	Op   string // "get", "send unexpected", ...
	Addr Addr   // the peer, or the zero Addr
	Fate Fate
	Err  error // a Code, or an error that wraps one
}

// Error returns a text like "na: get tcp://10.0.0.7:9000: operation canceled".
func (e *OpError) Error() string {
	if e.Addr.IsZero() {
		return "na: " + e.Op + ": " + e.Err.Error()
	}
	return "na: " + e.Op + " " + e.Addr.Label() + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Timeout reports whether the cause is a timeout.
func (e *OpError) Timeout() bool { return errors.Is(e.Err, os.ErrDeadlineExceeded) }

// WithText returns an error with a text that matches code.
func WithText(code Code, text string) error { return codes.WithText(code, text) }
