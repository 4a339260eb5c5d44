package heldby

import "fmt"

// A Reason is the reason why requests from a peer are waiting.
type Reason uint8

// The reasons are part of the wire format. New ones are appended; existing ones are never
// renumbered.
const (
	None       Reason = 0 // they are not waiting
	NotDriven  Reason = 1 // nothing runs the context's callbacks
	PerPeer    Reason = 2 // the limit hg.Config.MaxActivePerPeer is reached
	Total      Reason = 3 // the limit hg.Config.MaxActive is reached
	Method     Reason = 4 // the limit hg.RPC.MaxActive or qs.MaxConcurrent is reached
	Workers    Reason = 5 // all workers of hg.Config.Dispatch or qs.Config.MaxConcurrent are busy
	Authorizer Reason = 6 // hg.Config.Authorize has not decided
	Program    Reason = 7 // another part of the receiving program delays them
)

// A State describes what requests are waiting for. The zero value means that they are not waiting.
type State struct {
	Reason Reason
	Active int // number of requests that count toward the limit
	Limit  int // 0 if there is no limit or it is unknown
}

// A Holder reports why a message received by the layer above na has not been accepted. Any
// goroutine may call HeldBy, with a lock of na held, until the message is accepted or freed. HeldBy
// must not block, take a lock, or call na.
type Holder interface{ HeldBy() State }

// String describes s from the origin's point of view, for example "it handles 128 requests of this
// process, its limit (hg.Config.MaxActivePerPeer)". It returns "" for the zero value.
func (s State) String() string {
	switch s.Reason {
	case None:
		return ""
	case NotDriven:
		return "its event loop does not run, or its program is busy"
	case PerPeer:
		return fmt.Sprintf("it handles %d requests of this process, its limit (hg.Config.MaxActivePerPeer)", s.Limit)
	case Total:
		return fmt.Sprintf("it handles %d requests, its limit (hg.Config.MaxActive)", s.Limit)
	case Method:
		return fmt.Sprintf("it handles %d requests of one method, the limit of that method (qs.MaxConcurrent)", s.Limit)
	case Workers:
		return fmt.Sprintf("none of its workers is free, and %d requests are active", s.Active)
	case Authorizer:
		return "its authorizer has not decided"
	}
	return "its program has not accepted them"
}
