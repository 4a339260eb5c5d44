package udp_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// TestCloseWarns checks that a context that is closed while a peer has not acknowledged messages
// logs that, with their number, and once. It is not parallel: the log is shared.
func TestCloseWarns(t *testing.T) {
	var log bytes.Buffer
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(old) })
	for _, lost := range []bool{false, true} {
		b := open(t, "udp://127.0.0.1:0", udp.Options{}, 1)
		between, err := relay.New(netip.MustParseAddrPort(strings.TrimPrefix(b.cls.Addr().Name(), "udp://")), relay.Rules{})
		require.NoError(t, err)
		t.Cleanup(between.Close)
		a := open(t, "udp://", udp.Options{}, 1)
		to := na.MakeAddr("udp://"+between.Addr().String(), 0)
		sender := sendMessage(t, a.ctxs[0], to, b.ctxs[0], "hello", a, b)
		sendMessage(t, b.ctxs[0], sender, a.ctxs[0], "and back, with an acknowledgment", a, b)
		if lost {
			between.ShutAfter(0, false)
		}
		sent := 0
		for range 3 {
			require.NoError(t, a.ctxs[0].SendUnexpected(a.ctxs[0].NewOp(func(_ *na.Op, r na.Result) {
				require.NoError(t, r.Err)
				sent++
			}), to, 1, []byte("last words")))
		}
		driveUntil(t, "sends", func() bool { return sent == 3 }, a)
		require.NoError(t, a.cls.Close())
		driveUntil(t, "close", a.cls.Closed, a, b)
		if !lost {
			require.Empty(t, log.String())
			continue
		}
		const want = `level=WARN msg="udp: context closed before peers acknowledged all data" peers=1 messages=3`
		require.Equal(t, 1, strings.Count(log.String(), want), log.String())
	}
}
