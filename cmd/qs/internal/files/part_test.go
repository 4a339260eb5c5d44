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

func crcOf(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// begun returns the part of a file with data, of which the first 100 bytes are verified.
func begun(t *testing.T, d *disk, data []byte, sha bool) *part {
	t.Helper()
	p, err := d.openPart("f", stamp{Size: int64(len(data)), Mode: 0o600}, sha, false)
	require.NoError(t, err)
	require.NoError(t, p.write(0, data[:100]))
	require.NoError(t, p.verify(crcOf(data[:100])))
	return p
}

// goneOn returns what begun has begun, after it was closed.
func goneOn(t *testing.T, d *disk, data []byte) *part {
	t.Helper()
	p, err := d.openPart("f", stamp{Size: int64(len(data)), Mode: 0o600}, false, false)
	require.NoError(t, err)
	left, err := p.check()
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

// TestPartDamagedOnTheWay: a piece whose bytes are not those that the source has sums of does not count.
func TestPartDamagedOnTheWay(t *testing.T) {
	d, dir := newDisk(t)
	data := noise(300)
	p := begun(t, d, data, false)
	bad := noise(101)[1:]
	require.NoError(t, p.write(100, bad))
	err := p.verify(crcOf(data[:200]))
	require.ErrorIs(t, err, na.ErrChecksum)
	require.ErrorContains(t, err, "f was damaged on the way: CRC-32C of the first 200 bytes is")
	p.close()

	p = goneOn(t, d, data)
	require.ErrorIs(t, p.write(0, data[:100]), na.ErrProtocol, "a piece that is not the next one")
	require.ErrorIs(t, p.write(100, noise(201)), na.ErrProtocol, "more than the file has")
	require.ErrorIs(t, p.commit(0, nil, false), na.ErrProtocol, "not complete")
	require.NoError(t, p.write(100, data[100:]))
	require.NoError(t, p.verify(crcOf(data)))
	require.NoError(t, p.commit(crcOf(data), nil, true))
	p.close()
	requireData(t, dir, data)
}

// TestPartWrongChecksum: a file whose checksums differ at the end does not get its name, and is not gone on with.
func TestPartWrongChecksum(t *testing.T) {
	data := noise(300)
	good, bad := sha256.Sum256(data), sha256.Sum256(nil)
	for _, c := range []struct {
		crc uint32
		sha []byte
	}{{crcOf(data), bad[:]}, {crcOf(data) + 1, good[:]}, {crcOf(data), nil}} {
		d, dir := newDisk(t)
		p := begun(t, d, data, true)
		require.NoError(t, p.write(100, data[100:]))
		require.NoError(t, p.verify(crcOf(data)))
		err := p.commit(c.crc, c.sha, false)
		require.ErrorIs(t, err, na.ErrChecksum)
		require.ErrorContains(t, err, "its checksums are")
		p.close()
		requireNames(t, dir)
	}
}

// TestPartOfNoUse: nothing is left when nothing was verified.
func TestPartOfNoUse(t *testing.T) {
	d, dir := newDisk(t)
	p, err := d.openPart("f", stamp{Size: 300}, false, false)
	require.NoError(t, err)
	requireNames(t, dir, "f.qs-part")
	p.close()
	requireNames(t, dir)
}

// TestJournal: whatever is in a journal, it is not trusted further than the part bears it out.
func TestJournal(t *testing.T) {
	data := noise(300)
	good := fmt.Sprintf(`{"source_size":300,"source_mtime_ns":7,"verified":200,"crc32c":%d}`, crcOf(data[:200]))
	for text, want := range map[string]int64{
		good:                      200,
		"":                        0,
		"{":                       0,
		`{"source_size":300}`:     0,
		good[:len(good)-2] + "9}": 0, // another checksum, or none that fits
		`{"source_size":300,"source_mtime_ns":7,"verified":-1,"crc32c":0}`:                  0,
		`{"source_size":300,"source_mtime_ns":7,"verified":301,"crc32c":0}`:                 0,
		`{"source_size":300,"source_mtime_ns":7,"verified":9223372036854775807,"crc32c":0}`: 0,
		`{"source_size":300,"source_mtime_ns":8,"verified":200,"crc32c":0}`:                 0,
	} {
		d, dir := newDisk(t)
		writeFile(t, filepath.Join(dir, "f.qs-part"), data[:250])
		writeFile(t, filepath.Join(dir, "f.qs-part.journal"), []byte(text))
		p, err := d.openPart("f", stamp{Size: 300, ModTime: 7}, false, false)
		require.NoError(t, err)
		left, err := p.check()
		require.NoError(t, err)
		require.Zero(t, left)
		require.Equal(t, want, p.sums.at, text)
		require.NoError(t, p.write(want, data[want:]))
		require.NoError(t, p.verify(crcOf(data)))
		require.NoError(t, p.commit(crcOf(data), nil, false))
		requireData(t, dir, data)
	}
}

// TestPartFailedWrite: bytes that did not reach the file are never promised, also when later ones would.
func TestPartFailedWrite(t *testing.T) {
	d, dir := newDisk(t)
	data := noise(300)
	p := begun(t, d, data, false)
	good := p.f
	var err error
	p.f, err = os.Open(filepath.Join(dir, "f.qs-part")) // for reading
	require.NoError(t, err)
	want := p.write(100, data[100:200])
	require.Error(t, want)
	require.NoError(t, p.f.Close())
	p.f = good
	require.Equal(t, want, p.verify(crcOf(data[:200])))
	require.Equal(t, want, p.write(200, data[200:]))
	require.Equal(t, want, p.verify(crcOf(data)))
	require.Equal(t, want, p.commit(crcOf(data), nil, false))
	p.close()
	goneOn(t, d, data).close()
}

// TestJournalIsNeverEmpty: the record of the run before is there until the first of this run replaces it.
func TestJournalIsNeverEmpty(t *testing.T) {
	d, dir := newDisk(t)
	j := &journal{disk: d, name: "j"}
	want := record{Size: 300, ModTime: 7, At: 200, CRC: 1 << 31}
	require.NoError(t, j.write(want))
	j.close()
	require.NoError(t, j.open())
	got, err := j.read()
	require.NoError(t, err)
	require.Equal(t, want, got)
	want = record{Size: 300, At: 1}
	require.NoError(t, j.write(want))
	got, err = j.read()
	require.NoError(t, err)
	require.Equal(t, want, got)
	j.remove()
	requireNames(t, dir)
}
