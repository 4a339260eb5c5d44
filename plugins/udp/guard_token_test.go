package udp

import (
	"crypto/tls"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestTokenOnce checks that a token starts one handshake. A peer that shows it again when that has
// ended gets a new token, which is shorter than its packet, and continues with that.
func TestTokenOnce(t *testing.T) {
	t.Parallel()
	var d *domain
	cfg := &tls.Config{Certificates: []tls.Certificate{testcert.New()}}
	cls, err := na.Open("udp://127.0.0.1:0", na.Config{Plugins: []na.Plugin{plugin{opts: Options{TLS: cfg}, tune: func(it *domain) { d = it }}}})
	require.NoError(t, err)
	ctx, err := cls.NewContext()
	require.NoError(t, err)
	defer func() {
		ctx.Close()
		for end := time.Now().Add(10 * time.Second); !ctx.Closed(); ctx.Trigger(0) {
			require.Less(t, time.Now(), end)
			_ = ctx.Progress(time.Millisecond)
		}
	}()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(d.shared.at))
	require.NoError(t, err)
	defer c.Close()
	exchange := func(b []byte) (h longHeader, answered bool) {
		_, err := c.Write(b)
		require.NoError(t, err)
		_ = ctx.Progress(time.Second)
		answer := make([]byte, 2000)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		n, err := c.Read(answer)
		if err != nil {
			return h, false
		}
		require.LessOrEqual(t, n, len(b))
		h, ok := parseLong(answer[:n])
		require.True(t, ok)
		require.Equal(t, retry, h.kind)
		return h, true
	}
	handshakes := func() int {
		d.guard.mu.Lock()
		defer d.guard.mu.Unlock()
		return len(d.guard.halfOpen)
	}
	begin := func(token []byte, id uint64) []byte {
		first := longHeader{kind: initial, to: id, from: 7, token: token}
		return append(first.appendTo(nil), make([]byte, 100)...)
	}
	got, answered := exchange(newInitial(0, 7, tokenRequestSize))
	require.True(t, answered)
	for range 2 {
		_, answered = exchange(begin(got.token, got.from))
		require.False(t, answered, "the handshake has begun, and the received packet is no message of it")
		require.Equal(t, 1, handshakes(), "once")
		d.guard.mu.Lock()
		d.guard.halfOpen[0].cancel()
		d.guard.mu.Unlock()
		for end := time.Now().Add(10 * time.Second); handshakes() > 0; {
			require.Less(t, time.Now(), end)
			_ = ctx.Progress(time.Millisecond)
		}
		again, answered := exchange(begin(got.token, got.from))
		require.True(t, answered, "shown again")
		require.Zero(t, handshakes(), "a token that was used begins no handshake")
		require.Equal(t, got.from, again.from)
		require.NotEqual(t, got.token, again.token)
		got = again
	}
}

// TestTokensUsed checks that as many used tokens are kept as there is room for, and no used one is
// ever valid again.
func TestTokensUsed(t *testing.T) {
	d, _, now := newGuardedSocket(t)
	g := d.guard
	at := netip.MustParseAddrPort("10.0.0.1:1000")
	first := g.makeToken(at, *now, 1)
	unused := g.makeToken(at, *now, 1)
	g.useToken(first, *now)
	require.False(t, g.checkToken(first, at, *now, 1))
	for i := range 2*maxUsedTokens - 1 {
		*now += time.Microsecond
		token := g.makeToken(at, *now, uint64(i))
		require.True(t, g.checkToken(token, at, *now, uint64(i)))
		g.useToken(token, *now)
		require.False(t, g.checkToken(token, at, *now, uint64(i)))
		require.LessOrEqual(t, len(g.used), maxUsedTokens)
	}
	require.False(t, g.checkToken(first, at, *now, 1))
	require.False(t, g.checkToken(unused, at, *now, 1), "where used ones had to be forgotten, all that were made before are void")

	kept := g.makeToken(at, *now, 1)
	for len(g.used) < maxUsedTokens-1 {
		g.useToken(g.makeToken(at, *now, 1), *now)
	}
	*now += tokenLife
	require.True(t, g.checkToken(kept, at, *now, 1))
	*now++
	last := g.makeToken(at, *now, 1)
	g.useToken(g.makeToken(at, *now, 1), *now)
	require.Less(t, len(g.used), 3, "those that are too old are forgotten first")
	require.True(t, g.checkToken(last, at, *now, 1), "then no other one is void")
}
