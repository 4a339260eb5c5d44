package debug

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A freezingProxy forwards the bytes between two processes until it is frozen: then connections stay
// open, and no byte passes.
type freezingProxy struct {
	net.Listener
	mu     sync.Mutex // guards frozen and conns
	frozen bool
	conns  []net.Conn
}

func newFreezingProxy(t *testing.T, to string) *freezingProxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	f := &freezingProxy{Listener: l}
	var all sync.WaitGroup
	pass := func(from, to net.Conn) {
		b := make([]byte, 64<<10)
		for {
			n, err := from.Read(b)
			f.mu.Lock()
			frozen := f.frozen
			f.mu.Unlock()
			if err != nil {
				to.Close()
				return
			}
			if !frozen {
				if _, err := to.Write(b[:n]); err != nil {
					return
				}
			}
		}
	}
	all.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("tcp", to)
			if err != nil {
				a.Close()
				continue
			}
			f.mu.Lock()
			f.conns = append(f.conns, a, b)
			f.mu.Unlock()
			all.Go(func() { pass(a, b) })
			all.Go(func() { pass(b, a) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		f.mu.Lock()
		for _, c := range f.conns {
			c.Close()
		}
		f.mu.Unlock()
		all.Wait()
	})
	return f
}

func (f *freezingProxy) freeze() {
	f.mu.Lock()
	f.frozen = true
	f.mu.Unlock()
}

// TestCausePeerLost checks that a frozen peer loses its session before its calls count as stalled:
// both sides report which peer was lost, when, with which error, and the calls in flight with it.
func TestCausePeerLost(t *testing.T) {
	t.Parallel()
	cfg := qs.Config{}
	cfg.HG.NA.PeerTimeout = 500 * time.Millisecond
	w := newWorld(t, cfg, nil)
	begun := make(chan struct{}, 10)
	hang.Handle(w.server, func(ctx context.Context, in int) (int, error) {
		begun <- struct{}{}
		return untilDone(ctx, in)
	})
	f := newFreezingProxy(t, w.server.Addr().Name()[len("tcp://"):])
	to, err := w.client.Peer(w.ctx, "tcp://"+f.Addr().String())
	require.NoError(t, err)
	for range 3 {
		hang.Go(w.ctx, to, 1)
		<-begun
	}
	f.freeze()
	c := w.waitForCause(t, w.clientPage, "peer lost", " was lost ", " ago: ", "3 calls to it and 0 requests from it were in flight (kv/reindex)", "na.Config.PeerTimeout")
	require.Equal(t, []any{"kv/reindex", 3}, []any{c.Method, c.Count})
	c = w.waitForCause(t, w.serverPage, "peer lost", "billing (127.0.0.1:", "0 calls to it and 3 requests from it were in flight (kv/reindex)")
	require.NotEmpty(t, c.Peer)
}

// TestLostPeersAreForgotten checks that lost peers are reported for some minutes, one by one if
// there are few, and only if there were calls in flight with them.
func TestLostPeersAreForgotten(t *testing.T) {
	t.Parallel()
	var c clock
	p := c.newPage()
	f := &fakeSource{}
	p.sources = []source{f}
	p.Snapshot(Query{})
	lose := func(i int) {
		c.now += time.Millisecond
		peer := newPeer(i, fmt.Sprint("worker-", i))
		f.lost(peer, errors.New("peer lost: silent"))
		p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "kv/get", Peer: peer, Took: 1})
	}
	idle := newPeer(1000, "idle")
	f.lost(idle, errors.New("peer lost: silent"))
	// of a later process at the same address
	p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "kv/get", Peer: idle.Bound(7), Took: 1})
	f.up = newPeer(1001, "up")
	// its handler has called one that was lost
	p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "kv/get", Peer: f.up, Took: 1, Code: hg.ErrPeerLost})
	require.Empty(t, causesOf(p, "peer lost"))
	for i := range 3 * maxLostPeers {
		lose(i)
	}
	all := causesOf(p, "peer lost")
	require.Len(t, all, maxLostCauses+1)
	require.Contains(t, all[0].Text, "peer lost: silent. 0 calls to it and 1 request from it were in flight (kv/get).")
	require.Equal(t, maxLostPeers-maxLostCauses, all[maxLostCauses].Count)
	c.now += lostCauseTime + time.Second
	require.Empty(t, causesOf(p, "peer lost"))
	require.Empty(t, p.lost.peers)
}
