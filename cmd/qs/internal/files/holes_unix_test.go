//go:build unix

package files

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// writeSparseFile makes a sparse file: data, a hole, data that is zero in places, and a hole at the end.
func writeSparseFile(t *testing.T, name string) []byte {
	t.Helper()
	data := make([]byte, 3<<20+100)
	copy(data, noise(5000))
	copy(data[1<<20+17:], noise(10_000))
	copy(data[2<<20:], noise(4096))
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, writeSparse(f, data, 0))
	require.NoError(t, f.Truncate(int64(len(data))))
	return data
}

// TestWriteSparse checks that the bytes read are the bytes written, at any offset, and that units
// of zeros are holes.
func TestWriteSparse(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	data := writeSparseFile(t, name)
	got, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, data, got)
	for _, at := range []int64{0, 1, holeSize - 1, holeSize, 3*holeSize + 7} {
		for _, size := range []int{0, 1, holeSize, 5*holeSize + 3, len(data)} {
			f, err := os.Create(filepath.Join(t.TempDir(), "g"))
			require.NoError(t, err)
			require.NoError(t, writeSparse(f, data[:size], at))
			require.NoError(t, f.Truncate(at+int64(size)))
			got := make([]byte, size)
			_, err = f.ReadAt(got, at)
			require.NoError(t, err)
			require.Equal(t, data[:size], got, "%d bytes at %d", size, at)
			require.NoError(t, f.Close())
		}
	}
}

// TestPartOfSparseFile checks that holes stay holes, also in a part that is resumed and has more
// bytes than were verified.
func TestPartOfSparseFile(t *testing.T) {
	d, dir := newDisk(t)
	data := writeSparseFile(t, filepath.Join(dir, "source"))
	info, err := os.Stat(filepath.Join(dir, "source"))
	require.NoError(t, err)
	if holesOf(info) == 0 {
		t.Skip("the file system has no sparse files")
	}
	how := partOptions{Holes: holesOf(info)}
	st := stamp{Size: int64(len(data)), Mode: 0o600}
	half := 1<<20 + 1<<19 // in a hole
	for _, more := range [][]byte{nil, noise(100_000)} {
		p, err := d.openPart("f", st, how)
		require.NoError(t, err)
		require.NoError(t, p.write(0, data[:half]))
		require.NoError(t, p.verify(checksum(data[:half])))
		_, err = p.f.WriteAt(more, int64(half)) // not verified, and not the next bytes
		require.NoError(t, err)
		p.close()

		p, err = d.openPart("f", st, how)
		require.NoError(t, err)
		left, err := p.verifyNext()
		require.NoError(t, err)
		require.Zero(t, left)
		require.EqualValues(t, half, p.sums.at)
		require.NoError(t, p.write(int64(half), data[half:]))
		require.NoError(t, p.verify(checksum(data)))
		require.NoError(t, p.commit(checksum(data), nil, false))
		got, err := os.ReadFile(filepath.Join(dir, "f"))
		require.NoError(t, err)
		require.Equal(t, data, got)
		after, err := os.Stat(filepath.Join(dir, "f"))
		require.NoError(t, err)
		require.GreaterOrEqual(t, holesOf(after), holesOf(info)*9/10)
		require.NoError(t, os.Remove(filepath.Join(dir, "f")))
	}
}

// TestCopySparse checks that a copy in either direction is as sparse as its source.
func TestCopySparse(t *testing.T) {
	addr, root := serveFiles(t)
	dir := t.TempDir()
	data := writeSparseFile(t, filepath.Join(dir, "f"))
	holes := func(name string) int64 {
		info, err := os.Stat(name)
		require.NoError(t, err)
		got, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, data, got)
		return holesOf(info)
	}
	want := holes(filepath.Join(dir, "f"))
	if want == 0 {
		t.Skip("the file system has no sparse files")
	}
	for _, o := range []Options{{Upload: true, Local: "f", Remote: "g"}, {Local: "h", Remote: "g"}} {
		o.Folder, o.Piece, o.Window, o.Timeout = dir, testPiece, 4, patience
		node, at := openOrigin(t, addr)
		c, err := NewCopier(t.Context(), node, at, o)
		require.NoError(t, err)
		require.NoError(t, c.Run(t.Context(), noProgress{}))
		c.Close()
	}
	require.GreaterOrEqual(t, holes(filepath.Join(root, "g")), want*9/10)
	require.GreaterOrEqual(t, holes(filepath.Join(dir, "h")), want*9/10)
}
