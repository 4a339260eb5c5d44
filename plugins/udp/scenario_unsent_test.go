package udp_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// TestUnsent: a dial ends at once, and says why, if the system of this machine does not send: to everybody, which package net allows, or from
// IPv4 to IPv6. So does the next.
func TestUnsent(t *testing.T) {
	const everybody, other = "udp://255.255.255.255:9", "udp://[::1]:9"
	for name, c := range map[string]struct {
		listen   string
		opts     udp.Options
		to, says string
	}{
		"polled":       {"udp://", udp.Options{}, everybody, "send: permission denied"},
		"TLS":          {"udp://", udp.Options{TLS: mutualTLS()}, everybody, "send: permission denied"},
		"portable":     {"udp://127.0.0.1:0", udp.Options{Portable: true}, other, "send: "},
		"portable TLS": {"udp://127.0.0.1:0", udp.Options{Portable: true, TLS: mutualTLS()}, other, "send: "},
	} {
		t.Run(name, func(t *testing.T) {
			if c.to == everybody && runtime.GOOS != "linux" {
				t.Skip("every socket is one of package net")
			}
			a := open(t, c.listen, c.opts, 1)
			from := a.ctxs[0]
			for range 2 {
				var end *na.Result
				to := na.MakeAddr(c.to, 0)
				require.NoError(t, from.SendUnexpected(from.NewOp(func(_ *na.Op, r na.Result) { end = &r }), to, 1, []byte("x")))
				await(t, "the dial", func() bool { return end != nil }, a)
				require.ErrorIs(t, end.Err, na.ErrUnreachable)
				require.ErrorContains(t, end.Err, c.says)
				require.Equal(t, na.NotRun, end.Fate)
			}
		})
	}
}
