package hg

import (
	"sync"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A postedFunc is a function waiting for Trigger, in a reusable task.
type postedFunc struct {
	task na.Task
	next *postedFunc // next in the list of spare values
	fn   func()
}

// postedPool is a context's pool of spare postedFuncs.
type postedPool struct {
	mu    sync.Mutex // guards the fields below
	spare *postedFunc
	n     int
}

// maxSparePosts limits the number of spare postedFuncs per context.
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

// post queues t to run in Trigger after everything queued so far. t must not already be queued.
// post does not block and is safe for concurrent use. If c is closed and drained, the error matches
// ErrClosed and t does not run. Within a callback post never returns an error.
func (c *Context) post(t *na.Task) error {
	if !c.nctx.Upper().Queue(t) {
		return errDrained
	}
	return nil
}

// Post queues fn to run in Trigger after everything queued so far. It does not block or allocate,
// and is safe for concurrent use. If c is closed and drained, the error matches ErrClosed and fn
// does not run. Within a callback Post never returns an error. Post panics if fn is nil.
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

var errDrained = na.WithText(ErrClosed, "the hg.Context is closed and drained")
