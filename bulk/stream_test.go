package bulk_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// eachStream runs f for the memory of a peer, and for that of the process itself.
func eachStream(t *testing.T, f func(t *testing.T, p *pair, open func(h *bulk.Handle) bulk.Stream)) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		n.Serve(p.octx, 1)
		t.Run("remote", func(t *testing.T) {
			f(t, p.withT(t), func(h *bulk.Handle) bulk.Stream { return bulk.Stream{Peer: p.peer, Handle: decodeRemote(t, h)} })
		})
		t.Run("local", func(t *testing.T) {
			f(t, p.withT(t), func(h *bulk.Handle) bulk.Stream { return bulk.Stream{Handle: h} })
		})
	})
}

// streamed are sizes, offsets and windows of streams over 200,000 bytes.
var streamed = []bulk.Stream{
	{}, {Window: 1}, {Size: 1}, {Offset: 199_999}, {Offset: 200_000}, {Offset: 7, Size: 4096, Chunk: 4096},
	{Offset: 5, Size: 4097, Chunk: 4096, Window: 1}, {Offset: 1, Size: 150_000, Chunk: 5000, Window: 3}, {Chunk: 4096, Window: 64},
}

const streamLen = 200_000

func (p *pair) reader(ctx context.Context, s bulk.Stream) *bulk.Reader {
	p.t.Helper()
	r, err := bulk.NewReader(ctx, p.mctx, s)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { require.NoError(p.t, r.Close()) })
	return r
}

func (p *pair) writer(ctx context.Context, s bulk.Stream) *bulk.Writer {
	p.t.Helper()
	w, err := bulk.NewWriter(ctx, p.mctx, s)
	require.NoError(p.t, err)
	p.t.Cleanup(func() { _ = w.Close() })
	return w
}

// only hides every method but Read or Write.
type (
	onlyReader struct{ io.Reader }
	onlyWriter struct{ io.Writer }
)

func TestReader(t *testing.T) {
	eachStream(t, func(t *testing.T, p *pair, open func(h *bulk.Handle) bulk.Stream) {
		m := newMemory(streamLen/3, streamLen-streamLen/3)
		m.fill(3)
		for _, eager := range []int{0, -1} { // the small ones travel with the handle
			there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly, Eager: eager}, m.segs...)
			for _, s := range streamed {
				h := open(there)
				s.Peer, s.Handle = h.Peer, h.Handle
				want := m.bytes()[s.Offset:]
				if s.Size > 0 {
					want = want[:s.Size]
				}
				var copied bytes.Buffer
				n, err := io.Copy(&copied, p.reader(t.Context(), s))
				require.NoError(t, err)
				require.Equal(t, int64(len(want)), n)
				require.Empty(t, describeDiff(copied.Bytes(), want), "WriteTo %+v", s)

				r := p.reader(t.Context(), s)
				head := make([]byte, min(10, len(want)))
				_, err = io.ReadFull(r, head)
				require.NoError(t, err)
				rest, err := io.ReadAll(onlyReader{r})
				require.NoError(t, err)
				require.Empty(t, describeDiff(append(head, rest...), want), "Read %+v", s)
				_, err = r.Read(head[:0])
				require.NoError(t, err)
				_, err = r.Read(make([]byte, 1))
				require.Equal(t, io.EOF, err)
			}
		}
	})
}

func TestReaderLikeAnyOther(t *testing.T) {
	eachStream(t, func(t *testing.T, p *pair, open func(h *bulk.Handle) bulk.Stream) {
		want := pattern(4, 0, 30_000)
		s := open(newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly}, want))
		s.Chunk, s.Window = 4<<10, 2
		require.NoError(t, iotest.TestReader(p.reader(t.Context(), s), want))
	})
}

