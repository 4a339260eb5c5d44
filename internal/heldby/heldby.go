package heldby

import "fmt"

// A Reason is why requests of one peer wait.
type Reason uint8

// The reasons. They are on the wire: appended, never renumbered.
const (
	None       Reason = 0 // they do not wait
	NotDriven  Reason = 1 // nothing runs the callbacks of the context
	PerPeer    Reason = 2 // hg.Config.MaxActivePerPeer
	Total      Reason = 3 // hg.Config.MaxActive
	Method     Reason = 4 // hg.RPC.MaxActive, qs.MaxConcurrent
	Workers    Reason = 5 // the workers of hg.Config.Dispatch, qs.Config.MaxConcurrent
	Authorizer Reason = 6 // hg.Config.Authorize has not decided
	Program    Reason = 7 // another part of the program that has received them
)

// A State is what requests wait for. The zero value means that they do not wait.
type State struct {
	Reason Reason
	Active int // requests that count against the limit
	Limit  int // 0 where there is none, or it is not known
}

// A Holder is the reason why a message that the layer above na has received is not accepted. HeldBy
// is called with a lock of na held, from any goroutine, until the message is accepted or freed: it
// must not block, take a lock, or call na.
type Holder interface{ HeldBy() State }

// String describes s as seen by the origin, for example "it handles 128 requests of this process,
// its limit (MaxActivePerPeer)". It is empty for the zero value.
func (s State) String() string {
	switch s.Reason {
	case None:
		return ""
	case NotDriven:
		return "its event loop does not run, or its program is busy"
	case PerPeer:
		return fmt.Sprintf("it handles %d requests of this process, its limit (MaxActivePerPeer)", s.Limit)
	case Total:
		return fmt.Sprintf("it handles %d requests, its limit (MaxActive)", s.Limit)
	case Method:
		return fmt.Sprintf("it handles %d requests of one method, the limit of that method (MaxConcurrent)", s.Limit)
	case Workers:
		return fmt.Sprintf("none of its workers is free, and %d requests are active", s.Active)
	case Authorizer:
		return "its authorizer has not decided"
	}
	return "its program has not accepted them"
}
