package httpgate_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/httpgate"
)

type order struct {
	Name  string `msgpack:"name"`
	Count int
	Data  []byte
	At    time.Time
	Wait  time.Duration
	Tags  map[string]int
}

var (
	echo    = qs.Define[order, order]("shop/echo")
	fail    = qs.Define[int, string]("shop/fail")
	wait    = qs.Define[string, string]("shop/wait")
	absent  = qs.Define[int, int]("shop/absent")
	token   = qs.Define[struct{}, string]("shop/token")
	count   = qs.DefineStream[int, order]("shop/count")
	endless = qs.DefineStream[string, int]("shop/endless")
)

// A world is a gate to the methods of its own node, behind a server of package net/http.
type world struct {
	t     *testing.T
	url   string
	ended chan error // how the context of a handler of wait and endless has ended
	began chan bool  // whether it has a deadline
}

func newWorld(t *testing.T, o httpgate.Options) *world {
	t.Helper()
	w := &world{t: t, ended: make(chan error, 8), began: make(chan bool, 8)}
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	echo.Handle(n, func(_ context.Context, in order) (order, error) { return in, nil })
	fail.Handle(n, func(_ context.Context, code int) (string, error) {
		switch code {
		case 0:
			return "", errors.New("without a code")
		case 1:
			panic("oh")
		case 2:
			return "", qs.Refuse(qs.WithDetail(qs.Errorf(qs.ErrExhausted, "full"), map[string]int{"free": 3}))
		}
		return "", qs.Errorf(qs.Code(code), "code %d", code)
	})
	hold := func(ctx context.Context) error {
		_, bounded := ctx.Deadline()
		w.began <- bounded
		<-ctx.Done()
		w.ended <- ctx.Err()
		return ctx.Err()
	}
	wait.Handle(n, func(ctx context.Context, _ string) (string, error) { return "", hold(ctx) })
	token.Handle(n, func(ctx context.Context, _ struct{}) (string, error) {
		value, _ := qs.Metadata(ctx, "authorization")
		return value, nil
	})
	count.Handle(n, func(_ context.Context, to int, send func(order) error) error {
		for i := range to {
			if err := send(order{Name: "item\n", Count: i}); err != nil {
				return err
			}
		}
		if to >= 100 || to < 0 {
			return qs.Errorf(qs.ErrNotFound, "no more than 100")
		}
		return nil
	})
	endless.Handle(n, func(ctx context.Context, _ string, send func(int) error) error {
		if err := send(1); err != nil {
			return err
		}
		return hold(ctx)
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- n.Serve(ctx) }()
	to, err := n.Peer(context.Background(), n.Addr().String())
	require.NoError(t, err)
	gate := httpgate.New(to, o, httpgate.Unary(echo), httpgate.Unary(fail), httpgate.Unary(wait), httpgate.Unary(absent), httpgate.Unary(token),
		httpgate.Stream(count), httpgate.Stream(endless))
	mux := http.NewServeMux()
	mux.Handle("/rpc/", http.StripPrefix("/rpc/", gate))
	mux.HandleFunc("/", func(out http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(out, page) })
	web := httptest.NewServer(mux)
	t.Cleanup(func() {
		web.Close()
		stop()
		require.NoError(t, <-served)
	})
	w.url = web.URL
	return w
}

// do makes a request, whose context ends with the test's patience.
func (w *world) do(method, path, body string, header ...string) (status int, text string) {
	w.t.Helper()
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	resp, err := http.DefaultClient.Do(w.request(ctx, method, path, body, header...))
	require.NoError(w.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(w.t, err)
	return resp.StatusCode, string(b)
}

func (w *world) request(ctx context.Context, method, path, body string, header ...string) *http.Request {
	w.t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
	require.NoError(w.t, err)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// An answer is an error in JSON.
type answer struct {
	Code, Message string
	Details       []struct {
		Type, Value string
		Debug       json.RawMessage
	}
}

// fails makes a request that fails, and returns the error.
func (w *world) fails(status int, code, fate, method, path, body string, header ...string) (a answer) {
	w.t.Helper()
	got, text := w.do(method, path, body, header...)
	require.Equal(w.t, status, got, text)
	require.NoError(w.t, json.Unmarshal([]byte(text), &a), text)
	require.Equal(w.t, code, a.Code, text)
	require.Equal(w.t, "quicksilver.v1.Outcome", a.Details[0].Type)
	var outcome struct{ Fate string }
	require.NoError(w.t, json.Unmarshal(a.Details[0].Debug, &outcome))
	require.Equal(w.t, fate, outcome.Fate, text)
	return a
}

// TestUnary checks that input and output are JSON by the types of the method, with the names that
// its fields have on the wire.
func TestUnary(t *testing.T) {
	t.Parallel()
	w := newWorld(t, httpgate.Options{Headers: []string{"Authorization"}})
	in := `{"name":"Ada","Count":7,"Data":"AAEC","At":"2026-01-02T03:04:05Z","Wait":"1.5s","Tags":{"a":1}}`
	status, out := w.do("POST", "/rpc/shop/echo", in)
	require.Equal(t, 200, status, out)
	require.JSONEq(t, in, out)
	status, out = w.do("POST", "/rpc/shop/echo", "") // the zero value
	require.Equal(t, 200, status, out)
	require.Contains(t, out, `"name":""`)
	_, out = w.do("POST", "/rpc/shop/token", "{}", "Authorization", "Bearer bread")
	require.JSONEq(t, `"Bearer bread"`, out)
}

// TestErrors checks that each error has a status, a code of Connect, and the fate of the request; a
// request that leads to no call has not run.
func TestErrors(t *testing.T) {
	t.Parallel()
	w := newWorld(t, httpgate.Options{MaxBody: 200, AllowOrigin: func(r *http.Request) bool { return r.Header.Get("Origin") == "https://friend.test" }})
	for _, c := range []struct {
		in, code string
		status   int
		fate     string
	}{
		{"0", "unknown", 500, "ran"}, {"1", "internal", 500, "ran"}, {"2", "resource_exhausted", 429, "not_run"}, {"64", "not_found", 404, "ran"},
		{"65", "already_exists", 409, "ran"}, {"66", "invalid_argument", 400, "ran"}, {"67", "permission_denied", 403, "ran"},
		{"68", "unavailable", 503, "ran"}, {"69", "resource_exhausted", 429, "ran"}, {"70", "unavailable", 503, "ran"}, {"71", "aborted", 409, "ran"},
		{"72", "internal", 500, "ran"}, {"200", "unknown", 500, "ran"}, {"20", "unknown", 500, "ran"},
	} {
		a := w.fails(c.status, c.code, c.fate, "POST", "/rpc/shop/fail", c.in)
		switch c.in {
		case "2":
			require.Equal(t, "full", a.Message)
			require.Equal(t, "quicksilver.v1.Detail", a.Details[1].Type)
			require.JSONEq(t, `{"free":3}`, string(a.Details[1].Debug))
		case "1":
			require.Equal(t, "CgNyYW4QIw", a.Details[0].Value, `field 1 is "ran", field 2 is 35`)
		}
	}
	w.fails(501, "unimplemented", "not_run", "POST", "/rpc/shop/none", "1")
	w.fails(501, "unimplemented", "not_run", "POST", "/rpc/shop/absent", "1")
	w.fails(405, "unimplemented", "not_run", "GET", "/rpc/shop/echo", "")
	w.fails(415, "invalid_argument", "not_run", "POST", "/rpc/shop/echo", "{}", "Content-Type", "text/plain")
	w.fails(413, "resource_exhausted", "not_run", "POST", "/rpc/shop/echo", `{"name":"`+strings.Repeat("x", 200)+`"}`)
	w.fails(413, "resource_exhausted", "not_run", "GET", "/rpc/shop/count?input="+strings.Repeat("1", 201), "")
	w.fails(400, "invalid_argument", "not_run", "POST", "/rpc/shop/echo", `{"name":`)
	a := w.fails(400, "invalid_argument", "not_run", "POST", "/rpc/shop/echo", `{"Nmae":"Ada"}`)
	require.Contains(t, a.Message, "Nmae")
	w.fails(400, "invalid_argument", "not_run", "POST", "/rpc/shop/echo", `{}`, "Connect-Timeout-Ms", "soon")
	for _, site := range []string{"cross-site", "same-site"} {
		w.fails(403, "permission_denied", "not_run", "GET", "/rpc/shop/count?input=1", "", "Sec-Fetch-Site", site, "Origin", "https://foe.test")
		status, _ := w.do("GET", "/rpc/shop/count?input=1", "", "Sec-Fetch-Site", site, "Origin", "https://friend.test")
		require.Equal(t, 200, status)
	}
	for _, origin := range []string{"http://foe.test", "null", "http://127.0.0.1"} { // plain HTTP has no Sec-Fetch-Site
		w.fails(403, "permission_denied", "not_run", "POST", "/rpc/shop/echo", "", "Origin", origin)
	}
	status, _ := w.do("POST", "/rpc/shop/echo", "{}", "Origin", w.url)
	require.Equal(t, 200, status)
}

// TestAmbiguousInput checks that input that would be read differently from how it was written is
// refused, with its position.
func TestAmbiguousInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, httpgate.Options{})
	for _, c := range []struct{ method, path, body, want string }{
		{"GET", "/rpc/shop/count?input=%zz", "", "query"},
		{"GET", "/rpc/shop/count?input=3;x", "", "query"},
		{"GET", "/rpc/shop/count?input=1&input=2", "", "several inputs"},
		{"POST", "/rpc/shop/count?input=3", "", "body"},
		{"POST", "/rpc/shop/echo", `{"Count":1,"Count":2}`, `duplicate name "Count"`},
		{"POST", "/rpc/shop/echo", `{"Tags":{"a":1,"a":2}}`, `Tags: duplicate name "a"`},
		{"POST", "/rpc/shop/echo", "{\"name\":\"J\xfcrgen\"}", "not UTF-8"},
	} {
		require.Contains(t, w.fails(400, "invalid_argument", "not_run", c.method, c.path, c.body).Message, c.want, c.path)
	}
}

// TestSlowBody checks that a body that arrives too slowly ends with the time of its request, and
// the connection of one that arrived in time continues.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, httpgate.Options{Timeout: 50 * time.Millisecond})
	c, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
	answers := bufio.NewReader(c)
	send := func(header, body string) *http.Response {
		_, err := fmt.Fprintf(c, "POST /rpc/shop/echo HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%sContent-Length: 2\r\n\r\n%s", header, body)
		require.NoError(t, err)
		resp, err := http.ReadResponse(answers, nil)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		return resp
	}
	require.Equal(t, 200, send("Connect-Timeout-Ms: 60000\r\n", "{}").StatusCode)
	resp := send("", "{")
	require.Equal(t, 504, resp.StatusCode)
	_, err = answers.ReadByte()
	require.ErrorIs(t, err, io.EOF)
}

