//go:build unix

package bulk_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// newFile makes a file with content.
func newFile(t *testing.T, content []byte) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	_, err = f.Write(content)
	require.NoError(t, err)
	return f
}

// mapFile maps f until the test ends.
func mapFile(t *testing.T, f *os.File, opts bulk.FileOptions) *bulk.File {
	t.Helper()
	m, err := bulk.MapFile(f, opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := m.Close(); !errors.Is(err, hg.ErrClosed) {
			require.NoError(t, err)
		}
	})
	return m
}

// handleOf makes a handle of m that is closed, and has driven hctx until then, when the test ends.
func (p *pair) handleOf(m *bulk.File, hctx *hg.Context, access bulk.Access) *bulk.Handle {
	p.t.Helper()
	h, err := m.Create(hctx, bulk.Options{Access: access, Eager: -1})
	require.NoError(p.t, err)
	p.t.Cleanup(func() { p.closeNow(h) })
	return h
}

// closeNow closes h, if it is not closed, and waits for the callback.
func (p *pair) closeNow(h *bulk.Handle) {
	p.t.Helper()
	done := false
	if err := h.CloseFunc(func(error) { done = true }); err == nil {
		p.Until(func() bool { return done })
	}
}

// TestFileRoundTrip copies one file into another by a pull from mapping to mapping, and by a push.
func TestFileRoundTrip(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		const size = 700_001
		content := pattern(5, 0, size)
		for _, c := range []struct{ off, n int64 }{{0, 0}, {0, 1}, {5000, 4096}, {4096, 300_000}, {size - 1, 1}, {size, 0}} {
			from := mapFile(t, newFile(t, content), bulk.FileOptions{Offset: c.off, Length: c.n})
			n := c.n
			if n == 0 {
				n = size - c.off
			}
			require.Equal(t, n, from.Len())
			target := newFile(t, make([]byte, size))
			to := mapFile(t, target, bulk.FileOptions{Offset: c.off, Length: c.n, Write: true})
			there, here := from, to
			if dir == bulk.Push {
				there, here = to, from
			}
			access := bulk.ReadOnly
			if dir == bulk.Push {
				access = bulk.WriteOnly
			}
			owned, mine := p.handleOf(there, p.octx, access), p.handleOf(here, p.mctx, bulk.LocalOnly)
			e := p.transfer(bulk.Spec{Dir: dir, Remote: decodeRemote(t, owned), Local: mine, Size: n})
			require.NoError(t, e.err)
			require.NoError(t, to.Sync())
			want := make([]byte, size)
			copy(want[c.off:c.off+n], content[c.off:])
			got, err := os.ReadFile(target.Name())
			require.NoError(t, err)
			require.Empty(t, describeDiff(got, want))
		}
	})
}

func TestFileInvalid(t *testing.T) {
	f := newFile(t, make([]byte, 100))
	for _, c := range []struct{ off, n int64 }{{-1, 1}, {0, -1}, {101, 0}, {0, 101}, {100, 1}, {1 << 62, 1 << 62}} {
		_, err := bulk.MapFile(f, bulk.FileOptions{Offset: c.off, Length: c.n})
		require.ErrorIs(t, err, hg.ErrInvalid)
		require.ErrorContains(t, err, f.Name())
	}
	dir, err := os.Open(t.TempDir())
	require.NoError(t, err)
	defer dir.Close()
	_, err = bulk.MapFile(dir, bulk.FileOptions{})
	require.ErrorIs(t, err, hg.ErrInvalid)
	readable, err := os.Open(f.Name())
	require.NoError(t, err)
	defer readable.Close()
	_, err = bulk.MapFile(readable, bulk.FileOptions{Write: true})
	require.ErrorIs(t, err, os.ErrPermission)
	gone, err := os.Open(f.Name())
	require.NoError(t, err)
	require.NoError(t, gone.Close())
	_, err = bulk.MapFile(gone, bulk.FileOptions{})
	require.ErrorIs(t, err, os.ErrClosed)
}

// countMappings counts the mappings of f in this process.
func countMappings(t *testing.T, f *os.File) int {
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(maps), f.Name())
}

// TestFileClose checks that the file stays mapped for the handles that were made of it, and no
// longer.
func TestFileClose(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		content := pattern(5, 0, 100_000)
		f := newFile(t, content)
		m := mapFile(t, f, bulk.FileOptions{})
		_, err := m.Create(p.octx, bulk.Options{Access: bulk.ReadWrite})
		require.ErrorIs(t, err, na.ErrPermission)
		_, err = m.Create(p.octx, bulk.Options{Access: bulk.ReadOnly, Eager: 1 << 30})
		require.ErrorIs(t, err, hg.ErrInvalid)
		first, second := p.handleOf(m, p.octx, bulk.ReadOnly), p.handleOf(m, p.octx, bulk.ReadOnly)
		require.NoError(t, m.Close())
		require.ErrorIs(t, m.Close(), hg.ErrClosed)
		require.ErrorIs(t, m.Sync(), hg.ErrClosed)
		_, err = m.Create(p.octx, bulk.Options{})
		require.ErrorIs(t, err, hg.ErrClosed)
		p.closeNow(first)
		mine := make([]byte, len(content))
		e := p.transfer(bulk.Spec{Remote: decodeRemote(t, second), Local: newLocalHandle(t, p.mctx, mine), Size: int64(len(mine))})
		require.NoError(t, e.err)
		require.Empty(t, describeDiff(mine, content))
		if runtime.GOOS == "linux" {
			require.Equal(t, 1, countMappings(t, f))
		}
		p.closeNow(second)
		if runtime.GOOS == "linux" {
			require.Zero(t, countMappings(t, f))
		}
	})
}

