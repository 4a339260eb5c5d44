package udp_test

import (
	"encoding/binary"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp/internal/arq"
)

// shrinkBuffer makes the receive buffer of the socket at a port of ours the smallest that the system has.
func shrinkBuffer(t *testing.T, port int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, e := range fds {
		fd, err := strconv.Atoi(e.Name())
		require.NoError(t, err)
		if sa, err := unix.Getsockname(fd); err == nil {
			if in, ok := sa.(*unix.SockaddrInet4); ok && in.Port == port {
				require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1))
				return
			}
		}
	}
	require.Fail(t, "no socket has the port")
}

var permission = regexp.MustCompile(`^(?:DATA|ACK)0 .*\back=(\d+) edge=(\d+)`)

// TestUT33TinyBuffer (U-T33) sends a burst of 1000 messages to a socket whose buffer holds next to
// nothing: it arrives, whole and in order; and the receiver reduces its limit to four packets in
// flight, where one with an ordinary buffer permits many.
func TestUT33TinyBuffer(t *testing.T) {
	t.Parallel()
	for _, tiny := range []bool{true, false} {
		cls, err := na.Open("udp://127.0.0.1:0", na.Config{Plugins: []na.Plugin{udp.New(udp.Options{})}})
		require.NoError(t, err)
		target := netip.MustParseAddrPort(strings.TrimPrefix(cls.Addr().Name(), "udp://"))
		if tiny {
			shrinkBuffer(t, int(target.Port()))
		}
		b, a := openContexts(t, cls, 1), open(t, "udp://", udp.Options{}, 1)
		between, err := relay.New(target, relay.Rules{})
		require.NoError(t, err)
		t.Cleanup(between.Close)
		var window atomic.Int64
		between.Watch(func(d []byte, fromTarget bool) {
			if p, err := arq.Parse(d); err == nil && fromTarget {
				if m := permission.FindStringSubmatch(p.String()); m != nil {
					ack, _ := strconv.ParseUint(m[1], 10, 32)
					edge, _ := strconv.ParseUint(m[2], 10, 32)
					window.Store(int64(uint32(edge) - uint32(ack)))
				}
			}
		})
		at, from, to := b.ctxs[0], a.ctxs[0], na.MakeAddr("udp://"+between.Addr().String(), 0)
		const burst = 1000
		sent, got := 0, 0
		for i := range burst {
			require.NoError(t, at.RecvUnexpected(at.NewOp(func(_ *na.Op, r na.Result) {
				require.NoError(t, r.Err)
				require.Equal(t, got, int(binary.LittleEndian.Uint64(r.Envelope.Data)))
				got++
				r.Envelope.Free()
			})))
			require.NoError(t, from.SendUnexpected(from.NewOp(func(_ *na.Op, r na.Result) {
				require.NoError(t, r.Err)
				sent++
			}), to, 1, binary.LittleEndian.AppendUint64(nil, uint64(i))))
		}
		driveUntil(t, "all of the burst", func() bool { return sent == burst && got == burst }, a, b)
		as := func() bool {
			if tiny {
				return window.Load() == 4
			}
			return window.Load() > 100
		}
		for i := 0; !as() && i < burst; i++ { // a permission is never withdrawn
			sendMessage(t, from, to, at, "more", a, b)
		}
		require.True(t, as(), "%d packets may be under way; tiny: %v", window.Load(), tiny)
	}
}
