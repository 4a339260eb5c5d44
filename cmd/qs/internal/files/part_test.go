package files

import (
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

func newDisk(t *testing.T) (*disk, string) {
	t.Helper()
	dir := t.TempDir()
	d, err := openDisk(dir)
	require.NoError(t, err)
	t.Cleanup(d.close)
	return d, dir
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// beginPart returns the part of a file with data, of which the first 100 bytes are verified.
func beginPart(t *testing.T, d *disk, data []byte, sha bool) *part {
	t.Helper()
	p, err := d.openPart("f", stamp{Size: int64(len(data)), Mode: 0o600}, partOptions{SHA256: sha})
	require.NoError(t, err)
	require.NoError(t, p.write(0, data[:100]))
	require.NoError(t, p.verify(checksum(data[:100])))
	return p
}

// resumePart returns what begun has begun, after it was closed.
func resumePart(t *testing.T, d *disk, data []byte) *part {
	t.Helper()
	p, err := d.openPart("f", stamp{Size: int64(len(data)), Mode: 0o600}, partOptions{})
	require.NoError(t, err)
	left, err := p.verifyNext()
	require.NoError(t, err)
	require.Zero(t, left)
	require.EqualValues(t, 100, p.sums.at, "what was verified before is kept")
	return p
}

// requireData wants a file with data, alone in its folder.
func requireData(t *testing.T, dir string, data []byte) {
	t.Helper()
	requireNames(t, dir, "f")
	got, err := os.ReadFile(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.Equal(t, data, got)
}

// TestPartDamagedOnTheWay checks that a piece with bytes that do not match the checksums of the
// source does not count.
func TestPartDamagedOnTheWay(t *testing.T) {
	d, dir := newDisk(t)
	data := noise(300)
	p := beginPart(t, d, data, false)
	bad := noise(101)[1:]
	require.NoError(t, p.write(100, bad))
	err := p.verify(checksum(data[:200]))
	require.ErrorIs(t, err, na.ErrChecksum)
	require.ErrorContains(t, err, "f is corrupt: CRC-32C of the first 200 bytes is")
	p.close()

	p = resumePart(t, d, data)
	require.ErrorIs(t, p.write(0, data[:100]), na.ErrProtocol, "a piece that is not the next one")
	require.ErrorIs(t, p.write(100, noise(201)), na.ErrProtocol, "more than the file has")
	require.ErrorIs(t, p.commit(0, nil, false), na.ErrProtocol, "not complete")
	require.NoError(t, p.write(100, data[100:]))
	require.NoError(t, p.verify(checksum(data)))
	require.NoError(t, p.commit(checksum(data), nil, true))
	p.close()
	requireData(t, dir, data)
}

// TestPartWrongChecksum checks that a file with a wrong checksum at the end does not get its name,
// and is not resumed.
func TestPartWrongChecksum(t *testing.T) {
	data := noise(300)
	good, bad := sha256.Sum256(data), sha256.Sum256(nil)
	for _, c := range []struct {
		crc uint32
		sha []byte
	}{{checksum(data), bad[:]}, {checksum(data) + 1, good[:]}, {checksum(data), nil}} {
		d, dir := newDisk(t)
		p := beginPart(t, d, data, true)
		require.NoError(t, p.write(100, data[100:]))
		require.NoError(t, p.verify(checksum(data)))
		err := p.commit(c.crc, c.sha, false)
		require.ErrorIs(t, err, na.ErrChecksum)
		require.ErrorContains(t, err, "its checksums are")
		p.close()
		requireNames(t, dir)
	}
}

// TestPartUnusable checks that nothing is left when nothing was verified.
func TestPartUnusable(t *testing.T) {
	d, dir := newDisk(t)
	p, err := d.openPart("f", stamp{Size: 300}, partOptions{})
	require.NoError(t, err)
	requireNames(t, dir, "f.qs-part", "f.qs-part.journal")
	p.close()
	requireNames(t, dir)
}

// TestJournal checks that a journal with any contents is trusted only as far as the part confirms
// it.
func TestJournal(t *testing.T) {
	data := noise(300)
	good := fmt.Sprintf(`{"source_size":300,"source_mtime_ns":7,"verified":200,"crc32c":%d}`, checksum(data[:200]))
	for text, want := range map[string]int64{
		good:                      200,
		`{"source_size":300}`:     0,
		good[:len(good)-2] + "9}": 0, // another checksum, or none that fits
		`{"source_size":300,"source_mtime_ns":7,"verified":301,"crc32c":0}`:                 0,
		`{"source_size":300,"source_mtime_ns":7,"verified":9223372036854775807,"crc32c":0}`: 0,
		`{"source_size":300,"source_mtime_ns":8,"verified":200,"crc32c":0}`:                 0,
	} {
		d, dir := newDisk(t)
		writePrivate(t, filepath.Join(dir, "f.qs-part"), data[:250])
		writePrivate(t, filepath.Join(dir, "f.qs-part.journal"), newJournal(text))
		p, err := d.openPart("f", stamp{Size: 300, ModTime: 7}, partOptions{})
		require.NoError(t, err)
		left, err := p.verifyNext()
		require.NoError(t, err)
		require.Zero(t, left)
		require.Equal(t, want, p.sums.at, text)
		require.NoError(t, p.write(want, data[want:]))
		require.NoError(t, p.verify(checksum(data)))
		require.NoError(t, p.commit(checksum(data), nil, false))
		requireData(t, dir, data)
	}
}

// newJournal is a journal that holds text.
func newJournal(text string) []byte { return fmt.Appendf(nil, "%-*s\n", recordSize-1, text) }

// writePrivate writes a file as a transfer makes it.
func writePrivate(t *testing.T, name string, data []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(name, data, 0o600))
}

// TestPartOfOtherProgram checks that a file that has the name of a part or of a journal, and that
// no transfer has made, is refused with its name, and stays as it is, with and without -anew.
func TestPartOfOtherProgram(t *testing.T) {
	data := noise(300)
	for name, make := range map[string]func(t *testing.T, dir string){
		"f.qs-part is not of an interrupted transfer": func(t *testing.T, dir string) {
			writePrivate(t, filepath.Join(dir, "f.qs-part"), data)
		},
		"f.qs-part.journal is not a journal": func(t *testing.T, dir string) {
			writePrivate(t, filepath.Join(dir, "f.qs-part"), data)
			writePrivate(t, filepath.Join(dir, "f.qs-part.journal"), []byte("j\n"))
		},
		"f.qs-part.journal is not a journal of qs": func(t *testing.T, dir string) {
			writePrivate(t, filepath.Join(dir, "f.qs-part.journal"), newJournal(`{"verified":-1}`))
		},
	} {
		for _, anew := range []bool{false, true} {
			d, dir := newDisk(t)
			make(t, dir)
			requireRefused(t, d, dir, name, anew)
		}
	}
}

// requireRefused wants a part of f to be refused with a text, and all that is in dir to be there as before.
func requireRefused(t *testing.T, d *disk, dir, text string, anew bool) {
	t.Helper()
	before := listDir(t, dir)
	_, err := d.openPart("f", stamp{Size: 300, Mode: 0o600}, partOptions{Anew: anew})
	require.ErrorIs(t, err, na.ErrExists)
	require.ErrorContains(t, err, text)
	require.ErrorContains(t, err, "move it away or name another destination")
	require.Equal(t, before, listDir(t, dir))
}

// listDir returns what is in a folder: names, kinds and modes, and what files hold.
func listDir(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		text := fmt.Sprintf("%s %v %d", e.Name(), info.Mode(), info.Size())
		if info.Mode().IsRegular() {
			held, err := os.ReadFile(filepath.Join(dir, e.Name()))
			require.NoError(t, err)
			text += fmt.Sprintf(" %x", held)
		}
		all = append(all, text)
	}
	return all
}

// TestPartFailedWrite checks that bytes that did not reach the file are never acknowledged, also
// when later bytes would.
func TestPartFailedWrite(t *testing.T) {
	d, dir := newDisk(t)
	data := noise(300)
	p := beginPart(t, d, data, false)
	good := p.f
	var err error
	p.f, err = os.Open(filepath.Join(dir, "f.qs-part")) // for reading
	require.NoError(t, err)
	want := p.write(100, data[100:200])
	require.Error(t, want)
	require.NoError(t, p.f.Close())
	p.f = good
	require.Equal(t, want, p.verify(checksum(data[:200])))
	require.Equal(t, want, p.write(200, data[200:]))
	require.Equal(t, want, p.verify(checksum(data)))
	require.Equal(t, want, p.commit(checksum(data), nil, false))
	p.close()
	resumePart(t, d, data).close()
}

// TestJournalIsNeverEmpty checks that the record of the previous run is kept until the first record
// of this run replaces it.
func TestJournalIsNeverEmpty(t *testing.T) {
	d, dir := newDisk(t)
	j, err := d.openJournal("j")
	require.NoError(t, err)
	_, err = j.read()
	require.ErrorIs(t, err, errEmpty)
	want := record{Size: 300, ModTime: 7, At: 200, CRC: 1 << 31}
	require.NoError(t, j.write(want))
	j.close(false)
	j, err = d.openJournal("j")
	require.NoError(t, err)
	got, err := j.read()
	require.NoError(t, err)
	require.Equal(t, want, got)
	want = record{Size: 300, At: 1}
	require.NoError(t, j.write(want))
	got, err = j.read()
	require.NoError(t, err)
	require.Equal(t, want, got)
	j.close(true)
	requireNames(t, dir)
}
