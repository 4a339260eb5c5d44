package sim

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
)

// A post is the start of an operation that needs something of the network below: a lookup, a message, the receive of an
// answer, a call, an answer, a withdraw, a put, a get, a lease; and the registering of memory, and a dial. Posts can fail, as they do where a queue
// is full or memory is short. Receives of requests and timers need nothing and do not fail.
//
//	na ── start ──► endpoint ─ fails? ─ no ──► engine.Endpoint
//	                              └─ yes ──► the operation ends at once with the error: it did not run
type posts struct {
	made   atomic.Int64 // posts so far
	failAt atomic.Int64 // the number of the one that fails; 0: none
	err    error        // what it fails with; guarded by World.mu
}

// Posts counts the posts of the node's classes so far.
func (n *Node) Posts() int { return int(n.posts.made.Load()) }

// FailPost lets the k-th post from now on, counted from 1, fail with err; the others do not. k of 0 takes that back.
func (n *Node) FailPost(k int, err error) {
	if k > 0 && err == nil {
		panic("sim: FailPost without an error")
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.posts.err = err
	n.posts.failAt.Store(0)
	if k > 0 {
		n.posts.failAt.Store(n.posts.made.Load() + int64(k))
	}
}

// post counts a post and returns why it fails, or nil.
func (n *Node) post() error {
	w := n.w
	i := n.posts.made.Add(1)
	if at := n.posts.failAt.Load(); at != i && w.again.Load() == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err := n.posts.err
	if n.posts.failAt.Load() != i {
		if !w.posting.chance(w.again.Load()) {
			return nil
		}
		err = na.ErrAgain
		if w.posting.below(2) == 0 {
			err = na.ErrNoMemory
		}
	}
	w.failed.Add(1)
	w.trace("post fails", n.name, n.id, uint64(na.CodeOf(err)))
	return err
}

// A domain is an engine whose memory may not be had.
type domain struct {
	*engine.Engine
	node *Node
}

// Endpoint implements na.Domain.
func (d *domain) Endpoint(host *na.Host) (na.Endpoint, error) {
	ep, err := d.Engine.Endpoint(host)
	if err != nil {
		return nil, err
	}
	return &endpoint{Endpoint: ep.(*engine.Endpoint), node: d.node}, nil
}

// Publish implements na.Domain.
func (d *domain) Publish(m *na.Mem) error {
	if err := d.node.post(); err != nil {
		return err
	}
	return d.Engine.Publish(m)
}

// An endpoint is that of an engine, whose posts may fail.
type endpoint struct {
	*engine.Endpoint
	node   *Node
	posted atomic.Bool // the SendExpected that follows, by an Answer
}

// fails ends the operation of t if its post fails. local is memory that was acquired for it, or nil.
func (e *endpoint) fails(t na.Ticket, local *na.Mem) bool {
	err := e.node.post()
	if err == nil {
		return false
	}
	if local != nil {
		local.Release()
	}
	t.Finish(na.Result{Err: err, Fate: na.NotRun})
	return true
}

// Lookup implements na.Endpoint.
func (e *endpoint) Lookup(t na.Ticket, text string) {
	if !e.fails(t, nil) {
		e.Endpoint.Lookup(t, text)
	}
}

// SendUnexpected implements na.Endpoint.
func (e *endpoint) SendUnexpected(t na.Ticket, to na.Addr, tag na.Tag, buf []byte, by na.Deadline) {
	if e.fails(t, nil) {
		e.ReturnRoom(to, len(buf)) // a claim ends with the send
		return
	}
	e.Endpoint.SendUnexpected(t, to, tag, buf, by)
}

// Withdraw implements na.Endpoint.
func (e *endpoint) Withdraw(t na.Ticket, to na.Addr, id uint64) {
	if !e.fails(t, nil) {
		e.Endpoint.Withdraw(t, to, id)
	}
}

// SendExpected implements na.Endpoint.
func (e *endpoint) SendExpected(t na.Ticket, to na.Addr, tag na.Tag, buf, body []byte, copied bool, most int) {
	switch {
	case e.posted.Swap(false) || !e.fails(t, nil):
		e.Endpoint.SendExpected(t, to, tag, buf, body, copied, most)
	case body != nil:
		e.ReturnRoom(to, len(body))
	}
}

// Call implements na.Endpoint.
func (e *endpoint) Call(t na.Ticket, s na.CallSpec) {
	if e.fails(t, nil) {
		e.ReturnRoom(s.To, max(len(s.Msg), len(s.Body)))
		return
	}
	e.Endpoint.Call(t, s)
}

// Answer implements na.Endpoint. One that does not leave at once is a post of SendExpected.
func (e *endpoint) Answer(env *na.Envelope, to na.Addr, tag na.Tag, buf []byte, most int) (left bool, err error) {
	if err = e.node.post(); err != nil {
		return false, err
	}
	left, err = e.Endpoint.Answer(env, to, tag, buf, most)
	e.posted.Store(!left)
	return left, err
}

// RecvExpected implements na.Endpoint.
func (e *endpoint) RecvExpected(t na.Ticket, from na.Addr, tag na.Tag, buf []byte, most int) {
	if !e.fails(t, nil) {
		e.Endpoint.RecvExpected(t, from, tag, buf, most)
	}
}

// Put implements na.Endpoint.
func (e *endpoint) Put(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
	if !e.fails(t, local) {
		e.Endpoint.Put(t, local, loff, to, key, roff, n)
	}
}

// Get implements na.Endpoint.
func (e *endpoint) Get(t na.Ticket, local *na.Mem, loff int64, to na.Addr, key na.Key, roff, n int64) {
	if !e.fails(t, local) {
		e.Endpoint.Get(t, local, loff, to, key, roff, n)
	}
}

// Lease implements na.Endpoint.
func (e *endpoint) Lease(t na.Ticket, to na.Addr, tag na.Tag, m *na.Mem) {
	if err := e.node.post(); err != nil {
		if r := (na.Result{Err: err, Fate: na.NotRun}); !m.Revoke(t, r) {
			t.Finish(r)
		}
		return
	}
	e.Endpoint.Lease(t, to, tag, m)
}
