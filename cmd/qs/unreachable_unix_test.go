//go:build unix

package main

import (
	"net"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// listenSilently returns an address of this machine that accepts connections and never responds.
func listenSilently(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return "tcp://" + l.Addr().String()
}

// TestUnreachable checks that each command describes an address that it cannot use, and the remedy,
// in two lines.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	cert, key := testcert.Write(t)
	plain, secret, stopped, datagrams := serve(t, ""), serve(t, "", "-cert", cert, "-key", key), serve(t, ""), serve(t, "", "udp://127.0.0.1:0")
	require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
	web := httptest.NewServer(nil)
	t.Cleanup(web.Close)
	const start = "start the program there, or correct the address, "
	for name, c := range map[string]struct {
		flags, addr, what, todo string
		code                    int
	}{
		"nothing":         {"", "tcp://127.0.0.1:1", "connect: connection refused", start, exitNotRun},
		"other transport": {"", strings.Replace(datagrams.addr, "udp", "tcp", 1), "connect: connection refused", start, exitNotRun},
		"no datagrams":    {"", strings.Replace(plain.addr, "tcp", "udp", 1), "no response", start, exitNotRun},
		"HTTP":            {"", "tcp://" + web.Listener.Addr().String(), "the program there does not use Quicksilver, or uses another version", "correct the address", exitNotRun},
		"deaf":            {"", listenSilently(t), "no connection within 500ms", "check that a Quicksilver program runs there", exitNotRun},
		"stopped":         {"", stopped.addr, "no connection within 500ms", "check that a Quicksilver program runs there", exitNotRun},
		"TLS there":       {"", secret.addr, "refused by peer: TLS is required here", "use TLS at both ends or at neither: set --cert, --key and --ca", exitUsage},
		"TLS here":        {"-ca " + cert, plain.addr, "TLS: the peer does not use TLS", "use TLS at both ends or at neither: set --cert, --key and --ca", exitUsage},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for command, args := range map[string]string{"ping": "-count 1 %", "call": "% x", "top": "-n 1 %", "rpcs": "%", "ger": "%", "perf": "-target %", "cp": cert + " %/f"} {
				// they print the same text
				if !long.On && name != "nothing" && command != "ping" && command != "cp" {
					continue
				}
				t.Run(command, func(t *testing.T) {
					t.Parallel()
					line := command + " -peer-timeout 500ms " + c.flags + " " + strings.ReplaceAll(args, "%", c.addr)
					says := run(t, c.code, strings.Fields(line)...).errors.String()
					require.Regexp(t, `^qs `+command+`: (copy \S+: )?`+c.addr+` cannot be reached: `+regexp.QuoteMeta(c.what)+`.*\n  to do:  `+regexp.QuoteMeta(c.todo)+`.*\n$`, says, line)
				})
			}
		})
	}
	t.Run("ping gives up first", func(t *testing.T) {
		t.Parallel()
		says := run(t, exitNotRun, "ping", "-count", "1", "-timeout", "200ms", stopped.addr).errors.String()
		require.Regexp(t, `^qs ping: `+stopped.addr+` cannot be reached: no connection within 200ms\n  to do:  check that a Quicksilver program runs there.*\n$`, says)
		says = run(t, exitNotRun, "ping", "-interval", "0", "-timeout", "200ms", "-peer-timeout", "500ms", stopped.addr).errors.String()
		require.Regexp(t, `^qs ping: `+stopped.addr+` cannot be reached: no connection within 500ms\n  to do:  check that a Quicksilver program runs there.*\n$`, says)
	})
	t.Run("nobody serves", func(t *testing.T) {
		t.Parallel()
		node, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
		require.NoError(t, err)
		t.Cleanup(func() { _ = node.Close() })
		says := run(t, exitNotRun, "ping", "-count", "1", "-timeout", "1s", node.Addr().String()).errors.String()
		require.Regexp(t, `^qs ping: `+node.Addr().String()+` is connected and has answered nothing for 1s\n  to do:  see what the program does: .*\n$`, says)
	})
}

// TestHostNames checks that every command accepts a host name instead of an IP address, and reports
// an unknown host.
func TestHostNames(t *testing.T) {
	t.Parallel()
	s := serveFiles(t, "")
	named := strings.Replace(s.addr, "127.0.0.1", "localhost", 1)
	file := filepath.Join(t.TempDir(), "f")
	writeFile(t, file, noise(100))
	for command, args := range map[string]string{"ping": "-count 1 %", "call": "-raw % hg/ping", "top": "-n 1 %", "rpcs": "%", "ger": "%",
		"perf": "-time 1ms --inflight 1 --bulk 0 --target %", "cp": file + " %/f"} {
		line := func(addr string) []string { return strings.Fields(command + " " + strings.ReplaceAll(args, "%", addr)) }
		run(t, 0, line(named)...)
		require.Regexp(t, `^qs `+command+`: .*host nobody.invalid was not found`, run(t, exitNotRun, line("tcp://nobody.invalid:1")...).errors.String())
	}
}
