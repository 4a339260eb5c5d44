//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package files

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestPartHasOneWriter checks that while a transfer writes a part no other transfer gets it, by any
// path, and nothing is damaged.
func TestPartHasOneWriter(t *testing.T) {
	d, dir := newDisk(t)
	data := noise(300)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	require.NoError(t, os.Symlink("d", filepath.Join(dir, "link")))
	p, err := d.openPart("d/f", stamp{Size: 300, Mode: 0o600}, partOptions{})
	require.NoError(t, err)
	require.NoError(t, p.write(0, data[:200]))
	require.NoError(t, p.verify(checksum(data[:200])))
	for _, path := range []string{"d/f", "link/f"} {
		for _, anew := range []bool{false, true} {
			_, err := d.openPart(path, stamp{Size: 300, Mode: 0o600}, partOptions{Anew: anew})
			require.ErrorIs(t, err, na.ErrAgain)
			require.ErrorContains(t, err, path+" is being written by another copy")
		}
	}
	require.NoError(t, p.write(200, data[200:]))
	require.NoError(t, p.commit(checksum(data), nil, false))
	requireNames(t, filepath.Join(dir, "d"), "f")
	got, err := os.ReadFile(filepath.Join(dir, "d", "f"))
	require.NoError(t, err)
	require.Equal(t, data, got)

	p, err = d.openPart("link/f", stamp{Size: 1}, partOptions{Anew: true})
	require.NoError(t, err, "the part is free again")
	p.close()
}

// TestPartReplacedDuringOpen checks that a part that becomes the file, or is removed, while the next transfer
// opens it, is not used by that transfer.
func TestPartReplacedDuringOpen(t *testing.T) {
	d, dir := newDisk(t)
	var writers sync.WaitGroup
	var committed atomic.Int32
	for range 4 {
		writers.Go(func() {
			for n := 100; n < 200; n++ {
				data := noise(n)
				p, err := d.openPart("f", stamp{Size: int64(n), Mode: 0o600}, partOptions{Anew: true})
				if err != nil {
					if !errors.Is(err, na.ErrAgain) {
						t.Error(err)
					}
					continue
				}
				if n%3 > 0 && p.write(0, data) == nil {
					if err := p.commit(checksum(data), nil, false); err != nil {
						t.Error(err)
					}
					committed.Add(1)
				}
				p.close()
				if got, _ := os.ReadFile(filepath.Join(dir, "f")); len(got) > 0 && !bytes.Equal(got, noise(len(got))) || len(got) == 0 && committed.Load() > 0 {
					t.Errorf("a file of %d bytes that was not committed", len(got))
				}
			}
		})
	}
	writers.Wait()
	requireNames(t, dir, "f")
}

// TestPartRemovedWhileWritten checks that a transfer whose part and journal were removed fails, and
// leaves alone the part of a second transfer, which it would otherwise rename to the file half
// written.
func TestPartRemovedWhileWritten(t *testing.T) {
	for verified, name := range map[int]string{0: "nothing verified", 100: "part verified"} {
		t.Run(name, func(t *testing.T) {
			d, dir := newDisk(t)
			data := noise(300)
			first, err := d.openPart("f", stamp{Size: 300, Mode: 0o600}, partOptions{})
			require.NoError(t, err)
			require.NoError(t, first.write(0, data[:verified]))
			if verified > 0 {
				require.NoError(t, first.verify(checksum(data[:verified])))
			}
			require.NoError(t, os.Remove(filepath.Join(dir, "f.qs-part")))
			require.NoError(t, os.Remove(filepath.Join(dir, "f.qs-part.journal")))
			second, err := d.openPart("f", stamp{Size: 300, Mode: 0o600}, partOptions{})
			require.NoError(t, err)
			require.NoError(t, second.write(0, data[:200]))

			require.NoError(t, first.write(int64(verified), data[verified:]))
			require.ErrorContains(t, first.commit(checksum(data), nil, false), "f.qs-part was removed or replaced during the transfer")
			first.close()
			requireNames(t, dir, "f.qs-part", "f.qs-part.journal")
			require.NoError(t, second.write(200, data[200:]))
			require.NoError(t, second.commit(checksum(data), nil, false))
			requireData(t, dir, data)
		})
	}
}

// TestDropWaitsForTransfer checks that a transfer that is dropped by another caller is closed when drop
// returns: its part can be opened again.
func TestDropWaitsForTransfer(t *testing.T) {
	d, _ := newDisk(t)
	fs := &Server{disk: d, transfers: map[uint64]*transfer{}}
	tr := fs.newTransfer(na.Addr{}, "", "", "f")
	var err error
	tr.part, err = d.openPart("f", stamp{Size: 1}, partOptions{})
	require.NoError(t, err)
	require.NoError(t, fs.add(tr))
	tr.stop()
	<-tr.ended
	tr.filesMu.Lock() // its files are in use still
	time.AfterFunc(50*time.Millisecond, tr.filesMu.Unlock)
	var drops sync.WaitGroup
	for range 2 {
		drops.Go(func() {
			fs.drop(tr)
			if _, err := tr.part.journal.f.Stat(); err == nil {
				t.Error("the part is open still")
			}
		})
	}
	drops.Wait()
	require.Empty(t, fs.all())
}
