package hg

import (
	"context"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/hghook"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A handling is what is behind a Request.Context.
type handling struct {
	c      *Context
	peer   na.Addr
	late   bool      // the deadline had passed when it was made
	gone   bool      // the origin had abandoned the call then
	due    *deadline // nil when there is none
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// newHandling makes what Request.Context returns. Locked.
func (s *service) newHandling() *handling {
	nctx := s.ctx.nctx
	g := &handling{c: s.ctx, peer: s.addr, gone: s.gone.Load()}
	parent := context.Background()
	if s.deadline != 0 {
		g.due = &deadline{at: nctx.Upper().WallTime(s.deadline), done: make(chan struct{})}
		parent = g.due
		if g.late = s.late() || g.gone && s.hurries(); !g.late {
			s.arm(s.deadline)
		}
	}
	g.ctx, g.cancel = context.WithCancelCause(parent) // right below g.due: see there
	g.ctx = context.WithValue(g.ctx, hghook.RequestKey{}, s.incoming())
	return g
}

// begin looks for what has happened before g could be found.
func (g *handling) begin() {
	g.c.hearFaults()
	switch {
	case g.late:
		g.expire()
	case g.gone:
		g.cancel(errAbandoned)
	case g.c.cutOff.Load(), g.c.nctx.Closing():
		g.cancel(errClosed)
	case !g.c.nctx.Connected(g.peer):
		g.cancel(errLost)
	}
}

// expire ends the context at its deadline.
func (g *handling) expire() { g.due.pass() }

// over ends the context with its request.
func (g *handling) over() { g.cancel(errOver) }

// abandon marks the request of e, whose origin wants no answer any more, and queues its record, once: so nothing has to be
// dropped, however many calls are abandoned before Trigger. One that waits for room does not from now on. It is called with the lock of the
// endpoint held.
func (c *Context) abandon(e *na.Envelope) {
	s := e.Record.(*service)
	s.gone.Store(true)
	c.unqueue(s)
	if !s.leaving.Swap(true) && !c.nctx.Upper().Queue(&s.leave) {
		s.leaving.Store(false)
	}
}

// left runs in Trigger after abandon. It ends the context of the handler, or the wait for Run, unless the record serves another
// request by now.
func (s *service) left(any) (ran int) {
	s.leaving.Store(false)
	s.mu.Lock()
	if s.phase == serviceSpare || !s.gone.Load() {
		s.mu.Unlock()
		return 0
	}
	given := s.phase == serviceGiven && s.env.IsWithdrawn() && s.claimRun()
	s.ends(func(g *handling) {
		if s.hurries() {
			g.expire()
		} else {
			g.cancel(errAbandoned)
		}
	})
	if given {
		s.reject(errAbandoned)
	}
	return 0
}

// hearFaults has requests told of lost sessions from now on.
func (c *Context) hearFaults() {
	c.faults.Do(func() {
		c.nctx.OnFault(func(_ na.Addr, err error) {
			for _, o := range c.all() {
				o.peersLost(err)
			}
		})
	})
}

// A deadline is the parent of a context that ends at a time by a clock of our own. Package context has no way to cancel
// with DeadlineExceeded but for its own clock; a child does so when it finds its parent ended thus.
type deadline struct {
	at    time.Time
	done  chan struct{}
	once  sync.Once
	child func() // ends the only child
}

// timedOut is where context.Cause finds the cause of what a deadline has ended.
var timedOut = func() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errTooLong)
	return ctx
}()

var _ context.Context = (*deadline)(nil)

func (d *deadline) Deadline() (time.Time, bool) { return d.at, true }
func (d *deadline) Done() <-chan struct{}       { return d.done }
func (d *deadline) Value(key any) any           { return timedOut.Value(key) }

func (d *deadline) Err() error {
	select {
	case <-d.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// AfterFunc is how package context has f end a child, in the place of a goroutine that waits for Done.
func (d *deadline) AfterFunc(f func()) (stop func() bool) {
	d.child = f
	return func() bool { return false }
}

// pass ends the child.
func (d *deadline) pass() {
	d.once.Do(func() {
		close(d.done)
		d.child()
	})
}
