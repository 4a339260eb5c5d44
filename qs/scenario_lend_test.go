package qs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// A store is one blob; its methods move it in every way there is.
type (
	putIn struct {
		How  string
		Body qs.Source
	}
	getIn struct {
		How  string
		N    int
		Body qs.Sink
	}
)

var (
	put = qs.Define[putIn, []byte]("test/put")
	get = qs.Define[getIn, int]("test/get")
)

// randomBytes returns the first n bytes of the noise of a seed.
func randomBytes(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

func serveBulk(t testing.TB, n *qs.Node) {
	dir := t.TempDir()
	put.Handle(n, func(ctx context.Context, in putIn) ([]byte, error) {
		switch in.How {
		case "reader":
			h := sha256.New()
			_, err := io.CopyBuffer(h, struct{ io.Reader }{in.Body.Reader(ctx)}, make([]byte, 70_000))
			return h.Sum(nil), err
		case "copy":
			h := sha256.New()
			_, err := io.Copy(h, in.Body.Reader(ctx))
			return h.Sum(nil), err
		case "at":
			n := in.Body.Len()
			if n < 0 {
				n = 10 // of Reader, not known
			}
			b := make([]byte, n)
			for i := len(b); i > 0; i -= min(i, 100_000) { // from the end
				from := max(i-100_000, 0)
				if _, err := in.Body.ReadAt(b[from:i], int64(from)); err != nil && err != io.EOF {
					return nil, err
				}
			}
			return hashOf(b), nil
		case "some":
			b := make([]byte, 10)
			_, err := io.ReadFull(in.Body.Reader(ctx), b)
			return b, err
		}
		return nil, qs.Errorf(qs.ErrBadInput, "how?")
	})
	get.Handle(n, func(ctx context.Context, in getIn) (int, error) {
		all := randomBytes(7, in.N)
		switch in.How {
		case "writer":
			w := in.Body.Writer(ctx)
			for rest := all; len(rest) > 0; {
				k, err := w.Write(rest[:min(len(rest), 12_345)])
				if err != nil {
					return 0, err
				}
				rest = rest[k:]
			}
			return len(all), nil
		case "copy":
			n, err := io.Copy(in.Body.Writer(ctx), bytes.NewReader(all))
			return int(n), err
		case "at":
			for i := len(all); i > 0; i -= min(i, 1_000_000) {
				from := max(i-1_000_000, 0)
				if _, err := in.Body.WriteAt(all[from:i], int64(from)); err != nil {
					return 0, err
				}
			}
			return len(all), nil
		case "hole":
			_, err := in.Body.WriteAt(all[10:], 10)
			return len(all), err
		case "file":
			name := filepath.Join(dir, fmt.Sprint(in.N))
			if err := os.WriteFile(name, all, 0o600); err != nil {
				return 0, err
			}
			f, err := os.Open(name)
			if err != nil {
				return 0, err
			}
			defer f.Close()
			n, err := in.Body.SendFile(ctx, f)
			return int(n), err
		case "both":
			w := in.Body.Writer(ctx)
			if _, err := w.Write(all[:in.N/2]); err != nil {
				return 0, err
			}
			return len(all), errors.New("half of it is gone")
		}
		return 0, qs.Errorf(qs.ErrBadInput, "how?")
	})
}

func hashOf(b []byte) []byte {
	sum := sha256.Sum256(b)
	return sum[:]
}

// sizes are the lengths of the data that is moved: nothing, inside the request, one piece, around
// the ring. In a run that is not long, each way to move bytes is tried with the last of them and
// with one of the others, in turn.
var sizes = []int{0, 1, 5_000, 1 << 20, 5_000_001}

func isTried(size, way int) bool {
	last := len(sizes) - 1
	return long.On || size == last || size == way%last
}

// TestSources is not parallel: on a busy machine each of its many calls would wait for all of them.
func TestSources(t *testing.T) {
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	ctx := testContext(t)
	for size, n := range sizes {
		want := randomBytes(3, n)
		file := filepath.Join(t.TempDir(), "f")
		require.NoError(t, os.WriteFile(file, want, 0o600))
		f, err := os.Open(file)
		require.NoError(t, err)
		defer f.Close()
		for i, way := range []struct {
			kind   string
			source func() qs.Source
			hows   []string
		}{
			{"Bytes", func() qs.Source { return qs.Bytes(want[:n/3], want[n/3:]) }, []string{"reader", "copy", "at"}},
			{"File", func() qs.Source { return qs.File(f) }, []string{"reader", "copy", "at"}},
			{"Reader", func() qs.Source { return qs.Reader(bytes.NewReader(want)) }, []string{"reader", "copy"}},
			{"trickle", func() qs.Source { return qs.Reader(iotest.HalfReader(bytes.NewReader(want))) }, []string{"reader", "copy"}},
		} {
			for j, how := range way.hows {
				if !isTried(size, i+j) {
					continue
				}
				got, err := put.Call(ctx, to, putIn{how, way.source()})
				require.NoError(t, err, "%s %s of %d bytes", way.kind, how, n)
				require.Equal(t, hashOf(want), got, "%s %s of %d bytes", way.kind, how, n)
			}
		}
	}
	_, err := put.Call(ctx, to, putIn{"at", qs.Reader(bytes.NewReader([]byte("abc")))})
	remote, _ := hg.RemoteOf(err)
	require.NotNil(t, remote, "%v", err)
	require.Equal(t, hg.ErrUnsupported, remote.Code)
	got, err := put.Call(ctx, to, putIn{"some", qs.Reader(bytes.NewReader(randomBytes(1, 20<<20)))})
	require.NoError(t, err)
	require.Equal(t, randomBytes(1, 10), got)
	got, err = put.Call(ctx, to, putIn{"copy", qs.Source{}})
	require.NoError(t, err)
	require.Equal(t, hashOf(nil), got)
}

// TestSinks is not parallel either.
func TestSinks(t *testing.T) {
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	ctx := testContext(t)
	for size, n := range sizes {
		want := randomBytes(7, n)
		for i, how := range []string{"writer", "copy", "at", "file"} {
			if isTried(size, i) {
				room := make([]byte, n+10)
				sink := qs.Buffer(room[:n/2], room[n/2:])
				k, err := get.Call(ctx, to, getIn{how, n, sink})
				require.NoError(t, err, "%s of %d bytes", how, n)
				require.Equal(t, n, k)
				require.EqualValues(t, n, sink.Filled(), how)
				require.True(t, bytes.Equal(want, room[:n]), "%s of %d bytes", how, n)
			}
			if isTried(size, i+2) {
				name := filepath.Join(t.TempDir(), "f")
				f, err := os.Create(name)
				require.NoError(t, err)
				_, err = get.Call(ctx, to, getIn{how, n, qs.FileBuffer(f, int64(n+10))})
				require.NoError(t, err, "file, %s of %d bytes", how, n)
				got, err := os.ReadFile(name)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, got), "file, %s of %d bytes gave %d", how, n, len(got))
				require.NoError(t, f.Close())
			}
			if isTried(size, i+1) && how != "at" {
				var b bytes.Buffer
				sink := qs.Writer(&b)
				_, err := get.Call(ctx, to, getIn{how, n, sink})
				require.NoError(t, err, "Into, %s of %d bytes", how, n)
				require.True(t, bytes.Equal(want, b.Bytes()), "Into, %s of %d bytes gave %d", how, n, b.Len())
				require.EqualValues(t, n, sink.Filled())
			}
		}
	}
	room := make([]byte, 100)
	sink := qs.Buffer(room)
	_, err := get.Call(ctx, to, getIn{"hole", 100, sink})
	require.NoError(t, err)
	require.Zero(t, sink.Filled(), "there is a gap at the beginning")
	for _, how := range []string{"writer", "copy", "at", "file"} {
		_, err = get.Call(ctx, to, getIn{how, 101, qs.Buffer(room)})
		require.ErrorIs(t, err, hg.ErrRemote, how)
		remote, _ := hg.RemoteOf(err)
		require.Equal(t, hg.ErrOverflow, remote.Code, "%s: %v", how, err)
		require.NotContains(t, remote.Text, "/", "the places of the server's files are its own")
		_, err = get.Call(ctx, to, getIn{how, 1, qs.Sink{}})
		remote, _ = hg.RemoteOf(err)
		require.NotNil(t, remote, "%s: %v", how, err)
		require.Equal(t, hg.ErrOverflow, remote.Code, "%s: %v", how, err)
	}
	var b lockedBuffer // a Write may still be running
	_, err = get.Call(ctx, to, getIn{"both", 5 << 20, qs.Writer(&b)})
	require.ErrorIs(t, err, hg.ErrHandler)
	b.mu.Lock()
	defer b.mu.Unlock()
	require.True(t, bytes.HasPrefix(randomBytes(7, 5<<20), b.b.Bytes()), "an Into that failed holds a prefix")
}

