package debug_test

import (
	"context"
	"encoding/json"
	"expvar"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
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
	ask   = qs.Define[string, string]("shop/ask")
)

// A busyNode is a node with a page, and a client with a call that stalls.
type busyNode struct {
	page *debug.Page
	node *qs.Node
	peer qs.Peer
	// leave ends the call that stalls.
	leave context.CancelFunc
}

// openBusyNode opens a shop with a call of stall in flight. It sets Name, and the fields for the page, in
// the configuration.
func openBusyNode(t *testing.T, cfg qs.Config) *busyNode {
	t.Helper()
	s := &busyNode{page: &debug.Page{}}
	cfg.Name = "shop"
	s.page.Attach(&cfg)
	var err error
	s.node, err = qs.Open("tcp://127.0.0.1:0", cfg)
	require.NoError(t, err)
	begun := make(chan struct{}, 100)
	stall.Handle(s.node, func(ctx context.Context, in string) (string, error) {
		begun <- struct{}{}
		<-ctx.Done()
		return "", context.Cause(ctx)
	})
	fail.Handle(s.node, func(context.Context, string) (string, error) {
		return "", qs.Errorf(qs.ErrNotFound, "no key user/17")
	})
	ask.Handle(s.node, func(_ context.Context, in string) (string, error) { return in, nil })
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.node.Serve(ctx) }()
	client, err := qs.Open("tcp://", qs.Config{Name: "worker"})
	require.NoError(t, err)
	s.peer, err = client.Peer(ctx, s.node.Addr().String())
	require.NoError(t, err)
	calling, leave := context.WithCancel(context.Background())
	s.leave = leave
	call := stall.Go(calling, s.peer, "x")
	<-begun
	t.Cleanup(func() {
		leave()
		<-call.Done()
		require.NoError(t, client.Close())
		stop()
		require.NoError(t, <-ended)
	})
	return s
}

// getPage requests the page as a client that accepts accept.
func getPage(t testing.TB, h http.Handler, method, path, accept string) (*http.Response, string) {
	t.Helper()
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	b, err := io.ReadAll(w.Result().Body)
	require.NoError(t, err)
	return w.Result(), string(b)
}

// getSnapshot requests the page as JSON.
func getSnapshot(t testing.TB, h http.Handler, query string) (s debug.Snapshot) {
	t.Helper()
	r, body := getPage(t, h, "GET", "/?format=json&"+query, "")
	require.Equal(t, http.StatusOK, r.StatusCode)
	d := json.NewDecoder(strings.NewReader(body))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&s))
	return s
}

