package bulk_test

import (
	"bytes"
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// alloc returns n bytes of Alloc, which are freed when the test has ended.
func alloc(t *testing.T, n int) []byte {
	b, err := bulk.Alloc(n)
	require.NoError(t, err)
	require.Len(t, b, n)
	t.Cleanup(func() { bulk.Free(b); pool.ReleaseUnused() })
	return b
}

// TestAlloc checks that memory of Alloc is used like any other, and is pulled with its contents at
// that time, at any offset.
func TestAlloc(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		const size = 1<<20 + 5
		theirs := alloc(t, size)
		h := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadWrite}, theirs)
		mine := make([]byte, size)
		s := bulk.Spec{Dir: bulk.Pull, Peer: p.peer, Remote: decodeRemote(t, h), Local: newLocalHandle(t, p.mctx, mine), Size: size}
		moved := int64(0)
		for i, r := range [][2]int64{{0, size}, {0, size}, {0, 1}, {size - 1, 1}, {4095, 4098}, {size - 5, 5}, {1 << 18, 1 << 18}, {7, 0}, {1, size - 1}} {
			_, _ = rand.NewChaCha8([32]byte{byte(i)}).Read(theirs)
			clear(mine)
			s.RemoteOffset, s.LocalOffset, s.Size = r[0], r[0], r[1]
			e := p.withT(t).transfer(s)
			require.NoError(t, e.err)
			require.Equal(t, r[1], e.moved)
			moved += r[1]
			require.Empty(t, describeDiff(mine[r[0]:r[0]+r[1]], theirs[r[0]:r[0]+r[1]]))
			p.Until(func() bool { return h.Moved() == moved })
		}
		s.Dir, s.RemoteOffset, s.LocalOffset, s.Size = bulk.Push, 3, 3, 99
		clear(mine)
		require.NoError(t, p.withT(t).transfer(s).err)
		require.Equal(t, make([]byte, 99), theirs[3:102])
	})
}

// TestView checks that a view shows the bytes that a pull would read, and over shared memory later
// writes of the owner, until the owner takes the memory back.
func TestView(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n)
		const size = 300_000
		theirs := alloc(t, size)
		copy(theirs, pattern(1, 0, size))
		h := newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly}, theirs)
		far := decodeRemote(t, h)
		view := func(s bulk.Stream) *bulk.View {
			v, err := bulk.NewView(context.Background(), p.mctx, s)
			require.NoError(t, err)
			return v
		}
		for range 2 {
			v := view(bulk.Stream{Peer: p.peer, Handle: far, Offset: 5, Size: size - 7})
			require.True(t, bytes.Equal(theirs[5:size-2], v.Bytes()))
			require.NoError(t, v.Close())
			require.NoError(t, v.Close())
		}
		small := view(bulk.Stream{Peer: p.peer, Handle: decodeRemote(t, newHandle(t, p.octx, bulk.Options{Access: bulk.ReadOnly}, theirs[:9]))})
		require.Equal(t, theirs[:9], small.Bytes(), "data that was sent with the handle")
		require.False(t, small.Shared())
		require.NoError(t, small.Close())
		own := view(bulk.Stream{Handle: h, Size: 10})
		require.Equal(t, theirs[:10], own.Bytes())
		require.NoError(t, own.Close())
		_, err := bulk.NewView(context.Background(), p.mctx, bulk.Stream{Peer: p.peer, Handle: far, Offset: size, Size: 1})
		require.ErrorIs(t, err, hg.ErrInvalid)

		v := view(bulk.Stream{Peer: p.peer, Handle: far})
		theirs[1]++
		require.Equal(t, v.Shared(), theirs[1] == v.Bytes()[1])
		require.NoError(t, h.CloseWait(context.Background()))
		if v.Shared() {
			require.ErrorIs(t, v.Close(), na.ErrRevoked)
		} else {
			require.NoError(t, v.Close(), "it is a copy")
		}
		_, err = bulk.NewView(context.Background(), p.mctx, bulk.Stream{Peer: p.peer, Handle: far})
		require.ErrorIs(t, err, na.ErrRevoked)
	})
}

// TestAllocMisuse checks that bad lengths and bad Frees have errors with the reason.
func TestAllocMisuse(t *testing.T) {
	_, err := bulk.Alloc(-1)
	require.ErrorIs(t, err, na.ErrInvalid)
	require.ErrorContains(t, err, "length is -1")
	_, err = bulk.Alloc(math.MaxInt)
	require.Error(t, err)
	b, err := bulk.Alloc(0)
	require.NoError(t, err)
	bulk.Free(b)
	b, err = bulk.Alloc(3 << 12)
	require.NoError(t, err)
	for _, bad := range [][]byte{b[1:], make([]byte, 10)} {
		require.Panics(t, func() { bulk.Free(bad) })
	}
	bulk.Free(b)
	require.PanicsWithValue(t, "bulk: Free called with memory that is not from Alloc or is already freed", func() { bulk.Free(b) })
	pool.ReleaseUnused()
}
