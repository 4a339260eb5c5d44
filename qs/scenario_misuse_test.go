package qs_test

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

var take = qs.Define[struct{ Body qs.Source }, int64]("test/take")
var give = qs.Define[struct{ Body qs.Sink }, int64]("test/give")

// TestMistakesOfCallers checks that a mistake that is visible before anything is sent is an error
// that states it, with NotRun.
func TestMistakesOfCallers(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		take.Handle(n, func(context.Context, struct{ Body qs.Source }) (int64, error) { panic("it ran") })
		give.Handle(n, func(context.Context, struct{ Body qs.Sink }) (int64, error) { panic("it ran") })
	})
	ctx := testContext(t)
	source := func(s qs.Source) func() error {
		return func() error { _, err := take.Call(ctx, to, struct{ Body qs.Source }{s}); return err }
	}
	sink := func(s qs.Sink) func() error {
		return func() error { _, err := give.Call(ctx, to, struct{ Body qs.Sink }{s}); return err }
	}
	for says, call := range map[string]func() error{
		"File or Reader called with nil":       source(qs.File(nil)),
		"Reader called with nil":               source(qs.Reader(nil)),
		"FileBuffer or Writer called with nil": sink(qs.FileBuffer(nil, 1)),
		"Writer called with nil":               sink(qs.Writer(nil)),
		"zero Peer":                            func() error { _, err := double.Call(ctx, qs.Peer{}, point{}); return err },
		"zero Peer:":                           func() error { _, err := qs.Peer{}.Ping(ctx); return err },
	} {
		err := call()
		require.ErrorIs(t, err, qs.ErrInvalid, says)
		require.ErrorContains(t, err, says)
		require.Equal(t, qs.NotRun, qs.FateOf(err), says)
	}
}

// TestLendNothing checks that memory of no segments is empty, and not a mistake.
func TestLendNothing(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		take.Handle(n, func(_ context.Context, in struct{ Body qs.Source }) (int64, error) { return in.Body.Len(), nil })
		give.Handle(n, func(_ context.Context, in struct{ Body qs.Sink }) (int64, error) { return in.Body.Len(), nil })
	})
	for _, s := range []qs.Source{{}, qs.Bytes(), qs.Bytes(nil), qs.Bytes([]byte{})} {
		got, err := take.Call(testContext(t), to, struct{ Body qs.Source }{s})
		require.NoError(t, err)
		require.Zero(t, got)
	}
	for _, s := range []qs.Sink{{}, qs.Buffer(), qs.Buffer(nil), qs.Buffer([]byte{})} {
		got, err := give.Call(testContext(t), to, struct{ Body qs.Sink }{s})
		require.NoError(t, err)
		require.Zero(t, got)
	}
}

// TestWriteToEmptySink checks that a handler may write no bytes to a Sink of size 0, in every way,
// and gets ErrOverflow for one byte.
func TestWriteToEmptySink(t *testing.T) {
	t.Parallel()
	fill := qs.Define[struct{ Body qs.Sink }, int]("test/fillempty")
	file := func() *os.File {
		f, err := os.Create(filepath.Join(t.TempDir(), "empty"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, f.Close()) })
		return f
	}
	empty, wrong := file(), make(chan error, 5)
	unsized, err := os.Open("/proc/version") // has content, and the size 0
	if err != nil {
		t.Log("no file of size 0 with content:", err)
		unsized = file()
		_, err = unsized.WriteString("x")
		require.NoError(t, err)
	}
	t.Cleanup(func() { require.NoError(t, unsized.Close()) })
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		fill.Handle(n, func(ctx context.Context, in struct{ Body qs.Sink }) (int, error) {
			_, err1 := in.Body.Writer(ctx).Write(nil)
			_, err2 := in.Body.WriteAt(nil, 0)
			_, err3 := io.Copy(in.Body.Writer(ctx), strings.NewReader(""))
			_, err4 := in.Body.SendFile(ctx, empty)
			_, err5 := in.Body.Writer(ctx).(io.ReaderFrom).ReadFrom(strings.NewReader(""))
			_, err := in.Body.Writer(ctx).Write([]byte{1})
			wrong <- err
			_, err = in.Body.WriteAt([]byte{1}, 0)
			wrong <- err
			_, err = in.Body.WriteAt(nil, 1)
			wrong <- err
			_, err = in.Body.Writer(ctx).(io.ReaderFrom).ReadFrom(strings.NewReader("x"))
			wrong <- err
			_, err = in.Body.SendFile(ctx, unsized)
			wrong <- err
			return 0, errors.Join(err1, err2, err3, err4, err5)
		})
	})
	for _, s := range []qs.Sink{{}, qs.Buffer(), qs.Buffer(nil), qs.Buffer([]byte{}), qs.FileBuffer(file(), 0)} {
		_, err := fill.Call(testContext(t), to, struct{ Body qs.Sink }{s})
		require.NoError(t, err)
		for range cap(wrong) {
			err := <-wrong
			require.ErrorIs(t, err, hg.ErrOverflow)
			require.ErrorContains(t, err, "the Buffer has 0 bytes")
		}
		require.Zero(t, s.Filled())
	}
}

