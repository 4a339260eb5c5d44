package bulk

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// copyAt copies len(p) bytes at offset off of mem to p if dir is Pull, and from p if dir is Push.
// The caller must have acquired mem.
func copyAt(dir Dir, mem *na.Mem, off int64, p []byte) error {
	var room [8][]byte
	all := mem.Slices(room[:0], off, int64(len(p)))
	var ok bool
	if dir == Push {
		_, ok = memfault.Scatter(all, p)
	} else {
		_, ok = memfault.Gather(p, all)
	}
	if !ok {
		return na.WithText(na.ErrFault, fmt.Sprintf(
			"memory fault in local memory at or after byte %d", off))
	}
	return nil
}

// copyLocal is like copyAt, for the memory of h, which must be a local handle. It fails with
// hg.ErrClosed if h is closed.
func (h *Handle) copyLocal(dir Dir, off int64, p []byte) error {
	mem := h.mem()
	if !mem.Acquire() {
		return na.WithText(hg.ErrClosed, "the handle is closed")
	}
	defer mem.Release()
	return copyAt(dir, mem, off, p)
}