func TestReaderAt(t *testing.T) {
	eachStream(t, func(t *testing.T, p *pair, open func(h *bulk.Handle) bulk.Stream) {
		m := newMemory(streamLen/3, streamLen-streamLen/3)
		m.fill(3)
		there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly}, m.segs...)
		for _, s := range streamed {
			h := open(there)
			s.Peer, s.Handle = h.Peer, h.Handle
			want := m.bytes()[s.Offset:]
			if s.Size > 0 {
				want = want[:s.Size]
			}
			r, err := bulk.NewReaderAt(t.Context(), p.mctx, s)
			require.NoError(t, err)
			require.Equal(t, int64(len(want)), r.Size())
			got, err := io.ReadAll(io.NewSectionReader(r, 0, r.Size()))
			require.NoError(t, err)
			require.Empty(t, describeDiff(got, want))
			for _, off := range []int{0, 1, len(want) / 2, len(want) - 1, len(want), len(want) + 1} {
				for _, size := range []int{0, 1, 100, 70_000, len(want)} {
					if off < 0 {
						continue
					}
					mine := newMemory(size)
					mine.fillByte(9)
					n, err := r.ReadAt(mine.segs[0], int64(off))
					if want := max(0, min(size, len(want)-off)); n != want || (err == io.EOF) != (n < size) || err != nil && err != io.EOF {
						t.Fatalf("ReadAt of %d bytes at %d of %d: got %d and %v, want %d", size, off, r.Size(), n, err, want)
					}
					require.Empty(t, describeDiff(mine.segs[0][:n], want[min(off, len(want)):][:n]))
					require.True(t, mine.hasIntactCanaries())
					require.Equal(t, size-n, bytes.Count(mine.segs[0][n:], []byte{9}))
				}
			}
			_, err = r.ReadAt(make([]byte, 1), -1)
			require.ErrorIs(t, err, hg.ErrInvalid)
		}
	})
}

// TestReaderAtInGoroutines checks that any number of goroutines may use one, and each of them
// drives.
func TestReaderAtInGoroutines(t *testing.T) {
	eachStream(t, func(t *testing.T, p *pair, open func(h *bulk.Handle) bulk.Stream) {
		want := pattern(4, 0, streamLen)
		r, err := bulk.NewReaderAt(t.Context(), p.mctx, open(newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly}, want)))
		require.NoError(t, err)
		var wait sync.WaitGroup
		for i := range 4 {
			wait.Go(func() {
				for j := range 20 {
					got := make([]byte, 9000)
					at := (i*20 + j) * 2300
					_, err := r.ReadAt(got, int64(at))
					assert.NoError(t, err)
					assert.Empty(t, describeDiff(got, want[at:at+len(got)]))
				}
			})
		}
		wait.Wait()
	})
}

func TestWriter(t *testing.T) {
	eachStream(t, func(t *testing.T, p *pair, open func(h *bulk.Handle) bulk.Stream) {
		m := newMemory(streamLen/3, streamLen-streamLen/3)
		there := newHandle(t, p.octx, bulk.Options{Access: bulk.WriteOnly}, m.segs...)
		for i, s := range streamed {
			h := open(there)
			s.Peer, s.Handle = h.Peer, h.Handle
			size := int(s.Size)
			if size == 0 {
				size = streamLen - int(s.Offset)
			}
			content := pattern(i, 0, size)
			for name, write := range map[string]func(w *bulk.Writer) (int64, error){
				"Write": func(w *bulk.Writer) (n int64, err error) {
					for step := 1; n < int64(size) && err == nil; step = step*3 + 1 {
						k := 0
						k, err = w.Write(content[n:min(n+int64(step), int64(size))])
						n += int64(k)
					}
					return n, err
				},
				"ReadFrom":       func(w *bulk.Writer) (int64, error) { return io.Copy(w, onlyReader{bytes.NewReader(content)}) },
				"slow ReadFrom":  func(w *bulk.Writer) (int64, error) { return w.ReadFrom(iotest.HalfReader(bytes.NewReader(content))) },
				"data with EOF":  func(w *bulk.Writer) (int64, error) { return w.ReadFrom(iotest.DataErrReader(bytes.NewReader(content))) },
				"Write at large": func(w *bulk.Writer) (int64, error) { return io.Copy(onlyWriter{w}, bytes.NewReader(content)) },
			} {
				m.fillByte(0xaa)
				w := p.writer(t.Context(), s)
				n, err := write(w)
				require.NoError(t, err)
				require.Equal(t, int64(size), n)
				require.NoError(t, w.Flush())
				want := bytes.Repeat([]byte{0xaa}, streamLen)
				copy(want[s.Offset:], content)
				require.Empty(t, describeDiff(m.bytes(), want), "%s %+v", name, s)
				require.NoError(t, w.Close())
				require.NoError(t, w.Close())
				_, err = w.Write([]byte{1})
				require.ErrorIs(t, err, hg.ErrClosed)
				require.True(t, m.hasIntactCanaries())
			}
		}
	})
}

