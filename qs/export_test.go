package qs

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// Go is spawn.
func (n *Node) Go(f func()) { n.spawn(f) }

// Sleep exports sleep.
func (n *Node) Sleep(ctx context.Context, d time.Duration) error { return n.sleep(ctx, d) }

// WithTimeout is withTimeout.
func (n *Node) WithTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return n.withTimeout(ctx, d)
}

// WithoutMapping has files not be mapped while f runs.
func WithoutMapping(f func()) {
	was := mapFile
	defer func() { mapFile = was }()
	mapFile = func(*os.File, bulk.FileOptions) (*bulk.File, error) { return nil, errors.ErrUnsupported }
	f()
}

// Probes returns the number of probes in flight.
func (n *Node) Probes() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.probes)
}

// Looks returns how many Peers have their addresses probed.
func (n *Node) Looks() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.healthTimers)
}

// Streams returns how many ends of streams n has.
func (n *Node) Streams() int {
	all := 0
	for _, hctx := range n.contexts {
		all += hctx.Stats().NA.Streams
	}
	return all
}

// Over reports whether the call has ended.
func (f *Future[Out]) Over() bool { return f.f.isOver() }

// Addrs returns all addresses that there are now.
func (p Peer) Addrs() (all []hg.Addr) {
	switch {
	case p.p == nil:
		return nil
	case p.p.single != nil:
		return []hg.Addr{p.p.single.addr}
	}
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	p.p.followServicesLocked(p.p.n.now())
	for _, at := range p.p.backends {
		all = append(all, at.addr)
	}
	return all
}

// Lends reports whether the method has Sources or Sinks, or answers a stream.
func (c *Call) Lends() bool { return c.lends }

// UseShare has a client of a name take its share, and return it if it got one; it returns how many names are kept.
func (n *Node) UseShare(name string) (names int, err error) {
	if err = n.clients.takeShare(hg.Request{}, name, n.clients.limitOf(name)); err == nil {
		n.clients.returnShare(hg.Request{})
	}
	return len(n.clients.shares), err
}