// TestGuide checks that the errors in docs/guide/troubleshooting.md are those that one gets.
func TestGuide(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../docs/guide/troubleshooting.md")
	require.NoError(t, err)
	kept := make(chan qs.Source, 1)
	client, to := pair(t, qs.Config{}, func(n *qs.Node) {
		double.Handle(n, func(_ context.Context, p point) (point, error) { return p, nil })
		take.Handle(n, func(_ context.Context, in struct{ Body qs.Source }) (int64, error) { kept <- in.Body; return 0, nil })
	})
	idle := open(t, "tcp://127.0.0.1:0", qs.Config{}) // Serve is not called
	ctx := testContext(t)
	for says, wrong := range map[string]func() error{
		"is not served by": func() error { _, err := qs.Define[int, int]("test/none").Call(ctx, to, 1); return err },
		"codec: decode":    func() error { _, err := qs.Define[string, point]("test/double").Call(ctx, to, "x"); return err },
		"does not use transport": func() error {
			_, err := client.Peer(ctx, "udp://127.0.0.1:1")
			return err
		},
		"address already in use": func() error { _, err := qs.Open(to.String(), qs.Config{}); return err },
		"Source used after its handler returned": func() error {
			_, err := take.Call(ctx, to, struct{ Body qs.Source }{qs.Bytes(make([]byte, 10_000))})
			require.NoError(t, err)
			_, err = (<-kept).ReadAt(make([]byte, 1), 0)
			return err
		},
		"may have run": func() error {
			to := peer(t, client, idle.Addr().String())
			for patience := 50 * time.Millisecond; ; patience *= 2 { // on a busy machine the first calls may not even leave
				ctx, stop := context.WithTimeout(ctx, patience)
				_, err := double.Call(ctx, to, point{})
				stop()
				require.ErrorIs(t, err, qs.ErrTimeout)
				if qs.FateOf(err) != qs.NotRun {
					return err
				}
			}
		},
	} {
		require.ErrorContains(t, wrong(), says)
		require.Contains(t, string(guide), "`"+says+"`")
	}
	_, err = qs.Define[struct{ X, other int }, struct{ Z int }]("test/double").Call(ctx, to, struct{ X, other int }{1, 2})
	require.ErrorContains(t, err, "Z of struct { Z int }: missing field")
}

func TestNilHandler(t *testing.T) {
	t.Parallel()
	n := open(t, "tcp://127.0.0.1:0", qs.Config{})
	require.PanicsWithValue(t, "qs: method test/upper: the handler is nil", func() { upper.Handle(n, nil) })
	require.PanicsWithValue(t, "qs: method test/note: the handler is nil", func() { note.Handle(n, nil) })
}

// TestPeerAddresses checks that a host that cannot be found is no permanent error; an address that
// can never be one of this node is refused at once.
func TestPeerAddresses(t *testing.T) {
	t.Parallel()
	n := open(t, "tcp://", qs.Config{})
	to, err := n.Peer(testContext(t), "tcp://nobody.invalid:1", "tcp://127.0.0.1:1")
	require.NoError(t, err)
	require.Equal(t, "tcp://nobody.invalid:1,tcp://127.0.0.1:1", to.String())
	require.Len(t, to.Addrs(), 1)
	for addr, says := range map[string]string{
		"127.0.0.1:1":          "missing scheme",
		"tcp://127.0.0.1":      "missing port",
		"tcp://127.0.0.1:one":  `has port "one"`,
		"sm://elsewhere":       "does not use transport tcp: open another node or class at sm://",
		"tcp://nobody.invalid": "missing port",
		"tcp://@abcdef":        "is of a process that does not listen",
	} {
		_, err := n.Peer(testContext(t), "tcp://127.0.0.1:1", addr)
		require.ErrorContains(t, err, says, addr)
		require.True(t, errors.Is(err, qs.ErrInvalid) || errors.Is(err, hg.ErrUnsupported), "%s: %v", addr, err)
	}
	ended, end := context.WithCancel(testContext(t))
	end()
	_, err = n.Peer(ended, "tcp://127.0.0.1:1", "sm://elsewhere")
	require.ErrorIs(t, err, hg.ErrUnsupported, "a mistake, although ctx has ended, too")
	_, err = n.Peer(ended, "tcp://127.0.0.1:1", "127.0.0.1:1")
	require.ErrorIs(t, err, qs.ErrInvalid)
}

// TestNoHandler checks that a call for a handler's request outside one returns nothing.
func TestNoHandler(t *testing.T) {
	t.Parallel()
	_, ok := qs.Metadata(qs.WithMetadata(t.Context(), "who", "me"), "who")
	require.False(t, ok)
	require.True(t, qs.CallerFrom(t.Context()).Addr.IsZero())
	require.Nil(t, qs.CallFrom(t.Context()))
}
