//go:build unix

package memfault_test

import (
	"bytes"
	"crypto/sha256"
	"hash/crc32"
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
)

const size = 1 << 20

// truncatedMapping returns size bytes of a file that has only half of them.
func truncatedMapping(t *testing.T) []byte {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	require.NoError(t, f.Truncate(size))
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	require.NoError(t, f.Truncate(size/2))
	require.NoError(t, f.Close())
	return b
}

func TestCopy(t *testing.T) {
	b := truncatedMapping(t)
	mine := bytes.Repeat([]byte{7}, size)
	for _, c := range []struct {
		name     string
		dst, src []byte
		n        int
		ok       bool
	}{
		{"nothing", mine[:0], mine, 0, true},
		{"memory", mine[:9], mine, 9, true},
		{"the part that is there", mine, b[:size/2], size / 2, true},
		{"the part that is gone", mine, b[size/2:], 0, false},
		{"from there to what is gone", mine, b, 0, false},
		{"into the part that is there", b[:size/2], mine, size / 2, true},
		{"into what is gone", b[size-1:], mine, 0, false},
		{"into all", b, mine, 0, false},
	} {
		n, ok := memfault.Copy(c.dst, c.src)
		require.Equal(t, c.ok, ok, c.name)
		require.Equal(t, c.n, n, c.name)
	}
	gone := b[size-9:]
	for _, list := range [][][]byte{nil, {mine[:3], nil, b[:4]}, {mine[:3], gone}, {gone, mine[:3]}} {
		there := len(list) == 0 || len(list) == 3
		for what, f := range map[string]func() (int, bool){
			"gather":       func() (int, bool) { return memfault.Gather(make([]byte, 20), list) },
			"gather again": func() (int, bool) { return memfault.GatherAgain(make([]byte, 20), list) },
			"scatter":      func() (int, bool) { return memfault.Scatter(list, mine) },
		} {
			n, ok := f()
			require.Equal(t, there, ok, what)
			if ok {
				require.Equal(t, len(bytes.Join(list, nil)), n, what)
			}
		}
	}
	dst, at := make([]byte, 5), make([]byte, 9)
	_, ok := memfault.Gather(dst, [][]byte{[]byte("abc"), nil, []byte("defg")})
	require.True(t, ok)
	require.Equal(t, "abcde", string(dst), "as far as there is room")
	_, ok = memfault.Scatter([][]byte{at[:2], nil, at[3:]}, []byte("abcde"))
	require.True(t, ok)
	require.Equal(t, "ab\x00cde\x00\x00\x00", string(at))
	require.True(t, memfault.Readable(nil))
	require.True(t, memfault.Readable(b[:size/2]))
	require.False(t, memfault.Readable(b[:size/2+1]))
	require.False(t, memfault.Readable(b))
}

func TestRead(t *testing.T) {
	b := truncatedMapping(t)
	castagnoli := crc32.MakeTable(crc32.Castagnoli) // of which the code is assembly
	for _, c := range []struct {
		name string
		b    []byte
		ok   bool
	}{
		{"nothing", nil, true},
		{"memory", make([]byte, size), true},
		{"the part that is there", b[:size/2], true},
		{"the part that is gone", b[size/2:], false},
		{"from there to what is gone", b, false},
	} {
		read := -1
		ok := memfault.Read(c.b, func(b []byte) {
			crc32.Checksum(b, castagnoli)
			sha256.Sum256(b)
			read = len(b)
		})
		require.Equal(t, c.ok, ok, c.name)
		require.Equal(t, c.ok, read == len(c.b), c.name)
	}
	require.PanicsWithValue(t, "mine", func() { memfault.Read(nil, func([]byte) { panic("mine") }) })
}

// TestCopyRestores checks that settings of the goroutine are unchanged, after a fault too.
func TestCopyRestores(t *testing.T) {
	b := truncatedMapping(t)
	for _, was := range []bool{false, true} {
		before := debug.SetPanicOnFault(was)
		_, ok := memfault.Copy(make([]byte, 9), b[size-9:])
		now := debug.SetPanicOnFault(before)
		require.False(t, ok)
		require.Equal(t, was, now)
	}
}

func TestCopyAllocatesNothing(t *testing.T) {
	dst, src := make([]byte, 100), make([]byte, 100)
	require.Zero(t, testing.AllocsPerRun(100, func() { memfault.Copy(dst, src) }))
}

func BenchmarkCopy(b *testing.B) {
	dst, src := make([]byte, 64), make([]byte, 64)
	for b.Loop() {
		memfault.Copy(dst, src)
	}
}
