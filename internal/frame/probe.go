package frame

// A Readiness is what a PROBED says of the context that answers.
type Readiness uint8

// The values of Readiness. They cross the wire.
const (
	Ready        Readiness = 0
	NotReady     Readiness = 1 // the program says so
	ShuttingDown Readiness = 2
)

// A HeldReason is what a HELD says that requests of its receiver wait for.
type HeldReason uint8

// The values of HeldReason. They cross the wire.
const (
	NotHeld        HeldReason = 0 // they wait no more
	HeldNotDriven  HeldReason = 1
	HeldPerPeer    HeldReason = 2
	HeldTotal      HeldReason = 3
	HeldMethod     HeldReason = 4
	HeldWorkers    HeldReason = 5
	HeldAuthorizer HeldReason = 6
	HeldProgram    HeldReason = 7
	maxHeld                   = HeldProgram
	activeShift               = 32
)

// HeldHeader returns the header of a HELD: active requests are counted against limit; 0 is none.
func HeldHeader(reason HeldReason, active, limit uint32) Header {
	return Header{Kind: Held, Op: uint64(reason), Tag: uint64(active)<<activeShift | uint64(limit)}
}

// Held returns what a HELD says; ok is false for a reason that is not known.
func (h *Header) Held() (reason HeldReason, active, limit uint32, ok bool) {
	if h.Op > uint64(maxHeld) || h.Op == uint64(NotHeld) && h.Tag != 0 {
		return NotHeld, 0, 0, false
	}
	return HeldReason(h.Op), uint32(h.Tag >> activeShift), uint32(h.Tag), true
}