// TestStreamToStuckClient checks that the deadline of a stream ends a write to a client that does
// not read.
func TestStreamToStuckClient(t *testing.T) {
	t.Parallel()
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	text := strings.Repeat("x", 1<<20)
	flood := qs.DefineStream[struct{}, string]("shop/flood")
	flood.Handle(n, func(_ context.Context, _ struct{}, send func(string) error) error {
		for {
			if err := send(text); err != nil {
				return err
			}
		}
	})
	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- n.Serve(ctx) }()
	to, err := n.Peer(ctx, n.Addr().String())
	require.NoError(t, err)
	gate, returned := httpgate.New(to, httpgate.Options{}, httpgate.Stream(flood)), make(chan struct{})
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(returned)
		gate.ServeHTTP(w, r)
	}))
	defer web.Close()
	c, err := net.Dial("tcp", web.Listener.Addr().String())
	require.NoError(t, err)
	defer c.Close()
	_, err = io.WriteString(c, "POST /shop/flood HTTP/1.1\r\nHost: x\r\nConnect-Timeout-Ms: 300\r\nContent-Length: 0\r\n\r\n")
	require.NoError(t, err)
	select {
	case <-returned:
	case <-time.After(time.Minute):
		t.Error("the gate still writes to a client that does not read")
	}
	stop()
	require.NoError(t, <-served)
}