// TestWriterOverflow checks that the bytes that do not fit are an error; those that fit are
// written.
func TestWriterOverflow(t *testing.T) {
	eachStream(t, func(t *testing.T, p *pair, open func(h *bulk.Handle) bulk.Stream) {
		m := newMemory(10_000)
		s := open(newHandle(t, p.octx, bulk.Options{Access: bulk.WriteOnly}, m.segs...))
		s.Chunk = 4 << 10
		content := pattern(6, 0, 10_001)
		for _, write := range []func(w *bulk.Writer) (int64, error){
			func(w *bulk.Writer) (int64, error) { n, err := w.Write(content); return int64(n), err },
			func(w *bulk.Writer) (int64, error) { return w.ReadFrom(bytes.NewReader(content)) },
		} {
			m.fillByte(0)
			w := p.writer(t.Context(), s)
			n, err := write(w)
			require.ErrorIs(t, err, na.ErrOverflow)
			require.Equal(t, int64(10_000), n)
			require.NoError(t, w.Close())
			require.Empty(t, describeDiff(m.bytes(), content[:10_000]))
			require.True(t, m.hasIntactCanaries())
		}
	})
}

// TestCopyErrorOfOtherSide checks that the error of the other side of a copy is returned, and
// earlier bytes count.
func TestCopyErrorOfOtherSide(t *testing.T) {
	eachStream(t, func(t *testing.T, p *pair, open func(h *bulk.Handle) bulk.Stream) {
		broken := errors.New("broken")
		m := newMemory(20_000)
		s := open(newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, m.segs...))
		w := p.writer(t.Context(), s)
		n, err := w.ReadFrom(io.MultiReader(bytes.NewReader(pattern(1, 0, 5000)), iotest.ErrReader(broken)))
		require.Equal(t, broken, err)
		require.Equal(t, int64(5000), n)
		require.NoError(t, w.Close())
		require.Equal(t, pattern(1, 0, 5000), m.bytes()[:5000])
		n, err = p.writer(t.Context(), s).ReadFrom(silent{})
		require.Equal(t, io.ErrNoProgress, err)
		require.Zero(t, n)

		r := p.reader(t.Context(), s)
		n, err = r.WriteTo(iotest.TruncateWriter(writerFunc(func(b []byte) (int, error) { return len(b) / 2, nil }), 1<<20))
		require.NoError(t, err) // TruncateWriter hides how much was written
		require.Equal(t, int64(20_000), n)
		n, err = p.reader(t.Context(), s).WriteTo(writerFunc(func(b []byte) (int, error) { return len(b) / 2, nil }))
		require.Equal(t, io.ErrShortWrite, err)
		require.Equal(t, int64(10_000), n)
		n, err = p.reader(t.Context(), s).WriteTo(writerFunc(func([]byte) (int, error) { return 7, broken }))
		require.Equal(t, broken, err)
		require.Equal(t, int64(7), n)
	})
}

type silent struct{}

func (silent) Read([]byte) (int, error) { return 0, nil }

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

func TestStreamInvalid(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		ro := decodeRemote(t, newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly}, make([]byte, 100)))
		wo := decodeRemote(t, newHandle(t, p.octx, bulk.Options{Access: bulk.WriteOnly}, make([]byte, 100)))
		for _, c := range []struct {
			s           bulk.Stream
			read, write error
		}{
			{bulk.Stream{}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: new(bulk.Handle), Peer: p.peer}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: ro}, hg.ErrInvalid, na.ErrPermission},
			{bulk.Stream{Handle: wo}, na.ErrPermission, hg.ErrInvalid},
			{bulk.Stream{Handle: ro, Peer: p.peer, Offset: -1}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: ro, Peer: p.peer, Offset: 101}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: ro, Peer: p.peer, Size: -1}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: ro, Peer: p.peer, Offset: 1, Size: 100}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: ro, Peer: p.peer, Chunk: 4095}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: ro, Peer: p.peer, Chunk: -1}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: ro, Peer: p.peer, Window: 65}, hg.ErrInvalid, hg.ErrInvalid},
			{bulk.Stream{Handle: ro, Peer: p.peer, Window: -1}, hg.ErrInvalid, hg.ErrInvalid},
		} {
			_, err := bulk.NewReader(t.Context(), p.mctx, c.s)
			require.ErrorIs(t, err, c.read, "%+v", c.s)
			_, err = bulk.NewReaderAt(t.Context(), p.mctx, c.s)
			require.ErrorIs(t, err, c.read, "%+v", c.s)
			_, err = bulk.NewWriter(t.Context(), p.mctx, c.s)
			require.ErrorIs(t, err, c.write, "%+v", c.s)
		}
	})
}

