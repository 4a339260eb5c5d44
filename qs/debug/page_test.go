package debug_test

import (
	"context"
	"encoding/json"
	"expvar"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

var (
	stall = qs.Define[string, string]("shop/<stall>")
	fail  = qs.Define[string, string]("shop/fail")
)

// A shop is a node whose page is looked at, and a client that has called what stalls.
type shop struct {
	page  *debug.Page
	peer  qs.Peer
	call  *qs.Future[string]
	leave context.CancelFunc
}

// open opens a shop with a call of stall at work.
func open(t *testing.T) *shop {
	s := &shop{page: &debug.Page{}}
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{HG: hg.Config{Observe: s.page.Observe}})
	require.NoError(t, err)
	s.page.Show(node.HG().Class())
	begun := make(chan struct{}, 1)
	stall.Handle(node, func(ctx context.Context, in string) (string, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	fail.Handle(node, func(context.Context, string) (string, error) {
		return "", qs.Errorf(qs.ErrNotFound, "no")
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	client, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	s.peer, err = client.Peer(ctx, node.Addr().String())
	require.NoError(t, err)
	calling, leave := context.WithCancel(context.Background())
	s.leave = leave
	s.call = stall.Go(calling, s.peer, "x")
	<-begun
	t.Cleanup(func() {
		leave()
		<-s.call.Done()
		require.NoError(t, client.Close())
		stop()
		require.NoError(t, <-ended)
	})
	return s
}

// get asks for the page as a client that accepts accept.
func get(t *testing.T, h http.Handler, method, path, accept string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, err := io.ReadAll(w.Result().Body)
	require.NoError(t, err)
	return w.Result(), string(b)
}

func TestPage(t *testing.T) {
	t.Parallel()
	s := open(t)
	ctx := context.Background()
	_, err := fail.Call(ctx, s.peer, "x")
	require.ErrorIs(t, err, qs.ErrNotFound)
	require.Eventually(t, func() bool { return len(s.page.Snapshot().Errors) == 1 }, 10*time.Second, time.Millisecond, "Observe runs in Trigger")

	r, html := get(t, s.page, "GET", "/", "text/html,*/*")
	require.Equal(t, "text/html; charset=utf-8", r.Header.Get("Content-Type"))
	require.Contains(t, r.Header.Get("Content-Security-Policy"), "default-src 'none'")
	require.Contains(t, html, `<td>target<td>shop/&lt;stall&gt;<td>`)
	require.Regexp(t, `<td>running<td class="n">\d[\d.]*(µs|ms|s)<td>`, html)
	require.Regexp(t, `<td>target<td>shop/fail<td class="n">1<td class="n">1<td`, html)
	require.Regexp(t, `<tr class="bad"><td>[\d:]+<td>target<td>shop/fail<td>[^<]+<td>not found<td>ran<td`, html)
	require.Contains(t, html, `<noscript><meta http-equiv="refresh"`)

	for _, c := range []struct{ path, accept, want string }{
		{"/", "", "text/html"}, {"/", "*/*", "text/html"}, {"/", "text/html, application/json", "text/html"},
		{"/", "application/json", "application/json"}, {"/", "text/plain", "text/plain"},
		{"/x.json", "text/html", "application/json"}, {"/x.txt", "application/json", "text/plain"},
	} {
		r, _ := get(t, s.page, "GET", c.path, c.accept)
		require.Equal(t, c.want+"; charset=utf-8", r.Header.Get("Content-Type"), "%+v", c)
	}
	_, text := get(t, s.page, "GET", "/debug.txt", "")
	require.Regexp(t, `(?m)^target +shop/<stall> +debug\.test \(127\.0\.0\.1:\d+\) +running +\d`, text)
	_, body := get(t, s.page, "GET", "/debug.json", "")
	var v debug.Snapshot
	require.NoError(t, json.Unmarshal([]byte(body), &v))
	require.Len(t, v.Contexts, 1)
	require.Len(t, v.Contexts[0].Peers, 1)
	require.Len(t, v.Contexts[0].Calls, 1)
	require.Equal(t, "shop/<stall>", v.Contexts[0].Calls[0].RPC)
	require.Positive(t, v.Contexts[0].Calls[0].Age)
	r, _ = get(t, s.page, "POST", "/", "")
	require.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)

	s.leave()
	require.Eventually(t, func() bool { return len(s.page.Snapshot().Contexts[0].Calls) == 0 }, 10*time.Second, time.Millisecond)
}

// Calls of Quicksilver itself are left out of what people look at, unless they ask for them; JSON and errors have all.
func TestBuiltInLeftOut(t *testing.T) {
	t.Parallel()
	var p debug.Page
	for _, e := range []inspect.Event{{RPC: "shop/order"}, {RPC: hg.PingRPC}, {RPC: "qs/items"}, {RPC: hg.HealthRPC, Code: hg.ErrDenied}} {
		p.Observe(&e)
	}
	count := func(path, name string) int {
		_, text := get(t, &p, "GET", path, "")
		return strings.Count(text, name)
	}
	for _, path := range []string{"/", "/x.txt"} {
		for _, name := range []string{"shop/order", "hg/ping", "qs/items"} {
			want := 1
			require.Equal(t, want, count(path+"?all", name), path+name)
			if name != "shop/order" {
				want = 0
			}
			require.Equal(t, want, count(path, name), path+name)
		}
		require.Equal(t, 1, count(path, "hg/health"), "its error")
		require.Equal(t, 1, count(path, "?all"), "how to see them")
		require.Zero(t, count(path+"?all", "?all"))
	}
	require.Equal(t, 1, count("/x.json", "hg/ping"))
}

// What peers make up does not grow the page without bound, and the youngest errors stay.
func TestBounds(t *testing.T) {
	t.Parallel()
	var p debug.Page
	for i := range 1000 {
		p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: fmt.Sprint("made-up/", i), Code: hg.ErrNoEntry, Took: time.Millisecond})
	}
	s := p.Snapshot()
	require.Len(t, s.Methods, 257)
	require.EqualValues(t, 1000-256, s.Methods[0].Count)
	require.Equal(t, "(others)", s.Methods[0].Name)
	require.Equal(t, time.Millisecond, s.Methods[0].Mean())
	require.Len(t, s.Errors, 64)
	require.Equal(t, "made-up/999", s.Errors[0].RPC)
	require.Equal(t, "made-up/936", s.Errors[63].RPC)
}

func TestPublish(t *testing.T) {
	t.Parallel()
	var p debug.Page
	name := fmt.Sprintf("TestPublish %p", &p) // a name can be published once in a process
	p.Publish(name)
	require.True(t, strings.HasPrefix(expvar.Get(name).String(), `{"Time":`))
}

// TestNew: a page about a node that is open has its peers, what is under way and probes, and no methods.
func TestNew(t *testing.T) {
	t.Parallel()
	node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{Name: "shop"})
	require.NoError(t, err)
	defer node.Close()
	page := debug.New(node)
	r, _ := get(t, page, "GET", "/healthz", "")
	require.Equal(t, http.StatusOK, r.StatusCode)
	begun := make(chan struct{})
	stall.Handle(node, func(ctx context.Context, _ string) (string, error) {
		close(begun)
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- node.Serve(ctx) }()
	client, err := qs.Open("tcp://", qs.Config{Name: "worker"})
	require.NoError(t, err)
	defer client.Close()
	to, err := client.Peer(ctx, node.Addr().String())
	require.NoError(t, err)
	calling, leave := context.WithCancel(ctx)
	call := stall.Go(calling, to, "x")
	<-begun
	_, text := get(t, page, "GET", "/x.txt", "")
	require.Regexp(t, `(?m)^target +shop/<stall> +worker \(127\.0\.0\.1:\d+\) +running`, text)
	require.Regexp(t, `(?m)^worker \(127\.0\.0\.1:\d+\) +tcp`, text)
	require.NotContains(t, text, "ended  ")
	leave()
	<-call.Done()
	stop()
	require.NoError(t, <-ended)
}
