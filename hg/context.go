package hg

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/loglimit"
	"github.com/quicksilver-rpc/quicksilver/internal/loop"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Context is a completion queue for calls, and the progress that fills it. Its methods may be
// called from any goroutine.
type Context struct {
	class     *Class
	nctx      *na.Context
	limits    na.Limits
	posts     postedPool
	loop      *loop.Loop
	userFrame func(loop.UserCode) int // runs user code below a frame of nctx, which counts it

	mu    sync.Mutex // guards the fields below
	slots []uint64   // last generation of call identities, by slot
	free  []uint32   // slots that are not in use
	open  *openEntry // head of the list of openEntry: the youngest

	services spareServices

	admission    admission
	faults       sync.Once    // registers the OnFault of requests once
	overdueLogAt atomic.Int64 // time (by Now) of the next check for overdue detached requests; 0 if none
	cutOff       atomic.Bool  // Shutdown no longer waits for handlers
	starting     atomic.Int32 // calls between their check of Draining and their start
	lent         byteLimit
	pulled       byteLimit
	bodies       bodyStats
	seen         tracker
	watch        activityWatch
	dropped      atomic.Int64 // one-way requests that could not be served
	denied       atomic.Int64 // requests that the authorizer has denied
	denials      loglimit.Limiter
	late         atomic.Int64 // errors that handlers returned after they had answered
	handles      atomic.Int64 // Stats.Handles
}

// Stats are the gauges and counters of a context. Gauges are current values; counters never
// decrease.
type Stats struct {
	NA      na.Stats
	Handles int64 // handles that are not closed, and requests that have not ended
	Lent    int64 // bytes of input and output lent to peers
	Pulled  int64 // bytes of input and output being fetched from peers
	Inline  int64 // inputs and outputs longer than an envelope that went with their message
	Loans   int64 // inputs and outputs that were lent
	// the part of Loans that was lent because the peer had no room, or the origin does not accept
	// inline bodies
	NoRoom  int64
	Dropped int64 // one-way requests that were not served: their origins get no error
	Queued  int   // callbacks and handlers in Trigger's queue
	Denied  int64 // requests that the authorizer has denied
	Late    int64 // errors that handlers returned after they had answered
	Active  int64 // requests whose handlers have begun and that have not ended
	Streams int64 // active requests with streams, which Active does not include
	Waiting int64 // requests that wait to be admitted
}

func newContext(cls *Class, nctx *na.Context) *Context {
	c := &Context{class: cls, nctx: nctx, limits: nctx.Limits()}
	c.admission.maxActive, c.admission.maxPerPeer = int64(cls.cfg.MaxActive), int64(cls.cfg.MaxActivePerPeer)
	c.admission.maxStreams, c.admission.maxStreamsPerPeer = int64(cls.cfg.MaxStreams), int64(cls.cfg.MaxStreamsPerPeer)
	c.loop, c.userFrame = nctx.Upper().Loop(), nctx.Upper().UserFrame()
	nctx.Upper().OnRun(c.logOverdue)
	nctx.Upper().OnAbandon(c.markAbandoned)
	nctx.Upper().Records(c.takeService, c.putService)
	nctx.Upper().OnMessage(c.onRequest, c.onClosed)
	return c
}

// Class returns the class that made c.
func (c *Context) Class() *Class { return c.class }

// NA returns the context of the network abstraction below. Use the Trigger and the Shutdown of c
// rather than those of NA: these do not batch what callbacks send, and do not wait for calls and
// handlers.
func (c *Context) NA() *na.Context { return c.nctx }

// ID is the target id by which origins reach c.
func (c *Context) ID() int { return c.nctx.ID() }

// Self returns the address of c.
func (c *Context) Self() na.Addr { return c.nctx.Self() }

// Now returns the time of the context's monotonic clock. Only differences are meaningful.
func (c *Context) Now() time.Duration { return c.nctx.Now() }

// OnFault registers fn to run in Trigger when the session with a peer is lost, until remove is
// called. If many sessions are lost, peer may be zero. Operations in flight with the peer end with
// ErrPeerLost without help of fn, and their callbacks may run before or after fn: do not cancel
// calls in fn, since a Cancel may reach the next call of a handle. See [na.Context.OnFault].
func (c *Context) OnFault(fn func(peer na.Addr, err error)) (remove func()) {
	return c.nctx.OnFault(fn)
}

