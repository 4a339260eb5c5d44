package frame

import "github.com/quicksilver-rpc/quicksilver/internal/heldby"

// A Readiness is what a PROBED says of the context that answers.
type Readiness uint8

// The values of Readiness. They cross the wire.
const (
	Ready        Readiness = 0
	NotReady     Readiness = 1 // the program says so
	ShuttingDown Readiness = 2
)

const activeShift = 32

// HeldHeader returns the header of a HELD: active requests are counted against limit; 0 is none.
func HeldHeader(reason heldby.Reason, active, limit uint32) Header {
	return Header{Kind: Held, Op: uint64(reason), Tag: uint64(active)<<activeShift | uint64(limit)}
}

// Held returns what a HELD says; a reason that this release does not know is heldby.Program. ok is false if it says that requests do not wait,
// and what for.
func (h *Header) Held() (reason heldby.Reason, active, limit uint32, ok bool) {
	if h.Op == uint64(heldby.None) && h.Tag != 0 {
		return heldby.None, 0, 0, false
	}
	return heldby.Reason(min(h.Op, uint64(heldby.Program))), uint32(h.Tag >> activeShift), uint32(h.Tag), true
}
