package debug_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// A browser is a headless Chromium with one page, which the test drives by the DevTools protocol,
// over a pipe.
type browser struct {
	t       *testing.T
	in      *os.File
	out     *bufio.Reader
	last    int
	session string
	urls    []string // URLs that it has requested
}

// newBrowser starts it, or skips the test. It ends with the test.
func newBrowser(t *testing.T) *browser {
	t.Helper()
	if !long.On {
		t.Skip("a browser takes seconds")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium")
	}
	theirIn, in, err := os.Pipe()
	require.NoError(t, err)
	out, theirOut, err := os.Pipe()
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "browser")
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900",
		"--user-data-dir="+dir, "--remote-debugging-pipe", "--no-first-run", "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.WaitDelay = 10 * time.Second
	require.NoError(t, cmd.Start())
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, in: in, out: bufio.NewReader(out)}
	t.Cleanup(func() {
		b.session = ""
		b.do("Browser.close", nil, nil)
		_, _ = io.Copy(io.Discard, b.out) // until it has ended
		_ = cmd.Wait()
		stop()
		in.Close()
		out.Close()
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, 30*time.Second, 10*time.Millisecond, "its processes still write to it")
	})
	var target struct{ TargetID string }
	b.do("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.do("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	b.session = session.SessionID
	b.do("Page.enable", nil, nil)
	b.do("Network.enable", nil, nil)
	b.do("Runtime.enable", nil, nil)
	return b
}

// do sends a request to the browser, and decodes the answer.
func (b *browser) do(method string, params, answer any) {
	b.t.Helper()
	b.last++
	m := map[string]any{"id": b.last, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	text, err := json.Marshal(m)
	require.NoError(b.t, err)
	_, err = b.in.Write(append(text, 0))
	require.NoError(b.t, err)
	for {
		text, err := b.out.ReadBytes(0)
		require.NoError(b.t, err, "%s", method)
		var got struct {
			ID     int
			Method string
			Error  *struct{ Message string }
			Result json.RawMessage
			Params struct{ Request struct{ URL string } }
		}
		require.NoError(b.t, json.Unmarshal(text[:len(text)-1], &got))
		if got.Method == "Network.requestWillBeSent" {
			b.urls = append(b.urls, got.Params.Request.URL)
		}
		if got.ID != b.last {
			continue
		}
		require.Nil(b.t, got.Error, "%s: %+v", method, got.Error)
		if answer != nil {
			require.NoError(b.t, json.Unmarshal(got.Result, answer))
		}
		return
	}
}

// eval runs an expression in the page, waits for its promise, and stores the result.
func (b *browser) eval(expression string, to any) {
	b.t.Helper()
	var got struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	b.do("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &got)
	require.Nil(b.t, got.ExceptionDetails, "%s: %+v", expression, got.ExceptionDetails)
	if to != nil {
		require.NoError(b.t, json.Unmarshal(got.Result.Value, to), "%s", expression)
	}
}

// open goes to a page, and waits until it is there. What its policy forbids is noted from the
// beginning.
func (b *browser) open(url string) {
	b.t.Helper()
	b.do("Page.addScriptToEvaluateOnNewDocument", map[string]any{
		"source": `window.forbidden = []; document.addEventListener("securitypolicyviolation", (e) => forbidden.push(e.violatedDirective + " " + e.blockedURI));`}, nil)
	b.do("Page.navigate", map[string]any{"url": url}, nil)
	for ready := false; !ready; {
		b.eval(`new Promise((done) => setTimeout(() => done(document.readyState === "complete" && location.href !== "about:blank" && !!document.querySelector("main")), 10))`, &ready)
	}
}

// screenshot writes a picture of the page to the directory that QUICKSILVER_SCREENSHOTS names.
func (b *browser) screenshot(name string) {
	dir := os.Getenv("QUICKSILVER_SCREENSHOTS")
	if dir == "" {
		return
	}
	var got struct{ Data string }
	b.do("Page.captureScreenshot", nil, &got)
	picture, err := base64.StdEncoding.DecodeString(got.Data)
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(dir+"/"+name+".png", picture, 0o644))
}

// A servedPage is a page of a node that is busy, in a browser.
type servedPage struct {
	*browser
	requests atomic.Int64 // number of requests for the page
	url      string
}

// serve opens the page of a shop that is called all the time.
func serve(t *testing.T) *servedPage {
	t.Helper()
	v := &servedPage{browser: newBrowser(t)}
	s := openBusyNode(t, qs.Config{})
	server := httptest.NewServer(http.StripPrefix("/debug/qs", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		v.requests.Add(1)
		s.page.ServeHTTP(w, r)
	})))
	v.url = server.URL + "/debug/qs/"
	calling, leave := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for calling.Err() == nil {
				_, _ = ask.Call(calling, s.peer, "x")
				_, _ = fail.Call(calling, s.peer, "x")
			}
		})
		if i > 0 {
			stall.Go(calling, s.peer, "x")
		}
	}
	feed := qs.DefineStream[int, string]("shop/feed")
	feed.Handle(s.node, func(ctx context.Context, _ int, send func(string) error) error {
		<-ctx.Done()
		return ctx.Err()
	})
	all.Go(func() {
		for range feed.Call(calling, s.peer, 1) {
			continue
		}
	})
	waitUntil(t, func() bool { return s.page.Snapshot(debug.Query{}).Streams.Total > 0 })
	t.Cleanup(func() {
		leave()
		all.Wait()
		server.Close()
	})
	for _, q := range []string{"", "?view=peers", "?method=shop/ask"} { // they are there
		r, err := http.Get(v.url + q)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
	}
	v.open(v.url)
	return v
}

