package hg

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/states"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Handle is one call at a time. At the origin Create makes it; it may be forwarded again and again. At the target it
// comes with the request.
//
//	origin:  idle ── Forward ──► pending ── every part has ended ──► queued ── Trigger: idle again, then the callback
//	                                │ Cancel
//	                                └─ the parts end at once ───────►
//
//	target:  arrived ─► (input is fetched) ─► queued ─► handler runs ─ Respond ─► answered ─► last reference: reused
//	                                                          │ Cancel of the response: may be answered again
//
// A handle is counted: Create and the running handler hold a reference each, Ref adds one, Close gives back that of Create or
// one of Ref. What is under way holds one too, so Close is legal at any time.
type Handle struct {
	ctx  *Context
	id   ID
	rpc  *RPC // nil at a target that does not know the id
	addr na.Addr
	refs atomic.Int32 // the program's, and those of what is under way: with the last one the handle ends
	kept atomic.Int32 // the program's: of Create and of Ref
	data any

	older, younger *Handle // in Context.open; Context.mu guards them
	made           string  // where, if Config.Trace asks for that

	mu      sync.Mutex    // guards call or service, and addr and timeout at the origin
	track   states.Track  // of call or service; guarded like these
	timeout time.Duration // of calls
	meta    Meta          // of calls
	call    *call         // at the origin
	waiter  *na.Waiter    // of calls that are waited for
	service *service      // at the target
}

// Create returns a handle for calls of an RPC at addr. The error matches ErrNoEntry when id was not registered.
func (c *Context) Create(addr na.Addr, id ID) (*Handle, error) {
	rpc := c.class.rpcs.find(id)
	if rpc == nil {
		return nil, misuse("create", fmt.Sprintf("%#x", uint64(id)), addr, ErrNoEntry, "no RPC with this id is registered here")
	}
	h := &Handle{ctx: c, id: id, rpc: rpc, addr: addr}
	h.call = newCall(h)
	h.refs.Store(1)
	h.kept.Store(1)
	if c.class.cfg.Trace {
		_, file, line, _ := runtime.Caller(1)
		h.made = fmt.Sprintf("%s:%d", file, line)
	}
	c.mu.Lock()
	c.enlist(h)
	c.mu.Unlock()
	return h, nil
}

// enlist makes h one of the open handles. Locked.
func (c *Context) enlist(h *Handle) {
	c.handles.Add(1)
	h.older, h.younger = c.open, nil
	if c.open != nil {
		c.open.younger = h
	}
	c.open = h
}

// delist takes it out again. Locked.
func (c *Context) delist(h *Handle) {
	c.handles.Add(-1)
	if h.older != nil {
		h.older.younger = h.younger
	}
	if h.younger != nil {
		h.younger.older = h.older
	} else {
		c.open = h.older
	}
	h.older, h.younger = nil, nil
}

// Reset aims an idle handle at another address and RPC. Meanwhile no other goroutine may ask for its ID or Name, or be in
// SetTarget. The error matches ErrBusy while a call is under way, and ErrNoEntry when id was not registered; the handle is
// as before then.
func (h *Handle) Reset(addr na.Addr, id ID) error {
	rpc := h.ctx.class.rpcs.find(id)
	if rpc == nil {
		return misuse("reset", fmt.Sprintf("%#x", uint64(id)), addr, ErrNoEntry, "no RPC with this id is registered here")
	}
	if h.call == nil {
		return misuse("reset", h.Name(), h.addr, ErrInvalid, "the handle came with a request")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	defer h.call.note(h.call.found(evReset))
	if h.call.phase != idle {
		return misuse("reset", h.Name(), h.addr, ErrBusy, "the handle has a call that has not ended")
	}
	h.addr, h.id, h.rpc = addr, id, rpc
	return nil
}

// SetMeta has the calls of h from now on carry m. The error matches ErrOverflow when na.Config.Eager is too small for it.
func (h *Handle) SetMeta(m Meta) error {
	if err := h.ctx.fits(m); err != nil {
		return err
	}
	h.mu.Lock()
	h.meta = m
	h.mu.Unlock()
	return nil
}

// SetTarget aims an idle handle at another context of the same process.
func (h *Handle) SetTarget(id int) error { return h.Reset(h.Addr().WithTarget(id), h.id) }

// Addr returns the peer: the target at the origin; at the target the origin, bound to the session that the request
// came on.
func (h *Handle) Addr() na.Addr {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.addr
}

// Context returns the context that h belongs to.
func (h *Handle) Context() *Context { return h.ctx }

// ID returns the id of the RPC.
func (h *Handle) ID() ID { return h.id }

// Name returns the name of the RPC.
func (h *Handle) Name() string {
	if h.rpc == nil {
		return fmt.Sprintf("%#x", uint64(h.id))
	}
	return h.rpc.Name
}

// SetData keeps a value of the user's with the handle.
func (h *Handle) SetData(v any) { h.data = v }

// Data returns what SetData kept.
func (h *Handle) Data() any { return h.data }

// Ref adds a reference: a handler that answers later calls it, and Close when it is done. It panics when the last reference
// has gone.
func (h *Handle) Ref() *Handle {
	if !h.hold() {
		panic("hg: reference to a handle of " + h.Name() + " that is closed")
	}
	h.kept.Add(1)
	return h
}

// Close gives back the reference of Create, or one of Ref; it panics when there is none. A handler does not close the handle
// that it is called with, unless it has called Ref. With the last reference the handle must not be used any more, its input
// and output are gone, and a request that nobody answered is answered with ErrNoResponse.
func (h *Handle) Close() {
	for n := h.kept.Load(); ; n = h.kept.Load() {
		if n == 0 {
			panic("hg: handle of " + h.Name() + " is closed more often than it was referenced")
		}
		if h.kept.CompareAndSwap(n, n-1) {
			h.release()
			return
		}
	}
}

// hold takes a reference, unless the last one has gone.
func (h *Handle) hold() bool {
	for n := h.refs.Load(); n > 0; n = h.refs.Load() {
		if h.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
	return false
}

// release gives one back.
func (h *Handle) release() {
	switch n := h.refs.Add(-1); {
	case n > 0:
	case h.service != nil:
		h.lastReference()
	default:
		h.mu.Lock()
		h.call.note(h.call.found(evLastReference))
		h.mu.Unlock()
		c := h.ctx
		c.mu.Lock()
		c.freeSlot(h.call)
		c.delist(h)
		c.mu.Unlock()
	}
}

// Cancel ends the call under way at the origin, or the response under way at the target. It sends nothing that it
// waits for and never blocks; idle and ended calls stay as they are. The callback still runs exactly once: with
// ErrCanceled if the cancel won, with the result if that was there before.
func (h *Handle) Cancel() {
	if h.call != nil {
		h.cancelCall()
		return
	}
	h.cancelResponse()
}