// TestStreamErrors checks that the error of the caller's own reader or writer fails the call, and
// is its cause.
func TestStreamErrors(t *testing.T) {
	t.Parallel()
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	ctx := testContext(t)
	why := errors.New("the disk is on fire")
	_, err := put.Call(ctx, to, putIn{"copy", qs.Reader(io.MultiReader(bytes.NewReader(randomBytes(1, 2<<20)), iotest.ErrReader(why)))})
	require.ErrorIs(t, err, why)
	require.ErrorIs(t, err, hg.ErrRemote)
	_, err = get.Call(ctx, to, getIn{"copy", 9 << 20, qs.Writer(writerFunc(func([]byte) (int, error) { return 0, why }))})
	require.ErrorIs(t, err, why)
	_, err = put.Call(ctx, to, putIn{"copy", qs.Reader(readerFunc(func([]byte) (int, error) { panic("oh") }))})
	require.ErrorContains(t, err, "oh")
}

// TestStreamOnce checks that when an interceptor calls next again, although bytes of a Reader have
// been moved, no handler takes the rest for the whole.
func TestStreamOnce(t *testing.T) {
	t.Parallel()
	sizes := make(chan int, 2)
	var second error
	_, to := pair(t, qs.Config{}, func(n *qs.Node) {
		put.Handle(n, func(ctx context.Context, in putIn) ([]byte, error) {
			b, err := io.ReadAll(io.LimitReader(in.Body.Reader(ctx), 10_000))
			sizes <- len(b)
			if err == nil {
				err = errors.New("full")
			}
			return nil, err
		})
	})
	c := open(t, "tcp://", qs.Config{ClientInterceptors: []qs.Interceptor{func(ctx context.Context, _ *qs.Call, next func(context.Context) error) error {
		err := next(ctx)
		second = next(ctx)
		return err
	}}})
	_, err := put.Call(testContext(t), peer(t, c, to.String()), putIn{"x", qs.Reader(bytes.NewReader(randomBytes(1, 1<<20)))})
	require.ErrorContains(t, err, "full")
	require.ErrorIs(t, second, qs.ErrInvalid)
	require.ErrorContains(t, second, "bytes of a Reader")
	require.Equal(t, qs.Ran, qs.FateOf(err), "the first did")
	require.Equal(t, 10_000, <-sizes)
	require.Empty(t, sizes, "no other handler got the rest")
}