// updates waits until the page has renewed itself n times.
func (v *servedPage) updates(n int64) {
	v.t.Helper()
	for until := v.requests.Load() + n + 1; v.requests.Load() < until; {
		v.eval(`new Promise((done) => setTimeout(done, 50))`, nil)
	}
}

// TestBrowserKeepsFocusAndScroll checks that when the page refreshes itself, the keyboard focus, a selection
// and scroll positions are kept, and tables do not jump.
func TestBrowserKeepsFocusAndScroll(t *testing.T) {
	v := serve(t)
	v.updates(2)
	v.eval(`
		window.link = [...document.querySelectorAll("section[data-key=methods] tbody tr")].find((r) => r.dataset.key.includes("shop/fail")).querySelector("a");
		link.focus({preventScroll: true});
		window.cell = document.querySelector("section[data-key='under way'] tr td:nth-child(4)");
		getSelection().selectAllChildren(cell);
		window.box = document.querySelector(".box.fixed");
		box.style.height = "60px";
		box.scrollTop = 20;
		scrollTo(0, 100);
		window.tops = () => [...document.querySelectorAll("section")].map((s) => s.dataset.key + " " + s.getBoundingClientRect().top).join();
		window.rate = () => link.closest("tr").cells[2].textContent + link.closest("tr").cells[8].textContent;
		window.was = {tops: tops(), rate: rate(), scroll: scrollY, time: document.querySelector("footer").textContent};`, nil)
	v.updates(5)
	var is struct {
		Focus, Selected, Inside, Moved, Renewed bool
		Tops, Before                            string
		Scroll, Box                             float64
	}
	v.eval(`({Focus: document.activeElement === link && link.isConnected, Selected: getSelection().toString().includes("its handler has not answered"),
		Inside: cell.isConnected, Tops: tops(), Before: was.tops, Moved: rate() !== was.rate, Renewed: document.querySelector("footer").textContent !== was.time,
		Scroll: scrollY - was.scroll, Box: box.scrollTop})`, &is)
	require.True(t, is.Renewed, "the page has renewed itself")
	require.True(t, is.Moved, "and the row with the focus, too")
	require.True(t, is.Focus)
	require.True(t, is.Selected)
	require.True(t, is.Inside)
	require.Equal(t, is.Before, is.Tops, "a table has moved")
	require.Zero(t, is.Scroll)
	require.EqualValues(t, 20, is.Box)
	v.screenshot("desktop")

	// What has the focus may end: the list that it was in gets it then.
	var kept bool
	v.eval(`(() => {
		const fresh = document.querySelector("main").cloneNode(true);
		fresh.querySelector("section[data-key=methods] tbody").replaceChildren();
		document.body.focus(); link.focus();
		const at = link.closest(".box");
		const b = document.activeElement.closest(".box");
		update(document.querySelector("main"), fresh, pins());
		if (b && document.activeElement === document.body) b.focus();
		return document.activeElement === at;
	})()`, &kept)
	require.True(t, kept)
}

