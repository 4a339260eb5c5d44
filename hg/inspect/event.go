package inspect

import (
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
	Peer     na.Addr       // the other side
	Code     na.Code       // OK, a local code, or what the target has answered
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
	Moved int64         // bytes, of a transfer
	Size  int64         // of them all
}
