package streamnet_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier/streamnet"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
	"github.com/quicksilver-rpc/quicksilver/na/natest"
)

// overTCP is a network over TCP on loopback: addresses are IP addresses.
func overTCP() streamnet.Options {
	return streamnet.Options{
		Scheme: "stream",
		Dial: func(ctx context.Context, name string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", name)
		},
		Listen: func(where string) (net.Listener, string, error) {
			l, err := net.Listen("tcp", where)
			if errors.Is(err, syscall.EADDRINUSE) {
				err = codes.WithText(codes.ErrAddrInUse, err.Error())
			}
			if err != nil {
				return nil, "", err
			}
			return l, l.Addr().String(), nil
		},
		Check: func(name string) error {
			ap, err := netip.ParseAddrPort(name)
			if err == nil && (ap.Port() == 0 || ap.Addr().IsUnspecified() || ap.String() != name) {
				err = errors.New("is not the name of one peer")
			}
			return err
		},
		Verify: func(conn net.Conn, name string) bool {
			ap, err := netip.ParseAddrPort(name)
			return err == nil && ap.Addr().IsLoopback() && conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().IsLoopback()
		},
	}
}

// overUnix is a network over unix sockets: addresses are paths.
func overUnix() streamnet.Options {
	return streamnet.Options{
		Scheme: "sock",
		Dial: func(ctx context.Context, name string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", name)
		},
		Listen: func(where string) (net.Listener, string, error) {
			l, err := net.Listen("unix", where)
			return l, where, err
		},
		Check: func(name string) error {
			if !filepath.IsAbs(name) || filepath.Clean(name) != name {
				return errors.New("is not a clean absolute path")
			}
			return nil
		},
		Verify: func(net.Conn, string) bool { return true },
	}
}

// literal is the plugin of the package comment. It does not verify the peers that connect, and
// takes every text for a name.
var literal = streamnet.New(streamnet.Options{
	Scheme: "unix",
	Dial: func(ctx context.Context, name string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", name)
	},
	Listen: func(where string) (net.Listener, string, error) {
		l, err := net.Listen("unix", where)
		return l, where, err
	},
})

// closedPort returns an address of loopback without a listener.
func closedPort(t testing.TB, host string) string {
	l, err := net.Listen("tcp", host+":0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestConformance(t *testing.T) {
	natest.TestVariants(t, map[string]natest.Maker{
		"tcp": func(t testing.TB) natest.Network {
			host := natest.OwnHost()
			return natest.Network{
				Listen:     func(int) string { return "stream://" + host + ":0" },
				Origin:     "stream://",
				Nobody:     "stream://" + closedPort(t, host),
				Plugins:    []na.Plugin{streamnet.New(overTCP())},
				Concurrent: true,
				Assisted:   true,
			}
		},
		"unix": func(t testing.TB) natest.Network {
			dir := t.TempDir()
			return natest.Network{
				Listen:     func(n int) string { return "sock://" + filepath.Join(dir, strings.Repeat("s", n+1)) },
				Origin:     "sock://",
				Nobody:     "sock://" + filepath.Join(dir, "nobody"),
				Plugins:    []na.Plugin{streamnet.New(overUnix())},
				Concurrent: true,
				Assisted:   true,
				Carrier:    true,
			}
		},
		"literal": func(t testing.TB) natest.Network {
			dir := t.TempDir()
			return natest.Network{
				Listen:     func(n int) string { return "unix://" + filepath.Join(dir, strings.Repeat("s", n+1)) },
				Origin:     "unix://",
				Nobody:     "unix://" + filepath.Join(dir, "nobody"),
				Plugins:    []na.Plugin{literal},
				Unverified: true,
				Concurrent: true,
				Assisted:   true,
			}
		},
	})
}