// TestBrowserReorders checks that rows that change places move around the row with the focus, and
// the page equals the response of the server.
func TestBrowserReorders(t *testing.T) {
	v := serve(t)
	v.eval(`document.getElementById("pause").click()`, nil)
	var bad []string
	v.eval(`(() => {
		let seed = 7;
		const random = (n) => (seed = (seed * 1103515245 + 12345) & 0x7fffffff) % n;
		const bad = [];
		const was = document.createElement("div");
		document.body.append(was);
		for (let round = 0; round < 500; round++) {
			const is = document.createElement("div");
			const keys = [...Array(12).keys()].filter(() => random(3) > 0).sort(() => random(3) - 1);
			for (const k of keys) {
				const row = document.createElement("p");
				row.dataset.key = k;
				row.innerHTML = "<a href='?" + k + "'>" + k + "</a> " + random(1000);
				is.append(row, "\n");
			}
			if (random(2)) is.append(document.createElement("hr"));
			const want = is.innerHTML;
			const rows = [...was.querySelectorAll("a")];
			const focused = rows.length ? rows[random(rows.length)] : null;
			if (focused) focused.focus();
			const stays = focused && keys.includes(+focused.textContent);
			update(was, is, pins());
			if (was.innerHTML !== want) bad.push(round + ": " + was.innerHTML + " instead of " + want);
			if (stays && document.activeElement !== focused) bad.push(round + ": focus lost");
		}
		was.remove();
		return bad.slice(0, 3);
	})()`, &bad)
	require.Empty(t, bad)
}

// TestBrowserPauses checks that a paused page does not change, and continues afterwards.
func TestBrowserPauses(t *testing.T) {
	v := serve(t)
	v.updates(1)
	v.eval(`document.getElementById("pause").click()`, nil)
	var same bool
	v.eval(`(async () => {
		await new Promise((done) => setTimeout(done, 300)); // what was on its way is dropped
		const was = document.querySelector("main").innerHTML;
		await new Promise((done) => setTimeout(done, 3000));
		return was === document.querySelector("main").innerHTML && document.getElementById("status").textContent === "paused"
			&& document.getElementById("pause").getAttribute("aria-pressed") === "true";
	})()`, &same)
	require.True(t, same)
	v.eval(`document.getElementById("pause").click()`, nil)
	v.updates(2)
	v.eval(`document.getElementById("status").textContent === ""`, &same)
	require.True(t, same)
}

// TestBrowserLayoutAndPolicy checks that the page is dark if the system is, and on a phone no wider than the
// screen, with age and state visible. Its policy blocks nothing that the page does, and it sends
// requests to its server only.
func TestBrowserLayoutAndPolicy(t *testing.T) {
	v := serve(t)
	v.updates(1)
	var color string
	v.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": "dark"}}}, nil)
	v.eval(`getComputedStyle(document.body).backgroundColor`, &color)
	require.Equal(t, "rgb(22, 22, 22)", color)
	v.screenshot("dark")
	v.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": "light"}}}, nil)
	v.eval(`getComputedStyle(document.body).backgroundColor`, &color)
	require.Equal(t, "rgb(255, 255, 255)", color)
	var broken []string // names, and then words of them, not at slashes and spaces
	v.eval(`[...document.querySelectorAll("td a")].filter((a) => new Set([...a.getClientRects()].map((r) => r.y)).size > 1).map((a) => a.textContent)`, &broken)
	require.Empty(t, broken)
	v.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": true}, nil)
	v.updates(1)
	var wide float64
	v.eval(`document.documentElement.scrollWidth`, &wide)
	require.LessOrEqual(t, wide, 390.0)
	for _, cell := range []struct {
		section string
		last    int // column that is in sight
	}{{"under way", 4}, {"streams", 4}, {"methods", 6}, {"peers", 5}} {
		var right float64
		v.eval(fmt.Sprintf(`document.querySelector("section[data-key='%s'] tbody tr td:nth-child(%d)").getBoundingClientRect().right`, cell.section, cell.last), &right)
		require.Less(t, right, 390.0, cell.section)
	}
	v.eval(`[...document.querySelectorAll("td.id a")].flatMap((a) => [...a.childNodes].filter((n) => n.nodeType === 3 && !n.data.includes(" ")).filter((n) => {
		const words = document.createRange();
		words.selectNodeContents(n);
		return words.getClientRects().length > 1;
	}).map((n) => n.data))`, &broken)
	require.Empty(t, broken)
	var right float64
	v.eval(`(() => {
		const text = document.querySelector("section[data-key=errors] td.text");
		text.textContent = "the card of checkout-3 was refused";
		return text.getBoundingClientRect().right;
	})()`, &right)
	require.Less(t, right, 390.0, "the text of an error")
	v.screenshot("phone")
	var forbidden []string
	v.eval(`forbidden`, &forbidden)
	require.Empty(t, forbidden)
	require.Greater(t, len(v.urls), 2)
	for _, url := range v.urls {
		require.True(t, strings.HasPrefix(url, v.url) || url == "about:blank" || strings.HasSuffix(url, "/favicon.ico"), url)
	}
	v.eval(`new Promise((done) => { const s = document.createElement("script"); s.textContent = "window.ran = true"; document.body.append(s); setTimeout(() => done(forbidden.concat(String(window.ran))), 100); })`, &forbidden)
	require.Len(t, forbidden, 2, "%q", forbidden)
	require.Equal(t, "undefined", forbidden[1], "an injected script does not run")
}

