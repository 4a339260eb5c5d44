package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs/debug"
)

// TestServeDebug checks that with -debug a target serves its debug page by HTTP.
func TestServeDebug(t *testing.T) {
	t.Parallel()
	q := newQS(t, "serve", "-child", "-debug", "127.0.0.1:0")
	stdin, err := q.cmd.StdinPipe()
	require.NoError(t, err)
	out, in := io.Pipe()
	q.cmd.Stdout = in
	q.start()
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	addr := lines.Text()
	require.True(t, lines.Scan())
	m := regexp.MustCompile(`^debug page at (http://127\.0\.0\.1:\d+/)$`).FindStringSubmatch(lines.Text())
	require.NotNil(t, m, lines.Text())
	run(t, 0, "ping", "-count", "3", "-interval", "0", addr)

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(path string) []byte {
		r, err := client.Get(m[1] + path)
		require.NoError(t, err)
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, r.StatusCode)
		return b
	}
	var s debug.Snapshot
	require.NoError(t, json.Unmarshal(get("?format=json"), &s))
	require.Len(t, s.Contexts, 1)
	require.Equal(t, addr, s.Contexts[0].Address)
	var pings debug.Snapshot
	require.NoError(t, json.Unmarshal(get("?format=json&method=hg/ping"), &pings))
	require.EqualValues(t, 3, pings.Methods.Rows[0].Count)
	require.Contains(t, string(get("?all")), "hg/ping")
	var vars struct{ Quicksilver debug.Snapshot }
	require.NoError(t, json.Unmarshal(get("debug/vars"), &vars))
	require.Equal(t, addr, vars.Quicksilver.Contexts[0].Address)
	require.NoError(t, stdin.Close())
	q.wait(0)
	require.Regexp(t, `^qs serve: --debug nowhere: `, run(t, 1, "serve", "-debug", "nowhere").errors.String())
}
