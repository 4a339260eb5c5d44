package inspect

import (
	"encoding/hex"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// An EventKind is the kind of an Event or a Call.
type EventKind uint8

// Kinds of events and calls.
const (
	EventOrigin   EventKind = iota // a call, at its origin
	EventTarget                    // a request, at its target
	EventTransfer                  // a transfer of package bulk
)

// String returns "origin", "target", or "transfer".
func (k EventKind) String() string { return [...]string{"origin", "target", "transfer"}[k%3] }

// An Event describes the completion of a call, a request, or a transfer. See hg.Config.Observe.
type Event struct {
	Kind     EventKind
	RPC      string        // "pull" or "push" for a transfer
	Of       string        // for a transfer, the RPC whose handler started it; empty if unknown
	Peer     na.Addr       // address of the other side
	Code     na.Code       // OK, a local code, or the code of the target's response
	Text     string        // text of the error if Code is not OK
	Trace    TraceID       // trace of the call; zero if none
	Remote   bool          // reports whether Code is that of the target's response
	Fate     na.Fate       // fate of the request
	Queued   time.Duration // for a request, the time from its arrival until its handler began
	Took     time.Duration // total duration
	Sent     int64         // bytes of input, output, or memory sent by this side
	Received int64         // bytes of input, output, or memory received by this side
}

// Observers returns a function for hg.Config.Observe that calls all non-nil functions of fs in
// order. It returns nil if all of them are nil.
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

// A Call is a call, request, or transfer in flight. See hg.Context.Calls.
type Call struct {
	Kind  EventKind
	RPC   string        // "pull" or "push" for a transfer
	Peer  na.Addr       // address of the other side
	State string        // one of the states listed in docs/internals/STATES.md
	Age   time.Duration // time since the call or transfer began, or the request arrived
	// ID identifies a call or transfer among those in flight of the same kind and context, and a
	// request among those from its Peer. A request has the same ID as its call at the origin.
	ID uint64
	// Of is, for a transfer, the ID of the request from Peer whose handler started it; 0 if
	// unknown.
	Of    uint64
	Trace TraceID // trace of a call or request; zero if none
	// Moved is the number of bytes that a transfer has moved, or that have been moved to and from
	// the memory lent by a call or request.
	Moved int64
	Size  int64 // final value of Moved; 0 if it is unknown, or if nothing is lent
	Flow  *Flow // for a call or request with items; nil otherwise
}

// A Flow is the progress of a call's items, as seen by one side.
type Flow struct {
	In    bool  // reports whether this side receives the items rather than sending them
	Items int64 // number of items sent, or received by the program
	Bytes int64 // encoded bytes of these items
	// Waiting is the number of bytes waiting: at the sender, until the receiver accepts more; at
	// the receiver, until the program reads them.
	Waiting int64
	// Stuck is how long the receiving program has not read anything. At the target it is measured
	// from the time when the handler blocked in its send, and at the origin from the time when an
	// item became available. Zero means that the program is not blocked.
	Stuck time.Duration
}

// A TraceID identifies a distributed trace, as carried by a call in the "traceparent" metadata
// entry (W3C Trace Context). The zero TraceID means that there is no trace.
type TraceID [16]byte

// String returns 32 hexadecimal digits, or "" for the zero TraceID.
func (t TraceID) String() string {
	if t == (TraceID{}) {
		return ""
	}
	return hex.EncodeToString(t[:])
}
