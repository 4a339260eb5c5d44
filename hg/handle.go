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

// A Handle makes calls from the origin, one at a time. It can be reused for any number of calls.
// Its methods are safe for concurrent use, except as noted at Reset. Handles are not pooled: a
// stale pointer refers to a closed handle, never to another call.
//
// A handle is idle until Forward starts a call. Once every part of the call has completed, which
// Cancel brings about at once, the callback is queued. Trigger makes the handle idle again and then
// runs the callback.
//
// It is safe to close a handle while its call is in flight. The call holds a reference to the
// handle, and its callback still runs.
type Handle struct {
	openEntry
	ctx   *Context
	id    ID
	rpc   *RPC
	addr  na.Addr
	bound bool // reports whether addr is bound to a session, which may have ended
	// refs counts the references held by the program, the call in flight, and its withdrawals. The
	// handle is freed when the last one is released.
	refs      atomic.Int32
	data      any
	createdAt string // file:line of the Create call; set only with Config.Trace

	mu        sync.Mutex // guards the fields below and addr
	closed    bool
	timeout   time.Duration // timeout of later calls
	meta      Metadata      // metadata of later calls
	specs     []StreamSpec  // streams of later calls; the slice is replaced, never modified
	noWait    bool          // reports whether the next call must not wait; see WithNoWait
	onCall    func()        // set by hghook.OnCall; may be nil
	onEnd     func()        // set by hghook.OnEnd; may be nil
	forbidden bool          // reports whether Forward fails until Reset is called
	// forwarded reports whether a call has begun since the last Reset.
	forwarded bool
	call      *call
	waiter    *loop.Waiter    // wakes the goroutine that waits for a call to complete
	reporter  hghook.Reporter // adds details of the call to Context.Calls; may be nil
}

// Create returns a handle for calling the RPC with the given ID at addr. The caller must close it.
// The error matches ErrNoEntry if id is not registered.
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

// Reset changes the target and the RPC of an idle handle. It must not be called concurrently with
// ID, Name, or SetTarget. If it returns an error, the handle is unchanged. The error matches
// na.ErrBusy if a call is in flight, ErrNoEntry if id is not registered, and ErrClosed if h is
// closed.
func (h *Handle) Reset(addr na.Addr, id ID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.aimLocked(addr, id)
}

// aimLocked implements Reset. The caller must hold h.mu.
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

// forbidForward implements hghook.Forbid. It makes Forward fail until Reset is called. If a call is
// in flight, forbidForward returns false and has no effect.
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

// SetTarget changes the target of an idle handle to another context of the same process. It returns
// the same errors as Reset.
func (h *Handle) SetTarget(id int) error { return h.Reset(h.Peer().WithTarget(id), h.id) }

// Peer returns the address of the target.
func (h *Handle) Peer() na.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addr
}

// HG returns the context to which h belongs.
func (h *Handle) HG() *Context { return h.ctx }

// ID returns the ID of the RPC.
func (h *Handle) ID() ID { return h.id }

// Name returns the RPC's name.
func (h *Handle) Name() string { return h.rpc.Name }

// SetData stores an arbitrary value in the handle. SetData and Data must not be called
// concurrently.
func (h *Handle) SetData(v any) { h.data = v }

// Data returns the value stored by SetData, or nil if there is none.
func (h *Handle) Data() any { return h.data }

// Close closes the handle. Forward then fails. A call in flight continues, and its callback runs.
// Close does not block. A second Close returns an error that matches ErrClosed.
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

// releaseHold releases a reference to the handle, and frees the handle if no reference is left.
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

// Cancel cancels the call in flight. It never blocks and does not wait for the target. It does
// nothing if no call is in flight. The callback still runs exactly once. Its error is ErrCanceled,
// unless the complete response arrived before the cancellation.
func (h *Handle) Cancel() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.call.cancelLocked(ErrCanceled)
}

// onPeersLost does nothing, because the parts of a call complete by themselves when a peer is lost.
func (h *Handle) onPeersLost(error) {}

func (h *Handle) answerDetached() {}

// cancelForShutdown cancels the call in flight, if any, and counts it in left.Calls.
func (h *Handle) cancelForShutdown(left *ShutdownError) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.call.isInFlightLocked() {
		left.Calls++
		h.call.cancelLocked(ErrClosed)
	}
}

// countOpen counts the handle in left.Handles. It is called at the end of a shutdown for each
// handle that is not closed.
func (h *Handle) countOpen(left *ShutdownError) {
	left.Handles++
	text := "handle of " + h.rpc.Name + " is not closed"
	if h.createdAt != "" {
		text += ", made at " + h.createdAt
	}
	left.addOpen(text)
}
