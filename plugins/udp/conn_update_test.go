package udp

import (
	"crypto/tls"
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"
	"weak"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/secure"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// newPair opens two classes with TLS, and returns their parts, and a function that sends a message
// in both directions.
func newPair(t *testing.T, most uint64) (doms [2]*domain, send func()) {
	t.Helper()
	c := testcert.New()
	pool := testcert.Pool(c)
	cfg := &tls.Config{Certificates: []tls.Certificate{c}, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	var ctxs [2]*na.Context
	var to na.Addr
	for i, addr := range []string{"udp://127.0.0.1:0", "udp://127.0.0.1:0"} {
		p := plugin{opts: Options{TLS: cfg}, tune: func(d *domain) { doms[i], d.guard.maxSealed = d, most }}
		cls, err := na.Open(addr, na.Config{Plugins: []na.Plugin{p}})
		require.NoError(t, err)
		ctxs[i], err = cls.NewContext()
		require.NoError(t, err)
		to = cls.Addr()
	}
	drive := func(what string, done func() bool) {
		for end := time.Now().Add(20 * time.Second); !done(); {
			require.Less(t, time.Now(), end, what)
			for _, c := range ctxs {
				_ = c.Progress(100 * time.Microsecond)
				c.Trigger(0)
			}
		}
	}
	t.Cleanup(func() {
		for _, c := range ctxs {
			c.Close()
		}
		drive("a context does not close", func() bool { return ctxs[0].Closed() && ctxs[1].Closed() })
	})
	return doms, func() {
		one := func(a, b *na.Context, to na.Addr) (from na.Addr) {
			sent, got := false, false
			require.NoError(t, b.RecvUnexpected(b.NewOp(func(_ *na.Op, r na.Result) {
				require.NoError(t, r.Err)
				got, from = true, r.Addr
				r.Envelope.Free()
			})))
			require.NoError(t, a.SendUnexpected(a.NewOp(func(_ *na.Op, r na.Result) { require.NoError(t, r.Err); sent = true }), to, 1, []byte("x")))
			drive("a message is lost", func() bool { return sent && got })
			return from
		}
		one(ctxs[1], ctxs[0], one(ctxs[0], ctxs[1], to))
	}
}

// onlyConn returns the single connection of a shared socket.
func onlyConn(t *testing.T, d *sharedSocket) (k *conn) {
	t.Helper()
	d.table.RLock()
	defer d.table.RUnlock()
	require.Len(t, d.byID, 1)
	for _, k = range d.byID {
	}
	return k
}

// TestKeysAreUpdated checks that keys are updated while messages are exchanged, and none is lost;
// 10,000 times in a long run.
func TestKeysAreUpdated(t *testing.T) {
	doms, send := newPair(t, 2)
	send()
	k := onlyConn(t, doms[1].shared)
	want := 300
	if long.On {
		want = 10_000
	}
	for range 3 * want {
		send()
	}
	k.c.e.Lock()
	defer k.c.e.Unlock()
	require.Greater(t, k.sealer.Updates(), uint64(want))
}

// TestAddressIsProven checks that a packet from a new address of a peer is answered there with a
// challenge, which is shorter, and is rate-limited; everything else is sent to the old address
// until the answer arrives from the new one.
func TestAddressIsProven(t *testing.T) {
	old, fresh, other := netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("10.0.0.2:2"), netip.MustParseAddrPort("10.0.0.3:3")
	c := &contextCarrier{}
	k := &conn{c: c, to: old, via: 1}
	now := time.Second
	from := func(at netip.AddrPort, b []byte) bool {
		return c.checkSourceLocked(now, &inboundDatagram{b: b, from: at, via: 2, conn: k})
	}
	packet := []byte{0x11, 1, 2, 3}
	require.True(t, from(old, packet))
	require.Empty(t, c.pathFrames)
	for range 1000 {
		require.True(t, from(fresh, packet))
	}
	require.Len(t, c.pathFrames, 1)
	n := c.pathFrames[0]
	require.NotEqual(t, byte(arq.Version), challenge>>4, "what is for arq begins with its version")
	require.Equal(t, challenge, n.kind)
	require.Equal(t, fresh, n.to)
	require.Equal(t, old, k.to)

	answer := append([]byte{response}, n.data[:]...)
	wrong := append([]byte{response}, n.data[:]...)
	wrong[3] ^= 1
	require.False(t, from(fresh, wrong))
	require.False(t, from(other, answer))
	require.False(t, from(fresh, answer[:8]))
	require.Equal(t, old, k.to)
	require.False(t, from(fresh, answer))
	require.Equal(t, fresh, k.to)
	require.Equal(t, uint8(2), k.via)
	require.False(t, from(old, answer), "it is good once")
	require.Equal(t, fresh, k.to)

	c.pathFrames = nil
	for range 1000 { // a peer that requests answers gets few
		require.False(t, from(fresh, append([]byte{challenge}, binary.BigEndian.AppendUint64(nil, 7)...)))
	}
	require.Len(t, c.pathFrames, maxPathFrames)
	require.Equal(t, pathFrame{k, response, [8]byte{7: 7}, fresh, 2}, c.pathFrames[0])
}

// TestFloodBesideCalls checks that while strangers request tokens, and send anything to a
// connection that is up, known peers are served, and no state of an unknown peer is kept.
func TestFloodBesideCalls(t *testing.T) {
	doms, send := newPair(t, 0)
	send()
	d := doms[1].shared
	b, s := newInitial(0, 0, tokenRequestSize), &countingSocket{}
	real, k := d.sock, onlyConn(t, d)
	await := time.Now().Add(10 * time.Second)
	for !k.handshakeDone.Load() {
		require.Less(t, time.Now(), await)
		send()
	}
	h := longHeader{kind: handshaking, to: k.id, from: k.peer}
	late := append(h.appendTo(nil), make([]byte, 1000)...)
	for i := range uint32(20_000) {
		binary.BigEndian.PutUint64(b[13:], uint64(i))
		d.mu.Lock()
		d.sock = s
		d.routeDatagrams([]inboundDatagram{{b: b, from: netip.AddrPortFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 0x0a000000+i))), 1000)}})
		d.routeDatagrams([]inboundDatagram{{b: late, from: k.to}})
		d.sock = real
		d.mu.Unlock()
		if i%1000 == 0 {
			send()
		}
	}
	require.Equal(t, 20_000, s.sent)
	require.Same(t, k, onlyConn(t, d))
	require.Empty(t, k.in)
}

