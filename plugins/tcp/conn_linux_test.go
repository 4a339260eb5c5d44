package tcp

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestSocketOptions(t *testing.T) {
	for _, row := range []struct {
		keepAlive, peerTimeout          time.Duration
		on, idle, interval, count, user int
	}{
		{0, 5 * time.Second, 1, 10, 1, 10, 21000},
		{time.Minute, time.Second, 1, 60, 6, 10, 126000},
		{time.Millisecond, time.Second, 1, 1, 1, 3, 5000},
		{0, 30 * time.Second, 1, 10, 1, 10, 31000},
		{0, time.Hour, 1, 10, 1, 10, 3601000},
		{-1, time.Second, 0, 0, 0, 0, 0},
	} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		d := &domain{opts: Options{KeepAlive: row.keepAlive}.withDefaults(row.peerTimeout), peerTimeout: row.peerTimeout}
		_, user := (&Options{KeepAlive: time.Millisecond, WriteTimeout: time.Minute}).keepaliveParams(time.Second)
		require.Equal(t, 61*time.Second, user, "a peer may take nothing for so long")
		d.setSocketOptions(fd, netip.MustParseAddr("192.0.2.1"))
		get := func(level, name int) int {
			v, err := unix.GetsockoptInt(fd, level, name)
			require.NoError(t, err)
			return v
		}
		require.Equal(t, 1, get(unix.IPPROTO_TCP, unix.TCP_NODELAY))
		require.Equal(t, 256<<10, get(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT))
		require.Equal(t, 1, get(unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS))
		if v, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_RTO_MAX_MS); err == nil { // not before Linux 6.15
			require.Equal(t, 1000, v)
		}
		require.Equal(t, row.on, get(unix.SOL_SOCKET, unix.SO_KEEPALIVE))
		require.Equal(t, row.user, get(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))
		if row.on == 1 {
			require.Equal(t, row.idle, get(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE))
			require.Equal(t, row.interval, get(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL))
			require.Equal(t, row.count, get(unix.IPPROTO_TCP, unix.TCP_KEEPCNT))
		}
		require.NoError(t, unix.Close(fd))
	}
}

func TestCongestion(t *testing.T) {
	for _, peer := range []string{"", "127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1"} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		get := func() string {
			name, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			require.NoError(t, err)
			return strings.TrimRight(name, "\x00")
		}
		want := get()
		ip, _ := netip.ParseAddr(peer)
		if ip.Unmap().IsLoopback() {
			want = "reno"
		}
		(&domain{}).setSocketOptions(fd, ip)
		require.Equal(t, want, get(), peer)
		require.NoError(t, unix.Close(fd))
	}
}

func TestDefaults(t *testing.T) {
	o := Options{}.withDefaults(5 * time.Second)
	require.Equal(t, 256, o.MaxHalfOpen)
	require.Equal(t, 5*time.Second, o.HandshakeTimeout)
	require.Equal(t, 10*time.Second, o.WriteTimeout)
	require.Equal(t, 30*time.Second, Options{}.withDefaults(30*time.Second).WriteTimeout, "PeerTimeout is first")
	require.Equal(t, time.Second, Options{WriteTimeout: time.Second}.withDefaults(30*time.Second).WriteTimeout)
}
