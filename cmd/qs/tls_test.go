package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/testcert"
)

// TestTLS checks that every command that dials or serves takes the same three flags.
func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := testcert.Write(t)
	flags := []string{"-cert", cert, "-key", key, "-ca", cert}
	with := func(command string, args ...string) []string {
		return append(append([]string{command}, flags...), args...)
	}
	s := serveFiles(t, "", flags...)
	run(t, 0, with("ping", "-count", "2", "-interval", "0", s.addr)...)
	require.Contains(t, run(t, 0, with("rpcs", "-all", s.addr)...).out.String(), hg.PingRPC)
	require.Equal(t, "x", run(t, 0, with("call", "-raw", s.addr, hg.PingRPC, "x")...).out.String())
	run(t, 0, with("bench", "-n", "100", "-connections", "2", "-raw", s.addr, hg.PingRPC, "x")...)
	run(t, 0, with("top", "-n", "1", s.addr)...)
	run(t, 0, with("ger", s.addr)...)
	src := filepath.Join(t.TempDir(), "f")
	writeFile(t, src, noise(1000))
	run(t, 0, with("cp", src, s.addr+"/f")...)
	requireFile(t, src, filepath.Join(s.root, "f"))
	u := serve(t, "", append(flags, "udp://127.0.0.1:0")...)
	run(t, 0, with("ping", "-count", "2", "-interval", "0", u.addr)...)
	require.Regexp(t, `refused by peer: TLS is required here`, run(t, exitUsage, "ping", "-count", "1", u.addr).errors.String())
	// starts a target
	run(t, 0, with("perf", "-time", "1ms", "-inflight", "1", "-bulk", "1000")...)
	// a swarm
	run(t, 0, with("perf", "-op", "idle", "-peers", "2", "-time", "1ms")...)
	// several
	run(t, 0, with("soak", "-time", "50ms", "-targets", "2", "-faults", "none", "-inflight", "2")...)

	require.Regexp(t, `cannot be reached: refused by peer: TLS is required here`, run(t, exitUsage, "ping", "-count", "1", s.addr).errors.String())

	for command, args := range map[string][]string{"ping": {"-count", "1", s.addr}, "rpcs": {s.addr}, "call": {"-raw", s.addr, hg.PingRPC}, "bench": {"-n", "1", "-raw", s.addr, hg.PingRPC}, "cp": {s.addr + "/f", src + ".back"}} {
		run(t, 0, with(command, append([]string{"-server-name", "127.0.0.1"}, args...)...)...)
		q := run(t, exitUsage, with(command, append([]string{"-server-name", "elsewhere.example"}, args...)...)...)
		require.Regexp(t, `cannot be reached: TLS: the peer's certificate is for another host \(valid for .*, not elsewhere.example\)\n  to do:  give --server-name with a name that`, q.errors.String())
		require.NotContains(t, q.errors.String(), "tls.Config")
	}
	other, otherKey := testcert.Write(t)
	for _, addr := range []string{s.addr, u.addr} {
		require.Regexp(t, `cannot be reached: TLS: the peer requires a certificate \(.*\)\n  to do:  give --cert and --key: `, run(t, exitUsage, "ping", "-count", "1", "-ca", cert, addr).errors.String())
		require.Regexp(t, `cannot be reached: TLS: the peer does not trust the authority of the local certificate \(.*\)\n  to do:  give --cert and --key of an`, run(t, exitUsage, "ping", "-count", "1", "-ca", cert, "-cert", other, "-key", otherKey, addr).errors.String())
	}
	q := run(t, exitUsage, "ping", "-count", "1", "-cert", cert, "-key", key, "-ca", other, s.addr)
	require.Regexp(t, `is signed by an unknown authority \(CN=node\)\n  to do:  give --ca with the authority`, q.errors.String())
}

// TestTLSForAll checks that without -ca a target takes origins that have no certificate.
func TestTLSForAll(t *testing.T) {
	t.Parallel()
	cert, key := testcert.Write(t)
	s := serve(t, "", "-cert", cert, "-key", key)
	run(t, 0, "ping", "-count", "1", "-ca", cert, s.addr)
}

func TestTLSMistakes(t *testing.T) {
	t.Parallel()
	cert, key := testcert.Write(t)
	_, other := testcert.Write(t)
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{2, `^qs ping: --cert needs --key`, []string{"-cert", cert}},
		{2, `^qs ping: --server-name needs --ca`, []string{"-server-name", "x"}},
		{2, `^qs ping: --key needs --cert`, []string{"-key", key, "-ca", cert}},
		{2, `^qs ping: --cert, --key and --ca are for tcp:// and udp://, not "sm://x": messages would not be encrypted`, []string{"-cert", cert, "-key", key, "sm://x"}},
		{1, `^qs ping: --cert, --key and --ca: .*cannot read cert and key: stat no-such-file: `, []string{"-cert", "no-such-file", "-key", key}},
		{1, `^qs ping: --cert, --key and --ca: .*cannot read cert and key: stat no-such-file: `, []string{"-cert", cert, "-key", "no-such-file"}},
		{1, `^qs ping: .*cannot read ca: stat no-such-file: `, []string{"-ca", "no-such-file"}},
		{1, `^qs ping: .*ca ` + key + ` contains no PEM certificate`, []string{"-ca", key}},
		{1, `^qs ping: .*cannot load cert ` + cert + ` and key ` + other + `: `, []string{"-cert", cert, "-key", other}},
	} {
		if !strings.Contains(c.args[len(c.args)-1], "://") {
			c.args = append(c.args, "tcp://127.0.0.1:1")
		}
		q := run(t, c.code, append([]string{"ping"}, c.args...)...)
		require.Regexp(t, c.want, q.errors.String())
	}
}
