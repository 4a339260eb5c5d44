package hg

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A postedFunc is a function that waits for Trigger, in a task that is used again.
type postedFunc struct {
	task na.Task
	next *postedFunc // of those that are spare
	fn   func()
}

// postedPool are the spare ones of a context.
type postedPool struct {
	mu    sync.Mutex // guards the fields below
	spare *postedFunc
	n     int
}

// maxSparePosts bounds them.
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

// post queues t, which is not in the queue, to run in Trigger after what is queued now. It may be called from any goroutine. The
// error matches ErrClosed when c is closed and drained: t will not run. It does not do so in a callback.
func (c *Context) post(t *na.Task) error {
	if !c.nctx.Upper().Queue(t) {
		return errDrained
	}
	return nil
}

// Post queues fn to run in Trigger after what is queued now. It may be called from any goroutine. The error matches ErrClosed
// when c is closed and drained: fn will not run. It does not do so in a callback. Post panics when fn is nil. It allocates
// nothing.
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
