package files

import (
	"bytes"
	"io"
)

// holeSize is the size and alignment of the blocks that writeSparse skips, in bytes.
const holeSize = 4 << 10

var zeros [holeSize]byte

// writeSparse writes b to f at offset at, where the file must contain only zeros. It skips each block of holeSize bytes
// that contains only zeros, which leaves a hole.
func writeSparse(f io.WriterAt, b []byte, at int64) error {
	unit := func(from int) int { return min(holeSize-int((at+int64(from))%holeSize), len(b)-from) }
	isHole := func(from int) bool { return bytes.Equal(b[from:from+unit(from)], zeros[:unit(from)]) }
	for from := 0; from < len(b); {
		to := from
		for to < len(b) && !isHole(to) {
			to += unit(to)
		}
		if to > from {
			if _, err := f.WriteAt(b[from:to], at+int64(from)); err != nil {
				return err
			}
		}
		for to < len(b) && isHole(to) {
			to += unit(to)
		}
		from = to
	}
	return nil
}
