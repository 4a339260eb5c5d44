package hg

import (
	"context"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A handling is what is behind an Incoming.Context.
type handling struct {
	c      *Context
	peer   na.Addr
	key    handlingKey
	late   bool      // the deadline had passed when it was made
	due    *deadline // nil when there is none
	ctx    context.Context
	cancel context.CancelCauseFunc
}

// handlingKey is the identity of a call at its target.
type handlingKey struct {
	session uint64
	tag     na.Tag
}

// newHandling makes what Incoming.Context returns. Locked.
func (s *service) newHandling() *handling {
	nctx := s.ctx.nctx
	g := &handling{c: s.ctx, peer: s.addr, key: handlingKey{s.addr.Session(), s.tag}}
	parent := context.Background()
	if s.deadline != 0 {
		g.due = &deadline{at: nctx.WallTime(s.deadline), done: make(chan struct{})}
		parent = g.due
		if g.late = s.late(); !g.late {
			s.arm()
		}
	}
	g.ctx, g.cancel = context.WithCancelCause(parent)
	return g
}

// begin lets g be found, then looks for what has happened before that.
func (g *handling) begin() {
	t := &g.c.handlings
	t.watch(g.c)
	known := t.add(g)
	switch {
	case g.late:
		g.expire()
	case known != nil:
		g.cancel(known)
	case g.c.nctx.Closing():
		g.cancel(errClosed)
	case !g.c.nctx.Connected(g.peer):
		g.cancel(errLost)
	}
}

// expire ends the context at its deadline.
func (g *handling) expire() { g.due.pass() }

// over ends the context with its request.
func (g *handling) over() {
	g.c.handlings.remove(g)
	g.cancel(errOver)
}

// maxRecent bounds the news of abandoned calls that may be asked for later.
const maxRecent = 1024

// handlings are those of a context. There are no more than handles whose handlers have begun.
//
// A handler may ask for its context after the origin has abandoned the call. So the last such news that nobody waited for
// are kept; an identity never comes back, so an old one does no harm.
type handlings struct {
	hear sync.Once // of lost sessions

	mu     sync.Mutex // guards the fields below; not held while a context is canceled
	all    map[handlingKey]*handling
	recent []handlingKey // of calls that were abandoned: a ring once it is full
	oldest int
}

// add returns why g is to end at once.
func (t *handlings) add(g *handling) (known error) {
	t.mu.Lock()
	if t.all == nil {
		t.all = map[handlingKey]*handling{}
	}
	other := t.all[g.key]
	t.all[g.key] = g
	for _, key := range t.recent {
		if key == g.key {
			known = errAbandoned
		}
	}
	t.mu.Unlock()
	if other != nil { // the origin breaks the rules; whatever has no place in the table has ended
		other.cancel(errReused)
	}
	return known
}

func (t *handlings) remove(g *handling) {
	t.mu.Lock()
	if t.all[g.key] == g {
		delete(t.all, g.key)
	}
	t.mu.Unlock()
}

// abandon hears that an origin wants no answer to a call that was accepted.
func (t *handlings) abandon(peer na.Addr, tag na.Tag) {
	key := handlingKey{peer.Session(), tag}
	t.mu.Lock()
	g := t.all[key]
	switch {
	case g != nil:
	case len(t.recent) < maxRecent:
		t.recent = append(t.recent, key)
	default:
		t.recent[t.oldest] = key
		t.oldest = (t.oldest + 1) % maxRecent
	}
	t.mu.Unlock()
	if g != nil {
		g.cancel(errAbandoned)
	}
}

// watch has t and the detached requests of c told of lost sessions.
func (t *handlings) watch(c *Context) {
	t.hear.Do(func() {
		c.nctx.OnFault(func(peer na.Addr, err error) {
			t.lost(peer, err)
			for _, o := range c.all() {
				o.lost(errLost)
			}
		})
	})
}

// lost hears that a session has ended, or, when peer is zero, that more than one have.
func (t *handlings) lost(peer na.Addr, err error) {
	t.end(func(g *handling) bool {
		if peer.IsZero() {
			return !g.c.nctx.Connected(g.peer)
		}
		return g.key.session == peer.Session()
	}, err)
}

// end ends the contexts that which picks; nil picks all.
func (t *handlings) end(which func(*handling) bool, cause error) {
	var ends []*handling
	t.mu.Lock()
	for _, g := range t.all {
		if which == nil || which(g) {
			ends = append(ends, g)
		}
	}
	t.mu.Unlock()
	for _, g := range ends {
		g.cancel(cause)
	}
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
