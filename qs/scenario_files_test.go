package qs_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/qs"
)

// TestFileThatIsNotMapped checks that a regular file whose file system does not map it, as those of
// /sys, is lent, and sent, as a stream.
func TestFileThatIsNotMapped(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /sys")
	}
	f, err := os.Open("/sys/devices/system/cpu/online")
	if err != nil {
		t.Skip("there is no such file: ", err)
	}
	defer f.Close()
	want, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	send := qs.Define[qs.Sink, int64]("test/sendsys")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		serveBulk(t, n)
		send.Handle(n, func(ctx context.Context, room qs.Sink) (int64, error) { return room.SendFile(ctx, f) })
	})
	got, err := put.Call(testContext(t), to, putIn{"copy", qs.File(f)})
	require.NoError(t, err)
	require.Equal(t, hashOf(want), got)
	into, room := &bytes.Buffer{}, make([]byte, 100)
	for _, sink := range []qs.Sink{qs.Writer(into), qs.Buffer(room)} {
		n, err := send.Call(testContext(t), to, sink)
		require.NoError(t, err)
		require.EqualValues(t, len(want), n)
	}
	require.Equal(t, want, into.Bytes())
	require.Equal(t, want, room[:len(want)])
}

// TestFillFileWithGaps checks that a file that a handler has filled by WriteAt ends behind the last
// byte that was written, with zeros in the gaps.
func TestFillFileWithGaps(t *testing.T) {
	t.Parallel()
	gaps := qs.Define[qs.Sink, int]("test/gaps")
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		gaps.Handle(n, func(_ context.Context, room qs.Sink) (int, error) {
			for _, off := range []int64{8192, 4096} {
				if _, err := room.WriteAt([]byte("here"), off); err != nil {
					return 0, err
				}
			}
			return 0, nil
		})
	})
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	defer f.Close()
	sink := qs.FileBuffer(f, 1<<20)
	_, err = gaps.Call(testContext(t), to, sink)
	require.NoError(t, err)
	require.Zero(t, sink.Filled(), "without gaps")
	got, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	want := make([]byte, 8196)
	copy(want[4096:], "here")
	copy(want[8192:], "here")
	require.True(t, bytes.Equal(want, got), "%d bytes", len(got))
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// TestReaderErrorOnce checks that the error of a call whose reader or writer has failed has
// that in one sentence, and matches the error.
func TestReaderErrorOnce(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	broken := errors.New("the disk is broken")
	_, up := put.Call(testContext(t), to, putIn{"copy", qs.Reader(iotest.ErrReader(broken))})
	_, down := get.Call(testContext(t), to, getIn{"copy", 100_000, qs.Writer(brokenWriter{broken})})
	for what, err := range map[string]error{"reader": up, "writer": down} {
		require.ErrorIs(t, err, broken)
		require.ErrorContains(t, err, "the caller's "+what+" failed: the disk is broken")
		require.Equal(t, 1, strings.Count(err.Error(), "broken"), "%v", err)
		require.Equal(t, qs.Ran, qs.FateOf(err))
	}
}

// TestReaderErrorBehindBytes checks that the handler gets all bytes that a Reader has given before
// its error, over every transport, however much of it is in flight when the Reader fails.
func TestReaderErrorBehindBytes(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, addr string) {
		got := make(chan []byte, 1)
		s := serverAt(t, addr, qs.Config{}, func(n *qs.Node) {
			put.Handle(n, func(ctx context.Context, in putIn) ([]byte, error) {
				b, err := io.ReadAll(in.Body.Reader(ctx))
				got <- b
				return nil, err
			})
		})
		to := peer(t, open(t, scheme(addr)+"://", qs.Config{}), s.Addr().String())
		broken := errors.New("the disk is broken")
		for _, size := range []int{1, 1000, 100_000, 3_000_000} {
			want := randomBytes(5, size)
			_, err := put.Call(testContext(t), to, putIn{"copy", qs.Reader(io.MultiReader(bytes.NewReader(want), iotest.ErrReader(broken)))})
			require.ErrorIs(t, err, broken)
			require.ErrorContains(t, err, "the caller's reader failed: the disk is broken")
			require.True(t, bytes.Equal(want, <-got), "%d bytes", size)
		}
	})
}
