package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestWeb checks the page, a method and a stream of the service over HTTP, and its end.
func TestWeb(t *testing.T) {
	const at, web = "tcp://127.0.0.1:7125", "127.0.0.1:7126"
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	serving, end := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- serve(serving, at, web) }()
	defer http.DefaultClient.CloseIdleConnections()
	do := func(method, path, body string) (string, error) {
		r, err := http.NewRequestWithContext(ctx, method, "http://"+web+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/json")
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			return "", err
		}
		defer got.Body.Close()
		text, err := io.ReadAll(got.Body)
		return string(text), err
	}
	text, err := do("GET", "/", "")
	for err != nil && ctx.Err() == nil {
		text, err = do("GET", "/", "") // it is not there yet
	}
	require.NoError(t, err)
	require.Contains(t, text, "EventSource")
	text, err = do("POST", "/rpc/greet", `"Ada"`)
	require.NoError(t, err)
	require.JSONEq(t, `"hello, Ada"`, text)
	text, err = do("POST", "/rpc/countdown", "2")
	require.NoError(t, err)
	require.Equal(t, "{\"item\":2}\n{\"item\":1}\n{\"end\":true}\n", text)
	end()
	require.NoError(t, <-ended)
}
