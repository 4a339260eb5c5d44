package qs_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// withSharedMemory returns a function that gives a configuration shared memory in a directory of the test.
func withSharedMemory(t *testing.T) func(qs.Config) qs.Config {
	dir, err := os.MkdirTemp("", "sm") // short: it is part of the address of a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return func(cfg qs.Config) qs.Config {
		cfg.HG.NA.Plugins = []na.Plugin{sm.New(sm.Options{Dir: dir})}
		return cfg
	}
}

var seen = qs.Define[struct{}, [3]string]("beside/seen")

// serveSeen answers with the transport of the caller, the reason, and its verified name.
func serveSeen(n *qs.Node) {
	seen.Handle(n, func(ctx context.Context, _ struct{}) ([3]string, error) {
		who := qs.CallerFrom(ctx)
		return [3]string{who.Transport, who.Why, who.Name}, nil
	})
}

// TestBeside checks the transport of a call to the address of the first transport, and the target's
// view of the caller, which has connected by shared memory without a certificate.
func TestBeside(t *testing.T) {
	t.Parallel()
	cert := testcert.New()
	secret := trustingConfig(cert)
	for name, c := range map[string]struct {
		target, origin qs.Config
		own, first     string // opened by the origin, and the scheme of its address
		want           [3]string
	}{
		"both":         {own: "tcp://,sm://", want: [3]string{"sm", "the peer is on this machine", ""}},
		"udp":          {first: "udp", own: "udp://,sm://", want: [3]string{"sm", "the peer is on this machine", ""}},
		"one":          {own: "tcp://", want: [3]string{"tcp", "the peer does not use sm beside tcp, or cannot reach it yet", ""}},
		"never there":  {target: qs.Config{Local: na.LocalNever}, own: "tcp://,sm://", want: [3]string{"tcp", "Config.Local is LocalNever", ""}},
		"never here":   {origin: qs.Config{Local: na.LocalNever}, own: "tcp://,sm://", want: [3]string{"tcp", "the peer does not use sm beside tcp, or cannot reach it yet", ""}},
		"secret":       {target: qs.Config{TLS: secret}, origin: qs.Config{TLS: secret}, own: "tcp://,sm://", want: [3]string{"tcp", "TLS is enabled and Config.Local is not LocalAlways", carrier.NameOf(cert.Leaf)}},
		"always":       {target: qs.Config{TLS: secret, Local: na.LocalAlways}, origin: qs.Config{TLS: secret, Local: na.LocalAlways}, own: "tcp://,sm://", want: [3]string{"sm", "the peer is on this machine", carrier.NameOf(cert.Leaf)}},
		"always, once": {target: qs.Config{TLS: secret, Local: na.LocalAlways}, origin: qs.Config{TLS: secret}, own: "tcp://,sm://", want: [3]string{"tcp", "the peer does not use sm beside tcp, or cannot reach it yet", carrier.NameOf(cert.Leaf)}},
		"always, udp":  {target: qs.Config{TLS: secret, Local: na.LocalAlways}, origin: qs.Config{TLS: secret, Local: na.LocalAlways}, first: "udp", own: "udp://,sm://", want: [3]string{"sm", "the peer is on this machine", carrier.NameOf(cert.Leaf)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			beside := withSharedMemory(t)
			if c.first == "" {
				c.first = "tcp"
			}
			s := serverAt(t, c.first+"://127.0.0.1:0,sm://", beside(c.target), serveSeen)
			if strings.Contains(c.own, "sm") {
				c.origin = beside(c.origin)
			}
			o := open(t, c.own, c.origin)
			p := peer(t, o, s.Addr().String())
			got, err := seen.Call(testContext(t), p, struct{}{})
			require.NoError(t, err)
			require.Equal(t, c.want, got)
			there, ok := o.HG().NA().Identity(o.HG().NA().Peers()[0].Addr)
			require.True(t, ok)
			require.Equal(t, c.want[0], there.Transport)
			require.Equal(t, c.want[2], there.Name)
			require.Equal(t, c.want[2] != "" && c.want[0] != "sm", there.Secure)
		})
	}
}

// TestBesideUnavailable checks that a second transport is used if it is available: where sm has no
// directory the node opens all the same, logs the reason, and its calls use the first. As a first
// transport sm fails to open there.
func TestBesideUnavailable(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for name, dir := range map[string]string{"no directory": filepath.Join(file, "names"), "too long": filepath.Join(t.TempDir(), strings.Repeat("x", 110))} {
		t.Run(name, func(t *testing.T) {
			var logs bytes.Buffer
			cfg := func(log *bytes.Buffer) (cfg qs.Config) {
				cfg.HG.NA.Plugins = []na.Plugin{sm.New(sm.Options{Dir: dir})}
				cfg.HG.NA.Logger = slog.New(slog.NewTextHandler(log, nil))
				return cfg
			}
			s := serverAt(t, "tcp://127.0.0.1:0,sm://", cfg(&logs), serveSeen)
			require.Contains(t, logs.String(), "sm:// is unavailable")
			require.Contains(t, logs.String(), dir)
			got, err := seen.Call(testContext(t), peer(t, open(t, "tcp://,sm://", cfg(&bytes.Buffer{})), s.Addr().String()), struct{}{})
			require.NoError(t, err)
			require.Equal(t, "tcp", got[0])
			_, err = qs.Open("sm://name", cfg(&bytes.Buffer{}))
			require.Error(t, err)
		})
	}
}