// TestStreamWindow checks that no more is in flight than the window allows, and as much as that is.
func TestStreamWindow(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		for _, window := range []int{1, 3} {
			there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 400_000))
			s := bulk.Stream{Peer: p.peer, Handle: decodeRemote(t, there), Chunk: 16 << 10, Window: window}
			most := 0
			look := func(b []byte) (int, error) {
				p.mctx.NA().Trigger(0) // an ended one is not in flight any more
				most = max(most, p.mctx.Stats().NA.Outstanding)
				return len(b), nil
			}
			_, err := io.Copy(writerFunc(look), p.reader(t.Context(), s))
			require.NoError(t, err)
			require.LessOrEqual(t, most, window)
			require.Positive(t, most)
			most = 0
			w := p.writer(t.Context(), s)
			_, err = io.Copy(w, onlyReader{io.LimitReader(readerFunc(look), 400_000)})
			require.NoError(t, err)
			require.NoError(t, w.Close())
			require.LessOrEqual(t, most, window)
		}
	})
}

type readerFunc func(b []byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// startBlocked has f run in a goroutine until it waits for a peer that is behind a proxy: in mid-stream, or
// in the simulator, where another goroutine drives while the test reads the proxy, from the
// beginning. The returned function waits for its error while nothing passes the proxy.
func (p *pair) startBlocked(g *stallProxy, fromOwner bool, f func() error) func() error {
	p.t.Helper()
	if g.sim {
		g.stallAfter(0, fromOwner)
		g.isStalled()
	} else {
		g.stallAfter(1_500_000, fromOwner)
	}
	var over atomic.Bool
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		err = f()
		over.Store(true)
	}()
	for !g.isStalled() && !over.Load() {
		p.octx.Trigger(0)
		_ = p.octx.Progress(0)
		runtime.Gosched()
	}
	require.False(p.t, over.Load(), "it waits")
	return func() error {
		<-done
		return err
	}
}

// ways are how a stream can wait.
var ways = []struct {
	name      string
	fromOwner bool
	run       func(p *pair, ctx context.Context, s bulk.Stream) error
}{
	{"ReadAt", true, func(p *pair, ctx context.Context, s bulk.Stream) error {
		r, err := bulk.NewReaderAt(ctx, p.mctx, s)
		if err == nil {
			_, err = r.ReadAt(make([]byte, s.Handle.Len()), 0)
		}
		return err
	}},
	{"Read", true, func(p *pair, ctx context.Context, s bulk.Stream) error {
		r, err := bulk.NewReader(ctx, p.mctx, s)
		if err != nil {
			return err
		}
		defer r.Close()
		_, err = io.ReadAll(onlyReader{r})
		return err
	}},
	{"Write", false, func(p *pair, ctx context.Context, s bulk.Stream) error {
		w, err := bulk.NewWriter(ctx, p.mctx, s)
		if err != nil {
			return err
		}
		_, err = w.Write(make([]byte, s.Handle.Len()))
		if closed := w.Close(); err == nil || !errors.Is(closed, err) {
			err = errors.Join(err, closed)
		}
		return err
	}},
}

// TestStreamCanceled freezes the owner in mid-stream: the end of the context ends the wait at once,
// with its cause, and the session continues when the owner does.
func TestStreamCanceled(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		g := newStallProxy(p)
		p.requireIntact() // connects
		cause := errors.New("enough")
		for _, way := range ways {
			t.Run(way.name, func(t *testing.T) {
				p := p.withT(t)
				there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 8<<20))
				s := bulk.Stream{Peer: p.peer, Handle: decodeRemote(t, there), Chunk: 256 << 10, Window: 4}
				ctx, cancel := context.WithCancelCause(context.Background())
				wait := p.startBlocked(g, way.fromOwner, func() error { return way.run(p, ctx, s) })
				cancel(cause)
				err := wait()
				require.ErrorIs(t, err, hg.ErrCanceled)
				require.ErrorIs(t, err, cause)
				g.resume()
				p.requireIntact()
				require.ErrorIs(t, way.run(p, ctx, s), cause, "it has ended before anything began")
				require.Zero(t, p.mctx.Stats().NA.Outstanding)
			})
		}
	})
}

// TestReaderCloseWhileReading checks that Close ends a Read that waits, and needs no peer.
func TestReaderCloseWhileReading(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		g := newStallProxy(p)
		p.requireIntact()
		there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 8<<20))
		r := p.reader(context.Background(), bulk.Stream{Peer: p.peer, Handle: decodeRemote(t, there)})
		wait := p.startBlocked(g, true, func() error { _, err := io.ReadAll(r); return err })
		require.NoError(t, r.Close())
		require.ErrorIs(t, wait(), hg.ErrClosed)
		_, err := r.Read(make([]byte, 1))
		require.ErrorIs(t, err, hg.ErrClosed)
		g.resume()
		p.requireIntact()
		p.mctx.Trigger(0)
		require.Zero(t, p.mctx.Stats().NA.Outstanding)
	})
}

