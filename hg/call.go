package hg

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ForwardFunc is called with the outcome of one call. It runs in Trigger; it may forward h again, close it, or call anything else.
type ForwardFunc func(h *Handle, err error)

// The phases of a call.
const (
	idle    = iota
	pending // some part has not ended
	queued  // the callback waits for Trigger
)

// A call is the origin's side of a handle. Its parts are the sending of the request, the receive of the response, the
// loan of an input that is larger than a message, the pull of such an output, and the timer. Handle.mu guards it. Whatever the
// order in which the parts end, the result is decided once, when the last has ended, from what each of them was.
type call struct {
	h     *Handle
	slot  uint32
	gen   uint64
	send  *na.Op
	recv  *na.Op
	timer *na.Op // of the deadline; nil until there is one
	done  task

	in    []byte // header, metadata and encoded input
	head  int    // the bytes of the first two
	codec uint8  // of the input
	msg   []byte // that says where the input is
	buf   []byte // receives the response

	life
}

// life is what begins anew with each Forward.
type life struct {
	phase     int
	parts     int     // that have not ended
	canceling bool    // this side has ended it,
	why       na.Code // and why
	abandoned bool    // and the target is to hear of it
	begun     time.Duration
	by        na.Deadline
	timing    bool // the timer runs, and is a part
	cb        ForwardFunc
	waits     bool // Handle.waiter does, instead of a callback

	env  *na.Envelope // the response, if it is longer than buf
	room int          // size class that is reserved for it
	loan *loan
	pull *pull

	sending    bool        // the send was started
	sendEnded  bool        // and has ended
	withdrawal *withdrawal // the first of this call; or nil
	sent       na.Result
	received   na.Result
	over       uint64 // the session that has ended,
	untaken    uint64 // and the first message in it that the target has not taken; 0: not known
	answer     response
	understood bool   // answer is valid
	meta       []byte // of answer
	answered   bool   // and its payload complete
	failure    error  // of understanding or fetching the answer
	output     []byte
	err        error // of the last call
}

func newCall(h *Handle) *call {
	k := &call{h: h}
	k.err = na.WithText(ErrInvalid, "the handle has not been forwarded")
	k.slot, k.gen = h.ctx.takeSlot()
	k.send = h.ctx.nctx.NewOp(k.onSent)
	k.recv = h.ctx.nctx.NewOp(k.onReceived)
	k.done.init(k.finish, nil)
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

// freeSlot takes it back; the generation goes on where it was. Locked.
func (c *Context) freeSlot(k *call) {
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
		c.freeSlot(k)
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

// stop cancels every part that has not ended. Locked.
func (k *call) stop() {
	k.recv.Cancel()
	k.send.Cancel()
	if k.loan != nil {
		k.loan.op.Cancel()
	}
	if k.pull != nil {
		k.pull.cancel()
	}
}

// cancel ends the call, if one is under way. Locked.
func (k *call) cancel(why na.Code) {
	k.found(evCancel)
	if k.phase == pending {
		k.end(why)
	}
	k.note(evCancel)
}

// end ends the call from this side. Whoever comes first says why. Locked.
func (k *call) end(why na.Code) {
	if !k.canceling {
		k.canceling, k.why = true, why
		k.stop()
	}
}
