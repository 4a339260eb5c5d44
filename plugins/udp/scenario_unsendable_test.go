package udp_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// TestDialUnsendable checks that a dial ends at once, with the reason, if the system of this machine does
// not send: to the broadcast address, which package net allows, or from IPv4 to IPv6. So does the
// next.
func TestDialUnsendable(t *testing.T) {
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
				driveUntil(t, "the dial", func() bool { return end != nil }, a)
				require.ErrorIs(t, end.Err, na.ErrUnreachable)
				require.ErrorContains(t, end.Err, c.says)
				require.Equal(t, na.NotRun, end.Fate)
			}
		})
	}
}

// TestDialUndialable checks that a dial of an address that names no single process, or no interface
// where it needs one, ends at once with the reason. So does the next.
func TestDialUndialable(t *testing.T) {
	each := map[string]udp.Options{"polled": {}, "portable": {Portable: true}, "TLS": {TLS: mutualTLS()}}
	for name, opts := range each {
		t.Run(name, func(t *testing.T) {
			a := open(t, "udp://", opts, 1)
			from := a.ctxs[0]
			for to, says := range map[string]string{
				"udp://[fe80::1%nosuch]:9": "zone nosuch is no interface",
				"udp://[fe80::1]:9":        "needs a zone",
				"udp://224.0.0.1:9":        "multicast",
				"udp://[ff02::1]:9":        "multicast",
			} {
				for range 2 {
					var end *na.Result
					require.NoError(t, from.SendUnexpected(from.NewOp(func(_ *na.Op, r na.Result) { end = &r }), na.MakeAddr(to, 0), 1, []byte("x")))
					driveUntil(t, "the dial", func() bool { return end != nil }, a)
					require.ErrorIs(t, end.Err, na.ErrUnreachable)
					require.ErrorContains(t, end.Err, says)
					require.Equal(t, na.NotRun, end.Fate)
				}
			}
		})
	}
}