type (
	writerFunc func([]byte) (int, error)
	readerFunc func([]byte) (int, error)
)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
func (f readerFunc) Read(b []byte) (int, error)  { return f(b) }

// TestLateUse checks that a handler that keeps its Sources and Sinks cannot use them once it has
// returned; nor can they be lent on.
func TestLateUse(t *testing.T) {
	t.Parallel()
	kept := make(chan qs.Source, 1)
	keptSink := make(chan qs.Sink, 1)
	keep := qs.Define[putIn, int]("test/keep")
	keepSink := qs.Define[getIn, int]("test/keepsink")
	s := server(t, qs.Config{}, func(n *qs.Node) {
		keep.Handle(n, func(ctx context.Context, in putIn) (int, error) {
			_, err := keep.Call(ctx, qs.CallFrom(ctx).Peer, in)
			if !errors.Is(err, hg.ErrUnsupported) {
				return 0, fmt.Errorf("lent on: %v", err)
			}
			kept <- in.Body
			return 0, nil
		})
		keepSink.Handle(n, func(ctx context.Context, in getIn) (int, error) {
			keptSink <- in.Body
			return 0, nil
		})
	})
	c := open(t, "tcp://", qs.Config{})
	to := peer(t, c, s.Addr().String())
	ctx := testContext(t)
	_, err := keep.Call(ctx, to, putIn{"", qs.Bytes(make([]byte, 10_000))})
	require.NoError(t, err)
	late := <-kept
	_, err = late.ReadAt(make([]byte, 10), 0)
	require.ErrorIs(t, err, qs.ErrClosed)
	_, err = late.Reader(ctx).Read(make([]byte, 10))
	require.ErrorIs(t, err, qs.ErrClosed)
	_, err = keepSink.Call(ctx, to, getIn{Body: qs.Buffer(make([]byte, 10))})
	require.NoError(t, err)
	lateSink := <-keptSink
	_, err = lateSink.WriteAt(make([]byte, 10), 0)
	require.ErrorIs(t, err, qs.ErrClosed)
	_, err = lateSink.Writer(ctx).Write(make([]byte, 10))
	require.ErrorIs(t, err, qs.ErrClosed)
	_, err = qs.Bytes(make([]byte, 10)).Reader(ctx).Read(make([]byte, 10))
	require.ErrorIs(t, err, hg.ErrUnsupported)
}

