package hg

import (
	"context"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A handlerContext is what is behind a Request.Context.
type handlerContext struct {
	c         *Context
	peer      na.Addr
	expired   bool            // the deadline had passed when it was made
	abandoned bool            // the origin had abandoned the call then
	deadline  *deadlineParent // nil when there is none
	ctx       context.Context
	cancel    context.CancelCauseFunc
}

// newHandlerContextLocked makes what Request.Context returns. Locked.
func (s *service) newHandlerContextLocked() *handlerContext {
	nctx := s.ctx.nctx
	g := &handlerContext{c: s.ctx, peer: s.addr, abandoned: s.abandoned.Load()}
	parent := context.Background()
	if s.deadline != 0 {
		g.deadline = &deadlineParent{at: nctx.Upper().WallTime(s.deadline), done: make(chan struct{})}
		parent = g.deadline
		if g.expired = s.isLate() || g.abandoned && s.isNearDeadline(); !g.expired {
			s.armTimerLocked(s.deadline)
		}
	}
	g.ctx, g.cancel = context.WithCancelCause(parent) // right below g.due: see there
	g.ctx = context.WithValue(g.ctx, hghook.RequestKey{}, s.request())
	return g
}

// checkEnded looks for what has happened before g could be found.
func (g *handlerContext) checkEnded() {
	g.c.watchFaults()
	switch {
	case g.expired:
		g.expireAtDeadline()
	case g.abandoned:
		g.cancel(errAbandoned)
	case g.c.cutOff.Load(), g.c.nctx.Closing():
		g.cancel(errClosed)
	case !g.c.nctx.Connected(g.peer):
		g.cancel(errLost)
	}
}

// expireAtDeadline ends the context at its deadline.
func (g *handlerContext) expireAtDeadline() { g.deadline.endChild() }

// endWithRequest ends the context with its request.
func (g *handlerContext) endWithRequest() { g.cancel(errRequestEnded) }

// markAbandoned marks the request of e, whose origin wants no answer any more, and queues its record, once: so nothing has to be
// dropped, however many calls are abandoned before Trigger. One that waits for room does not from now on. It is called with the lock of the
// endpoint held.
func (c *Context) markAbandoned(e *na.Envelope) {
	s := e.Record.(*service)
	s.abandoned.Store(true)
	c.dispatchWithdrawn(s)
	if !s.abandonQueued.Swap(true) && !c.nctx.Upper().Queue(&s.abandonTask) {
		s.abandonQueued.Store(false)
	}
}

// onAbandoned runs in Trigger after abandon. It ends the context of the handler, or the wait for Run, unless the record serves another
// request by now.
func (s *service) onAbandoned(any) (ran int) {
	s.abandonQueued.Store(false)
	s.mu.Lock()
	if s.phase == serviceSpare || !s.abandoned.Load() {
		s.mu.Unlock()
		return 0
	}
	given := s.phase == serviceGiven && s.env.IsWithdrawn() && s.claimRunLocked()
	s.endWithContext(func(g *handlerContext) {
		if s.isNearDeadline() {
			g.expireAtDeadline()
		} else {
			g.cancel(errAbandoned)
		}
	})
	if given {
		s.rejectRequest(errAbandoned)
	}
	return 0
}

// watchFaults has requests told of lost sessions from now on.
func (c *Context) watchFaults() {
	c.faults.Do(func() {
		c.nctx.OnFault(func(_ na.Addr, err error) {
			for _, o := range c.allOpen() {
				o.onPeersLost(err)
			}
		})
	})
}

// A deadlineParent is the parent of a context that ends at a time by a clock of our own. Package context has no way to cancel
// with DeadlineExceeded but for its own clock; a child does so when it finds its parent ended thus.
type deadlineParent struct {
	at    time.Time
	done  chan struct{}
	once  sync.Once
	child func() // ends the only child
}

// expiredContext is where context.Cause finds the cause of what a deadline has ended.
var expiredContext = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errDeadlineOver)
	return ctx
}()

var _ context.Context = (*deadlineParent)(nil)

func (d *deadlineParent) Deadline() (time.Time, bool) { return d.at, true }
func (d *deadlineParent) Done() <-chan struct{}       { return d.done }
func (d *deadlineParent) Value(key any) any           { return expiredContext.Value(key) }

func (d *deadlineParent) Err() error {
	select {
	case <-d.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// AfterFunc is how package context has f end a child, in the place of a goroutine that waits for Done.
func (d *deadlineParent) AfterFunc(f func()) (stop func() bool) {
	d.child = f
	return func() bool { return false }
}

// endChild ends the child.
func (d *deadlineParent) endChild() {
	d.once.Do(func() {
		close(d.done)
		d.child()
	})
}
