package grpcqs_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/url"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	_ "google.golang.org/grpc/encoding/gzip"

	grpcqs "github.com/quicksilver-rpc/quicksilver/contrib/grpc"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

func TestMain(m *testing.M) { leak.Main(m) }

// testContext bounds what a test waits for.
func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

const spiffeID = "spiffe://test/ns/shop/sa/cart"

// mutualTLS is a configuration for both sides, with one certificate that is its own authority.
var mutualTLS = sync.OnceValue(func() *tls.Config {
	u, _ := url.Parse(spiffeID)
	cert := testcert.NewWith(func(c *x509.Certificate) { c.URIs = []*url.URL{u} })
	pool := testcert.Pool(cert)
	return &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert}
})

// A network is where a server and its clients are.
type network struct {
	name           string
	server, client string
	secure         bool // by TLS
	shared         bool // reached by shared memory
	config         func() qs.Config
}

// networks returns those on which everything is tested.
func networks(t testing.TB) []network {
	quiet := slog.New(slog.DiscardHandler)
	plain := func() qs.Config { return qs.Config{Logger: quiet, ShutdownTimeout: 5 * time.Second} }
	withTLS := func() qs.Config {
		c := plain()
		c.TLS = mutualTLS()
		return c
	}
	plugins := func(all ...na.Plugin) func() qs.Config {
		return func() qs.Config {
			c := plain()
			c.HG.NA.Plugins = all
			return c
		}
	}
	w := sim.NewWorld(sim.Config{Seed: 1, Paced: true})
	all := []network{
		{name: "tcp", server: "tcp://127.0.0.1:0", client: "tcp://", config: plain},
		{name: "tcp-tls", server: "tcp://127.0.0.1:0", client: "tcp://", secure: true, config: withTLS},
		{name: "udp-tls", server: "udp://127.0.0.1:0", client: "udp://", secure: true, config: withTLS},
		{name: "sim", server: "sim://server", client: "sim://", config: plugins(w.Plugin())},
	}
	if runtime.GOOS == "linux" {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, 0o700))
		shm := sm.New(sm.Options{Dir: dir})
		all = append(all,
			network{name: "sm", server: "sm://*", client: "sm://", shared: true, config: plugins(shm)},
			network{name: "auto", server: "tcp://127.0.0.1:0,sm://", client: "tcp://,sm://", shared: true,
				config: plugins(shm)},
		)
	}
	return all
}

// eachNetwork runs f on every network, on all at once.
func eachNetwork(t *testing.T, f func(t *testing.T, n network)) {
	for _, n := range networks(t) {
		t.Run(n.name, func(t *testing.T) {
			t.Parallel()
			f(t, n)
		})
	}
}

// tcpNetwork is the network of tests that need one only.
func tcpNetwork(t testing.TB) network { return networks(t)[0] }

// serve opens a node that serves what register registers until the test ends.
func (n network) serve(t testing.TB, change func(*qs.Config), register func(*qs.Node)) *qs.Node {
	cfg := n.config()
	if change != nil {
		change(&cfg)
	}
	node, err := qs.Open(n.server, cfg)
	require.NoError(t, err)
	register(node)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
		require.NoError(t, node.Close())
	})
	return node
}

// dial returns the Peer of a server, of a node of its own.
func (n network) dial(t testing.TB, server hg.Addr, change func(*qs.Config)) qs.Peer {
	cfg := n.config()
	if change != nil {
		change(&cfg)
	}
	node, err := qs.Open(n.client, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, node.Close()) })
	to, err := node.Peer(testContext(t), server.String())
	require.NoError(t, err)
	return to
}

// serverOption makes an option one of the server only, and atClient of the client.
type (
	serverOption struct{ grpcqs.ServerOption }
	clientOption struct{ grpcqs.ClientOption }
)

// pair returns a client of a server that register registers.
func (n network) pair(t testing.TB, register func(*grpcqs.Server), opts ...any) *grpcqs.Client {
	var ofServer []grpcqs.ServerOption
	var ofClient []grpcqs.ClientOption
	for _, o := range opts {
		s, isServer := o.(grpcqs.ServerOption)
		c, isClient := o.(grpcqs.ClientOption)
		if isServer {
			ofServer = append(ofServer, s)
		}
		if isClient {
			ofClient = append(ofClient, c)
		}
	}
	server := n.serve(t, nil, func(node *qs.Node) { register(grpcqs.NewServer(node, ofServer...)) })
	return grpcqs.NewClient(n.dial(t, server.Addr(), nil), ofClient...)
}
