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

// A Context is a completion queue for calls, together with the progress that fills it. Its methods
// are safe for concurrent use.
type Context struct {
	class     *Class
	nctx      *na.Context
	limits    na.Limits
	posts     postedPool
	loop      *loop.Loop
	userFrame func(loop.UserCode) int // runs user code below a stack frame of nctx, which counts it

	mu    sync.Mutex // guards the fields below
	slots []uint64   // last generation of call identities, indexed by slot
	free  []uint32   // slots that are not in use
	open  *openEntry // head of the openEntry list: the most recent entry

	services spareServices

	admission    admission
	faults       sync.Once             // guards registration of the OnFault function for requests
	overdueLogAt atomic.Int64          // time (by Now) of the next check for overdue detached requests; 0 if none
	cutOff       atomic.Pointer[error] // set to the reason once Shutdown no longer waits for handlers
	starting     atomic.Int32          // number of calls that have checked Draining and have not started
	lent         byteLimit
	pulled       byteLimit
	bodies       bodyStats
	seen         tracker
	watch        activityWatch
	dropped      atomic.Int64 // number of one-way requests that could not be served
	denied       atomic.Int64 // number of requests denied by the authorizer
	denials      loglimit.Limiter
	late         atomic.Int64 // number of errors that handlers returned after they had responded
	handles      atomic.Int64 // Stats.Handles
}

// Stats holds the gauges and counters of a context. Gauges are current values. Counters never
// decrease.
type Stats struct {
	NA      na.Stats
	Handles int64 // number of open handles and incomplete requests
	Lent    int64 // bytes of input and output lent to peers
	Pulled  int64 // bytes of input and output being fetched from peers
	Inline  int64 // number of inputs and outputs longer than an envelope that were sent rather than lent
	Loans   int64 // number of inputs and outputs that were lent
	// NoRoom is the number of inputs and outputs, among those in Loans, that were lent because the
	// peer had reserved no memory for them or because the origin does not accept inline bodies.
	NoRoom  int64
	Dropped int64 // number of one-way requests that were not served; their origins receive no error
	Queued  int   // number of callbacks and handlers in Trigger's queue
	Denied  int64 // number of requests denied by the authorizer
	Late    int64 // number of errors that handlers returned after they had responded
	Active  int64 // number of requests whose handlers have begun and that have not completed
	Streams int64 // number of active requests with streams, not included in Active
	Waiting int64 // number of requests waiting to be admitted
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

// Class returns the class that created c.
func (c *Context) Class() *Class { return c.class }

// NA returns the underlying context of package na. The caller must use the Trigger and Shutdown
// methods of c rather than those of the na.Context. The latter do not batch the messages that
// callbacks send and do not wait for calls and handlers.
func (c *Context) NA() *na.Context { return c.nctx }

// ID returns the target ID by which origins reach c.
func (c *Context) ID() int { return c.nctx.ID() }

// Self returns the address of c.
func (c *Context) Self() na.Addr { return c.nctx.Self() }

// Now returns the current time of the context's monotonic clock. Only differences are meaningful.
func (c *Context) Now() time.Duration { return c.nctx.Now() }

// OnFault registers fn to be called in Trigger when the session with a peer is lost, until remove
// is called. If many sessions are lost, peer may be zero. Operations in flight with the peer
// complete with ErrPeerLost regardless of fn, and their callbacks may run before or after fn. fn
// must not cancel calls, because Cancel might cancel the next call of a handle. See
// [na.Context.OnFault].
func (c *Context) OnFault(fn func(peer na.Addr, err error)) (remove func()) {
	return c.nctx.OnFault(fn)
}

// Progress moves bytes until something is ready for Trigger or the timeout expires. It runs no
// callbacks. A negative timeout means no limit, and zero does not wait. Progress returns nil if
// something may be ready, an error that matches os.ErrDeadlineExceeded if the timeout expired, and
// an error that matches ErrClosed once c is closed and drained. While something is queued, Progress
// returns immediately, so a goroutine that calls it in a loop spins until Trigger is called.
func (c *Context) Progress(timeout time.Duration) error { return c.nctx.Progress(timeout) }

// Trigger runs queued callbacks and handlers and returns the number that it ran. If max is
// positive, it runs at most max of them, and otherwise as many as are queued when it begins.
// Trigger may be called from several goroutines concurrently and from within a callback.
//
// Messages that callbacks send during one Trigger are batched, provided that the callbacks return
// quickly.
func (c *Context) Trigger(max int) int {
	c.nctx.Upper().Flush()
	c.logOverdue()
	if c.nctx.Upper().Settled() == 0 {
		return 0
	}
	if max != 1 { // a Trigger(1) may be part of a pass in Wait, which does its own batching
		defer c.loop.EndBatch(c.loop.BeginBatch())
	}
	return c.nctx.Upper().TriggerUntil(nil, max)
}

// Stats returns the context's gauges and counters.
func (c *Context) Stats() Stats {
	return Stats{
		NA: c.nctx.Stats(), Handles: c.handles.Load(), Lent: c.lent.total(), Pulled: c.pulled.total(),
		Inline: c.bodies.inline.Load(), Loans: c.bodies.lent.Load(), NoRoom: c.bodies.noRoom.Load(),
		Dropped: c.dropped.Load(), Denied: c.denied.Load(), Late: c.late.Load(), Queued: c.nctx.Upper().Queued(),
		Active: c.admission.active.Load(), Streams: c.admission.streams.Load(), Waiting: c.admission.waiting.Load(),
	}
}

// Close ends every call of c with ErrClosed. It does not block and may be called from anywhere.
// Progress returns ErrClosed, and NA().Closed reports true, once every callback has returned and
// all loans and leases have ended.
func (c *Context) Close() { c.nctx.Close() }

// A LookupFunc is called with the outcome of a Lookup.
type LookupFunc func(addr na.Addr, err error)

// A Lookup is an address resolution in progress.
type Lookup struct {
	c     *Context
	op    *na.Op
	text  string
	begun time.Duration
	cb    LookupFunc
}

// Lookup resolves the text of an address, for example "tcp://node7:9000". It does not connect or
// block. Unless Lookup returns an error, cb is called in Trigger.
func (c *Context) Lookup(text string, cb LookupFunc) (*Lookup, error) {
	l := &Lookup{c: c, text: text, begun: c.Now(), cb: cb}
	l.op = c.nctx.NewOp(l.onEnded)
	if err := c.nctx.Lookup(l.op, text); err != nil {
		return nil, &Error{Op: "lookup", RPC: text, Fate: na.NotRun, Err: unwrapNA(err)}
	}
	return l, nil
}

// Cancel cancels the lookup. It does nothing if the lookup has completed. Cancel does not block.
// The callback runs exactly once in both cases.
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

// LookupWait resolves the text of an address. It drives Progress and Trigger until the lookup
// completes or ctx is done, so callbacks of other operations may run during the call.
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
	if code := CodeOf(fail); code == ErrInvalid || code == ErrUnsupported { // not caused by ctx
		return addr, fail
	}
	return addr, endedBy(ctx, fail)
}
