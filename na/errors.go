package na

import (
	"errors"
	"os"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A Code states why an operation failed. It implements error, and errors.Is can test for it. Codes
// are part of the wire protocol and are never renumbered. Codes up to 24 have the values of the
// corresponding return codes of C Mercury.
type Code = codes.Code

// Error codes.
const (
	OK             = codes.OK
	ErrPermission  = codes.ErrPermission  // the access mode or the owner does not allow it
	ErrNoMethod    = codes.ErrNoMethod    // the target serves no method of this name
	ErrAgain       = codes.ErrAgain       // a bounded resource is currently full
	ErrNoMemory    = codes.ErrNoMemory    // a budget is exhausted
	ErrFault       = codes.ErrFault       // memory could not be read or written
	ErrBusy        = codes.ErrBusy        // the object is in use by an operation that has not completed
	ErrExists      = codes.ErrExists      // the name is already taken
	ErrInvalid     = codes.ErrInvalid     // an argument is invalid
	ErrProtocol    = codes.ErrProtocol    // the peer violated the protocol
	ErrOverflow    = codes.ErrOverflow    // more bytes than the receiver allows
	ErrMsgSize     = codes.ErrMsgSize     // longer than a single message may be
	ErrVersion     = codes.ErrVersion     // the two sides have no protocol version in common
	ErrUnsupported = codes.ErrUnsupported // not supported by this plugin or system
	ErrAddrInUse   = codes.ErrAddrInUse   // another process is listening on the address
	ErrAddrInvalid = codes.ErrAddrInvalid // the address does not belong to this machine
	ErrUnreachable = codes.ErrUnreachable // no connection could be established; the operation certainly did not run
	ErrTimeout     = codes.ErrTimeout     // the time limit has expired
	ErrCanceled    = codes.ErrCanceled    // canceled by this process
	ErrIO          = codes.ErrIO          // the system reported an I/O error
	ErrChecksum    = codes.ErrChecksum    // data was corrupted in transit

	ErrPeerLost   = codes.ErrPeerLost   // the connection was closed, or the peer was silent for PeerTimeout
	ErrClosed     = codes.ErrClosed     // the class, context or handle has been closed
	ErrNoResponse = codes.ErrNoResponse // the handler released its handle without responding
	ErrPanic      = codes.ErrPanic      // the handler panicked
	ErrHandler    = codes.ErrHandler    // the handler returned an error
	ErrNoCredit   = codes.ErrNoCredit   // the peer currently guarantees no more envelopes
	ErrRevoked    = codes.ErrRevoked    // the memory is no longer registered
	ErrDuplicate  = codes.ErrDuplicate  // another connection between the same two contexts is used instead
	ErrTooLate    = codes.ErrTooLate    // the message has already been accepted or handled
	ErrNoEntry    = codes.ErrNoEntry    // no such host, context, connection, id, or file
	ErrNotReady   = codes.ErrNotReady   // the peer's program is not ready; see Context.Probe
	// the peer is shutting down: it completes running requests and accepts no new ones
	ErrDraining = codes.ErrDraining

	// The following codes are used only by origins and are never sent.

	ErrAnswered = codes.ErrAnswered // the request has already been answered or has completed
	ErrRemote   = codes.ErrRemote   // the error was returned by the target
	ErrRefused  = codes.ErrRefused  // the error was returned by the target, which did not run the request
)

// CodeOf returns the code in err's tree, or OK if err is nil. If there is no code in the
// tree, CodeOf returns ErrTimeout if err matches context.DeadlineExceeded, ErrCanceled if err
// matches context.Canceled, and ErrIO otherwise.
func CodeOf(err error) Code { return codes.Of(err) }

// A Fate describes what happened to a request at its target, as far as this side can tell. Fates
// are part of the wire protocol and are never renumbered.
type Fate = codes.Fate

// Possible fates of a request.
const (
	MaybeRan = codes.MaybeRan // it was sent and no response arrived; it ran once or not at all
	NotRun   = codes.NotRun   // it certainly did not run: it was never sent, was refused, or was dropped before its handler began
	Ran      = codes.Ran      // its handler began
)

// An OpError describes a failed operation. It records the kind of operation, the peer and the
// cause.
type OpError struct {
	Op   string // "get", "send unexpected", ...
	Addr Addr   // the peer, or the zero Addr
	Fate Fate
	Err  error // a Code, or an error that wraps one
}

// Error returns a string such as "na: get tcp://10.0.0.7:9000: operation canceled".
func (e *OpError) Error() string {
	if e.Addr.IsZero() {
		return "na: " + e.Op + ": " + e.Err.Error()
	}
	return "na: " + e.Op + " " + e.Addr.Label() + ": " + e.Err.Error()
}

// Unwrap returns the cause of the error.
func (e *OpError) Unwrap() error { return e.Err }

// Timeout reports whether the cause is a timeout.
func (e *OpError) Timeout() bool { return errors.Is(e.Err, os.ErrDeadlineExceeded) }

// WithText returns an error with the given text that matches code.
func WithText(code Code, text string) error { return codes.WithText(code, text) }