// TestDeadline checks that a deadline in the header, and that of Options, travels to the handler.
func TestDeadline(t *testing.T) {
	t.Parallel()
	w := newWorld(t, httpgate.Options{Timeout: 300 * time.Millisecond}) // long enough that the handler begins
	for _, header := range [][]string{nil, {"Connect-Timeout-Ms", "310"}} {
		a := w.fails(504, "deadline_exceeded", "may_have_run", "POST", "/rpc/shop/wait", `""`, header...)
		require.NotEmpty(t, a.Message)
		require.True(t, <-w.began)
		err := <-w.ended // canceled where the request took long to arrive: then the caller gives up before the handler's time is over
		require.True(t, errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled), "%v", err)
	}
}

// TestCancel checks that a request that is canceled ends the context of its handler: of a plain
// method, and of a stream in both forms.
func TestCancel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, httpgate.Options{})
	for _, c := range [][]string{{"POST", "/rpc/shop/wait", `""`, "Accept", ""}, {"POST", "/rpc/shop/endless", `""`, "Accept", ""}, {"GET", "/rpc/shop/endless", "", "Accept", "text/event-stream"}} {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			resp, err := http.DefaultClient.Do(w.request(ctx, c[0], c[1], c[2], c[3:]...))
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			done <- err
		}()
		require.False(t, <-w.began)
		cancel()
		require.ErrorIs(t, <-w.ended, context.Canceled)
		require.ErrorIs(t, <-done, context.Canceled)
	}
}

