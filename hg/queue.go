package hg

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A postedFunc is a function that waits for Trigger, in a reusable task.
type postedFunc struct {
	task na.Task
	next *postedFunc // next in the list of spares
	fn   func()
}

// postedPool is a context's pool of spare postedFuncs.
type postedPool struct {
	mu    sync.Mutex // guards the fields below
	spare *postedFunc
	n     int
}

// maxSparePosts limits the length of the list of spares.
const maxSparePosts = 64

func (p *postedPool) get(fn func()) *postedFunc {
	p.mu.Lock()
	t := p.spare
	if t != nil {
		p.spare, t.next = t.next, nil
		p.n--
	}
	p.mu.Unlock()
	if t == nil {
		t = &postedFunc{}
		t.task.Init(p.run, t)
	}
	t.fn = fn
	return t
}

func (p *postedPool) run(data any) (ran int) {
	t := data.(*postedFunc)
	fn := t.fn
	p.put(t)
	fn()
	return 1
}

func (p *postedPool) put(t *postedFunc) {
	t.fn = nil
	p.mu.Lock()
	if p.n < maxSparePosts {
		t.next, p.spare = p.spare, t
		p.n++
	}
	p.mu.Unlock()
}

// post queues t, which must not be queued, to run in Trigger after everything that is queued now.
// It may be called from any goroutine and does not block. The error matches ErrClosed if c is
// closed and drained: t will not run. Inside a callback it never returns an error.
func (c *Context) post(t *na.Task) error {
	if !c.nctx.Upper().Queue(t) {
		return errDrained
	}
	return nil
}

// Post queues fn to run in Trigger after everything that is queued now. It may be called from any
// goroutine, and does not block or allocate. The error matches ErrClosed if c is closed and
// drained: fn will not run. Inside a callback it never returns an error. Post panics if fn is nil.
func (c *Context) Post(fn func()) error {
	if fn == nil {
		panic("hg: Post of a nil function")
	}
	t := c.posts.get(fn)
	err := c.post(&t.task)
	if err != nil {
		c.posts.put(t)
	}
	return err
}

var errDrained = na.WithText(ErrClosed, "the context is closed and drained")