// TestFileTruncated truncates the file, before a transfer or in the middle of one, on the side of
// its owner or of the mover: the transfer ends with an error, no missing byte is taken for data,
// and the session continues.
func TestFileTruncated(t *testing.T) {
	t.Parallel()
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		const size = 1 << 20
		for _, side := range []string{"owner", "mover"} {
			for _, keep := range []int64{0, 64<<10 + 100, size / 2, size - 4096} {
				for _, middle := range []bool{false, true} {
					s := newTransferTest(t, p, dir, size)
					f := newFile(t, pattern(1, 0, size))
					m := mapFile(t, f, bulk.FileOptions{Write: true})
					if side == "owner" {
						s.spec.Remote = decodeRemote(t, p.handleOf(m, p.octx, bulk.ReadWrite))
					} else {
						s.spec.Local = p.handleOf(m, p.mctx, bulk.LocalOnly)
					}
					s.spec.Window = 1
					if !middle {
						s.spec.Chunk = size
						require.NoError(t, f.Truncate(keep))
					}
					op := s.start()
					if middle {
						s.stepUntil(func() bool { return op.Moved() > 0 })
						require.NoError(t, f.Truncate(keep))
					}
					s.Until(func() bool { return s.calls > 0 })
					require.Equal(t, 1, s.calls)
					require.ErrorIs(t, s.err, na.ErrFault, "the file of the %s, cut to %d bytes, middle=%v", side, keep, middle)
					require.ErrorContains(t, s.err, map[string]string{"owner": "owner's memory", "mover": "local memory"}[side])
					require.Less(t, op.Moved(), int64(size))
					s.requireIntact()
					require.True(t, s.ownerMem.hasIntactCanaries() && s.moverMem.hasIntactCanaries())
					p.mctx.Trigger(0)
				}
			}
		}
	})
}

// TestFileReadOnlyAsDestination checks that a read-only mapping is refused as a destination.
func TestFileReadOnlyAsDestination(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		for _, size := range []int{100, 300_000} {
			s := newTransferTest(t, p, bulk.Pull, size)
			f := newFile(t, pattern(5, 0, size))
			s.spec.Local = p.handleOf(mapFile(t, f, bulk.FileOptions{}), p.mctx, bulk.LocalOnly)
			s.start()
			s.Until(func() bool { return s.calls > 0 })
			require.ErrorIs(t, s.err, na.ErrFault)
			s.requireIntact()
			got, err := os.ReadFile(f.Name())
			require.NoError(t, err)
			require.Empty(t, describeDiff(got, pattern(5, 0, size)))
		}
	})
}

// TestFileTruncatedInTheSameProcess does the same between two contexts of a process, and from one
// to itself, where no system call reports it.
func TestFileTruncatedInTheSameProcess(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		const size = 600_000
		for _, hctx := range []*hg.Context{p.octx, n.Context(p.owner)} {
			for _, dir := range []bulk.Dir{bulk.Pull, bulk.Push} {
				for _, ours := range []bool{false, true} {
					f := newFile(t, pattern(1, 0, size))
					m := mapFile(t, f, bulk.FileOptions{Write: true})
					gone, there := p.handleOf(m, p.octx, bulk.ReadWrite), newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, make([]byte, size))
					require.NoError(t, f.Truncate(300_000))
					spec := bulk.Spec{Dir: dir, Peer: p.octx.Self(), Remote: decodeRemote(t, gone), Local: there, Size: size}
					if ours {
						spec.Remote, spec.Local = decodeRemote(t, there), gone
					}
					var e outcome
					_, err := bulk.Transfer(hctx, spec, e.done)
					require.NoError(t, err)
					p.Until(func() bool { return e.calls > 0 })
					require.ErrorIs(t, e.err, na.ErrFault, "%v, ours=%v", dir, ours)
					require.ErrorContains(t, e.err, map[bool]string{false: "owner's memory", true: "local memory"}[ours])
					require.Zero(t, hctx.Stats().NA.PeersLost)
				}
			}
		}
	})
}

// TestFileTruncatedCopies does the same for data that is sent with a handle, and for copies of the
// adaptors within the process.
func TestFileTruncatedCopies(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		f := newFile(t, pattern(1, 0, 1500))
		m := mapFile(t, f, bulk.FileOptions{Write: true})
		h, err := m.Create(p.octx, bulk.Options{Access: bulk.ReadOnly})
		require.NoError(t, err)
		defer p.closeNow(h)
		there := decodeRemote(t, h)
		require.NoError(t, f.Truncate(0))
		s := newTransferTest(t, p, bulk.Pull, 1500)
		s.spec.Remote, s.spec.Local = there, h
		s.start()
		s.Until(func() bool { return s.calls > 0 })
		require.ErrorIs(t, s.err, na.ErrFault)
		_, err = h.MarshalBinary()
		require.ErrorIs(t, err, na.ErrFault)
		r, err := bulk.NewReader(t.Context(), p.octx, bulk.Stream{Handle: h})
		require.NoError(t, err)
		defer r.Close()
		_, err = r.Read(make([]byte, 10))
		require.ErrorIs(t, err, na.ErrFault)
		at, err := bulk.NewReaderAt(t.Context(), p.octx, bulk.Stream{Handle: h})
		require.NoError(t, err)
		_, err = at.ReadAt(make([]byte, 10), 1)
		require.ErrorIs(t, err, na.ErrFault)
		w, err := bulk.NewWriter(t.Context(), p.octx, bulk.Stream{Handle: h})
		require.NoError(t, err)
		_, err = io.Copy(w, bytes.NewReader(make([]byte, 1500)))
		require.NoError(t, err)
		require.ErrorIs(t, w.Close(), na.ErrFault)
	})
}