// TestUnmappedFiles checks that where files cannot be mapped their bytes are sent through a ring.
// It is not parallel.
func TestUnmappedFiles(t *testing.T) {
	_, to := pair(t, qs.Config{}, func(n *qs.Node) { serveBulk(t, n) })
	qs.WithoutMapping(func() {
		ctx := testContext(t)
		const n = 5_000_001
		name := filepath.Join(t.TempDir(), "f")
		f, err := os.Create(name)
		require.NoError(t, err)
		defer f.Close()
		for _, how := range []string{"file", "copy"} {
			sink := qs.FileBuffer(f, n+10)
			_, err = get.Call(ctx, to, getIn{how, n, sink})
			require.NoError(t, err)
			require.EqualValues(t, n, sink.Filled())
			got, err := os.ReadFile(name)
			require.NoError(t, err)
			require.True(t, bytes.Equal(randomBytes(7, n), got), how)
		}
		got, err := put.Call(ctx, to, putIn{"copy", qs.File(f)})
		require.NoError(t, err)
		require.Equal(t, hashOf(randomBytes(7, n)), got)
		_, err = get.Call(ctx, to, getIn{"copy", n, qs.FileBuffer(f, n-1)})
		require.ErrorContains(t, err, "exceeds the FileBuffer's size of 5000000 bytes")
	})
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// TestSmallSink checks that a handler that writes more than there is room gets an error that
// matches hg.ErrOverflow. If it returns that, which has no code that travels, the caller gets
// hg.ErrRemote, and Filled is 0: nothing of the write that did not fit was moved.
func TestSmallSink(t *testing.T) {
	t.Parallel()
	type room struct{ Room qs.Sink }
	var seen error
	for how, write := range map[string]func(context.Context, qs.Sink) error{
		"Writer": func(ctx context.Context, s qs.Sink) error {
			_, err := s.Writer(ctx).Write(randomBytes(1, 100))
			return err
		},
		"WriteAt": func(_ context.Context, s qs.Sink) error { _, err := s.WriteAt(randomBytes(1, 100), 0); return err },
	} {
		m := qs.Define[room, int]("test/small-sink")
		_, to := pair(t, qs.Config{}, func(n *qs.Node) {
			m.Handle(n, func(ctx context.Context, in room) (int, error) {
				seen = write(ctx, in.Room)
				return 0, seen
			})
		})
		in := room{qs.Buffer(make([]byte, 99))}
		_, err := m.Call(testContext(t), to, in)
		require.ErrorIs(t, seen, hg.ErrOverflow, how)
		require.ErrorIs(t, err, hg.ErrRemote, how)
		require.NotErrorIs(t, err, hg.ErrOverflow, how)
		require.Equal(t, qs.Ran, qs.FateOf(err))
		require.Zero(t, in.Room.Filled(), how)
	}
}
