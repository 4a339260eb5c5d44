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

// A Context is a completion queue for calls and the progress that fills it. Any number of goroutines may use one.
type Context struct {
	class     *Class
	nctx      *na.Context
	limits    na.Limits
	posts     postedPool
	loop      *loop.Loop
	userFrame func(loop.UserCode) int // of nctx

	mu    sync.Mutex // guards the fields below
	slots []uint64   // generations of call identities, by slot
	free  []uint32   // slots that no handle has
	open  *openEntry // the last that was made

	services spareServices

	admission    admission
	faults       sync.Once    // the OnFault of requests
	overdueLogAt atomic.Int64 // when detached requests are looked at; 0: never
	cutOff       atomic.Bool  // Shutdown waits no longer for handlers
	starting     atomic.Int32 // calls between the look at whether c drains and their beginning
	lent         byteLimit
	pulled       byteLimit
	bodies       bodyStats
	seen         tracker
	watch        activityWatch
	dropped      atomic.Int64 // one-way requests that could not be served
	denied       atomic.Int64 // requests, by the authorizer
	denials      loglimit.Limiter
	late         atomic.Int64 // errors that handlers returned after they had answered
	handles      atomic.Int64 // Stats.Handles
}

// Stats are the gauges and counters of a context.
type Stats struct {
	NA      na.Stats
	Handles int64 // handles that are not closed, and requests that have not ended
	Lent    int64 // bytes of input and output lent to peers
	Pulled  int64 // bytes of input and output being fetched from peers
	Inline  int64 // inputs and outputs longer than an envelope that went with their message
	Loans   int64 // inputs and outputs that were lent
	NoRoom  int64 // of these, that were lent for want of room at the peer, or because the origin takes none inline
	Dropped int64 // one-way requests that nobody could be told were not served
	Queued  int   // callbacks and handlers that wait for Trigger
	Denied  int64 // requests that the authorizer has denied
	Late    int64 // errors that handlers returned after they had answered
	Active  int64 // requests whose handlers have begun and that have not ended,
	Streams int64 // and those with streams, which Active does not count
	Waiting int64 // requests that wait for one of these to end
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

// NA returns the context of the network abstraction below. Its Trigger lets nothing leave together, and its Shutdown knows nothing of
// calls and handlers: those of c are what a program calls.
func (c *Context) NA() *na.Context { return c.nctx }

// ID is the target id by which origins reach c.
func (c *Context) ID() int { return c.nctx.ID() }

// Self returns the address of c.
func (c *Context) Self() na.Addr { return c.nctx.Self() }

// Now reads the clock: monotonic, only differences mean something.
func (c *Context) Now() time.Duration { return c.nctx.Now() }

// OnFault adds fn to what runs, in Trigger, when the session with a peer is lost, until remove is called; when many are, peer
// may be zero. The loss itself ends what is under way with that peer, with ErrPeerLost; callbacks of it run before fn or after: fn need
// cancel nothing, and a Cancel there may meet the next call of a handle. See [na.Context.OnFault].
func (c *Context) OnFault(fn func(peer na.Addr, err error)) (remove func()) {
	return c.nctx.OnFault(fn)
}

// Progress moves bytes until something is ready for Trigger or timeout has passed (negative: no limit; zero: one look).
// It returns nil when something may be ready, an error that matches os.ErrDeadlineExceeded when nothing happened, and
// one that matches ErrClosed when c is closed and drained. It runs no callback.
func (c *Context) Progress(timeout time.Duration) error { return c.nctx.Progress(timeout) }

// Trigger runs callbacks and handlers: at most max of them, or, if max is not positive, as many as are queued when it
// begins. It returns how many ran. It may be called from several goroutines at once, and inside a callback.
//
// What callbacks of one Trigger send leaves together, as far as they are quick.
func (c *Context) Trigger(max int) int {
	c.nctx.Upper().Flush()
	c.logOverdue()
	if c.nctx.Upper().Settled() == 0 {
		return 0
	}
	if max != 1 { // one may be of a pass of those who Wait
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

// Close ends every call of c with ErrClosed. It does not wait and may be called anywhere. When every callback has returned and everything
// has been given back, Progress returns ErrClosed, and NA().Closed reports true.
func (c *Context) Close() { c.nctx.Close() }

// A LookupFunc is called with the outcome of a Lookup.
type LookupFunc func(addr na.Addr, err error)

// A Lookup is the resolution of an address under way.
type Lookup struct {
	c     *Context
	op    *na.Op
	text  string
	begun time.Duration
	cb    LookupFunc
}

// Lookup resolves the text of an address, for example "tcp://node7:9000". It does not connect. cb runs in Trigger.
func (c *Context) Lookup(text string, cb LookupFunc) (*Lookup, error) {
	l := &Lookup{c: c, text: text, begun: c.Now(), cb: cb}
	l.op = c.nctx.NewOp(l.onEnded)
	if err := c.nctx.Lookup(l.op, text); err != nil {
		return nil, &Error{Op: "lookup", RPC: text, Fate: na.NotRun, Err: unwrapNA(err)}
	}
	return l, nil
}

// Cancel ends the lookup, unless it has ended. It does not block; the callback runs once in any case.
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

// LookupWait resolves the text of an address and drives Progress and Trigger until that is done or ctx ends. Callbacks
// of other operations may run meanwhile.
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
	if code := CodeOf(fail); code == ErrInvalid || code == ErrUnsupported { // no time would have helped
		return addr, fail
	}
	return addr, endedBy(ctx, fail)
}
