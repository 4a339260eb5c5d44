package tcp_test

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
)

// A freeze of this process: a HELLO that has come meanwhile counts, although its time is over.
func TestOwnFreezeRefusesNobody(t *testing.T) {
	const limit = 20 * time.Millisecond
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{Unassisted: true, HandshakeTimeout: limit}, na.Config{}, 1)
	c := n.ctx()
	r := rawDial(t, n)
	_ = c.Progress(0) // accepts
	r.hello(greeting())
	for end := c.Now() + 2*limit; c.Now() < end; { // frozen
	}
	_ = c.Progress(time.Millisecond)
	await(t, "the session", func() bool { return c.Stats().Peers == 1 }, n)
	r.readHello()
	require.Equal(t, n.cls.Addr().Name(), r.peer.Listen)
}

// Where a connection may take as long as there is to say HELLO, it is not dropped at once.
func TestHandshakeForEver(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{Unassisted: true, HandshakeTimeout: math.MaxInt64}, na.Config{}, 1)
	c := n.ctx()
	r := rawDial(t, n)
	for range 10 {
		_ = c.Progress(time.Millisecond) // accepts
	}
	r.hello(greeting())
	await(t, "the session", func() bool { return c.Stats().Peers == 1 }, n)
	r.readHello()
}

// A peer connects, gives that up, and connects again; what it gave up is read last. It does not take the session that lives.
func TestAbandonedConnectionIsRefused(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{Unassisted: true, MaxHalfOpen: 1, HandshakeTimeout: time.Minute}, na.Config{}, 1)
	c := n.ctx()
	l := rawListen(t)
	g := greeting()
	g.Listen = l.addr().Name()
	r := rawDial(t, n)
	r.hello(g)
	await(t, "the session", func() bool { return c.Stats().Peers == 1 }, n)
	r.readHello()
	first := rawDial(t, n) // what comes next is not read before this one is gone
	old := rawDial(t, n)
	old.hello(g)
	require.NoError(t, old.nc.Close())
	require.NoError(t, first.nc.Close())
	next := rawDial(t, n)
	next.hello(greeting())
	await(t, "the one after it", func() bool { return c.Stats().Peers == 2 }, n)
	r.send(frame.Header{Kind: frame.Ping, Tag: 7}, nil)
	stop := driven(n)
	defer stop()
	h, _ := r.readKind(frame.Pong)
	require.EqualValues(t, 7, h.Tag)
	require.Zero(t, c.Stats().PeersLost)
}
