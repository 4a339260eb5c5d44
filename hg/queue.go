package hg

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A posted is a function that waits for Trigger, in a task that is used again.
type posted struct {
	task na.Task
	next *posted // of those that are spare
	fn   func()
}

// posts are the spare ones of a context.
type posts struct {
	mu    sync.Mutex // guards the fields below
	spare *posted
	n     int
}

// maxSparePosts bounds them.
const maxSparePosts = 64

func (p *posts) get(fn func()) *posted {
	p.mu.Lock()
	t := p.spare
	if t != nil {
		p.spare, t.next = t.next, nil
		p.n--
	}
	p.mu.Unlock()
	if t == nil {
		t = &posted{}
		t.task.Init(p.run, t)
	}
	t.fn = fn
	return t
}

func (p *posts) run(data any) (ran int) {
	t := data.(*posted)
	fn := t.fn
	p.put(t)
	fn()
	return 1
}

func (p *posts) put(t *posted) {
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
