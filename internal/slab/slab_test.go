package slab

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// TestSizes checks that a class fits its sizes, and no smaller one does.
func TestSizes(t *testing.T) {
	t.Parallel()
	var sizes []int
	for class := range classes {
		size := Least << (class / 2)
		if class%2 == 1 {
			size += size / 2
		}
		sizes = append(sizes, size)
	}
	require.Equal(t, Max, sizes[classes-1])
	for i, size := range sizes {
		for _, n := range []int{size - 1, size, size + 1} {
			want := 0
			for _, s := range sizes[i:] {
				if s >= n {
					want = s
					break
				}
			}
			require.Equal(t, want, Size(n), "%d", n)
			if want > 0 {
				b := Get(n)
				require.Len(t, b, n)
				require.Equal(t, want, cap(b))
				Put(b)
			}
		}
	}
	require.Zero(t, Size(0))
	require.Equal(t, Least, Size(1))
}

// TestPut checks that a buffer that is put is returned again, not cleared; a buffer that is too
// large is not kept.
func TestPut(t *testing.T) {
	b := Get(1 << 20)
	for i := range b {
		b[i] = 7
	}
	Put(b[:5])
	b = Get(900 << 10)
	require.NotZero(t, b[0])
	require.Equal(t, Least<<4, cap(b))
	Put(nil)
	Put(make([]byte, Max+1))
	require.Panics(t, func() { Put(make([]byte, 5, 70<<10)) })
}

// TestIdle checks that a shelf releases buffers that were not used between two sweeps, and keeps
// those in use.
func TestIdle(t *testing.T) {
	t.Parallel()
	var s freeList
	a, b := make([]byte, 5), make([]byte, 5)
	s.push(a)
	s.push(b)
	idle, left := s.takeIdle()
	require.Empty(t, idle)
	require.True(t, left)
	require.Same(t, &b[0], &s.pop()[0], "the one used last")
	s.push(b)
	idle, left = s.takeIdle()
	require.Len(t, idle, 1)
	require.Same(t, &a[0], &idle[0][0])
	require.True(t, left)
	idle, left = s.takeIdle()
	require.Len(t, idle, 1)
	require.Same(t, &b[0], &idle[0][0])
	require.False(t, left)
	require.Nil(t, s.pop())
}
