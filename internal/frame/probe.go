package frame

import "github.com/quicksilver-rpc/quicksilver/internal/heldby"

// A Readiness is the state of a context in a PROBED.
type Readiness uint8

// The values of Readiness. They are on the wire.
const (
	Ready        Readiness = 0
	NotReady     Readiness = 1 // set by the program
	ShuttingDown Readiness = 2
)

const activeShift = 32

// HeldHeader returns the header of a HELD: active requests count against limit; 0 is none.
func HeldHeader(reason heldby.Reason, active, limit uint32) Header {
	return Header{Kind: Held, Op: uint64(reason), Tag: uint64(active)<<activeShift | uint64(limit)}
}

// Held returns the content of a HELD; an unknown reason is returned as heldby.Program. ok is false
// if the HELD states both that requests do not wait, and what they wait for.
func (h *Header) Held() (reason heldby.Reason, active, limit uint32, ok bool) {
	if h.Op == uint64(heldby.None) && h.Tag != 0 {
		return heldby.None, 0, 0, false
	}
	return heldby.Reason(min(h.Op, uint64(heldby.Program))), uint32(h.Tag >> activeShift), uint32(h.Tag), true
}
