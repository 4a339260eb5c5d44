package slab

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/leak"
)

func TestMain(m *testing.M) { leak.Main(m) }

// A class holds what it is for, and no smaller one does.
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

// What is put in comes out again, and is not cleared; what is too large is not kept.
func TestPut(t *testing.T) {
	t.Parallel()
	for range 100 { // the race detector has some of it forgotten
		b := Get(1 << 20)
		for i := range b {
			b[i] = 7
		}
		Put(b[:5])
		if b = Get(900 << 10); b[0] != 0 {
			require.Equal(t, Least<<4, cap(b))
			break
		}
	}
	Put(nil)
	Put(make([]byte, Max+1))
	require.Panics(t, func() { Put(make([]byte, 5, 70<<10)) })
}