// TestTLSOtherProtocols checks that a peer that uses TLS, but another protocol inside it, or none,
// is refused, and leaves nothing.
func TestTLSOtherProtocols(t *testing.T) {
	t.Parallel()
	doms, send := newPair(t, 0)
	send()
	c, target := doms[0].shared.contexts[0], doms[1].shared
	for name, protocols := range map[string][]string{"other": {"h2"}, "none": nil} {
		k, ctx := newConn(c, newID(c.id), 0, target.at, 0)
		h := newHandshake(k, true)
		h.cfg.NextProtos, h.cfg.ServerName = protocols, "127.0.0.1"
		h.q = tls.QUICClient(&tls.QUICConfig{TLSConfig: h.cfg})
		err := h.run(ctx)
		require.ErrorContains(t, err, "no application protocol", name)
		require.Contains(t, secure.Reason(err), "but not the protocol")
		c.shared.removeConn(k)
	}
	left := func() int {
		doms[1].guard.mu.Lock()
		defer doms[1].guard.mu.Unlock()
		return len(doms[1].guard.halfOpen)
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); left() > 0; <-tick.C { // they get the reason for a second
		require.Less(t, time.Now(), end)
		send()
	}
	onlyConn(t, target)
	send()
}

// TestConnectionRemoved checks that a connection without an association is removed some seconds after its
// handshake, and not during it, however long the peer takes for its last acknowledgment.
func TestConnectionRemoved(t *testing.T) {
	doms, send := newPair(t, 0)
	send()
	c := onlyConn(t, doms[0].shared).c
	c.e.Lock()
	defer c.e.Unlock()
	k, _ := newConn(c, newID(c.id), 1, netip.MustParseAddrPort("127.0.0.1:1"), 0)
	c.conns[k.name] = k
	k.up.Store(true)
	looks := func(n int) *conn {
		for range n {
			c.removeOrphansLocked(c.orphanCheckAt)
		}
		return c.shared.findConn(k.id)
	}
	require.Same(t, k, looks(5))
	k.onHandshakeEnd()
	require.Same(t, k, looks(1))
	require.Nil(t, looks(1))
	require.NotContains(t, c.conns, k.name)
	require.Len(t, c.conns, 1, "the other has an association")
}

// TestHandshakeReleased checks that a session keeps its keys and the proven identity of its
// peer, and nothing else of the handshake, which needs several times as much memory.
func TestHandshakeReleased(t *testing.T) {
	doms, send := newPair(t, 0)
	var seen weak.Pointer[net.UDPAddr]
	doms[1].guard.cfg.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		seen = weak.Make(hello.Conn.RemoteAddr().(*net.UDPAddr))
		return nil, nil
	}
	send()
	for end := time.Now().Add(20 * time.Second); seen.Value() != nil; runtime.GC() {
		require.Less(t, time.Now(), end, "the handshake is still there")
		send()
	}
	onlyConn(t, doms[1].shared)
}
