package udp

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startHandshakes has n peers begin a handshake and send nothing more: from one address with different ports,
// or each from its own.
func (d *sharedSocket) startHandshakes(n int, one bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range n {
		from := netip.MustParseAddrPort("10.0.0.1:1000")
		if !one {
			from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0x0a010000+uint32(i)))), 1000)
		} else {
			from = netip.AddrPortFrom(from.Addr(), uint16(1000+i))
		}
		d.acceptConn(&inboundDatagram{from: from}, &longHeader{to: newID(0), from: randomUint64(), token: d.guard.makeToken(from, d.now(), 0)})
	}
}

// TestHandshakesOfOneAddress checks that however many handshakes one address begins, and does not
// continue, others are accepted at once.
func TestHandshakesOfOneAddress(t *testing.T) {
	d, _, _ := newGuardedSocket(t)
	g := d.guard
	one, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for i := range 2 * maxHalfOpen {
		require.Equal(t, i < maxHalfOpen/2, g.admitHandshake(one, time.Second) != nil, i)
	}
	it := g.admitHandshake(other, time.Second)
	require.NotNil(t, it)
	g.removeHandshake(it)
	for _, it := range g.halfOpen { // a handshake that waits for us is not evicted
		require.False(t, it.evicted)
	}
	ended := 0
	g.halfOpen[5].cancel = func() { ended++ }
	g.noteWaiting(g.halfOpen[5], time.Second)
	require.Nil(t, g.admitHandshake(one, 2*time.Second-1))
	require.Zero(t, ended)
	for range 2 {
		require.Nil(t, g.admitHandshake(one, 2*time.Second))
		require.Equal(t, 1, ended, "once")
	}
	for i := range maxHalfOpen {
		six := netip.AddrFrom16([16]byte{0: 0x20, 7: 1, 15: byte(i), 14: byte(i >> 8)})
		require.Equal(t, i < maxHalfOpen/2, g.admitHandshake(six, time.Second) != nil, i)
	}
}

// TestHandshakesReplaced checks that when the maximum of handshakes have begun, and none of them makes
// progress, a new peer does not wait until they have timed out.
func TestHandshakesReplaced(t *testing.T) {
	t.Parallel()
	for _, one := range []bool{true, false} {
		t.Run(map[bool]string{true: "one address", false: "many"}[one], func(t *testing.T) {
			t.Parallel()
			doms, send := newPair(t, 0)
			doms[1].shared.startHandshakes(2*maxHalfOpen, one)
			send()
		})
	}
}
