package inspect

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// An EventKind is the kind of an Event or a Call.
type EventKind uint8

// The kinds.
const (
	EventOrigin   EventKind = iota // a call, at its origin
	EventTarget                    // a request, at its target
	EventTransfer                  // a transfer of package bulk
)

// String returns "origin", "target" or "transfer".
func (k EventKind) String() string { return [...]string{"origin", "target", "transfer"}[k%3] }

// An Event is the end of a call, a request or a transfer. See hg.Config.Observe.
type Event struct {
	Kind     EventKind
	RPC      string        // "pull" or "push" for a transfer
	Of       string        // of a transfer: the RPC whose handler has started it; empty if not known
	Peer     na.Addr       // the other side
	Code     na.Code       // OK, a local code, or the code of the target's answer
	Text     string        // text of the error, if Code is not OK
	Trace    TraceID       // trace of the call; zero for none
	Remote   bool          // Code is that of the answer
	Fate     na.Fate       // fate of the request
	Queued   time.Duration // of a request: time from its arrival until its handler began
	Took     time.Duration // total duration
	Sent     int64         // bytes of input, output or memory that this side has sent
	Received int64         // bytes of input, output or memory that this side has received
}

// Observers returns a function for hg.Config.Observe that calls all of fs that are not nil, in
// order. It returns nil if all are nil.
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

// A Call is a call, a request or a transfer in flight. See hg.Context.Calls.
type Call struct {
	Kind  EventKind
	RPC   string        // "pull" or "push" for a transfer
	Peer  na.Addr       // the other side
	State string        // a state of docs/internals/STATES.md
	Age   time.Duration // time since the call or transfer began, or the request arrived
	// ID identifies a call or a transfer among those in flight of its kind and context, and a
	// request among those of its Peer. A request has the ID of its call at the origin.
	ID uint64
	// of a transfer: the ID of the request of Peer whose handler has started it; 0 if not known
	Of    uint64
	Trace TraceID // of a call or a request: its trace; zero for none
	// Moved is the number of bytes that a transfer has moved, or that were moved from and to the
	// memory that a call or a request lends.
	Moved int64
	Size  int64 // total of Moved at the end; 0 if not known, or nothing is lent
	Flow  *Flow // of a call or a request with items; else nil
}

// A Flow is the progress of the items of a call, as one side knows it.
type Flow struct {
	In    bool  // this side receives the items; otherwise it sends them
	Items int64 // items that were sent, or that the program has received
	Bytes int64 // encoded bytes of these items
	// Waiting is how many bytes wait: at the sender until the receiver takes more, at the receiver
	// until the program does.
	Waiting int64
	// Stuck is how long the program of the receiver has taken nothing: at the target since the
	// handler blocks in its send, at the origin since there is an item to take. Zero means that it
	// is not blocked.
	Stuck time.Duration
}

// A TraceID identifies a distributed trace, as the metadata "traceparent" of a call carries it (W3C
// Trace Context). The zero TraceID is none.
type TraceID [16]byte

// String returns 32 hexadecimal digits, or nothing for the zero TraceID.
func (t TraceID) String() string {
	if t == (TraceID{}) {
		return ""
	}
	return hex.EncodeToString(t[:])
}
