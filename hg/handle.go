package hg

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Handle makes calls from the origin, one at a time: it may be forwarded again and again. It is never pooled: a stale pointer
// meets a closed handle, not another call.
//
//	idle ── Forward ──► pending ── every part has ended ──► queued ── Trigger: idle again, then the callback
//	                       │ Cancel
//	                       └─ the parts end at once ───────►
//
// A handle that is closed in flight stays safe, as C Mercury's reference count keeps it there: what is under way holds it, and
// its callback still runs.
type Handle struct {
	openEntry
	ctx       *Context
	id        ID
	rpc       *RPC
	addr      na.Addr
	bound     bool         // addr is that of a session, which may be one that ends
	refs      atomic.Int32 // of the program, and of what is under way: with the last one the handle ends
	data      any
	createdAt string // where, if Config.Trace asks for that

	mu        sync.Mutex // guards the fields below, and addr
	closed    bool
	timeout   time.Duration // of calls
	meta      Metadata      // of calls
	specs     []StreamSpec  // of calls; never written
	noWait    bool          // of WithNoWait
	onCall    func()        // hghook.OnCall; else nil
	onEnd     func()        // hghook.OnEnd; else nil
	forbidden bool          // calls, until Reset
	// forwarded says that a call has begun since Reset.
	forwarded bool
	call      *call
	waiter    *loop.Waiter    // of calls that are waited for
	reporter  hghook.Reporter // tells Calls more of the call; nil for nobody
}

// Create returns a handle for calls of an RPC at addr. The error matches ErrNoEntry when id was not registered.
func (c *Context) Create(addr na.Addr, id ID) (*Handle, error) {
	rpc := c.class.rpcs.findRPC(id)
	if rpc == nil {
		return nil, misuseError("create", fmt.Sprintf("%#x", uint64(id)), addr, ErrNoEntry, "no RPC with this id is registered here")
	}
	h := &Handle{ctx: c, id: id, rpc: rpc, addr: addr, bound: addr.Session() != 0}
	h.openEntry.of = h
	h.call = newCall(h)
	h.refs.Store(1)
	if c.class.cfg.Trace {
		_, file, line, _ := runtime.Caller(1)
		h.createdAt = fmt.Sprintf("%s:%d", file, line)
	}
	c.handles.Add(1)
	c.mu.Lock()
	c.addOpenLocked(&h.openEntry)
	c.mu.Unlock()
	return h, nil
}

// Reset aims an idle handle at another address and RPC. Meanwhile no other goroutine may ask for its ID or Name, or be in
// SetTarget. The error matches na.ErrBusy while a call is under way, and ErrNoEntry when id was not registered; the handle is
// as before then.
func (h *Handle) Reset(addr na.Addr, id ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.aimLocked(addr, id)
}

// aimLocked is Reset. Locked.
func (h *Handle) aimLocked(addr na.Addr, id ID) error {
	rpc := h.ctx.class.rpcs.findRPC(id)
	switch {
	case rpc == nil:
		return misuseError("reset", fmt.Sprintf("%#x", uint64(id)), addr, ErrNoEntry, "no RPC with this id is registered here")
	case h.closed:
		return misuseError("reset", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case h.call.phase != callIdle:
		return misuseError("reset", h.Name(), h.addr, na.ErrBusy, "the handle has a call that has not ended")
	}
	h.addr, h.bound, h.id, h.rpc, h.forbidden, h.forwarded = addr, addr.Session() != 0, id, rpc, false, false
	return nil
}

// forbidForward is hghook.Forbid.
func (h *Handle) forbidForward() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.phase != callIdle {
		return false
	}
	h.forbidden = true
	return true
}

// hasForwarded is hghook.HasForwarded.
func (h *Handle) hasForwarded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forwarded
}

// SetMeta has the calls of h from now on carry m. The error matches ErrClosed when h has been closed.
func (h *Handle) SetMeta(m Metadata) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return misuseError("forward", h.Name(), h.addr, ErrClosed, "the handle is closed")
	}
	h.meta = m
	return nil
}

// SetTarget aims an idle handle at another context of the same process.
func (h *Handle) SetTarget(id int) error { return h.Reset(h.Peer().WithTarget(id), h.id) }

// Peer returns the target.
func (h *Handle) Peer() na.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addr
}

// HG returns the context that h belongs to.
func (h *Handle) HG() *Context { return h.ctx }

// ID returns the id of the RPC.
func (h *Handle) ID() ID { return h.id }

// Name returns the name of the RPC.
func (h *Handle) Name() string { return h.rpc.Name }

// SetData keeps a value of the user's with the handle.
func (h *Handle) SetData(v any) { h.data = v }

// Data returns what SetData kept.
func (h *Handle) Data() any { return h.data }

// Close gives the handle up: it makes no more calls. A call under way goes on, and its callback runs. A second Close returns
// ErrClosed.
func (h *Handle) Close() error {
	h.mu.Lock()
	was := h.closed
	h.closed = true
	h.mu.Unlock()
	if was {
		return misuseError("close", h.Name(), h.Peer(), ErrClosed, "the handle is closed")
	}
	h.releaseHold()
	return nil
}

// releaseHold gives up what the program, or something under way, holds of h.
func (h *Handle) releaseHold() {
	if h.refs.Add(-1) > 0 {
		return
	}
	h.mu.Lock()
	h.call.freeOutputLocked()
	h.call.closeStreamsLocked()
	h.mu.Unlock()
	c := h.ctx
	c.mu.Lock()
	c.freeSlotLocked(h.call)
	c.removeOpenLocked(&h.openEntry)
	c.mu.Unlock()
	c.handles.Add(-1)
}

// Cancel ends the call under way. It sends nothing that it waits for and never blocks; idle and ended calls stay as they are.
// The callback still runs exactly once: with ErrCanceled if the cancel won, with the result if that was there before.
func (h *Handle) Cancel() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.cancelLocked(ErrCanceled)
}

// onPeersLost has nothing to do: the parts of a call end by themselves.
func (h *Handle) onPeersLost(error) {}

func (h *Handle) answerDetached() {}

// cancelForShutdown ends the call under way when the class shuts down.
func (h *Handle) cancelForShutdown(left *ShutdownError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.isInFlightLocked() {
		left.Calls++
		h.call.cancelLocked(ErrClosed)
	}
}

// countOpen counts a handle that is open in the end.
func (h *Handle) countOpen(left *ShutdownError) {
	left.Handles++
	text := "handle of " + h.rpc.Name + " is not closed"
	if h.createdAt != "" {
		text += ", made at " + h.createdAt
	}
	left.addOpen(text)
}
