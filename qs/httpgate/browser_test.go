package httpgate_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs/httpgate"
)

// page calls a method, follows a stream, cancels another, and posts what it has seen.
const page = `<!doctype html><title>gate</title><script>
(async () => {
	const seen = [];
	const call = await fetch("/rpc/shop/echo", {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"name":"Ada"}'});
	seen.push(call.status + " " + (await call.json()).name);
	const failed = await fetch("/rpc/shop/fail", {method: "POST", headers: {"Content-Type": "application/json"}, body: "64"});
	seen.push(failed.status + " " + (await failed.json()).code);
	await new Promise(done => {
		const stream = new EventSource("/rpc/shop/count?input=3");
		stream.onmessage = e => seen.push("item " + JSON.parse(e.data).Count);
		stream.addEventListener("end", () => { stream.close(); seen.push("end"); done(); });
	});
	await new Promise(done => {
		const stream = new EventSource('/rpc/shop/endless?input=""');
		stream.onmessage = e => { stream.close(); seen.push("closed"); done(); };
	});
	await fetch(location.hash.slice(1), {method: "POST", mode: "no-cors", body: seen.join(", ")});
})();
</script>`

// TestBrowserPage checks that a page in a browser calls a method and follows a stream. When it
// closes one the context of the handler ends.
func TestBrowserPage(t *testing.T) {
	if !long.On {
		t.Skip("a browser takes seconds")
	}
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium")
	}
	w := newWorld(t, httpgate.Options{})
	seen := make(chan string, 1)
	report := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		seen <- string(b)
	}))
	defer report.Close()
	dir, err := os.MkdirTemp("", "browser")
	require.NoError(t, err)
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	defer stop()
	cmd := exec.CommandContext(ctx, path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--user-data-dir="+dir,
		"--no-first-run", "--remote-debugging-port=0", w.url+"/#"+report.URL)
	cmd.WaitDelay = 10 * time.Second
	require.NoError(t, cmd.Start())
	defer func() {
		stop()
		_ = cmd.Wait()
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, 30*time.Second, 10*time.Millisecond, "its processes still write to it")
	}()
	select {
	case text := <-seen:
		require.Equal(t, "200 Ada, 404 not_found, item 0, item 1, item 2, end, closed", text)
	case <-ctx.Done():
		t.Fatal("the page has posted nothing")
	}
	<-w.began
	require.ErrorIs(t, <-w.ended, context.Canceled)
}
