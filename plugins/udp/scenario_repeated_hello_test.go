package udp_test

import (
	"crypto/rand"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// TestHelloAgainAtTheEnd checks a peer that sends HELLO, ends the session, and sends the same
// HELLO again before that is over: the node continues.
func TestHelloAgainAtTheEnd(t *testing.T) {
	n := open(t, "udp://127.0.0.1:0", udp.Options{}, 1)
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	g := frame.Greeting{Versions: frame.Versions(), Envelopes: 1, Eager: 4096}
	_, _ = rand.Read(g.Incarnation[:])
	s := &rawPeer{silentPeers: silentPeers{conn: conn, start: time.Now()}, mine: g}
	s.m = arq.New(arq.Config{Rand: func(b []byte) { _, _ = rand.Read(b) }, Session: func() uint64 { return uint64(time.Now().UnixNano()) }}, s)
	ap, _ := netip.ParseAddrPort(n.cls.Addr().Name()[len("udp://"):])
	a, err := s.m.Dial(s.now(), ap, 0, arq.Path{Local: true}, s)
	require.NoError(t, err)
	var head [arq.HeadSize]byte
	o, _ := s.m.Next(s.now(), head[:])
	hello := append(append([]byte(nil), o.Head...), o.Body...)
	_, _ = conn.WriteToUDPAddrPort(hello, ap)
	buf := make([]byte, arq.MaxSize)
	for end := time.Now().Add(5 * time.Second); !s.over; s.pass(t, buf) {
		require.Less(t, time.Now(), end)
		_ = n.ctxs[0].Progress(0)
		n.ctxs[0].Trigger(0)
	}
	a.Finish(s.now(), []byte("0123456789"))
	for {
		o, ok := s.m.Next(s.now(), head[:])
		if !ok {
			break
		}
		_, _ = conn.WriteToUDPAddrPort(append(append([]byte(nil), o.Head...), o.Body...), ap)
	}
	for range 20 { // it does not acknowledge the end of the other side
		_, _ = conn.WriteToUDPAddrPort(hello, ap)
		_ = n.ctxs[0].Progress(time.Millisecond)
		n.ctxs[0].Trigger(0)
	}
	require.Zero(t, dialRaw(t, n, frame.Greeting{}, false).code, "others are served")
}
