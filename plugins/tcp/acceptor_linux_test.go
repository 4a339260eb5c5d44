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

// TestOwnFreezeRefusesNoHello checks that after a freeze of this process a HELLO that has arrived
// meanwhile counts, although its time is over.
func TestOwnFreezeRefusesNoHello(t *testing.T) {
	const limit = 20 * time.Millisecond
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{Unassisted: true, HandshakeTimeout: limit}, na.Config{}, 1)
	c := n.ctx()
	r := rawDial(t, n)
	_ = c.Progress(0) // accepts
	r.hello(greeting())
	for end := c.Now() + 2*limit; c.Now() < end; { // frozen
	}
	_ = c.Progress(time.Millisecond)
	driveUntil(t, "the session", func() bool { return c.Stats().Peers == 1 }, n)
	r.readHello()
	require.Equal(t, n.cls.Addr().Name(), r.peer.Listen)
}

// TestLongestHandshakeTimeout checks that with the longest HandshakeTimeout a connection is not dropped at
// once.
func TestLongestHandshakeTimeout(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{Unassisted: true, HandshakeTimeout: math.MaxInt64}, na.Config{}, 1)
	c := n.ctx()
	r := rawDial(t, n)
	for range 10 {
		_ = c.Progress(time.Millisecond) // accepts
	}
	r.hello(greeting())
	driveUntil(t, "the session", func() bool { return c.Stats().Peers == 1 }, n)
	r.readHello()
}

// TestAbandonedConnectionIsRefused checks a peer that connects, closes that connection, and
// connects again, where the closed one is read last. It does not replace the session that is up.
func TestAbandonedConnectionIsRefused(t *testing.T) {
	n := open(t, "tcp://127.0.0.1:0", tcp.Options{Unassisted: true, MaxHalfOpen: 1, HandshakeTimeout: time.Minute}, na.Config{}, 1)
	c := n.ctx()
	l := rawListen(t)
	g := greeting()
	g.Listen = l.addr().Name()
	r := rawDial(t, n)
	r.hello(g)
	driveUntil(t, "the session", func() bool { return c.Stats().Peers == 1 }, n)
	r.readHello()
	first := rawDial(t, n) // the next one is not read before this one has ended
	old := rawDial(t, n)
	old.hello(g)
	require.NoError(t, old.nc.Close())
	require.NoError(t, first.nc.Close())
	next := rawDial(t, n)
	next.hello(greeting())
	driveUntil(t, "the one after it", func() bool { return c.Stats().Peers == 2 }, n)
	r.send(frame.Header{Kind: frame.Ping, Tag: 7}, nil)
	stop := startDriver(n)
	defer stop()
	h, _ := r.readKind(frame.Pong)
	require.EqualValues(t, 7, h.Tag)
	require.Zero(t, c.Stats().PeersLost)
}