// Progress moves bytes until something is ready for Trigger or timeout has passed; negative means
// no limit, zero polls once. It runs no callback. It returns nil if something may be ready, an
// error that matches os.ErrDeadlineExceeded if nothing happened, and one that matches ErrClosed
// when c is closed and drained.
// While something is queued it returns at once: a loop that only calls Progress spins until another
// goroutine has called Trigger.
func (c *Context) Progress(timeout time.Duration) error { return c.nctx.Progress(timeout) }

// Trigger runs callbacks and handlers: at most max of them, or, if max is not positive, as many as
// are queued when it begins. It returns how many it ran. It may be called from several goroutines
// at once, and inside a callback.
//
// The messages that callbacks of one Trigger send are batched, as far as the callbacks are quick.
func (c *Context) Trigger(max int) int {
	c.nctx.Upper().Flush()
	c.logOverdue()
	if c.nctx.Upper().Settled() == 0 {
		return 0
	}
	if max != 1 { // a Trigger(1) may be a part of the pass of a goroutine in Wait, which batches itself
		defer c.loop.EndBatch(c.loop.BeginBatch())
	}
	return c.nctx.Upper().TriggerUntil(nil, max)
}

// Stats returns the gauges and counters.
func (c *Context) Stats() Stats {
	return Stats{
		NA: c.nctx.Stats(), Handles: c.handles.Load(), Lent: c.lent.total(), Pulled: c.pulled.total(),
		Inline: c.bodies.inline.Load(), Loans: c.bodies.lent.Load(), NoRoom: c.bodies.noRoom.Load(),
		Dropped: c.dropped.Load(), Denied: c.denied.Load(), Late: c.late.Load(), Queued: c.nctx.Upper().Queued(),
		Active: c.admission.active.Load(), Streams: c.admission.streams.Load(), Waiting: c.admission.waiting.Load(),
	}
}

// Close ends every call of c with ErrClosed. It does not block and may be called anywhere. Progress
// returns ErrClosed, and NA().Closed reports true, once every callback has returned and all loans
// and leases have ended.
func (c *Context) Close() { c.nctx.Close() }

// A LookupFunc is called with the outcome of a Lookup.
type LookupFunc func(addr na.Addr, err error)

// A Lookup is the resolution of an address in progress.
type Lookup struct {
	c     *Context
	op    *na.Op
	text  string
	begun time.Duration
	cb    LookupFunc
}

// Lookup resolves the text of an address, for example "tcp://node7:9000". It does not connect, and
// does not block. cb runs in Trigger, unless Lookup returns an error.
func (c *Context) Lookup(text string, cb LookupFunc) (*Lookup, error) {
	l := &Lookup{c: c, text: text, begun: c.Now(), cb: cb}
	l.op = c.nctx.NewOp(l.onEnded)
	if err := c.nctx.Lookup(l.op, text); err != nil {
		return nil, &Error{Op: "lookup", RPC: text, Fate: na.NotRun, Err: unwrapNA(err)}
	}
	return l, nil
}

// Cancel ends the lookup, unless it has ended. It does not block. The callback runs exactly once in
// any case.
func (l *Lookup) Cancel() { l.op.Cancel() }

func (l *Lookup) onEnded(_ *na.Op, r na.Result) {
	err := r.Err
	if err != nil {
		err = &Error{Op: "lookup", RPC: l.text, Took: l.c.elapsedSince(l.begun), Fate: na.NotRun, Err: unwrapNA(err)}
	}
	if l.cb != nil {
		l.cb(r.Addr, err)
	}
}

// LookupWait resolves the text of an address. It drives Progress and Trigger until that is done or
// ctx ends, so callbacks of other operations may run during the call.
func (c *Context) LookupWait(ctx context.Context, text string) (na.Addr, error) {
	var (
		addr na.Addr
		fail error
	)
	w := c.loop.NewWaiter()
	l, err := c.Lookup(text, func(a na.Addr, err error) {
		addr, fail = a, err
		w.End()
	})
	if err != nil {
		return na.Addr{}, err
	}
	w.Await(ctx, l.Cancel)
	if code := CodeOf(fail); code == ErrInvalid || code == ErrUnsupported { // not caused by the end of ctx
		return addr, fail
	}
	return addr, endedBy(ctx, fail)
}
