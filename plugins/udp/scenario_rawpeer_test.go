package udp_test

import (
	"crypto/rand"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// A rawPeer is a peer whose HELLO is written by the test.
type rawPeer struct {
	silentPeers
	mine, peer frame.Greeting
	code       na.Code // of a refusal
	over       bool    // there is an answer
}

func (s *rawPeer) Hello(_ *arq.Assoc, dst []byte) []byte { return s.mine.Append(dst) }

func (s *rawPeer) Greet(_ *arq.Assoc, hello []byte) (err error) {
	s.over = true
	s.peer, err = frame.ParseGreeting(hello)
	return err
}

func (s *rawPeer) Ended(_ *arq.Assoc, e arq.End) {
	s.over = true
	if e.Outcome == arq.Refusal {
		s.code = frame.ParseBye([]byte(e.Words)).Code
	}
}

// dialRaw sends HELLO to a node and returns with the answer, which is there before if the raw peer is
// mute.
func dialRaw(t *testing.T, n *node, g frame.Greeting, mute bool) *rawPeer {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	g.Versions, g.Envelopes, g.Eager = frame.Versions(), 1, 4096
	if g.Incarnation == [16]byte{} {
		_, _ = rand.Read(g.Incarnation[:])
	}
	s := &rawPeer{silentPeers: silentPeers{conn: conn, start: time.Now()}, mine: g}
	session := uint64(time.Now().UnixNano())
	s.m = arq.New(arq.Config{Rand: func(b []byte) { _, _ = rand.Read(b) }, Session: func() uint64 { session++; return session }}, s)
	ap, err := netip.ParseAddrPort(n.cls.Addr().Name()[len("udp://"):])
	require.NoError(t, err)
	_, err = s.m.Dial(s.now(), ap, 0, arq.Path{Local: true}, s)
	require.NoError(t, err)
	buf := make([]byte, arq.MaxSize)
	if mute {
		var head [arq.HeadSize]byte
		o, ok := s.m.Next(s.now(), head[:])
		require.True(t, ok)
		_, err := conn.WriteToUDPAddrPort(append(o.Head, o.Body...), ap)
		require.NoError(t, err)
		return s
	}
	for end := time.Now().Add(patience); !s.over; s.pass(t, buf) {
		require.Less(t, time.Now(), end, "no response")
		_ = n.ctxs[0].Progress(0)
		n.ctxs[0].Trigger(0)
	}
	return s
}

// TestForgedHelloKeepsSession checks that a peer that is alive keeps its session, whichever peer sends a HELLO with
// its address and its incarnation, which is public.
func TestForgedHelloKeepsSession(t *testing.T) {
	for _, portable := range []bool{false, true} {
		opts := udp.Options{Portable: portable}
		a, b := open(t, "udp://127.0.0.1:0", opts, 1), open(t, "udp://127.0.0.1:0", opts, 1)
		sendMessage(t, a.ctxs[0], b.cls.Addr(), b.ctxs[0], "first", a, b)
		asked := dialRaw(t, a, frame.Greeting{}, false).peer
		require.NotZero(t, asked.Secret)
		for _, g := range []frame.Greeting{
			{Listen: a.cls.Addr().Name(), Incarnation: asked.Incarnation},
			{Listen: a.cls.Addr().Name(), Incarnation: asked.Incarnation, Proof: asked.Secret}, // of another session
			{Listen: a.cls.Addr().Name()},
		} {
			require.Equal(t, na.ErrDuplicate, dialRaw(t, b, g, false).code)
		}
		sendMessage(t, b.ctxs[0], a.cls.Addr(), a.ctxs[0], "second", a, b)
		require.Zero(t, a.ctxs[0].Stats().PeersLost)
		require.Zero(t, b.ctxs[0].Stats().PeersLost)
	}
}

// TestForgedPacketMakesNoPeer checks that one packet, whose address may be forged, makes no peer that
// could be lost.
func TestForgedPacketMakesNoPeer(t *testing.T) {
	t.Parallel()
	n := open(t, "udp://127.0.0.1:0", udp.Options{}, 1)
	faults := 0
	n.ctxs[0].OnFault(func(na.Addr, error) { faults++ })
	for range 20 {
		dialRaw(t, n, frame.Greeting{}, true)
	}
	came := false
	driveUntil(t, "the strangers have come and gone", func() bool {
		peers := n.ctxs[0].Stats().Peers
		came = came || peers > 0
		return came && peers == 0
	}, n)
	require.Zero(t, faults)
	require.Zero(t, n.ctxs[0].Stats().PeersLost)
}
