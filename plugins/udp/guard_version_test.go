package udp

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// TestTLSOtherVersion checks that a peer that requests a handshake of another version gets that as
// an answer, in its own version, and nothing is kept.
func TestTLSOtherVersion(t *testing.T) {
	t.Parallel()
	var d *domain
	cfg := &tls.Config{Certificates: []tls.Certificate{testcert.New()}}
	cls, err := na.Open("udp://127.0.0.1:0", na.Config{Plugins: []na.Plugin{plugin{opts: Options{TLS: cfg}, tune: func(it *domain) { d = it }}}})
	require.NoError(t, err)
	ctx, err := cls.NewContext()
	require.NoError(t, err)
	defer func() {
		ctx.Close()
		for end := time.Now().Add(30 * time.Second); !ctx.Closed(); ctx.Trigger(0) {
			require.Less(t, time.Now(), end)
			_ = ctx.Progress(time.Millisecond)
		}
	}()
	c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(d.shared.at))
	require.NoError(t, err)
	defer c.Close()
	for version, older := range map[uint32]string{wireVersion + 1: "upgrade the listening side", wireVersion - 1: "upgrade the dialing side"} {
		head := longHeader{version: version, kind: initial, from: 7}
		ask := head.appendTo(make([]byte, 0, tokenRequestSize))[:tokenRequestSize]
		answer := make([]byte, 2000)
		n := 0
		for end := time.Now().Add(30 * time.Second); n == 0; {
			require.Less(t, time.Now(), end)
			_, err = c.Write(ask)
			require.NoError(t, err)
			_ = ctx.Progress(time.Millisecond)
			require.NoError(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			n, _ = c.Read(answer)
		}
		require.LessOrEqual(t, n, len(ask))
		h, ok := parseAnyLong(answer[:n])
		require.True(t, ok)
		require.Equal(t, version, h.version)
		require.Equal(t, notice, h.kind)
		require.EqualValues(t, 7, h.to)
		bye := frame.ParseBye(answer[h.number:n])
		require.Equal(t, codes.ErrVersion, bye.Code)
		require.Contains(t, bye.Text, older)
		require.Empty(t, d.guard.halfOpen)
		for drained := false; !drained; { // answers to packets that were sent more than once
			require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
			_, err := c.Read(answer)
			drained = err != nil
		}
	}
}