// TestBesideWithoutMemory checks that where a process cannot have the memory that long messages
// need over sm, its peers are reached by the first transport from the beginning: no call fails for
// it.
func TestBesideWithoutMemory(t *testing.T) {
	beside := withSharedMemory(t)
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: old.Max})) // a session begins with less
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &old)) }()
	sum := qs.Define[[]byte, int]("beside/sum")
	s := serverAt(t, "tcp://127.0.0.1:0,sm://", beside(qs.Config{}), func(n *qs.Node) {
		serveSeen(n)
		sum.Handle(n, func(_ context.Context, b []byte) (int, error) { return len(b), nil })
	})
	p := peer(t, open(t, "tcp://,sm://", beside(qs.Config{})), s.Addr().String())
	for _, size := range []int{10, 8 << 10, 300 << 10} {
		got, err := sum.Call(testContext(t), p, make([]byte, size))
		require.NoError(t, err)
		require.Equal(t, size, got)
	}
	got, err := seen.Call(testContext(t), p, struct{}{})
	require.NoError(t, err)
	require.Equal(t, "tcp", got[0])
}

// TestBesideContexts checks that peers that are spread over contexts connect to the one that made
// the offer.
func TestBesideContexts(t *testing.T) {
	t.Parallel()
	beside := withSharedMemory(t)
	s := serverAt(t, "tcp://127.0.0.1:0,sm://", beside(qs.Config{Contexts: 4}), serveSeen)
	for range 16 {
		got, err := seen.Call(testContext(t), peer(t, open(t, "tcp://,sm://", beside(qs.Config{})), s.Addr().String()), struct{}{})
		require.NoError(t, err)
		require.Equal(t, "sm", got[0])
	}
}

// TestBesideNames checks that a peer that is reached by shared memory is found by its other names,
// which its certificate carries, and by no others.
func TestBesideNames(t *testing.T) {
	t.Parallel()
	beside := withSharedMemory(t)
	cfg := qs.Config{TLS: trustingConfig(testcert.NewWith(func(c *x509.Certificate) { c.DNSNames = []string{"localhost"} })), Local: na.LocalAlways}
	s := serverAt(t, "tcp://127.0.0.1:0,sm://", beside(cfg), serveSeen)
	o := open(t, "tcp://,sm://", beside(cfg))
	for _, host := range []string{"localhost", "127.0.0.1", "localhost"} {
		got, err := seen.Call(testContext(t), peer(t, o, strings.Replace(s.Addr().String(), "127.0.0.1", host, 1)), struct{}{})
		require.NoError(t, err)
		require.Equal(t, "sm", got[0])
	}
}

// TestBesideBoth checks that when both ends dial each other at the same moment, each call runs.
func TestBesideBoth(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"tcp", "udp"} {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			beside := withSharedMemory(t)
			var all sync.WaitGroup
			for range 50 {
				a := serverAt(t, first+"://127.0.0.1:0,sm://", beside(qs.Config{}), serveSeen)
				b := serverAt(t, first+"://127.0.0.1:0,sm://", beside(qs.Config{}), serveSeen)
				for _, p := range []qs.Peer{peer(t, a, b.Addr().String()), peer(t, b, a.Addr().String())} {
					all.Go(func() {
						for range 3 {
							got, err := seen.Call(testContext(t), p, struct{}{})
							assert.NoError(t, err)
							assert.Equal(t, "sm", got[0])
						}
					})
				}
			}
			all.Wait()
		})
	}
}

// TestBesideBeyondHandlerLimit runs more streams and uploads than there are places for handlers, over the
// second transport.
func TestBesideBeyondHandlerLimit(t *testing.T) {
	t.Parallel()
	cfg := withSharedMemory(t)(qs.Config{})
	c := newHandlerBarrier(128)
	s := serverAt(t, "tcp://127.0.0.1:0,sm://", cfg, c.serve)
	n := open(t, "tcp://,sm://", cfg)
	c.streams(t, n, peer(t, n, s.Addr().String()), 200)
	testUploadsEachWay(t, "tcp://127.0.0.1:0,sm://", cfg)
}

