package debug_test

import (
	"context"
	"image/color"
	"image/png"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// TestBrowser: a real browser shows a stalled call by name and age, marked as old, and renews the page by itself.
func TestBrowser(t *testing.T) {
	if !long.On {
		t.Skip("a browser takes seconds")
	}
	browser, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("there is no chromium")
	}
	s := open(t, qs.Config{})
	var looks atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			looks.Add(1)
		}
		s.page.ServeHTTP(w, r)
	}))
	defer server.Close()
	require.Eventually(t, func() bool {
		calls := s.page.Snapshot(debug.Query{}).Calls.Rows
		return len(calls) == 1 && calls[0].Age >= time.Second
	}, time.Minute, 10*time.Millisecond)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	picture := filepath.Join(t.TempDir(), "page.png")
	if keep := os.Getenv("QUICKSILVER_SCREENSHOT"); keep != "" {
		picture = keep
	}
	run := func(what string) string {
		cmd := exec.CommandContext(ctx, browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1200,900",
			"--user-data-dir="+t.TempDir(), "--virtual-time-budget=3000", what, server.URL+"/")
		cmd.WaitDelay = 10 * time.Second
		out, err := cmd.Output()
		require.NoError(t, err)
		return string(out)
	}
	// What is shown, after the script has renewed it.
	require.Regexp(t, `<tr class="old"><td>target</td><td>shop/&lt;stall&gt;</td><td>[^<]+</td><td>running</td><td class="n">\d[\d.]*m?s</td>`, run("--dump-dom"))
	require.Greater(t, looks.Load(), int32(1), "the script renews the page")

	run("--screenshot=" + picture)
	f, err := os.Open(picture)
	require.NoError(t, err)
	defer f.Close()
	img, err := png.Decode(f)
	require.NoError(t, err)
	old := 0 // pixels of the row of a call that is old
	for y := range img.Bounds().Dy() {
		for x := range img.Bounds().Dx() {
			if color.NRGBAModel.Convert(img.At(x, y)) == (color.NRGBA{0xff, 0xdc, 0xa8, 0xff}) {
				old++
			}
		}
	}
	require.Greater(t, old, 1000)
}
