package debug_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

var (
	slow = qs.Define[int, int]("debug/slow")
	bad  = qs.Define[int, int]("debug/bad")
)

// TestAttachAndProbe checks that a page that is attached shows the node and counts its calls,
// beside another observer. Its probes report whether the node is open and ready: not before it is
// opened, not after SetReady(false), and while it drains open only.
func TestAttachAndProbe(t *testing.T) {
	t.Parallel()
	var page debug.Page
	var cfg qs.Config
	var log bytes.Buffer
	seen := 0
	cfg.HG.Observe = func(e *inspect.Event) {
		if e.Kind == inspect.EventTarget {
			seen++
		}
	}
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	page.Attach(&cfg)
	web := httptest.NewServer(http.StripPrefix("/debug", &page))
	defer web.Close()
	get := func(path string) int {
		r, err := web.Client().Get(web.URL + "/debug" + path)
		require.NoError(t, err)
		defer r.Body.Close()
		require.Equal(t, "no-store", r.Header.Get("Cache-Control"))
		return r.StatusCode
	}
	require.Equal(t, []int{503, 503}, []int{get("/healthz"), get("/readyz")})
	n, err := qs.Open("tcp://127.0.0.1:0", cfg)
	require.NoError(t, err)
	defer n.Close()
	begun, release := make(chan struct{}), make(chan struct{})
	slow.Handle(n, func(context.Context, int) (int, error) {
		close(begun)
		<-release
		return 1, nil
	})
	bad.Handle(n, func(context.Context, int) (int, error) { panic("oh") })
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- n.Serve(ctx) }()
	require.Equal(t, []int{200, 200}, []int{get("/healthz"), get("/readyz")})
	n.SetReady(false)
	require.Equal(t, []int{200, 503}, []int{get("/healthz"), get("/readyz")})
	n.SetReady(true)
	require.Equal(t, []int{200, 200}, []int{get("/healthz"), get("/readyz")})

	to, err := n.Peer(context.Background(), n.Addr().String())
	require.NoError(t, err)
	_, err = bad.Call(context.Background(), to, 1)
	require.ErrorIs(t, err, hg.ErrPanic)
	f := slow.Go(context.Background(), to, 1)
	<-begun
	stop() // it drains, while the handler runs
	waitUntil(t, func() bool { return get("/readyz") == 503 })
	require.Equal(t, 200, get("/healthz"))
	close(release)
	_, err = f.Wait(context.Background())
	require.NoError(t, err)
	require.NoError(t, <-served)
	require.Equal(t, []int{503, 503}, []int{get("/healthz"), get("/readyz")})
	require.Equal(t, 2, seen)
	require.Len(t, page.Snapshot(debug.Query{}).Methods.Rows, 4) // of each method both sides
	require.Contains(t, log.String(), "handler panicked")
}

// waitUntil waits until done.
func waitUntil(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !done(); {
		require.Less(t, time.Now(), end, "it does not happen")
	}
}

// TestProbeOfClass checks that a program without a node of package qs has the same by Show.
func TestProbeOfClass(t *testing.T) {
	t.Parallel()
	class, err := hg.Open("tcp://127.0.0.1:0", hg.Config{})
	require.NoError(t, err)
	var page debug.Page
	page.Show(class)
	code := func(path string) int {
		w := httptest.NewRecorder()
		page.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code
	}
	require.Equal(t, 503, code("/readyz"), "it has no context yet")
	hctx, err := class.NewContext()
	require.NoError(t, err)
	require.Equal(t, 200, code("/readyz"))
	require.NoError(t, class.Shutdown(context.Background()))
	require.True(t, hctx.NA().Closed())
	require.Equal(t, 503, code("/healthz"))
}
