package files

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
)

// TestDiskStaysInside checks that every operation refuses every path that leads out, after any
// other operations.
func TestDiskStaysInside(t *testing.T) {
	d, dir := newDisk(t)
	outside := t.TempDir()
	writeFile(t, filepath.Join(outside, "secret"), []byte("secret"))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "secret")))
	up, err := filepath.Rel(dir, outside)
	require.NoError(t, err)
	require.NoError(t, os.Symlink(up, filepath.Join(dir, "relative")))
	ctx := t.Context()
	for _, path := range []string{up + "/secret", "out/secret", "relative/secret", outside + "/secret", "a/../" + up + "/secret"} {
		_, err := d.stat(ctx, path)
		require.Error(t, err, "stat %s", path)
		_, err = d.openSource(path, false)
		require.Error(t, err, "read %s", path)
		_, err = d.openPart(path, stamp{Size: 1}, partOptions{Anew: true})
		require.Error(t, err, "write %s", path)
		require.Error(t, d.mkdir(ctx, filepath.Dir(path)+"/new", 0o777), "make %s", path)
		_, err = d.list(ctx, filepath.Dir(path), "")
		require.Error(t, err, "list %s", path)
	}
	_, err = d.openSource("secret", false)
	require.ErrorContains(t, err, "escapes")
	requireNames(t, outside, "secret")
}

func TestDiskListsInPages(t *testing.T) {
	t.Parallel()
	d, dir := newDisk(t)
	full, want := long.Or(1, 3), 0
	for ; want < full*listMax+1; want++ {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d", want)), nil, 0o600))
	}
	got := 0
	for after, pages := "", 0; ; pages++ {
		entries, err := d.list(t.Context(), ".", after)
		require.NoError(t, err)
		if len(entries) == 0 {
			require.Equal(t, full+1, pages)
			break
		}
		for _, e := range entries {
			require.Equal(t, fmt.Sprintf("%05d", got), e.Name)
			after = e.Name
			got++
		}
	}
	require.Equal(t, want, got)
}

// TestMkdirAtOnce checks that of two calls that make the same directory at once both succeed.
func TestMkdirAtOnce(t *testing.T) {
	d, _ := newDisk(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 500 {
				if err := d.mkdir(t.Context(), fmt.Sprintf("a/%d", i), 0o777); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}
