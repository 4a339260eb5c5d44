package hg

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ForwardFunc is called with the outcome of one call. It runs in Trigger with no lock held; it
// may forward h again, close it, or call any other method.
type ForwardFunc func(h *Handle, err error)

// The phases of a call.
const (
	callIdle     fsmcheck.State = iota
	callWaiting                 // waits for the answer, or, if one-way, for the request to be sent
	callFetching                // the answer has arrived, and its body is being pulled
	callLending                 // one-way: the target has not returned the loan of the input
	// the result is decided; a loan or the timer has not ended
	callLeaving
	callEnding // canceled by this side, or a part failed; other parts have not ended
	callQueued // the callback waits for Trigger, or the waiting goroutine has been woken
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

// A call is the origin's side of a handle. One operation sends the request, receives the answer,
// and ends at the deadline. Other parts are rare: the loan of an input that is larger than a
// message, the pull of such an output, and a timer for the parts that remain when the operation has
// ended. Handle.mu guards the call. Whatever the order in which the parts end, the result is
// decided once, after the last one has ended, from the outcomes of all of them.
type call struct {
	h       *Handle
	slot    uint32
	gen     uint64
	op      na.Op
	timerOp *na.Op // timer of the deadline; nil until a call has needed it
	done    na.Task

	in       draft          // header, metadata and encoded input
	codec    uint8          // codec of the input
	msg      []byte         // message with the key of an input that is lent
	buf      []byte         // receive buffer of the response
	previous responseMemory // memory of the previous response, while a new call begins
	streams  []*Stream      // streams of the last call

	callState
}

// responseMemory is the memory of a response.
type responseMemory struct {
	env     *na.Envelope // the response, if it is longer than call.buf
	fetched []byte       // an output that was pulled
}

// callState is the part of a call that each Forward resets.
type callState struct {
	phase          fsmcheck.State // written by setPhaseLocked only
	openParts      int            // the operation, loan, pull and timer of the call that have not ended
	canceling      bool           // this side has ended the call
	cancelCode     na.Code        // the error code of the call; valid if canceling
	abandonPending bool           // the target must still be notified of the cancel
	begun          time.Duration
	deadline       na.Deadline
	timerRuns      bool // timerOp is running, and counts in openParts
	callback       ForwardFunc
	hasWaiter      bool // a goroutine waits with Handle.waiter; there is no callback
	endPostponed   bool // the end of the call is in Trigger's queue

	responseMemory
	room int // size class of the room reserved for the response; 0 for none
	loan *loan
	pull *pull

	bodyBeside []byte // the input, if it is sent beside the message

	opRunning  bool        // op has been posted and has not ended
	opResult   na.Result   // the result of op; valid when it has ended
	loanResult na.Result   // result of the loan of a one-way call, if it failed
	withdrawal *withdrawal // the first Withdraw of this call, or nil
	answer     response
	isParsed   bool   // answer is valid
	meta       []byte // metadata of answer
	isAnswered bool   // answer is valid and its payload is complete
	failure    error  // error of parsing or fetching the answer
	output     []byte
	err        error // the error of the last call
}

func newCall(h *Handle) *call {
	k := &call{h: h}
	k.err = na.WithText(ErrInvalid, "the handle has not been forwarded")
	k.slot, k.gen = h.ctx.takeSlot()
	k.op.InitStep(h.ctx.nctx, k.onOpEnded, nil)
	k.done.Init(k.finishInTrigger, nil)
	return k
}

// The identity of a call on the wire: slot and generation. The top bit stays free: it marks the
// loans of requests, to distinguish them from the loans of responses that the peer has requested
// under the same number.
const (
	slotBits = 24
	maxSlot  = 1<<slotBits - 1
	maxGen   = 1<<(63-slotBits) - 1
	loanTag  = 1 << 63
)

// takeSlot allocates the slot of a handle, and returns the last generation that was used in it.
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

// freeSlotLocked frees the slot of k, unless its generations are used up. The next handle continues
// with the next generation. Context.mu is held.
func (c *Context) freeSlotLocked(k *call) {
	c.slots[k.slot] = k.gen
	if k.gen < maxGen {
		c.free = append(c.free, k.slot)
	}
}

// nextTag starts the next generation of the call's identity. It replaces an exhausted slot, which
// is never reused.
func (k *call) nextTag() error {
	if k.gen >= maxGen {
		c := k.h.ctx
		c.mu.Lock()
		c.freeSlotLocked(k)
		c.mu.Unlock()
		k.slot, k.gen = c.takeSlot()
	}
	if k.slot > maxSlot {
		return na.WithText(ErrAgain, "too many handles")
	}
	k.gen++
	return nil
}

// tag returns the identity of the current call.
func (k *call) tag() na.Tag {
	return na.Tag(k.gen<<slotBits | uint64(k.slot))
}

// cancelPartsLocked cancels every part that has not ended.
func (k *call) cancelPartsLocked() {
	k.op.Cancel()
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	if k.pull != nil {
		k.pull.cancel()
	}
}

// cancelLocked ends the call, if one is in flight.
func (k *call) cancelLocked(why na.Code) {
	if k.isInFlightLocked() {
		k.endLocallyLocked(why)
	}
}

// endLocallyLocked ends the call from this side. Only the first call of it sets cancelCode.
func (k *call) endLocallyLocked(why na.Code) {
	if !k.canceling {
		k.canceling, k.cancelCode = true, why
		k.markFailedLocked()
		k.cancelPartsLocked()
	}
}

// isInFlightLocked reports whether a part of the call has not ended.
func (k *call) isInFlightLocked() bool { return k.phase != callIdle && k.phase != callQueued }

// markFailedLocked records that the call will fail, or was ended from this side, and resets its
// streams.
func (k *call) markFailedLocked() {
	if k.phase != callEnding {
		k.setPhaseLocked(callEnding)
		if len(k.streams) > 0 {
			k.resetStreamsLocked(k.failReasonLocked())
		}
	}
}

// setPhaseLocked writes the phase, and checks the transition in tests.
func (k *call) setPhaseLocked(next fsmcheck.State) {
	callPhases.Move(k.phase, next)
	k.phase = next
}