func TestPage(t *testing.T) {
	t.Parallel()
	s := openBusyNode(t, qs.Config{})
	ctx := context.Background()
	_, err := fail.Call(ctx, s.peer, "x")
	require.ErrorIs(t, err, qs.ErrNotFound)
	// Observe runs in Trigger
	waitUntil(t, func() bool { return s.page.Snapshot(debug.Query{}).Errors.Total == 1 })

	r, html := getPage(t, s.page, "GET", "/", "text/html,*/*")
	require.Equal(t, "text/html; charset=utf-8", r.Header.Get("Content-Type"))
	require.Regexp(t, `<td class="id"><a href="\?method=shop%2F%3Cstall%3E" title="shop/&lt;stall&gt;">shop/<wbr>&lt;stall&gt;</a></td><td class="id"><a href="\?peer=[^>]*>worker \(127\.0\.0\.1:\d+\)</a></td><td class="n">[^<]*</td><td class="words">its handler has not answered</td>`, html)
	require.Regexp(t, `<tr data-key="request shop/fail 64" class="bad"><td class="n">1</td><td class="words">not found</td>.*no key user/17`, html)
	require.Contains(t, html, `<noscript><meta http-equiv="refresh"`)

	for _, c := range []struct{ path, accept, want string }{
		{"/", "", "text/html"}, {"/", "*/*", "text/html"}, {"/", "text/html, application/json", "text/html"},
		{"/", "application/json", "application/json"}, {"/", "text/plain", "text/plain"},
		{"/?format=json", "text/html", "application/json"}, {"/?format=text", "application/json", "text/plain"},
	} {
		r, _ := getPage(t, s.page, "GET", c.path, c.accept)
		require.Equal(t, c.want+"; charset=utf-8", r.Header.Get("Content-Type"), "%+v", c)
	}
	_, text := getPage(t, s.page, "GET", "/?format=text", "")
	require.Regexp(t, `(?m)^request +\d[\d.µmn]*s +shop/<stall> +worker \(127\.0\.0\.1:\d+\) +its handler has not answered`, text)
	v := getSnapshot(t, s.page, "")
	require.Len(t, v.Contexts, 1)
	require.True(t, v.Observed)
	require.Equal(t, "shop", v.Process.Name)
	require.True(t, v.Process.Ready)
	require.Equal(t, 1, v.Peers.Total)
	p := v.Peers.Rows[0]
	require.Equal(t, []any{"worker", "tcp", 1, 0}, []any{p.Process, p.Transport, p.Requests, p.Calls})
	require.Regexp(t, `^127\.0\.0\.1:\d+$`, p.Remote)
	require.Equal(t, 1, v.Calls.Total)
	require.Equal(t, "shop/<stall>", v.Calls.Rows[0].Method)
	require.Equal(t, p.Address, v.Calls.Rows[0].Address)
	require.Positive(t, v.Calls.Rows[0].Age)
	e := v.Errors.Rows[0]
	require.Equal(t, []any{"request", "shop/fail", "not found", "no key user/17", int64(1), "ran"}, []any{e.Kind, e.Method, e.Error, e.Text, e.Count, e.Fate})
	r, _ = getPage(t, s.page, "POST", "/", "")
	require.Equal(t, http.StatusMethodNotAllowed, r.StatusCode)

	s.leave()
	waitUntil(t, func() bool { return s.page.Snapshot(debug.Query{}).Calls.Total == 0 })
}

// TestPagesOfMethodAndPeer checks that a method and a peer have pages of their own, without rows of
// others.
func TestPagesOfMethodAndPeer(t *testing.T) {
	t.Parallel()
	s := openBusyNode(t, qs.Config{})
	for range 30 {
		_, err := ask.Call(context.Background(), s.peer, "x")
		require.NoError(t, err)
	}
	waitUntil(t, func() bool {
		m := s.page.Snapshot(debug.Query{Method: "shop/ask"}).Methods
		return m.Total == 1 && m.Rows[0].Count == 30
	})
	m := getSnapshot(t, s.page, "method=shop/ask").Methods.Rows[0]
	require.Equal(t, []any{"request", int64(30), int64(30), int64(30)}, []any{m.Kind, m.Count, m.Minute.Count, m.TenMinutes.Count})
	require.Positive(t, m.Minute.P50)
	require.LessOrEqual(t, m.Minute.P50, m.Minute.P99)
	require.Positive(t, m.Minute.Received)
	require.NotNil(t, m.Slowest)
	require.Contains(t, m.Slowest.Peer, "worker (")
	_, html := getPage(t, s.page, "GET", "/?method=shop/ask", "")
	require.Contains(t, html, "What is counted of them is of all methods.", "the peers of the page of a method")
	require.Contains(t, html, "requests of shop/ask")
	require.Contains(t, html, "30 since the page began, of which 0 failed")
	require.NotContains(t, html, "shop/&lt;stall")

	address := s.page.Snapshot(debug.Query{}).Peers.Rows[0].Address
	_, html = getPage(t, s.page, "GET", debugLink(t, html, s.page, address), "")
	require.Regexp(t, `It calls itself <b>worker</b>, is at <b>127\.0\.0\.1:\d+</b>`, html)
	require.Contains(t, html, "1 requests of it are under way here")
	require.Contains(t, html, "Nothing vouches for its name")
	require.Zero(t, getSnapshot(t, s.page, "peer=tcp://10.0.0.1:1").Calls.Total)
	require.EqualValues(t, 30, getSnapshot(t, s.page, "").Peers.Rows[0].Minute.Count)
}

// debugLink returns the link to the page of a peer in the overview.
func debugLink(t *testing.T, _ string, p *debug.Page, address string) string {
	t.Helper()
	_, html := getPage(t, p, "GET", "/", "")
	at := regexp.MustCompile(`href="(\?peer=[^"]+)"`).FindStringSubmatch(html)
	require.NotNil(t, at, "no link to %s", address)
	return "/" + at[1]
}

