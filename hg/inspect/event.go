package inspect

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// An EventKind says what an Event is the end of, and what a Call is.
type EventKind uint8

// The kinds.
const (
	EventOrigin   EventKind = iota // a call, at its origin
	EventTarget                    // a request, at its target
	EventTransfer                  // of package bulk
)

// String returns "origin", "target" or "transfer".
func (k EventKind) String() string { return [...]string{"origin", "target", "transfer"}[k%3] }

// An Event is the end of a call, a request or a transfer. See hg.Config.Observe.
type Event struct {
	Kind     EventKind
	RPC      string        // "pull" or "push" for a transfer
	Of       string        // of a transfer: the RPC in whose handler it was started; empty if that is not known
	Peer     na.Addr       // the other side
	Code     na.Code       // OK, a local code, or what the target has answered
	Text     string        // of the error, if Code is not OK: what the handler or the library has said
	Trace    TraceID       // of the call; zero for none
	Remote   bool          // Code came in the answer
	Fate     na.Fate       // of the request
	Queued   time.Duration // from the arrival of a request until its handler began
	Took     time.Duration // in all
	Sent     int64         // bytes of input, output or memory that this side has sent,
	Received int64         // and received
}

// Observers returns a function for hg.Config.Observe that calls all of fs, in order; those that are nil are left out. It returns nil if
// all are.
func Observers(fs ...func(e *Event)) func(e *Event) {
	fs = slices.DeleteFunc(slices.Clone(fs), func(f func(*Event)) bool { return f == nil })
	switch len(fs) {
	case 0:
		return nil
	case 1:
		return fs[0]
	}
	return func(e *Event) {
		for _, f := range fs {
			f(e)
		}
	}
}

// A Call is a call, a request or a transfer that is under way. See hg.Context.Calls.
type Call struct {
	Kind  EventKind
	RPC   string        // "pull" or "push" for a transfer
	Peer  na.Addr       // the other side
	State string        // in the words of docs/internals/STATES.md
	Age   time.Duration // since a call or a transfer began, or a request came
	// ID identifies a call, a request or a transfer among those of its kind and its context that are under way, a request among those
	// of its Peer. A request has the ID that its call has at the origin.
	ID    uint64
	Of    uint64  // of a transfer: the ID of the request of Peer in whose handler it was started; 0 if that is not known
	Trace TraceID // of a call or a request; zero for none
	// Moved counts the bytes that a transfer has moved, or that have been moved from and to what a call or a request lends.
	Moved int64
	Size  int64 // how many these will be; 0 if that is not known, or nothing is lent
	Flow  *Flow // of a call or a request whose results come one after the other; else nil
}

// A Flow is what one side knows of the items of a call.
type Flow struct {
	In    bool  // the items come to this side; else it sends them
	Items int64 // that were sent, or that the program has had
	Bytes int64 // of them, as encoded
	// Waiting is how many bytes wait: at the side that sends, because the other takes no more; at the one that receives, for the program.
	Waiting int64
	// Stuck is for how long the caller has taken nothing: at the target since the handler waits in send, at the origin since there has
	// been a message to take. Zero means that this is not so now.
	Stuck time.Duration
}

// A TraceID identifies a distributed trace, as the metadata "traceparent" of a call carries it (W3C Trace Context). The zero TraceID is
// none.
type TraceID [16]byte

// String returns 32 hexadecimal digits, or nothing for the zero TraceID.
func (t TraceID) String() string {
	if t == (TraceID{}) {
		return ""
	}
	return hex.EncodeToString(t[:])
}
