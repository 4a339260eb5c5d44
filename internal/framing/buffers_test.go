package framing

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestBuffersAreReused checks that a returned buffer is used by the next stream, up to a bound.
func TestBuffersAreReused(t *testing.T) {
	var s Buffers
	most := len(s.free)
	given := map[*[bufSize]byte]bool{}
	for range most + 1 {
		given[s.get()] = true
	}
	require.Len(t, given, most+1)
	for b := range given {
		s.put(b)
	}
	again := map[*[bufSize]byte]bool{}
	for range most {
		b := s.get()
		require.True(t, given[b], "a new buffer, although one was spare")
		again[b] = true
	}
	require.Len(t, again, most, "a buffer was given to two")
	require.False(t, given[s.get()], "more buffers were kept than the bound")
}

// TestBuffersHaveOneOwner checks that a buffer that several goroutines get and return at the same
// time has one owner at a time.
func TestBuffersHaveOneOwner(t *testing.T) {
	var s Buffers
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 2000 {
				b := s.get()
				b[0] = byte(i)
				if b[0] != byte(i) {
					t.Errorf("the buffer of goroutine %d was written by goroutine %d", i, b[0])
				}
				s.put(b)
			}
		})
	}
	all.Wait()
}

// TestIdleStreamHoldsNoBuffer checks that a buffer is released as soon as its stream has nothing
// more to read or to write.
func TestIdleStreamHoldsNoBuffer(t *testing.T) {
	var s Buffers
	spare := func() (n int) {
		for i := range s.free {
			if s.free[i].Load() != nil {
				n++
			}
		}
		return n
	}
	in := In{Buffers: &s}
	in.Space()
	require.Zero(t, spare())
	in.Got(3)
	in.Idle()
	require.Equal(t, 1, spare(), "three bytes of a frame need no large buffer")
	in.Space()
	in.Close()
	require.Equal(t, 1, spare())
	out := Out{Buffers: &s}
	out.ensureBuf()
	require.Zero(t, spare())
	out.Close()
	require.Equal(t, 1, spare())
}
