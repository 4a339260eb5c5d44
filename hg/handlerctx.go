package hg

import (
	"context"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A handlerContext holds the state of the context returned by Request.Context.
type handlerContext struct {
	c         *Context
	peer      na.Addr
	expired   bool            // reports whether the deadline had passed when the context was created
	abandoned bool            // reports whether the origin had abandoned the call when the context was created
	deadline  *deadlineParent // nil if the request has no deadline
	ctx       context.Context
	cancel    context.CancelCauseFunc
}

// newHandlerContextLocked creates the context that Request.Context returns. The caller must hold
// s.mu.
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
	// g.ctx must be the direct child of g.deadline, which ends only one child; see deadlineParent.
	g.ctx, g.cancel = context.WithCancelCause(parent)
	g.ctx = context.WithValue(g.ctx, hghook.RequestKey{}, s.request())
	return g
}

// checkEnded cancels g if its request or session ended before g was stored in service.handlerCtx.
// An end that comes later cancels g through that field.
func (g *handlerContext) checkEnded() {
	g.c.watchFaults()
	switch {
	case g.expired:
		g.expireAtDeadline()
	case g.abandoned:
		g.cancel(errAbandoned)
	case g.c.cutOff.Load() != nil, g.c.nctx.Closing():
		g.cancel(g.c.closeReason())
	case !g.c.nctx.Connected(g.peer):
		g.cancel(errLost)
	}
}

// expireAtDeadline ends the context with context.DeadlineExceeded.
func (g *handlerContext) expireAtDeadline() { g.deadline.endChild() }

// endWithRequest cancels the context because its request has ended.
func (g *handlerContext) endWithRequest() { g.cancel(errRequestEnded) }

// markAbandoned marks the request of e as abandoned by its origin. It queues the task of the
// request's record unless that is already queued. Each record has only one task, however many calls
// are abandoned before Trigger runs, so that no notification has to be dropped. A request waiting
// to be admitted is dispatched. The caller must hold the endpoint's lock.
func (c *Context) markAbandoned(e *na.Envelope) {
	s := e.Record.(*service)
	s.abandoned.Store(true)
	c.dispatchWithdrawn(s)
	if !s.abandonQueued.Swap(true) && !c.nctx.Upper().Queue(&s.abandonTask) {
		s.abandonQueued.Store(false)
	}
}

// onAbandoned runs in Trigger after markAbandoned. It ends the handler's context, or the wait for
// Run, unless the record is already serving another request.
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

// watchFaults registers, once, a function that notifies requests and handles of lost sessions.
func (c *Context) watchFaults() {
	c.faults.Do(func() {
		c.nctx.OnFault(func(_ na.Addr, err error) {
			for _, o := range c.allOpen() {
				o.onPeersLost(err)
			}
		})
	})
}

// A deadlineParent is the parent of a context that expires by the clock of an na.Context. Package
// context ends a context with DeadlineExceeded only by the system clock, but a child whose parent
// ends with DeadlineExceeded inherits that error.
type deadlineParent struct {
	at    time.Time
	done  chan struct{}
	once  sync.Once
	child func() // ends the only child; set by AfterFunc
}

// expiredContext holds the cause that context.Cause returns for a context that ended at its
// deadline.
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

// AfterFunc stores f, which package context passes to it to end a child. Because AfterFunc exists,
// package context does not start a goroutine that waits for Done.
func (d *deadlineParent) AfterFunc(f func()) (stop func() bool) {
	d.child = f
	return func() bool { return false }
}

// endChild ends the parent and its child.
func (d *deadlineParent) endChild() {
	d.once.Do(func() {
		close(d.done)
		d.child()
	})
}
