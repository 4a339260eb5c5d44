package sim

import (
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A post is the start of an operation that needs something of the network below: a lookup, a
// message, the receive of an answer, a call, an answer, a withdraw, a put, a get, a lease; and the
// registering of memory, and a dial. Posts can fail, as they do where a queue is full or memory is
// short. Receives of requests and timers need nothing and do not fail. An operation whose post
// fails ends at once with the error: it did not run.

// A postCounter counts the posts of a node and holds the number of the one that fails.
type postCounter struct {
	count  atomic.Int64 // posts so far
	failAt atomic.Int64 // the number of the one that fails; 0: none
	err    error        // what it fails with; guarded by World.mu
}

// Posts counts the posts of the node's classes so far.
func (n *Node) Posts() int { return int(n.posts.count.Load()) }

// FailPost makes the k-th post from now on, counted from 1, fail with err. A k of 0 cancels an
// earlier FailPost.
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

// checkPost counts a post and returns why it fails, or nil.
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

// FailOp implements simhook.Faults, for memory that is registered.
func (in *instance) FailOp() error { return in.node.checkPost() }

// FailOp implements simhook.Faults, for operations of a context.
func (p *port) FailOp() error { return p.instance.node.checkPost() }
