//go:build linux

package netns

import (
	"bufio"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPlaces checks that two processes with shared memory beside tcp or udp, and one directory of
// names, use it only within a namespace.
func TestPlaces(t *testing.T) {
	tool := buildTool(t)
	eachScheme(t, func(t *testing.T, scheme string) {
		t.Setenv("QS_UDP_TRUSTED", "1")
		w := newWorld(t, scheme)
		at := scheme + "://" + addrB + ":9000"
		serve := exec.Command("ip", "netns", "exec", w.b.ns, tool, "serve", at+",sm://")
		out, err := serve.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, serve.Start())
		t.Cleanup(func() { _ = serve.Process.Kill(); _ = serve.Wait() })
		_, err = bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		for s, want := range map[*side]string{
			w.a: `reached by +` + scheme + `\nbecause +the peer is on another machine, or in another namespace or directory`,
			w.b: `reached by +sm\nbecause +the peer is on this machine`,
		} {
			output, err := runTool("ip", "netns", "exec", s.ns, tool, "info", "-local", at)
			require.NoError(t, err)
			require.Regexp(t, want, output)
		}
	})
}
