package qs_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/plugins/tcp"
	"github.com/quicksilver-rpc/quicksilver/plugins/udp"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A recordingProxy passes the bytes of connections on to a target, and keeps them.
type recordingProxy struct {
	l   net.Listener
	all sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	passed []byte
	conns  []net.Conn
	closed bool
}

func newRecordingProxy(t *testing.T, to hg.Addr) *recordingProxy {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &recordingProxy{l: l}
	target := strings.TrimPrefix(to.Name(), "tcp://")
	p.all.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			p.pass(in, out)
			p.pass(out, in)
		}
	})
	t.Cleanup(p.close)
	return p
}

func (p *recordingProxy) pass(from, to net.Conn) {
	p.mu.Lock()
	p.conns = append(p.conns, from)
	if p.closed {
		_ = from.Close()
	}
	p.mu.Unlock()
	p.all.Go(func() {
		_, _ = io.Copy(io.MultiWriter(p, to), from)
		_ = from.Close()
		_ = to.Close()
	})
}

func (p *recordingProxy) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.passed = append(p.passed, b...)
	return len(b), nil
}

func (p *recordingProxy) saw(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return bytes.Contains(p.passed, []byte(text))
}

func (p *recordingProxy) close() {
	_ = p.l.Close()
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.all.Wait()
}

// TestTLSConfigs checks for each way to configure TLS that a node answers peers that use
// it, with encryption, and no others.
func TestTLSConfigs(t *testing.T) {
	cert := testcert.New()
	cfg := &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: testcert.Pool(cert)}
	const question, answer = "a question that nobody else reads", "and the answer to that"
	ask := qs.Define[string, string]("test/ask")
	for name, nodeConfig := range map[string]qs.Config{
		"TLS":                        {TLS: cfg},
		"TLS and options":            {TLS: cfg, TCP: tcp.Options{MaxHalfOpen: 7}},
		"TLS and Contexts":           {TLS: cfg, Contexts: 2},
		"TLS, twice the same":        {TLS: cfg, TCP: tcp.Options{TLS: cfg}},
		"TCP":                        {TCP: tcp.Options{TLS: cfg}},
		"TCP and Contexts":           {TCP: tcp.Options{TLS: cfg}, Contexts: 2},
		"TCP, portable":              {TCP: tcp.Options{TLS: cfg, Portable: true}},
		"a plugin of one's own":      withPlugins(tcp.New(tcp.Options{TLS: cfg})),
		"such a plugin, many limits": {HG: hg.Config{NA: withPlugins(tcp.New(tcp.Options{TLS: cfg})).HG.NA, MaxActive: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ran atomic.Int32
			s := server(t, nodeConfig, func(n *qs.Node) {
				ask.Handle(n, func(context.Context, string) (string, error) { ran.Add(1); return answer, nil })
			})
			way := newRecordingProxy(t, s.Addr())
			addr := "tcp://" + way.l.Addr().String()
			call := func(c *qs.Node) (string, error) {
				return ask.Call(testContext(t), peer(t, c, addr), question)
			}
			plain := open(t, "tcp://", qs.Config{})
			got, err := call(plain)
			require.Error(t, err, "a caller without TLS got %q", got)
			require.Zero(t, ran.Load(), "a handler ran for a caller without TLS")
			got, err = call(open(t, "tcp://", qs.Config{TLS: cfg}))
			require.NoError(t, err)
			require.Equal(t, answer, got)
			require.EqualValues(t, 1, ran.Load())
			require.False(t, way.saw(answer), "the answer went in plain text")

			open := server(t, qs.Config{}, func(n *qs.Node) {
				ask.Handle(n, func(context.Context, string) (string, error) { ran.Add(1); return answer, nil })
			})
			way = newRecordingProxy(t, open.Addr())
			addr = "tcp://" + way.l.Addr().String()
			got, err = call(plain)
			require.NoError(t, err, got)
			require.True(t, way.saw(answer), "this is how it looks without TLS")
			_, err = call(s) // as an origin, too
			require.Error(t, err)
			require.EqualValues(t, 2, ran.Load())
		})
	}
}

func withPlugins(all ...hg.Plugin) (cfg qs.Config) {
	cfg.HG.NA.Plugins = all
	return cfg
}

