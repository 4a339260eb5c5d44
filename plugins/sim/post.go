package sim

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A post is the start of an operation that needs a resource of the underlying network: a lookup, a
// message, the receive of a response, a call, a response, the withdrawal of a request, a put, a
// get, or a lease. Registering memory and dialing are also posts. Posts can fail, as they do on a
// real network when a queue is full or memory is short. Receives of requests and timers need no
// resources and do not fail. An operation whose post fails completes immediately with the error and
// has no effect.

// A postCounter counts the posts of a node and selects the one that fails.
type postCounter struct {
	count  atomic.Int64 // number of posts so far
	failAt atomic.Int64 // number of the post that fails; 0 for none
	err    error        // error with which it fails; guarded by World.mu
}

// Posts returns the number of posts that the node's classes have made so far.
func (n *Node) Posts() int { return int(n.posts.count.Load()) }

// FailPost makes the k-th post after this call, counting from 1, fail with err. If k is 0, it
// cancels an earlier FailPost.
func (n *Node) FailPost(k int, err error) {
	if k > 0 && err == nil {
		panic("sim: FailPost called with a nil error")
	}
	n.w.mu.Lock()
	defer n.w.mu.Unlock()
	n.posts.err = err
	n.posts.failAt.Store(0)
	if k > 0 {
		n.posts.failAt.Store(n.posts.count.Load() + int64(k))
	}
}

// checkPost counts a post and returns the error with which it fails, or nil.
func (n *Node) checkPost() error {
	w := n.w
	i := n.posts.count.Add(1)
	if at := n.posts.failAt.Load(); at != i && w.again.Load() == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err := n.posts.err
	if n.posts.failAt.Load() != i {
		if !w.postRNG.hit(w.again.Load()) {
			return nil
		}
		err = codes.ErrAgain
		if w.postRNG.intn(2) == 0 {
			err = codes.ErrNoMemory
		}
	}
	w.failedPosts.Add(1)
	w.addTrace("post fails", n.name, n.id, uint64(codes.Of(err)))
	return err
}

// FailOp implements simhook.Faults for registrations of memory.
func (in *instance) FailOp() error { return in.node.checkPost() }

// FailOp implements simhook.Faults for the operations of a context.
func (p *port) FailOp() error { return p.instance.node.checkPost() }