// TestBrowserShowsCauses checks that five causes are visible, with their number, on a screen and on
// a phone; the content below keeps its place when they disappear, and when they appear out of
// sight.
func TestBrowserShowsCauses(t *testing.T) {
	v := serve(t)
	for _, width := range []int{1280, 390} {
		v.do("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 400}, nil)
		v.eval(`{
			document.getElementById("pause").getAttribute("aria-pressed") === "true" || document.getElementById("pause").click();
			window.want = (n) => {
				const fresh = document.querySelector("main").cloneNode(true);
				fresh.querySelector(".causes ul").innerHTML = [...Array(n).keys()].map((i) => "<li data-key=" + i + "><b>limit</b> " +
					"3 requests of worker (127.0.0.1:40000) wait for earlier ones of this peer to finish: 16 requests are running, the limit for one peer (HG.MaxActivePerPeer). Raise the limit.</li>").join("");
				const causes = document.querySelector(".causes"), {height} = causes.getBoundingClientRect();
				update(document.querySelector("main"), fresh, pins());
				grow(causes, height);
			};
			scrollTo(0, 0); want(5);
		}`, nil)
		var is struct{ Bottom, Last, Top, Same float64 }
		v.eval(`({Bottom: document.querySelector(".causes").getBoundingClientRect().bottom, Last: document.querySelector(".causes li:last-child").getBoundingClientRect().bottom})`, &is)
		require.LessOrEqual(t, is.Last, is.Bottom, "%d", width)
		require.Less(t, is.Last, 900.0, "%d", width)
		v.screenshot(fmt.Sprint("causes-", width))
		v.eval(`(() => {
			const at = document.querySelector("section[data-key=methods]");
			const top = () => at.getBoundingClientRect().top;
			const was = top();
			want(1);
			const same = top() - was;
			scrollTo(0, document.querySelector("section[data-key='under way']").offsetTop + 10);
			const before = top();
			want(9);
			return {Same: same, Top: top() - before};
		})()`, &is)
		require.Zero(t, is.Same, "%d", width)
		require.InDelta(t, 0, is.Top, 1, "%d", width)
	}
	var heading string
	v.eval(`document.querySelector(".causes h2").textContent`, &heading)
	require.Equal(t, "What is wrong", heading[:13])
}

// TestBrowserMemory checks that the memory of a page that is open for long does not grow.
func TestBrowserMemory(t *testing.T) {
	v := serve(t)
	v.eval(`document.getElementById("pause").click();
		window.again = async (n) => {
			for (let i = 0; i < n; i++) {
				const answer = await fetch(location.href, {headers: {Accept: "text/html"}});
				const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
				update(document.querySelector("main"), fresh.querySelector("main"), pins());
			}
		};`, nil)
	use := func() (bytes, nodes float64) {
		v.do("HeapProfiler.collectGarbage", nil, nil)
		v.do("HeapProfiler.collectGarbage", nil, nil)
		var heap struct{ UsedSize float64 }
		v.do("Runtime.getHeapUsage", nil, &heap)
		var dom struct{ Nodes float64 }
		v.do("Memory.getDOMCounters", nil, &dom)
		return heap.UsedSize, dom.Nodes
	}
	v.eval(`again(100)`, nil)
	bytes, nodes := use()
	v.eval(`again(1000)`, nil)
	bytesThen, nodesThen := use()
	t.Logf("%.0f bytes and %.0f nodes after 100 updates, %.0f and %.0f after 1,100", bytes, nodes, bytesThen, nodesThen)
	require.Less(t, bytesThen, bytes+1<<20)
	require.Less(t, nodesThen, 1.5*nodes+1000)
}

// TestBrowserAccessible checks that axe reports nothing, on any view. QUICKSILVER_AXE names its
// axe.min.js.
func TestBrowserAccessible(t *testing.T) {
	path := os.Getenv("QUICKSILVER_AXE")
	if path == "" {
		t.Skip("QUICKSILVER_AXE does not name axe.min.js of the npm package axe-core")
	}
	source, err := os.ReadFile(path)
	require.NoError(t, err)
	v := serve(t)
	for _, query := range []string{"", "?view=calls", "?view=streams", "?view=methods&sort=-errors", "?view=errors", "?view=peers", "?method=shop/ask", "?q=worker"} {
		for _, scheme := range []string{"light", "dark"} {
			v.do("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
			v.open(v.url + query)
			v.eval(string(source)+"; 0", nil)
			var found []string
			v.eval(`axe.run().then((r) => r.violations.map((v) => v.id + ": " + v.nodes.map((n) => n.html).join(" ").slice(0, 300)))`, &found)
			require.Empty(t, found, "%s %s", query, scheme)
		}
	}
}
