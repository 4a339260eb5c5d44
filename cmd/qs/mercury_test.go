package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/mercury"
	"github.com/quicksilver-rpc/quicksilver/mercury/gateway"
	"github.com/quicksilver-rpc/quicksilver/mercury/perf"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// openedIn is the input of hg_test_rpc_open.
type openedIn struct {
	Path   string
	Handle uint64
}

// TestMercury checks that the command calls a method by name, by number and of Margo, and measures
// a server.
func TestMercury(t *testing.T) {
	n, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer n.Close()
	perf.Serve(n, nil)
	type out struct {
		Length int32
		Path   string
	}
	open := func(_ context.Context, in openedIn) (out, error) { return out{int32(in.Handle), in.Path}, nil }
	mercury.Define[openedIn, out]("hg_test_rpc_open").Handle(n, open)
	mercury.DefineID[openedIn, out]("open", 1<<40).Handle(n, open)
	mercury.DefineMargo[openedIn, out]("open").At(3).Handle(n, open)
	for _, how := range [][]string{{"hg_test_rpc_open"}, {"0x10000000000"}, {"open", "-provider", "3"}} {
		args := append([]string{"mercury", "-in", "string,u64", "-out", "i32,string"}, how[1:]...)
		args = append(args, n.Addr(), "call", how[0], `["./test.txt", 12345]`)
		require.Equal(t, "[12345,\"./test.txt\"]\n", run(t, 0, args...).out.String())
	}
	require.Contains(t, run(t, 0, "mercury", n.Addr(), "ping").out.String(), "answered by "+n.Addr())
	require.Regexp(t, `^\d+ calls in .*: \d+/s\n$`, run(t, 0, "mercury", "-time", "5ms", "-n", "4", n.Addr(), "rate").out.String())
	requireSchema(t, "mercury-ping", run(t, 0, "mercury", "-json", n.Addr(), "ping").out.Bytes())
	requireSchema(t, "mercury-rate", run(t, 0, "mercury", "-json", "-time", "5ms", n.Addr(), "rate").out.Bytes())
	requireSchema(t, "mercury-rate", run(t, 0, "mercury", "-json", "-time", "5ms", n.Addr(), "read").out.Bytes())
	for _, verb := range []string{"read", "write"} {
		require.Contains(t, run(t, 0, "mercury", "-time", "5ms", "-verify", "-done", n.Addr(), verb).out.String(), "transfers of 1048576 bytes")
	}
	mercury.DefineMargo[struct{}, struct{}]("closed").At(3).Handle(n, func(context.Context, struct{}) (out struct{}, err error) { return out, mercury.ErrPermission })
	require.Contains(t, run(t, 1, "mercury", "-provider", "3", n.Addr(), "call", "closed").errors.String(), "Margo returned an error: target: permission denied")
	n.Handle(mercury.MargoID("plain", 3), func(r *mercury.Request) { _ = r.Respond(nil) })
	require.Contains(t, run(t, 1, "mercury", "-provider", "3", n.Addr(), "call", "plain").errors.String(), "does not use Margo")
	type null struct {
		S *string
		N int32
	}
	mercury.Define[null, null]("null").Handle(n, func(_ context.Context, in null) (null, error) { return in, nil })
	for _, in := range []string{`[null,7]`, `["",7]`, `["text",7]`} {
		require.Equal(t, in+"\n", run(t, 0, "mercury", "-in", "string?,i32", "-out", "string?,i32", n.Addr(), "call", "null", in).out.String())
	}
	require.Contains(t, run(t, 2, "mercury", "-in", "string,i32", n.Addr(), "call", "null", "[null,7]").errors.String(), "value 1: null is valid only for the type string?")
	require.Contains(t, run(t, exitUsage, "mercury", n.Addr(), "call", "nothing").errors.String(), "no such method")
	require.Contains(t, run(t, 2, "mercury", "-in", "int", n.Addr(), "call", "x", "[1]").errors.String(), `invalid type "int"`)
	require.Contains(t, run(t, 2, "mercury", "-in", "i32", n.Addr(), "call", "x", "[1,2]").errors.String(), "2 values for 1 types")
	require.Contains(t, run(t, 2, "mercury", n.Addr(), "dance").errors.String(), "dance")
}

// TestMercuryGateway checks that a gateway of the command line forwards calls in both directions,
// and only to the configured targets.
func TestMercuryGateway(t *testing.T) {
	c, err := mercury.Open("ofi+tcp://127.0.0.1:0", mercury.Config{})
	require.NoError(t, err)
	defer c.Close()
	greet := func(_ context.Context, name string) (string, error) { return "hello, " + name, nil }
	mercury.Define[string, string]("greet").Handle(c, greet)
	service, err := qs.Open("tcp://127.0.0.1:0", qs.Config{})
	require.NoError(t, err)
	defer service.Close()
	go func() { _ = service.Serve(t.Context()) }()
	qs.Define[string, string]("welcome", qs.WithCodec(gateway.Proc)).Handle(service, greet)

	file := filepath.Join(t.TempDir(), "port.cfg")
	gw := newQS(t, "mercury", "-json", "-hostfile", file, "-target", c.Addr(), "-service", service.Addr().String(), "ofi+tcp://127.0.0.1:0", "gateway", "welcome")
	gw.cmd.Stdout = nil
	stdout, err := gw.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, gw.cmd.Start())
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err, "%s", &gw.errors)
	requireSchema(t, "mercury-serve", line)
	var listening mercuryListening
	require.NoError(t, json.Unmarshal(line, &listening))
	at := [2]string{listening.Address, listening.Gateway}
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, at[0]+"\n", string(b))
	call := func(code int, args ...string) *process {
		return run(t, code, append([]string{"mercury", "-in", "string", "-out", "string"}, args...)...)
	}
	require.Equal(t, "[\"hello, Ada\"]\n", call(0, "-via", at[1], c.Addr(), "call", "greet", `["Ada"]`).out.String())
	require.Equal(t, "[\"hello, Ada\"]\n", call(0, at[0], "call", "welcome", `["Ada"]`).out.String())
	require.Contains(t, call(exitUsage, "-via", at[1], "ofi+tcp://127.0.0.1:9", "call", "greet", `["Ada"]`).errors.String(), "not a target")
	require.Contains(t, run(t, 2, "mercury", "ofi+tcp://127.0.0.1:0", "gateway", "x").errors.String(), "or neither")
	require.NoError(t, gw.cmd.Process.Kill())
	_ = gw.cmd.Wait()
}
