package hg

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/fsmcheck"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ForwardFunc is called with the outcome of a call. It runs in Trigger with no locks held, and
// may forward h again, close it, or call any of its other methods.
type ForwardFunc func(h *Handle, err error)

// Phases of a call.
const (
	callIdle     fsmcheck.State = iota
	callWaiting                 // waiting for the response or, if one-way, for the request to be sent
	callFetching                // the response has arrived and its body is being pulled
	callLending                 // one-way: the target has not yet returned the lease on the input
	// The result is determined, but a loan or the timer has not completed yet.
	callLeaving
	callEnding // canceled locally or partly failed; other parts have not completed yet
	callQueued // the callback is queued for Trigger, or the waiting goroutine has been woken
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

// A call holds the state of a Handle's current call and is reused for later ones. It consists of
// parts that complete independently. Every call has an operation, which sends the request, receives
// the response, and expires at the deadline. A call may also have a loan of an input larger than
// one message, a pull of such an output, and a timer for the parts that remain once the operation
// has completed. The result is determined once, after the last part has completed, from the
// outcomes of all parts and regardless of their order. Handle.mu guards the call.
type call struct {
	h       *Handle
	slot    uint32
	gen     uint64
	op      na.Op
	timerOp *na.Op // deadline timer; nil until a call first needs it
	done    na.Task

	in       draft          // header, metadata, and encoded input
	codec    uint8          // codec ID of the input
	msg      []byte         // message that carries the key of a lent input
	buf      []byte         // receive buffer for the response
	previous responseMemory // memory of the previous response, kept while a new call begins
	streams  []*Stream      // streams of the most recent call

	callState
}

// responseMemory is the memory that backs a response.
type responseMemory struct {
	env     *na.Envelope // the response, if it is longer than call.buf
	fetched []byte       // the output, if it was pulled
}

// callState holds the fields of a call that each Forward resets.
type callState struct {
	phase          fsmcheck.State // written only by setPhaseLocked
	openParts      int            // number of parts (operation, loan, pull, and timer) that have not completed
	canceling      bool           // reports whether the call was canceled or abandoned by this process
	cancelCode     na.Code        // error code of the call; valid if canceling
	abandonPending bool           // reports whether the target has yet to be notified of the cancellation
	begun          time.Duration
	deadline       na.Deadline
	timerRuns      bool // timerOp is running and counted in openParts
	callback       ForwardFunc
	hasWaiter      bool // a goroutine waits on Handle.waiter; there is no callback
	endPostponed   bool // reports whether completion of the call is in Trigger's queue

	responseMemory
	room int // size class of the room reserved for the response; 0 if none
	loan *loan
	pull *pull

	bodyBeside []byte // the input, if it is sent separately from the message

	opRunning  bool        // reports whether op has been posted and has not completed
	opResult   na.Result   // result of op; valid once it has completed
	loanResult na.Result   // result of the loan of a one-way call, if it failed
	withdrawal *withdrawal // first Withdraw of this call, or nil
	answer     response
	isParsed   bool   // reports whether answer is valid
	meta       []byte // metadata of answer
	isAnswered bool   // reports whether answer is valid and its payload is complete
	failure    error  // error from parsing or fetching the response
	output     []byte
	err        error // error of the most recent call
}

func newCall(h *Handle) *call {
	k := &call{h: h}
	k.err = na.WithText(ErrInvalid, "the handle has not been forwarded")
	k.slot, k.gen = h.ctx.takeSlot()
	k.op.InitStep(h.ctx.nctx, k.onOpEnded, nil)
	k.done.Init(k.finishInTrigger, nil)
	return k
}

// A call is identified on the wire by its slot and generation. The top bit is reserved to mark
// loans of requests. It distinguishes them from loans of responses that the peer has requested
// under the same number.
const (
	slotBits = 24
	maxSlot  = 1<<slotBits - 1
	maxGen   = 1<<(63-slotBits) - 1
	loanTag  = 1 << 63
)

// takeSlot allocates a slot for a handle. It returns the slot and the last generation that was used
// in it.
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

// freeSlotLocked makes k's slot available to other handles, unless all of its generations have been
// used. The next handle in the slot continues with the next generation. The caller must hold
// Context.mu.
func (c *Context) freeSlotLocked(k *call) {
	c.slots[k.slot] = k.gen
	if k.gen < maxGen {
		c.free = append(c.free, k.slot)
	}
}

// nextTag advances the call's identity to the next generation. If all generations of the slot have
// been used, nextTag allocates another slot. It returns an error that matches ErrAgain if there are
// too many handles.
func (k *call) nextTag() error {
	if k.gen >= maxGen {
		c := k.h.ctx
		c.mu.Lock()
		c.freeSlotLocked(k)
		c.mu.Unlock()
		k.slot, k.gen = c.takeSlot()
	}
	if k.slot > maxSlot {
		return na.WithText(ErrAgain, fmt.Sprintf("too many handles, limit %d for a context", maxSlot))
	}
	k.gen++
	return nil
}

// tag returns the tag that identifies the current call on the wire.
func (k *call) tag() na.Tag {
	return na.Tag(k.gen<<slotBits | uint64(k.slot))
}

// cancelPartsLocked cancels every part of the call that has not completed. The caller must hold
// k.h.mu.
func (k *call) cancelPartsLocked() {
	k.op.Cancel()
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	if k.pull != nil {
		k.pull.cancel()
	}
}

// cancelLocked cancels the call with the error code why. It does nothing if no call is in flight.
// The caller must hold k.h.mu.
func (k *call) cancelLocked(why na.Code) {
	if k.isInFlightLocked() {
		k.endLocallyLocked(why)
	}
}

// endLocallyLocked cancels every part of the call and makes why its error code. If the call has
// already been canceled, endLocallyLocked does nothing. The caller must hold k.h.mu.
func (k *call) endLocallyLocked(why na.Code) {
	if !k.canceling {
		k.canceling, k.cancelCode = true, why
		k.markFailedLocked()
		k.cancelPartsLocked()
	}
}

// isInFlightLocked reports whether some part of the call has not completed. The caller must hold
// k.h.mu.
func (k *call) isInFlightLocked() bool { return k.phase != callIdle && k.phase != callQueued }

// markFailedLocked records that the call cannot succeed anymore and resets its streams. The caller
// must hold k.h.mu.
func (k *call) markFailedLocked() {
	if k.phase != callEnding {
		k.setPhaseLocked(callEnding)
		if len(k.streams) > 0 {
			k.resetStreamsLocked(k.failReasonLocked())
		}
	}
}

// setPhaseLocked sets the call's phase. In tests it also checks that the transition is allowed. The
// caller must hold k.h.mu.
func (k *call) setPhaseLocked(next fsmcheck.State) {
	callPhases.Move(k.phase, next)
	k.phase = next
}