// TestBesideUnverifiedOffer checks that an offer of another transport by an unverified peer is not
// followed.
func TestBesideUnverifiedOffer(t *testing.T) {
	t.Parallel()
	sock, err := net.ListenPacket("udp4", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sock.Close()) })
	go func() {
		for b := make([]byte, 2048); ; {
			n, from, err := sock.ReadFrom(b)
			if err != nil {
				return
			}
			if n > 22 { // the ids change places in the header; a word in the clear follows
				word := slices.Concat([]byte{0xd0}, b[1:5], b[13:21], b[5:13], []byte{0, byte(na.ErrAgain) | 0x80}, make([]byte, 8+16), []byte("sm://there"))
				_, _ = sock.WriteTo(word, from)
			}
		}
	}()
	o := open(t, "udp://,sm://", withSharedMemory(t)(qs.Config{TLS: trustingConfig(testcert.New()), Local: na.LocalAlways}))
	_, err = seen.Call(testContext(t), peer(t, o, "udp://"+sock.LocalAddr().String()), struct{}{})
	require.ErrorIs(t, err, qs.ErrUnreachable)
	require.ErrorContains(t, err, "offered a transport that was not requested")
}

// TestBesideAuthorize checks that an authorizer that requires encryption refuses a caller over
// shared memory, and one that goes by the name of the certificate allows it; a caller whose
// certificate is not trusted is refused earlier.
func TestBesideAuthorize(t *testing.T) {
	t.Parallel()
	beside, cert := withSharedMemory(t), testcert.New()
	var byName atomic.Bool
	s := serverAt(t, "tcp://127.0.0.1:0,sm://", beside(qs.Config{TLS: trustingConfig(cert), Local: na.LocalAlways,
		Authorize: func(_ context.Context, c *qs.Call) error {
			if caller := c.Caller(); byName.Load() && (caller.Name != carrier.NameOf(cert.Leaf) || len(caller.Certificates) == 0) {
				return qs.Errorf(qs.ErrPermission, "%q is not allowed", caller.Name)
			} else if !byName.Load() && !caller.Secure {
				return qs.Errorf(qs.ErrPermission, "not encrypted, by %s", caller.Transport)
			}
			return nil
		}}), serveSeen)
	call := func(cfg qs.Config) error {
		o := open(t, "tcp://,sm://", beside(cfg))
		_, err := seen.Call(testContext(t), peer(t, o, s.Addr().String()), struct{}{})
		return err
	}
	require.ErrorContains(t, call(qs.Config{TLS: trustingConfig(cert), Local: na.LocalAlways}), "not encrypted, by sm")
	byName.Store(true)
	require.NoError(t, call(qs.Config{TLS: trustingConfig(cert), Local: na.LocalAlways}))
	unknownTLS := trustingConfig(testcert.New(), cert)
	err := call(qs.Config{TLS: unknownTLS, Local: na.LocalAlways})
	require.ErrorIs(t, err, qs.ErrUnreachable)
	require.NotContains(t, err.Error(), "sm")
}

// TestBesideRestart checks that a target that has restarted at its address is reached by the
// transport that it has then.
func TestBesideRestart(t *testing.T) {
	t.Parallel()
	beside := withSharedMemory(t)
	o := open(t, "tcp://,sm://", beside(qs.Config{ClientInterceptors: []qs.Interceptor{qs.Retry(qs.RetryPolicy{Attempts: 10})}}))
	at := "tcp://127.0.0.1:0"
	for _, want := range []string{"sm", "tcp", "sm"} {
		cfg, second := beside(qs.Config{}), ",sm://"
		if want == "tcp" {
			cfg, second = qs.Config{}, ""
		}
		n, err := qs.Open(at+second, cfg)
		require.NoError(t, err)
		serveSeen(n)
		ctx, stop := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- n.Serve(ctx) }()
		at = n.Addr().String()
		p := peer(t, o, at)
		for range 3 {
			got, err := seen.Call(testContext(t), p, struct{}{})
			require.NoError(t, err)
			require.Equal(t, want, got[0])
		}
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, n.Close())
	}
}

// TestBesideAddresses checks which combinations cannot be opened.
func TestBesideAddresses(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]string{
		"tcp://127.0.0.1:0,sm://name": "second transport has an address, want sm:// alone",
		"tcp://127.0.0.1:0,udp://":    "second transport is udp://, want sm://",
		"sm://*,sm://":                "sm:// cannot be combined with sm://",
		"tcp://127.0.0.1:0,":          "missing scheme",
		"tcp://,sm://,sm://":          "second transport has an address",
	} {
		_, err := qs.Open(addr, qs.Config{})
		require.ErrorContains(t, err, want, addr)
	}
	_, err := qs.Open("tcp://,sm://", qs.Config{Local: 3})
	require.ErrorContains(t, err, "Local is Local(3), want LocalAuto, LocalNever or LocalAlways")
}
