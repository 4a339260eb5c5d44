package files

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// newSource opens a file of size bytes for transfers of a context, and a buffer for it.
func newSource(t *testing.T, size int) (src *source, buf *buffer, name string, data []byte) {
	t.Helper()
	d, dir := newDisk(t)
	data, name = noise(size), filepath.Join(dir, "f")
	writeFile(t, name, data)
	class, err := hg.Open("tcp://", hg.Config{})
	require.NoError(t, err)
	hctx, err := class.NewContext()
	require.NoError(t, err)
	src, err = d.openSource("f", true)
	require.NoError(t, err)
	src.shareFile(hctx, bulk.ReadOnly)
	buf, err = newBuffer(hctx, bulk.ReadOnly, testPiece)
	require.NoError(t, err)
	t.Cleanup(func() {
		src.close()
		buf.close()
		require.NoError(t, class.Shutdown(context.Background()))
	})
	return src, buf, name, data
}

// TestSourceRead checks that transfers send the bytes that the checksums are of, from the file
// itself if it is large.
func TestSourceRead(t *testing.T) {
	for _, size := range []int{1, 3*testPiece + 1, mapFrom - 1, mapFrom, mapFrom + testPiece + 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			src, buf, name, data := newSource(t, size)
			want := newSums(true)
			for want.at < int64(size) {
				n := min(testPiece, int64(size)-want.at)
				want.add(data[want.at : want.at+n])
				mem, at, err := src.read(buf, n)
				require.NoError(t, err)
				require.Equal(t, data[want.at-n:want.at], mem.Segments()[0][at:at+n])
				require.Equal(t, want.crc, src.sums.crc)
				require.Equal(t, size < mapFrom, mem == buf.h, "a file of %d bytes", size)
			}
			require.Equal(t, checksum(data), src.sums.crc)
			require.Equal(t, want.String(), src.sums.String())
			require.NoError(t, src.verify())
			require.NoError(t, os.Remove(name), "an open file is no hindrance")
		})
	}
}

// TestSourceTruncated checks that a file that becomes shorter while it is open is reported as an
// error that states it, mapped or not.
func TestSourceTruncated(t *testing.T) {
	for _, size := range []int{2 * testPiece, mapFrom} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			src, buf, name, _ := newSource(t, size)
			_, _, err := src.read(buf, testPiece)
			require.NoError(t, err)
			lost, damaged := na.WithText(na.ErrFault, "of a transfer"), na.WithText(na.ErrChecksum, "at the peer")
			require.ErrorIs(t, src.failureReason(lost), na.ErrFault, "the file is what it was")
			require.NoError(t, os.Truncate(name, testPiece))
			_, _, err = src.read(buf, testPiece)
			for _, err := range []error{err, src.failureReason(lost), src.failureReason(damaged)} {
				require.ErrorIs(t, err, na.ErrIO)
				require.ErrorContains(t, err, "f was modified during the copy")
			}
			other := errors.New("another")
			require.Equal(t, other, src.failureReason(other))
			require.NoError(t, src.failureReason(nil))
		})
	}
}

// TestStampOfFarTimes checks that a time that is too far for a stamp is the nearest one that is
// not, so that the copy has the same stamp.
func TestStampOfFarTimes(t *testing.T) {
	for then, want := range map[time.Time]int64{
		time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC): math.MaxInt64,
		time.Date(1650, 1, 1, 0, 0, 0, 0, time.UTC): math.MinInt64,
		time.Unix(0, math.MaxInt64):                 math.MaxInt64,
		time.Unix(0, math.MinInt64):                 math.MinInt64,
		time.Unix(7, 8):                             7e9 + 8,
	} {
		require.Equal(t, want, nanosOf(then), "%v", then)
		require.Equal(t, want, nanosOf(stamp{ModTime: want}.modTime()))
	}
}
