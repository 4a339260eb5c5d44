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
		keepAlive                       time.Duration
		on, idle, interval, count, user int
	}{
		{0, 1, 10, 3, 3, 22000},
		{time.Minute, 1, 60, 18, 3, 132000},
		{time.Millisecond, 1, 1, 1, 3, 5000},
		{-1, 0, 0, 0, 0, 0},
	} {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		require.NoError(t, err)
		opts := Options{KeepAlive: row.keepAlive}.withDefaults()
		setOptions(fd, &opts, netip.MustParseAddr("192.0.2.1"))
		get := func(level, name int) int {
			v, err := unix.GetsockoptInt(fd, level, name)
			require.NoError(t, err)
			return v
		}
		require.Equal(t, 1, get(unix.IPPROTO_TCP, unix.TCP_NODELAY))
		require.Equal(t, 256<<10, get(unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT))
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
	for _, row := range []struct {
		asked, peer, want string
	}{
		{"", "127.0.0.1", "reno"},
		{"", "::1", "reno"},
		{"", "::ffff:127.0.0.1", "reno"},
		{"", "192.0.2.1", ""},
		{"cubic", "127.0.0.1", "cubic"},
		{"cubic", "192.0.2.1", "cubic"},
	} {
		opts := Options{Congestion: row.asked}
		require.Equal(t, row.want, opts.congestion(netip.MustParseAddr(row.peer)), "%+v", row)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer func() { _ = unix.Close(fd) }()
	setOptions(fd, &Options{}, netip.MustParseAddr("127.0.0.1"))
	got, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	require.NoError(t, err)
	require.Equal(t, "reno", strings.TrimRight(got, "\x00"))
}
