//go:build unix

package files

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPartNotOfATransfer checks that a file with the name of a part or a journal that cannot be one
// of this user's transfers is refused without waiting, and that it and its link target stay
// unchanged.
func TestPartNotOfATransfer(t *testing.T) {
	for name, kind := range map[string]struct {
		text string
		make func(name string) error
	}{
		"pipe":      {"is a pipe (FIFO)", func(name string) error { return syscall.Mkfifo(name, 0o600) }},
		"directory": {"is a directory", func(name string) error { return os.Mkdir(name, 0o700) }},
		"link":      {"is a symbolic link", func(name string) error { return os.Symlink("precious", name) }},
		"dangling":  {"is a symbolic link", func(name string) error { return os.Symlink("nothing", name) }},
		"hard link": {"is a file with other names (hard links)", func(name string) error {
			return os.Link(filepath.Join(filepath.Dir(name), "precious"), name)
		}},
		"for others": {"can be read or written by other users", func(name string) error {
			if err := os.WriteFile(name, nil, 0o600); err != nil {
				return err
			}
			return os.Chmod(name, 0o604)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, suffix := range []string{".qs-part", ".qs-part.journal"} {
				d, dir := newDisk(t)
				writePrivate(t, filepath.Join(dir, "precious"), noise(100))
				require.NoError(t, kind.make(filepath.Join(dir, "f"+suffix)))
				requireRefused(t, d, dir, "f"+suffix+" "+kind.text, false)
				if suffix == ".qs-part" && name != "for others" { // a journal beside it makes it no better
					writePrivate(t, filepath.Join(dir, "f.qs-part.journal"), newJournal(`{"source_size":300,"verified":50,"crc32c":1}`))
					requireRefused(t, d, dir, "f"+suffix+" "+kind.text, false)
				}
			}
		})
	}
}

// TestPartOfAnotherUser checks that another user of the machine who has prepared a part, or a
// journal, in a folder that both may write to, gets neither the data nor the file.
func TestPartOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can make files of another user")
	}
	const other = 1001
	for _, suffix := range []string{".qs-part", ".qs-part.journal"} {
		d, dir := newDisk(t)
		require.NoError(t, os.Chmod(dir, 0o777|os.ModeSticky))
		name := filepath.Join(dir, "f"+suffix)
		for _, mode := range []os.FileMode{0o666, 0o600} {
			require.NoError(t, os.WriteFile(name, nil, 0o600))
			require.NoError(t, os.Chown(name, other, other))
			require.NoError(t, os.Chmod(name, mode))
			requireRefused(t, d, dir, "f"+suffix+" belongs to another user", false)
			require.NoError(t, os.Remove(name))
		}
	}
}

// TestPartWithModeOfSource checks that a part that already has the mode of its source, and not its
// name, may be open elsewhere: it is not written to, and the transfer starts from the beginning.
func TestPartWithModeOfSource(t *testing.T) {
	d, dir := newDisk(t)
	data := noise(300)
	beginPart(t, d, data, false).close()
	name := filepath.Join(dir, "f.qs-part")
	require.NoError(t, os.Chmod(name, 0o644))
	elsewhere, err := os.Open(name)
	require.NoError(t, err)
	defer elsewhere.Close()

	p, err := d.openPart("f", stamp{Size: 300, Mode: 0o600}, partOptions{})
	require.NoError(t, err)
	left, err := p.verifyNext()
	require.NoError(t, err)
	require.Zero(t, left)
	require.Zero(t, p.sums.at)
	require.NoError(t, p.write(0, data))
	require.NoError(t, p.verify(checksum(data)))
	require.NoError(t, p.commit(checksum(data), nil, false))
	requireData(t, dir, data)
	info, err := elsewhere.Stat()
	require.NoError(t, err)
	require.EqualValues(t, 100, info.Size(), "the file that is open elsewhere is another one")
}