// TestStreamRevoked has the owner close its handle in mid-stream.
func TestStreamRevoked(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		for _, way := range ways {
			there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 1<<20))
			s := bulk.Stream{Peer: p.peer, Handle: decodeRemote(t, there), Chunk: 64 << 10, Window: 2}
			p.closeBulk(there)
			err := way.run(p, t.Context(), s)
			require.ErrorIs(t, err, na.ErrRevoked)
			var e *bulk.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, int64(1<<20), e.Size)
			require.Equal(t, p.peer, e.Peer)
			p.requireIntact()
		}
		there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 1<<20))
		s := bulk.Stream{Peer: p.peer, Handle: decodeRemote(t, there), Chunk: 64 << 10, Window: 2}
		r, w := p.reader(t.Context(), s), p.writer(t.Context(), s)
		_, err := io.ReadFull(r, make([]byte, 100_000))
		require.NoError(t, err)
		_, err = w.Write(make([]byte, 100_000))
		require.NoError(t, err)
		require.NoError(t, w.Flush())
		p.closeBulk(there)
		more, err := io.ReadAll(onlyReader{r})
		require.ErrorIs(t, err, na.ErrRevoked)
		require.LessOrEqual(t, len(more), 64<<10*4)
		_, err = r.Read(more)
		require.ErrorIs(t, err, na.ErrRevoked, "it stays so")
		_, err = w.Write(make([]byte, 500_000))
		require.ErrorIs(t, err, na.ErrRevoked)
		require.ErrorIs(t, w.Close(), na.ErrRevoked)
		require.ErrorIs(t, w.Close(), na.ErrRevoked)
		p.requireIntact()
	})
}

// closeBulk closes an owner's handle and waits for the callback.
func (p *pair) closeBulk(h *bulk.Handle) {
	p.t.Helper()
	done := false
	require.NoError(p.t, h.CloseFunc(func(error) { done = true }))
	p.Until(func() bool { return done })
}

// TestStreamsInHandlers checks that handlers read the memory of their origins, several at a time,
// and drive while they wait.
func TestStreamsInHandlers(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		id := p.rpc("digest", func(h hg.Request) error {
			var in bulk.Handle
			if err := h.Input(&in); err != nil {
				return err
			}
			r, err := bulk.NewReader(t.Context(), p.octx, bulk.Stream{Peer: h.Peer(), Handle: &in, Chunk: 32 << 10, Window: 2})
			if err != nil {
				return err
			}
			defer r.Close()
			hash := sha256.New()
			if _, err := io.Copy(hash, r); err != nil {
				return err
			}
			return h.Respond(hash.Sum(nil), nil)
		})
		n.Serve(p.octx, 2)
		const calls = 5
		answered := 0
		for i := range calls {
			data := pattern(i, 0, 300_000+i)
			h, err := p.mctx.Create(p.peer, id)
			require.NoError(t, err)
			require.NoError(t, h.Forward(newHandle(t, p.mctx, bulk.Options{Access: bulk.ReadOnly}, data), func(h *hg.Handle, err error) {
				answered++
				var got []byte
				if assert.NoError(t, err) && assert.NoError(t, h.Output(&got)) {
					want := sha256.Sum256(data)
					assert.Equal(t, fmt.Sprintf("%x", want), fmt.Sprintf("%x", got))
				}
				h.Close()
			}))
		}
		p.Until(func() bool { return answered == calls })
	})
}

// TestStreamOfClosedContext closes the context in mid-stream.
func TestStreamOfClosedContext(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		p.requireIntact()
		n.Serve(p.octx, 1)
		for _, way := range ways {
			there := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, 1<<20))
			s := bulk.Stream{Peer: p.peer, Handle: decodeRemote(t, there)}
			other, err := p.mover.NewContext()
			require.NoError(t, err)
			q := *p
			q.mctx = other
			other.Close()
			require.ErrorIs(t, way.run(&q, t.Context(), s), hg.ErrClosed)
			for !other.NA().Closed() {
				other.Trigger(0)
				_ = other.Progress(0)
			}
			require.ErrorIs(t, way.run(&q, t.Context(), s), hg.ErrClosed)
		}
	})
}
