package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// dropRootAccess lets this goroutine be refused what modes of files refuse, also when root runs the test.
func dropRootAccess(t *testing.T) {
	t.Helper()
	runtime.LockOSThread() // and the thread ends with the goroutine
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &caps[0]))
	caps[0].Effective &^= 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_DAC_READ_SEARCH
	require.NoError(t, unix.Capset(&header, &caps[0]))
}

// TestPartWithoutWriteMode checks that a part that got the mode of its source, and not its name, is
// resumed.
func TestPartWithoutWriteMode(t *testing.T) {
	d, dir := newDisk(t)
	dropRootAccess(t)
	data := noise(300)
	st := stamp{Size: 300, Mode: 0o400}
	p, err := d.openPart("f", st, partOptions{})
	require.NoError(t, err)
	require.NoError(t, p.write(0, data[:100]))
	require.NoError(t, p.verify(checksum(data[:100])))
	p.close()
	require.NoError(t, os.Chmod(filepath.Join(dir, "f.qs-part"), 0o400))

	p, err = d.openPart("f", st, partOptions{})
	require.NoError(t, err)
	_, err = p.verifyNext()
	require.NoError(t, err)
	require.EqualValues(t, 100, p.sums.at)
	require.NoError(t, p.write(100, data[100:]))
	require.NoError(t, p.commit(checksum(data), nil, false))
	requireNames(t, dir, "f")
	requireMode(t, filepath.Join(dir, "f"), 0o400)
}

// TestPartWithoutRoom checks that a file that cannot fit is refused before anything is sent, with
// both sizes, and leaves nothing behind.
func TestPartWithoutRoom(t *testing.T) {
	d, dir := newDisk(t)
	_, err := d.openPart("f", stamp{Size: 1<<60 + 1}, partOptions{})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.Regexp(t, `^reserve .*f\.qs-part: need 1099511627777 MiB, \d+ MiB are free: no space left on device$`, err.Error())
	requireNames(t, dir)
}

// TestPartReserves checks that space is reserved ahead of the written end of a long file, and no
// more than one step of it.
func TestPartReserves(t *testing.T) {
	d, dir := newDisk(t)
	p, err := d.openPart("f", stamp{Size: 3 * reserveStep}, partOptions{})
	require.NoError(t, err)
	defer p.close()
	probe, err := os.Create(filepath.Join(dir, "probe"))
	require.NoError(t, err)
	defer probe.Close()
	able := unix.Fallocate(int(probe.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, chunkSize) == nil
	has := func(want int64) {
		t.Helper()
		require.Equal(t, want, p.room)
		if !able { // then it was requested, without effect
			return
		}
		var st unix.Stat_t
		require.NoError(t, unix.Stat(filepath.Join(dir, "f.qs-part"), &st))
		require.GreaterOrEqual(t, st.Blocks*512, want)
		require.Less(t, st.Blocks*512, want+chunkSize)
	}
	has(0)
	require.NoError(t, p.write(0, make([]byte, chunkSize)))
	has(reserveStep)
	require.NoError(t, p.write(chunkSize, make([]byte, reserveStep)))
	has(2 * reserveStep)
}

func requireMode(t *testing.T, name string, want os.FileMode) {
	t.Helper()
	info, err := os.Stat(name)
	require.NoError(t, err)
	require.Equal(t, want, info.Mode().Perm())
}

// TestSourcesOfTheSystem checks that a file with a size that differs from what can be read is not
// sent as if it were complete.
func TestSourcesOfTheSystem(t *testing.T) {
	d, err := openDisk("/")
	require.NoError(t, err)
	defer d.close()
	for _, name := range []string{"proc/cpuinfo", "sys/kernel/mm/transparent_hugepage/enabled"} {
		src, err := d.openSource(name, false)
		if errors.Is(err, os.ErrNotExist) {
			t.Logf("%s is not here", name)
			continue
		}
		require.NoError(t, err)
		_, _, err = src.read(&buffer{mem: make([]byte, 8192)}, src.stamp.Size)
		if err == nil {
			err = src.verify()
		}
		src.close()
		require.ErrorContains(t, err, fmt.Sprintf("%s: the file size is %d bytes, but reading it returns a different number", name, src.stamp.Size))
		require.ErrorIs(t, err, na.ErrInvalid)
	}
}
