package udp_test

import (
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
)

// TestListenErrors checks that an address that cannot be bound, or must not, is an error with the
// reason.
func TestListenErrors(t *testing.T) {
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		taken, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = taken.Close() }()
		for rest, want := range map[string]struct {
			code    na.Code
			says    string
			trusted bool
		}{
			taken.LocalAddr().String(): {na.ErrAddrInUse, "listen on " + taken.LocalAddr().String(), false},
			"203.0.113.1:0":            {na.ErrPermission, "beyond loopback it needs TLS (Config.TLS, or udp.Options.TLS), or Options.Trusted", false},
			":0":                       {na.ErrPermission, "listen on :0: udp neither encrypts", false},
			"0.0.0.0:0":                {na.ErrPermission, "listen on 0.0.0.0:0", false},
			"203.0.113.2:0":            {na.ErrAddrInvalid, "listen on 203.0.113.2:0", true},
			"127.0.0.1":                {na.ErrInvalid, "want udp://host:port", false},
			"127.0.0.1:70000":          {na.ErrInvalid, "port", false},
		} {
			opts.Trusted = want.trusted
			_, err := na.Open("udp://"+rest, na.Config{Plugins: []na.Plugin{udp.New(opts)}})
			require.ErrorIs(t, err, want.code, rest)
			require.ErrorContains(t, err, want.says, rest)
		}
	})
}

// TestTrusted checks that on a network that is trusted a class listens on every address, and names
// one of them.
func TestTrusted(t *testing.T) {
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		opts.Trusted = true
		cls, err := na.Open("udp://0.0.0.0:0", na.Config{Plugins: []na.Plugin{udp.New(opts)}})
		require.NoError(t, err)
		require.Regexp(t, `^udp://[1-9][0-9.]+:[1-9]\d*$`, cls.Addr().String())
		require.NoError(t, cls.Close())
	})
}

// TestEnvironment checks that QS_UDP_ACK and QS_UDP_PROFILE choose how packets are acknowledged and
// sent again, unless the program does.
func TestEnvironment(t *testing.T) {
	open := func(opts udp.Options) error {
		cls, err := na.Open("udp://127.0.0.1:0", na.Config{Plugins: []na.Plugin{udp.New(opts)}})
		if err == nil {
			require.NoError(t, cls.Close())
		}
		return err
	}
	t.Setenv("QS_UDP_ACK", "often")
	require.ErrorContains(t, open(udp.Options{}), `invalid acknowledgment mode "often", want adaptive, lazy or eager`)
	require.NoError(t, open(udp.Options{Ack: "lazy"}))
	t.Setenv("QS_UDP_ACK", "eager")
	require.NoError(t, open(udp.Options{}))
	require.ErrorIs(t, open(udp.Options{Ack: "Lazy"}), na.ErrInvalid)
	t.Setenv("QS_UDP_PROFILE", "old")
	require.ErrorContains(t, open(udp.Options{}), `invalid profile "old", want modern or seed`)
	require.NoError(t, open(udp.Options{Profile: "seed"}))
}

// TestWildcard checks that a call to a class that listens on every address is answered from the
// address of the call, whatever address the system would choose. Over the portable sockets that is
// not so.
func TestWildcard(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("the address that a datagram came to is not known here")
	}
	four := []string{"127.0.0.1", "127.0.0.2", "127.3.2.1"}
	cases := map[string][]string{"udp://0.0.0.0:0": four, "udp://:0": four}
	if six, err := net.ListenPacket("udp6", "[::1]:0"); err == nil {
		_ = six.Close()
		both := []string{"127.0.0.2", "[::1]", "127.0.0.1"}
		cases["udp://[::]:0"], cases["udp://:0"] = both, both
	}
	for name, opts := range map[string]udp.Options{"plain": {Trusted: true}, "TLS": {TLS: mutualTLS()}} {
		for listen, called := range cases {
			t.Run(name+" "+listen, func(t *testing.T) {
				to := open(t, listen, opts, 1)
				name := to.cls.Addr().Name()
				port := name[strings.LastIndex(name, ":")+1:]
				for _, host := range called {
					from := open(t, "udp://", opts, 1)
					addr, err := na.ParseAddr("udp://" + host + ":" + port)
					require.NoError(t, err)
					sender := sendMessage(t, from.ctxs[0], addr, to.ctxs[0], "to "+host, from, to)
					sendMessage(t, to.ctxs[0], sender, from.ctxs[0], "answer", from, to)
				}
			})
		}
	}
}

// TestPortInUse checks that the error of a port that is taken names the address as it was given,
// also where it is that of every interface.
func TestPortInUse(t *testing.T) {
	eachSocket(t, func(t *testing.T, opts udp.Options) {
		opts.Trusted = true
		taken, err := net.ListenPacket("udp", ":0")
		require.NoError(t, err)
		defer func() { _ = taken.Close() }()
		at := taken.LocalAddr().String()
		rest := at[strings.LastIndex(at, ":"):]
		_, err = na.Open("udp://"+rest, na.Config{Plugins: []na.Plugin{udp.New(opts)}})
		require.ErrorIs(t, err, na.ErrAddrInUse)
		require.ErrorContains(t, err, "listen on "+rest+": ")
	})
}
