package qsprom_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/stretchr/testify/require"

	qsprom "github.com/quicksilver-rpc/quicksilver/contrib/prometheus"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var (
	double = qs.Define[int, int]("math/double")
	ticks  = qs.DefineDuplex[int, int, int]("math/ticks")
)

// TestCollector checks that a server's metrics, fetched by HTTP, count its calls and pass the
// linter.
func TestCollector(t *testing.T) {
	c := qsprom.New()
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{HG: hg.Config{Observe: c.Observe}})
	require.NoError(t, err)
	c.Show(node.HG().Class())
	double.Handle(node, func(_ context.Context, n int) (int, error) {
		if n < 0 {
			return 0, qs.Errorf(qs.ErrBadInput, "negative")
		}
		return 2 * n, nil
	})
	ticks.Handle(node, func(_ context.Context, _ int, s *qs.DuplexServer[int, int]) error {
		err := s.Send(1)
		for range s.All() {
		}
		return err
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	client, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	peer, err := client.Peer(ctx, node.Addr().String())
	require.NoError(t, err)
	for range 3 {
		_, err = double.Call(ctx, peer, 1)
		require.NoError(t, err)
	}
	_, err = double.Call(ctx, peer, -1)
	require.ErrorIs(t, err, qs.ErrBadInput)

	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	server := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
	defer server.Close()
	require.Eventually(t, func() bool { // Observe runs in Trigger
		return testutil.CollectAndCount(c, "quicksilver_ended_total") == 2
	}, 10*time.Second, time.Millisecond)
	r, err := http.Get(server.URL)
	require.NoError(t, err)
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	require.Equal(t, http.StatusOK, r.StatusCode, "%s", text)
	problems, err := promlint.New(bytes.NewReader(text)).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
	problems, err = testutil.CollectAndLint(c)
	require.NoError(t, err)
	require.Empty(t, problems)

	require.Contains(t, string(text), `quicksilver_ended_total{code="ok",method="math/double",side="target"} 3`+"\n")
	require.Contains(t, string(text), `quicksilver_ended_total{code="bad input",method="math/double",side="target"} 1`+"\n")
	require.Contains(t, string(text), `quicksilver_duration_seconds_count{method="math/double",side="target"} 4`+"\n")
	require.Contains(t, string(text), fmt.Sprintf("quicksilver_peers{address=%q,context=\"0\"} 1\n", node.Addr()))
	require.Contains(t, string(text), fmt.Sprintf("quicksilver_oldest_seconds{address=%q,context=\"0\",side=\"target\"} 0\n", node.Addr()))
	require.Contains(t, string(text), fmt.Sprintf("quicksilver_denied_total{address=%q,context=\"0\"} 0\n", node.Addr()))
	require.Contains(t, string(text), fmt.Sprintf("quicksilver_tls_handshakes_failed_total{address=%q,context=\"0\"} 0\n", node.Addr()))
	for range 2 { // two streams are open
		call := ticks.Call(ctx, peer, 0)
		defer call.Close()
		_, err := call.Receive()
		require.NoError(t, err)
	}
	r, err = http.Get(server.URL)
	require.NoError(t, err)
	text, err = io.ReadAll(r.Body)
	require.NoError(t, err)
	require.NoError(t, r.Body.Close())
	for name, value := range map[string]string{"open": "2", "limit": "4096", "peer_limit": "2048", "peer_most": "2"} {
		require.Regexp(t, "quicksilver_streams_"+name+`\{.*\} `+value+"\n", string(text))
	}
	require.NoError(t, client.Close())
	stop()
	require.NoError(t, <-ended)
}

// TestBound checks that names that peers choose do not grow the labels without bound.
func TestBound(t *testing.T) {
	c := qsprom.New()
	for i := range 1000 {
		c.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: fmt.Sprint("made-up/", i), Code: hg.ErrNoMethod})
	}
	require.Equal(t, 257, testutil.CollectAndCount(c, "quicksilver_ended_total"))
}

// A server with metrics at http://localhost:9100/metrics.
func Example() {
	c := qsprom.New()
	prometheus.MustRegister(c)
	node, err := qs.Open("tcp://:7000", qs.Config{HG: hg.Config{Observe: c.Observe}})
	if err != nil {
		panic(err)
	}
	c.Show(node.HG().Class())
	http.Handle("/metrics", promhttp.Handler())
	web := &http.Server{Addr: "localhost:9100", ReadHeaderTimeout: 10 * time.Second}
	go func() { panic(web.ListenAndServe()) }()
}