// TestLinksAreRelative checks that all links are parameters, so that they work wherever the page is
// mounted.
func TestLinksAreRelative(t *testing.T) {
	t.Parallel()
	s := openBusyNode(t, qs.Config{})
	mux := http.NewServeMux()
	mux.Handle("/debug/qs", s.page)
	mux.Handle("/deep/er/", http.StripPrefix("/deep/er", s.page))
	for _, path := range []string{"/debug/qs", "/deep/er/"} {
		r, html := getPage(t, mux, "GET", path, "")
		require.Equal(t, http.StatusOK, r.StatusCode)
		links := regexp.MustCompile(`(?:href|src|action)="([^"]*)"`).FindAllStringSubmatch(html, -1)
		require.Greater(t, len(links), 20)
		for _, l := range links {
			require.Regexp(t, `^\?`, l[1])
			r, _ := getPage(t, mux, "GET", path+strings.ReplaceAll(l[1], "&amp;", "&"), "")
			require.Equal(t, http.StatusOK, r.StatusCode, l[1])
		}
		require.NotContains(t, html, "<form method=\"get\" action")
	}
	r, _ := getPage(t, mux, "GET", "/deep/er/readyz", "")
	require.Equal(t, http.StatusOK, r.StatusCode)
}

// TestBuiltInLeftOut checks that calls of Quicksilver itself are omitted unless they are requested;
// errors always include them.
func TestBuiltInLeftOut(t *testing.T) {
	t.Parallel()
	var p debug.Page
	for _, e := range []inspect.Event{{RPC: "shop/order"}, {RPC: hg.PingRPC}, {RPC: "hg/rpcs"}, {RPC: hg.HealthRPC, Code: hg.ErrDenied}} {
		p.Observe(&e)
	}
	for _, format := range []string{"", "format=json&", "format=text&"} {
		for _, name := range []string{"shop/order", "hg/ping", "hg/rpcs", "hg/health"} {
			_, all := getPage(t, &p, "GET", "/?"+format+"all", "")
			require.Contains(t, all, name)
			_, some := getPage(t, &p, "GET", "/?"+format, "")
			require.Equal(t, name == "shop/order" || name == "hg/health", strings.Contains(some, name), format+name)
		}
	}
}

// TestBounds checks that names that peers choose do not grow the page without bound.
func TestBounds(t *testing.T) {
	t.Parallel()
	var p debug.Page
	for i := range 1000 {
		p.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: fmt.Sprint("made-up/", i), Code: hg.ErrNoMethod, Took: time.Millisecond, Text: strings.Repeat("é", 1000)})
	}
	s := p.Snapshot(debug.Query{View: "methods", Limit: 1000})
	require.Equal(t, 257, s.Methods.Total)
	require.EqualValues(t, 1000-256, s.Methods.Rows[0].Count)
	require.Equal(t, "(others)", s.Methods.Rows[0].Name)
	require.Equal(t, time.Millisecond, s.Methods.Rows[0].Minute.Mean)
	s = p.Snapshot(debug.Query{View: "errors", Limit: 1000})
	require.Equal(t, 256, s.Errors.Total)
	require.Equal(t, "(others)", s.Errors.Rows[0].Method)
	require.EqualValues(t, 1000-256, s.Errors.Rows[0].Count)
	require.Equal(t, strings.Repeat("é", 148)+"…", s.Errors.Rows[0].Text)
}

func TestPublish(t *testing.T) {
	t.Parallel()
	var p debug.Page
	name := fmt.Sprintf("TestPublish %p", &p) // a name can be published once in a process
	p.Publish(name)
	require.True(t, strings.HasPrefix(expvar.Get(name).String(), `{"time":`))
}

// TestNew checks that a page of a node that is open has its peers, the calls in flight and probes,
// and none of the calls that have ended.
func TestNew(t *testing.T) {
	t.Parallel()
	s := openBusyNode(t, qs.Config{})
	page := debug.New(s.node)
	r, _ := getPage(t, page, "GET", "/healthz", "")
	require.Equal(t, http.StatusOK, r.StatusCode)
	v := page.Snapshot(debug.Query{})
	require.False(t, v.Observed)
	require.Equal(t, 1, v.Calls.Total)
	require.Contains(t, v.Calls.Rows[0].Peer, "worker (")
	require.Equal(t, 1, v.Peers.Total)
	require.Zero(t, v.Load.Requests.TenMinutes.Count)
	require.Equal(t, 1, v.Methods.Total, "the one that is under way")
	_, html := getPage(t, page, "GET", "/", "")
	require.Contains(t, html, "Page.Attach before Open")
}

