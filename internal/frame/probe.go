package frame

import "github.com/quicksilver-rpc/quicksilver/internal/heldby"

// A Readiness is the state of a context, as sent in a PROBED frame.
type Readiness uint8

// The values of Readiness are part of the wire format.
const (
	Ready        Readiness = 0
	NotReady     Readiness = 1 // set by the program
	ShuttingDown Readiness = 2
)

const activeShift = 32

// HeldHeader returns the header of a HELD frame. active is the number of requests that count toward
// limit; a limit of 0 means none.
func HeldHeader(reason heldby.Reason, active, limit uint32) Header {
	return Header{Kind: Held, Op: uint64(reason), Tag: uint64(active)<<activeShift | uint64(limit)}
}

// Held decodes a HELD frame. It maps unknown reasons to heldby.Program. ok is false if the frame is
// inconsistent, that is, if its reason is heldby.None but a count is not zero.
func (h *Header) Held() (reason heldby.Reason, active, limit uint32, ok bool) {
	if h.Op == uint64(heldby.None) && h.Tag != 0 {
		return heldby.None, 0, 0, false
	}
	return heldby.Reason(min(h.Op, uint64(heldby.Program))), uint32(h.Tag >> activeShift), uint32(h.Tag), true
}