// TestConfigContradictions checks that a setting that is given twice, or has no effect, is refused:
// a setting that is silently lost may be the one that protects.
func TestConfigContradictions(t *testing.T) {
	cfg := &tls.Config{}
	w := sim.NewWorld(sim.Config{})
	own := tcp.New(tcp.Options{})
	with := func(c qs.Config, p ...hg.Plugin) qs.Config { c.HG.NA.Plugins = p; return c }
	na := func(c qs.Config, contexts int, timeout time.Duration) qs.Config {
		c.HG.NA.Contexts, c.HG.NA.PeerTimeout = contexts, timeout
		return c
	}
	for _, c := range []struct {
		addr string
		cfg  qs.Config
		want []string
	}{
		{"udp://", with(qs.Config{TLS: cfg}, udp.New(udp.Options{})), []string{"TLS is set", "udp://"}},
		{"sm://*", qs.Config{TLS: cfg}, []string{"TLS", "sm://", "only processes of one user"}},
		{"sim://a", with(qs.Config{TLS: cfg}, w.Plugin()), []string{"TLS", "sim://"}},
		{"udp://", qs.Config{TCP: tcp.Options{TLS: cfg}}, []string{"TCP", "udp://"}},
		{"sm://*", qs.Config{TCP: tcp.Options{TLS: cfg}}, []string{"TCP", "sm://"}},
		{"udp://", qs.Config{TCP: tcp.Options{MaxHalfOpen: 3}}, []string{"TCP", "udp://"}},
		{"udp://127.0.0.1:0", with(qs.Config{}, tcp.New(tcp.Options{TLS: cfg})), []string{"HG.NA.Plugins", "tcp://", "udp://"}},
		{"tcp://", with(qs.Config{}, udp.New(udp.Options{Trusted: true})), []string{"HG.NA.Plugins", "udp://", "tcp://"}},
		{"tcp://", with(qs.Config{TLS: cfg}, own), []string{"TLS is set", "HG.NA.Plugins", "set TCP"}},
		{"tcp://", with(qs.Config{TCP: tcp.Options{MaxHalfOpen: 3}}, own), []string{"TCP is set", "HG.NA.Plugins"}},
		{"tcp://127.0.0.1:0", with(qs.Config{Contexts: 2}, own), []string{"Contexts is set", "HG.NA.Plugins"}},
		{"tcp://", with(qs.Config{}, own, tcp.New(tcp.Options{TLS: cfg})), []string{"Plugins", "two plugins of scheme tcp"}},
		{"tcp://", with(qs.Config{}, nil), []string{"Plugins", "nil"}},
		{"tcp://", qs.Config{TLS: cfg, TCP: tcp.Options{TLS: &tls.Config{}}}, []string{"TLS and TCP.TLS"}},
		{"sm://*", qs.Config{Contexts: 2}, []string{"Contexts", "sm://"}},
		{"udp://127.0.0.1:0", qs.Config{Contexts: 2}, []string{"Contexts", "udp://"}},
		{"tcp://127.0.0.1:0", qs.Config{Contexts: 2, TCP: tcp.Options{Spread: 3}}, []string{"TCP.Spread is 3", "Contexts is 2"}},
		{"tcp://127.0.0.1:0", qs.Config{TCP: tcp.Options{Spread: 3}}, []string{"TCP.Spread is 3", "Contexts is 0"}},
		{"tcp://127.0.0.1:0", na(qs.Config{Contexts: 4}, 3, 0), []string{"Contexts is 4", "HG.NA.Contexts allows 3"}},
		{"tcp://", na(qs.Config{PeerTimeout: time.Second}, 0, time.Minute), []string{"PeerTimeout is 1s", "HG.NA.PeerTimeout is 1m"}},
	} {
		n, err := qs.Open(c.addr, c.cfg)
		if err == nil {
			_ = n.Close()
		}
		require.ErrorIs(t, err, hg.ErrInvalid, "%s: %v", c.addr, c.want)
		for _, part := range c.want {
			require.ErrorContains(t, err, part)
		}
	}
	for _, c := range []qs.Config{
		na(qs.Config{Contexts: 2}, 2, 0), na(qs.Config{PeerTimeout: time.Second}, 20, time.Second),
		{Contexts: 2, TCP: tcp.Options{Spread: 2}}, {TCP: tcp.Options{Spread: 1}},
	} {
		require.NoError(t, open(t, "tcp://", c).Close())
	}
}