// TestAttachTwice checks that a page that is attached twice, or is shown a class that it has,
// counts and lists everything once; so does one that is attached to the configuration of two nodes.
func TestAttachTwice(t *testing.T) {
	t.Parallel()
	var page, other debug.Page
	var cfg qs.Config
	page.Attach(&cfg)
	other.Attach(&cfg)
	page.Attach(&cfg)
	for want := 1; want <= 2; want++ {
		n, err := qs.Open("tcp://127.0.0.1:0", cfg)
		require.NoError(t, err)
		page.Show(n.HG().Class())
		ask.Handle(n, func(_ context.Context, in string) (string, error) { return in, nil })
		ctx, stop := context.WithCancel(context.Background())
		served := make(chan error, 1)
		go func() { served <- n.Serve(ctx) }()
		to, err := n.Peer(ctx, n.Addr().String())
		require.NoError(t, err)
		_, err = ask.Call(ctx, to, "x")
		require.NoError(t, err)
		stop()
		require.NoError(t, <-served)
		for _, p := range []*debug.Page{&page, &other} {
			v := p.Snapshot(debug.Query{})
			require.Len(t, v.Contexts, want)
			require.EqualValues(t, want, v.Load.Requests.TenMinutes.Count)
			require.EqualValues(t, want, v.Load.Calls.TenMinutes.Count)
		}
	}
}

// TestGuard checks that a function of the program decides which requests may read the page; probes
// reveal nothing and are public.
func TestGuard(t *testing.T) {
	t.Parallel()
	s := openBusyNode(t, qs.Config{})
	s.page.Guard = func(w http.ResponseWriter, r *http.Request) bool {
		_, password, _ := r.BasicAuth()
		if password != "secret" {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return false
		}
		return true
	}
	for _, path := range []string{"/", "/?format=json", "/?format=text", "/x/y"} {
		r, body := getPage(t, s.page, "GET", path, "")
		require.Equal(t, http.StatusUnauthorized, r.StatusCode)
		require.Equal(t, "who are you?\n", body)
	}
	r, _ := getPage(t, s.page, "GET", "/readyz", "")
	require.Equal(t, http.StatusOK, r.StatusCode)
	q := httptest.NewRequest("GET", "/", nil)
	q.SetBasicAuth("", "secret")
	w := httptest.NewRecorder()
	s.page.ServeHTTP(w, q)
	require.Equal(t, http.StatusOK, w.Code)
}

// TestTraceURL checks that the id of a trace links to the URL of the program, if that is a URL that
// a browser may open.
func TestTraceURL(t *testing.T) {
	t.Parallel()
	base := "https://jaeger.example/trace/"
	page := debug.Page{TraceURL: func(id string) string { return base + id }}
	trace := inspect.TraceID{0xaf, 15: 1}
	page.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "a", Code: hg.ErrNotFound, Text: "x", Took: 1, Trace: trace})
	_, html := getPage(t, &page, "GET", "/", "")
	require.Contains(t, html, `<a href="https://jaeger.example/trace/`+trace.String()+`" rel="noreferrer">`+trace.String()+`</a>`)
	v := getSnapshot(t, &page, "q="+trace.String())
	require.Equal(t, base+trace.String(), v.Errors.Rows[0].TraceURL)
	panics := debug.Page{TraceURL: func(string) string { panic("oh") }}
	for range 2 { // with no lock held
		panics.Observe(&inspect.Event{Kind: inspect.EventTarget, RPC: "a", Code: hg.ErrNotFound, Text: "x", Took: 1, Trace: trace})
		require.Panics(t, func() { panics.Snapshot(debug.Query{}) })
	}
	base = "javascript:alert(1)//"
	_, html = getPage(t, &page, "GET", "/", "")
	require.NotContains(t, html, "javascript:")
	require.Contains(t, html, trace.String())
}
