package hg

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ForwardFunc is called with the outcome of one call. It runs in Trigger; it may forward h again, close it, or call anything else.
type ForwardFunc func(h *Handle, err error)

// The phases of a call.
const (
	callIdle     fsmcheck.State = iota
	callWaiting                 // for the answer, or, if there is none, for the request to leave
	callFetching                // the answer is there, and its body is being pulled
	callLending                 // one-way: the target has not given the input back
	callLeaving                 // what it comes to is certain; a loan or the timer, which are of no use, have not ended
	callEnding                  // this side has ended it, or a part failed; others have not ended
	callQueued                  // the callback waits for Trigger, or the goroutine for its turn
)

var callPhases = fsmcheck.New("call",
	[]string{"idle", "waiting", "fetching", "lending", "leaving", "ending", "queued"},
	[][]fsmcheck.State{
		callIdle:     {callWaiting},
		callWaiting:  {callFetching, callLending, callLeaving, callEnding, callQueued, callIdle},
		callFetching: {callLeaving, callEnding, callQueued},
		callLending:  {callEnding, callLeaving, callQueued},
		callLeaving:  {callEnding, callQueued},
		callEnding:   {callQueued},
		callQueued:   {callIdle},
	})

// A call is the origin's side of a handle. One operation sends the request and receives the answer, or has the deadline end it. Other
// parts are rare: the loan of an input that is larger than a message, the pull of such an output, and a timer for what goes on
// when the operation has ended. Handle.mu guards it. Whatever the order in which the parts end, the result is decided once, when the
// last has ended, from what each of them was.
type call struct {
	h       *Handle
	slot    uint32
	gen     uint64
	op      na.Op
	timerOp *na.Op // nil until there is one
	done    na.Task

	in       draft          // header, metadata and encoded input
	codec    uint8          // of the input
	msg      []byte         // that says where the input is
	buf      []byte         // receives the response
	previous responseMemory // of the call before, while this one begins
	streams  []*Stream      // of the last call

	callState
}

// responseMemory is the memory of a response.
type responseMemory struct {
	env     *na.Envelope // if it is longer than buf
	fetched []byte       // of an output that was pulled
}

// callState is what begins anew with each Forward.
type callState struct {
	phase          fsmcheck.State // written by to
	openParts      int            // that have not ended
	canceling      bool           // this side has ended it,
	cancelCode     na.Code        // and why
	abandonPending bool           // and the target is to be told, as far as it has not been
	begun          time.Duration
	deadline       na.Deadline
	timerRuns      bool // the timer runs, and is a part
	callback       ForwardFunc
	hasWaiter      bool // Handle.waiter does, instead of a callback
	endPostponed   bool // its end is in Trigger's queue

	responseMemory
	room int // size class that is reserved for it
	loan *loan
	pull *pull

	bodyBeside []byte // the input, if it goes beside the message

	opRunning  bool        // op is under way
	opResult   na.Result   // how it has ended
	loanResult na.Result   // of a one-way call: how the loan has, if it failed
	withdrawal *withdrawal // the first of this call; or nil
	answer     response
	isParsed   bool   // answer is valid
	meta       []byte // of answer
	isAnswered bool   // and its payload complete
	failure    error  // of understanding or fetching the answer
	output     []byte
	err        error // of the last call
}

func newCall(h *Handle) *call {
	k := &call{h: h}
	k.err = na.WithText(ErrInvalid, "the handle has not been forwarded")
	k.slot, k.gen = h.ctx.takeSlot()
	k.op.InitStep(h.ctx.nctx, k.onOpEnded, nil)
	k.done.Init(k.finishInTrigger, nil)
	return k
}

// The identity of a call on the wire: slot and generation. The top bit stays free: it marks the loans of requests, so
// that they cannot be taken for those of responses that the peer asked for under the same number.
const (
	slotBits = 24
	maxSlot  = 1<<slotBits - 1
	maxGen   = 1<<(63-slotBits) - 1
	loanTag  = 1 << 63
)

// takeSlot gives a handle its part of the identity of calls.
func (c *Context) takeSlot() (slot uint32, gen uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.free); n > 0 {
		slot = c.free[n-1]
		c.free = c.free[:n-1]
		return slot, c.slots[slot]
	}
	c.slots = append(c.slots, 0)
	return uint32(len(c.slots) - 1), 0
}

// freeSlotLocked takes it back; the generation goes on where it was. Locked.
func (c *Context) freeSlotLocked(k *call) {
	c.slots[k.slot] = k.gen
	if k.gen < maxGen {
		c.free = append(c.free, k.slot)
	}
}

// nextTag begins a new life of the call's identity. A slot whose generations are used up is left for good.
func (k *call) nextTag() error {
	if k.gen >= maxGen {
		c := k.h.ctx
		c.mu.Lock()
		c.freeSlotLocked(k)
		c.mu.Unlock()
		k.slot, k.gen = c.takeSlot()
	}
	if k.slot > maxSlot {
		return na.WithText(ErrAgain, "more handles than identities of calls")
	}
	k.gen++
	return nil
}

// tag is the identity of the call that is under way.
func (k *call) tag() na.Tag {
	return na.Tag(k.gen<<slotBits | uint64(k.slot))
}

// cancelPartsLocked cancels every part that has not ended. Locked.
func (k *call) cancelPartsLocked() {
	k.op.Cancel()
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	if k.pull != nil {
		k.pull.cancel()
	}
}

// cancelLocked ends the call, if one is under way. Locked.
func (k *call) cancelLocked(why na.Code) {
	if k.isInFlightLocked() {
		k.endLocallyLocked(why)
	}
}

// endLocallyLocked ends the call from this side. The first end decides the cancelCode. Locked.
func (k *call) endLocallyLocked(why na.Code) {
	if !k.canceling {
		k.canceling, k.cancelCode = true, why
		k.markFailedLocked()
		k.cancelPartsLocked()
	}
}

// isInFlightLocked reports whether some part has not ended. Locked.
func (k *call) isInFlightLocked() bool { return k.phase != callIdle && k.phase != callQueued }

// markFailedLocked notes that the call will fail, or has been ended from this side. Locked.
func (k *call) markFailedLocked() {
	if k.phase != callEnding {
		k.setPhaseLocked(callEnding)
		if len(k.streams) > 0 {
			k.resetStreamsLocked(k.failReasonLocked())
		}
	}
}

// setPhaseLocked writes the phase. Locked.
func (k *call) setPhaseLocked(next fsmcheck.State) {
	callPhases.Move(k.phase, next)
	k.phase = next
}
