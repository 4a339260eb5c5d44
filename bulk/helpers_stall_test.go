package bulk_test

import (
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A stallProxy is between the mover and the owner. It closes when a number of bytes has passed in one
// direction, in the middle of a frame as well, and lets nothing more through until it is opened:
// the owner seems frozen.
//
// Over tcp it is a relay of its own; over udp one that loses what it does not let through, in both
// directions; in the simulator a partition.
type stallProxy struct {
	p     *pair
	sim   bool
	limit uint64 // of bytes passed, in the simulator
	relay *streamRelay
	udp   *relay.Relay
}

// newStallProxy puts a proxy between the mover and the owner; p.peer then reaches the owner through the
// proxy.
func newStallProxy(p *pair) *stallProxy {
	g := &stallProxy{p: p, sim: p.Sim}
	if p.Name == "sm" || p.Beside {
		p.t.Skip("nothing stands between two processes that share memory")
	}
	if name, ok := strings.CutPrefix(p.owner.Addr().Name(), "udp://"); ok {
		var err error
		g.udp, err = relay.New(netip.MustParseAddrPort(name), relay.Rules{})
		require.NoError(p.t, err)
		p.t.Cleanup(g.udp.Close)
		p.peer = na.MakeAddr("udp://"+g.udp.Addr().String(), 0)
	} else if !g.sim {
		g.relay = newRelay(p.t, strings.TrimPrefix(p.owner.Addr().Name(), "tcp://"))
		p.peer = na.MakeAddr("tcp://"+g.relay.listener.Addr().String(), 0)
	}
	return g
}

// stallAfter arms the proxy: it closes when n more bytes have passed from the owner to the mover, or
// from the mover to the owner. The simulator counts both directions together.
func (g *stallProxy) stallAfter(n int, fromOwner bool) {
	if g.sim {
		g.limit = g.p.World.Stats().Bytes + uint64(n)
		return
	}
	if g.udp != nil {
		g.udp.ShutAfter(n, fromOwner)
		return
	}
	g.relay.arm(n, fromOwner)
}

// isStalled reports whether that many bytes have passed.
func (g *stallProxy) isStalled() bool {
	if g.udp != nil {
		return g.udp.Shut()
	}
	if !g.sim {
		return g.relay.blocked.Load()
	}
	if g.p.World.Stats().Bytes < g.limit {
		return false
	}
	g.p.World.Partition(strings.TrimPrefix(g.p.owner.Addr().Name(), "sim://"), moverNode, true)
	return true
}

// resume lets everything through again.
func (g *stallProxy) resume() {
	if g.sim {
		g.p.World.Heal()
		return
	}
	if g.udp != nil {
		g.udp.Open()
		return
	}
	g.relay.release()
}

// A streamRelay passes the bytes of tcp connections on.
type streamRelay struct {
	listener net.Listener
	to       string
	blocked  atomic.Bool // a copy waits at the limit
	wait     sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	cond   sync.Cond
	left   [2]int // bytes that may pass: to the owner, from the owner; negative: no limit
	closed bool
	conns  []net.Conn
}

func newRelay(t *testing.T, to string) *streamRelay {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &streamRelay{listener: listener, to: to, left: [2]int{-1, -1}}
	r.cond.L = &r.mu
	r.wait.Go(r.accept)
	t.Cleanup(r.close)
	return r
}

func (r *streamRelay) accept() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", r.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		for _, c := range []net.Conn{in, out} {
			_ = c.(*net.TCPConn).SetReadBuffer(64 << 10) // the system shall not buffer megabytes behind a closed proxy
		}
		r.mu.Lock()
		r.conns = append(r.conns, in, out)
		if r.closed {
			_, _ = in.Close(), out.Close()
		}
		r.mu.Unlock()
		r.wait.Go(func() { r.copy(out, in, 0) })
		r.wait.Go(func() { r.copy(in, out, 1) })
	}
}

// copy passes bytes in one direction, as many as may pass.
func (r *streamRelay) copy(to, from net.Conn, dir int) {
	buf := make([]byte, 16<<10)
	for {
		n, err := from.Read(buf)
		for b := buf[:n]; len(b) > 0; {
			k := r.pass(dir, len(b))
			if k == 0 {
				return
			}
			if _, err := to.Write(b[:k]); err != nil {
				return
			}
			b = b[k:]
		}
		if err != nil {
			_ = to.Close()
			return
		}
	}
}

// pass waits until some of n bytes may pass, and returns how many; 0 means that the relay is closed.
func (r *streamRelay) pass(dir, n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.left[dir] == 0 && !r.closed {
		r.blocked.Store(true)
		r.cond.Wait()
	}
	if r.closed {
		return 0
	}
	if r.left[dir] > 0 {
		n = min(n, r.left[dir])
		r.left[dir] -= n
	}
	return n
}

func (r *streamRelay) arm(n int, fromOwner bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = [2]int{n, -1}
	if fromOwner {
		r.left = [2]int{-1, n}
	}
	r.blocked.Store(false)
}

func (r *streamRelay) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = [2]int{-1, -1}
	r.cond.Broadcast()
}

func (r *streamRelay) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	r.closed = true
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.mu.Unlock()
	r.cond.Broadcast()
	r.wait.Wait()
}