// TestStream checks that the items of a stream are events or lines, and the last has the outcome;
// an error before the first has a status.
func TestStream(t *testing.T) {
	t.Parallel()
	w := newWorld(t, httpgate.Options{})
	status, text := w.do("POST", "/rpc/shop/count", "3")
	require.Equal(t, 200, status)
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	require.Len(t, lines, 4, text)
	require.Equal(t, `{"end":true}`, lines[3])
	var named struct {
		Item struct {
			Name  string `json:"name"`
			Count int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(lines[2]), &named))
	require.Equal(t, "item\n", named.Item.Name)
	require.Equal(t, 2, named.Item.Count)

	status, text = w.do("GET", "/rpc/shop/count?input=2", "", "Accept", "text/event-stream")
	require.Equal(t, 200, status)
	require.Equal(t, 2, strings.Count(text, "data: {"))
	require.True(t, strings.HasSuffix(text, "\n\nevent: end\ndata: true\n\n"), text)

	_, text = w.do("POST", "/rpc/shop/count", "100")
	lines = strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	require.Len(t, lines, 101)
	require.Contains(t, lines[100], `{"error":{"code":"not_found"`)
	_, text = w.do("GET", "/rpc/shop/count?input=100", "", "Accept", "text/event-stream")
	require.Contains(t, text, "\n\nevent: error\ndata: {\"code\":\"not_found\"")

	w.fails(404, "not_found", "ran", "GET", "/rpc/shop/count?input=-1", "", "Accept", "text/event-stream")
	w.fails(400, "invalid_argument", "not_run", "POST", "/rpc/shop/count", `"many"`)
}

// TestStreamFlushes checks that an item arrives when the handler sends it, though the stream
// continues.
func TestStreamFlushes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, httpgate.Options{})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	resp, err := http.DefaultClient.Do(w.request(ctx, "POST", "/rpc/shop/endless", `""`))
	require.NoError(t, err)
	defer resp.Body.Close()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	require.NoError(t, err)
	require.JSONEq(t, `{"item":1}`, line)
	cancel()
	require.ErrorIs(t, <-w.ended, context.Canceled)
}

// TestMisuse checks that a method that cannot be served panics when the gate is made.
func TestMisuse(t *testing.T) {
	t.Parallel()
	upload := qs.Define[struct{ Body qs.Source }, int]("shop/upload")
	require.PanicsWithValue(t, "httpgate: method shop/upload has Sources or Sinks in its input, want none", func() { httpgate.Unary(upload) })
	require.Panics(t, func() { httpgate.New(qs.Peer{}, httpgate.Options{}) })
	n, err := qs.Open("tcp://", qs.Config{})
	require.NoError(t, err)
	defer n.Close()
	to, err := n.Peer(context.Background(), "tcp://127.0.0.1:1")
	require.NoError(t, err)
	require.Panics(t, func() { httpgate.New(to, httpgate.Options{}, httpgate.Unary(echo), httpgate.Unary(echo)) })
	r := httptest.NewRecorder()
	httpgate.New(to, httpgate.Options{}, httpgate.Unary(fail)).ServeHTTP(r, httptest.NewRequest("POST", "/shop/fail", nil))
	require.Equal(t, 503, r.Code, "there is no listener")
	require.Contains(t, r.Body.String(), "not_run")
}

// TestCurl checks that curl calls a method, and follows a stream.
func TestCurl(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl")
	}
	w := newWorld(t, httpgate.Options{})
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	run := func(args ...string) string {
		out, err := exec.CommandContext(ctx, curl, append([]string{"-sS", "-N", "--noproxy", "*"}, args...)...).Output()
		require.NoError(t, err)
		return string(out)
	}
	require.Contains(t, run("--json", `{"name":"Ada"}`, w.url+"/rpc/shop/echo"), `"name":"Ada"`)
	require.Equal(t, 3, strings.Count(run("--json", "2", w.url+"/rpc/shop/count"), "\n"))
	require.Contains(t, run("--json", "64", w.url+"/rpc/shop/fail"), `"code":"not_found"`)
	require.Contains(t, run("-H", "Accept: text/event-stream", w.url+"/rpc/shop/count?input=1"), "event: end")
}
