package slab

import (
	"fmt"
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRelease checks that a process whose calls have ended has its memory back, without a garbage
// collection.
func TestRelease(t *testing.T) {
	resident := func() int {
		f, err := os.ReadFile("/proc/self/statm")
		require.NoError(t, err)
		var size, pages int
		_, err = fmt.Sscan(string(f), &size, &pages)
		require.NoError(t, err)
		return pages * os.Getpagesize()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	b := Get(60 << 20)
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
	Put(b)
	full := resident()
	for range 3 {
		sweep()
	}
	require.Less(t, resident(), full-50<<20)
	require.Nil(t, Spare(60<<20))
}
