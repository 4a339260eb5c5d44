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

// A Handle makes calls from the origin, one at a time, as many as desired. Its methods may be
// called from any goroutine, except as Reset says. Handles are not pooled: a stale pointer refers
// to a closed handle, never to another call.
//
//	idle ── Forward ──► pending ── every part has ended ──► queued ── Trigger: idle again, then the callback
//	                       │ Cancel
//	                       └─ the parts end at once ───────►
//
// Closing a handle whose call is in flight is safe, as with the reference count of C Mercury: the
// call holds the handle, and its callback still runs.
type Handle struct {
	openEntry
	ctx   *Context
	id    ID
	rpc   *RPC
	addr  na.Addr
	bound bool // addr is bound to a session, which may be a session that has ended
	// holds of the program, the call in flight and its withdrawals; the handle is freed with the
	// last one
	refs      atomic.Int32
	data      any
	createdAt string // file:line of Create; only with Config.Trace

	mu        sync.Mutex // guards the fields below, and addr
	closed    bool
	timeout   time.Duration // timeout of calls
	meta      Metadata      // metadata of calls
	specs     []StreamSpec  // streams of calls; the slice is replaced, never modified
	noWait    bool          // the next call is one of WithNoWait
	onCall    func()        // set by hghook.OnCall; else nil
	onEnd     func()        // set by hghook.OnEnd; else nil
	forbidden bool          // Forward fails until Reset
	// forwarded is true if a call has begun since Reset.
	forwarded bool
	call      *call
	waiter    *loop.Waiter    // wakes the goroutine that waits for the end of a call
	reporter  hghook.Reporter // adds details of the call to Context.Calls; nil for none
}

// Create returns a handle for calls of an RPC at addr. The program has to Close it. The error
// matches ErrNoEntry if id is not registered.
func (c *Context) Create(addr na.Addr, id ID) (*Handle, error) {
	rpc := c.class.rpcs.findRPC(id)
	if rpc == nil {
		return nil, misuseError("create", fmt.Sprintf("%#x", uint64(id)), addr, ErrNoEntry, "RPC id is not registered")
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

// Reset changes the target and the RPC of an idle handle. ID, Name and SetTarget must not be called
// concurrently. If it returns an error the handle is unchanged; the error matches na.ErrBusy if a
// call is in flight, ErrNoEntry if id is not registered, and ErrClosed if h is closed.
func (h *Handle) Reset(addr na.Addr, id ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.aimLocked(addr, id)
}

// aimLocked implements Reset.
func (h *Handle) aimLocked(addr na.Addr, id ID) error {
	rpc := h.ctx.class.rpcs.findRPC(id)
	switch {
	case rpc == nil:
		return misuseError("reset", fmt.Sprintf("%#x", uint64(id)), addr, ErrNoEntry, "RPC id is not registered")
	case h.closed:
		return misuseError("reset", h.Name(), h.addr, ErrClosed, "the handle is closed")
	case h.call.phase != callIdle:
		return misuseError("reset", h.Name(), h.addr, na.ErrBusy, "the handle has a call in flight")
	}
	h.addr, h.bound, h.id, h.rpc, h.forbidden, h.forwarded = addr, addr.Session() != 0, id, rpc, false, false
	return nil
}

// forbidForward implements hghook.Forbid: Forward fails until Reset. It reports false if a call is
// in flight.
func (h *Handle) forbidForward() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.phase != callIdle {
		return false
	}
	h.forbidden = true
	return true
}

// hasForwarded implements hghook.HasForwarded.
func (h *Handle) hasForwarded() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forwarded
}

// SetMeta sets the metadata of later calls of h. The error matches ErrClosed if h is closed.
func (h *Handle) SetMeta(m Metadata) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return misuseError("forward", h.Name(), h.addr, ErrClosed, "the handle is closed")
	}
	h.meta = m
	return nil
}

// SetTarget changes the target of an idle handle to another context of the same process. The errors
// are those of Reset.
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

// SetData stores a value of the program's in the handle. It is not synchronized.
func (h *Handle) SetData(v any) { h.data = v }

// Data returns the value that SetData stored.
func (h *Handle) Data() any { return h.data }

// Close ends the use of the handle: it makes no further calls. A call in flight goes on, and its
// callback runs. A second Close returns an error that matches ErrClosed. It does not block.
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

// releaseHold releases one hold of the handle, and frees it with the last one.
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

// Cancel ends the call in flight. It waits for no message and never blocks; it does nothing to idle
// and ended calls. The callback still runs exactly once: with ErrCanceled if the cancel won, with
// the result if the whole answer had arrived before.
func (h *Handle) Cancel() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.cancelLocked(ErrCanceled)
}

// onPeersLost does nothing: the parts of a call end by themselves.
func (h *Handle) onPeersLost(error) {}

func (h *Handle) answerDetached() {}

// cancelForShutdown counts and ends the call in flight when the class shuts down.
func (h *Handle) cancelForShutdown(left *ShutdownError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.isInFlightLocked() {
		left.Calls++
		h.call.cancelLocked(ErrClosed)
	}
}

// countOpen counts a handle that is not closed at the end of a shutdown.
func (h *Handle) countOpen(left *ShutdownError) {
	left.Handles++
	text := "handle of " + h.rpc.Name + " is not closed"
	if h.createdAt != "" {
		text += ", made at " + h.createdAt
	}
	left.addOpen(text)
}
