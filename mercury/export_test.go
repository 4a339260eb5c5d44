package mercury

import (
	"net"

	"github.com/quicksilver-rpc/quicksilver/mercury/internal/hgwire"
)

// SmallBuffers has the sockets of n take little at a time, so that a peer that does not read is noticed soon.
func (n *Node) SmallBuffers() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.conns {
		_ = c.nc.(*net.TCPConn).SetWriteBuffer(32 << 10)
	}
}

// Plant has f called with the bytes that any peer has sent, until the returned function is called.
func Plant(f func(b []byte)) (remove func()) {
	failpoint.Store(&f)
	return func() { failpoint.Store(nil) }
}

// Regions returns how many pieces of memory are lent.
func (n *Node) Regions() int {
	n.regionMu.Lock()
	defer n.regionMu.Unlock()
	return len(n.segments)
}

// AgeRegions makes lent memory look as if no peer had requested it for long.
func (n *Node) AgeRegions() {
	n.regionMu.Lock()
	defer n.regionMu.Unlock()
	for _, s := range n.segments {
		s.region.lastUsed.Store(0)
	}
}

// HeaderSize returns how long the headers of requests to a peer are.
func (n *Node) HeaderSize(addr string) int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	c := n.conns[addr]
	c.mu.Lock()
	defer c.mu.Unlock()
	return hgwire.HeaderSize(c.sums == sumsOn)
}
