package arq

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// deliverAhead gives b a packet of lane 0 as if a had sent it, that far ahead of the next expected one.
func (n *network) deliverAhead(a, b *node, ahead, size int) {
	as := n.peerOf(a.assoc, b)
	p := Packet{form: formOf(Version), kind: kindData, id: as.id, token: as.token, seq: as.lane[0].rcv + uint32(ahead), ack: as.lane[0].una, edge: as.lane[0].edge,
		body: make([]byte, size)}
	b.m.Receive(n.now, a.addr, &p)
}

// TestHeldIsBounded checks that packets that arrive out of order are kept within the receive window
// of the peer, in numbers and in bytes, and those of all peers within the receive buffer.
func TestHeldIsBounded(t *testing.T) {
	const receive, peers = 3 << 20, 200
	n := newNetwork(t, 1, faults{delay: ms})
	b := n.add(0, Config{Receive: func() int { return receive }})
	var all []*node
	for i := range peers {
		nd := n.add(1+i, Config{})
		n.join(nd, b)
		n.stream(nd, b, 8, 8, time.Second) // it has a share
		all = append(all, nd)
	}
	n.idle(ms)
	for _, nd := range all {
		as := n.peerOf(nd.assoc, b)
		for _, size := range []int{60_000, 9000, 3000, 1} {
			for ahead := 1; ahead <= 64; ahead++ {
				n.deliverAhead(nd, b, ahead, size)
			}
		}
		if f := as.flight; f != nil {
			l := &as.lane[0]
			require.LessOrEqual(t, f.recv[0].units, int(l.granted-l.rcv), "units that one peer takes, and what it was promised")
		}
		b.check()
	}
	require.Positive(t, b.m.held)
	require.LessOrEqual(t, b.m.held, receive/unit, "units that all peers take")
	require.LessOrEqual(t, b.m.Stats().Retained, int64(receive*5/4), "bytes that all peers take")
	require.Positive(t, b.m.Stats().OutOfOrder)
	for _, nd := range all {
		n.peerOf(nd.assoc, b).Cut(nil)
	}
	require.Zero(t, b.m.held)
	require.Zero(t, b.m.Stats().Retained)
}

// TestHeldAndCut checks an upper layer that cuts the association while kept packets are delivered:
// none follows, and nothing is left of them.
func TestHeldAndCut(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{}, Config{})
	n.stream(a, b, 8, 8, time.Second)
	n.idle(ms)
	as := n.peerOf(a.assoc, b)
	for ahead := 1; ahead < 10; ahead++ {
		n.deliverAhead(a, b, ahead, 100)
	}
	require.Positive(t, b.m.Stats().Retained)
	cut := &cuttingUpper{Upper: b, after: 4}
	b.m.up = cut
	n.deliverAhead(a, b, 0, 100)
	require.Equal(t, 4, cut.delivered)
	require.Equal(t, dead, as.state)
	require.Zero(t, b.m.held)
	require.Zero(t, b.m.Stats().Retained)
}

// A cuttingUpper is an Upper that cuts the association after some packets.
type cuttingUpper struct {
	Upper
	after, delivered int
}

func (c *cuttingUpper) Deliver(a *Assoc, body []byte) {
	if c.delivered++; c.delivered == c.after {
		a.Cut([]byte("enough"))
	}
}

// TestSeedKeepsNothing checks that the receive window of profile seed is one packet.
func TestSeedKeepsNothing(t *testing.T) {
	n := newNetwork(t, 1, faults{delay: ms})
	a, b := n.pair(Config{Profile: Seed}, Config{Profile: Seed})
	for ahead := 1; ahead < 10; ahead++ {
		n.deliverAhead(a, b, ahead, 100)
	}
	require.EqualValues(t, 9, b.m.Stats().OutOfOrder)
	require.Zero(t, b.m.Stats().Retained)
}
