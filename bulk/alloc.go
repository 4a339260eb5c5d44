package bulk

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Alloc returns n bytes of memory that peers on this machine can map: a pull over shared memory
// then makes one copy, in the peer, and a View makes none.
//
// Peers map it for handles that have one segment, no Options.Peer, and an Access that includes
// ReadOnly, if they run as the same user. For other handles, and on systems without such memory,
// the bytes are ordinary memory.
//
//   - The contents are undefined. The memory is not garbage collected: release it with Free.
//   - The pages are allocated when Alloc returns, which may block on the operating system.
//   - The error matches na.ErrNoMemory if the system has no memory left, and na.ErrInvalid if n is
//     negative.
//
// Security: a process of the same user that has received a handle can read all memory that this
// process allocated with Alloc, also after the handle was closed, unless it runs unmodified
// Quicksilver code, which stops at Close. It can never write.
func Alloc(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("bulk: alloc: length is %d, want 0 or more: %w", n, na.ErrInvalid)
	}
	b, err := pool.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("bulk: alloc: %w", na.WithText(na.ErrNoMemory, err.Error()))
	}
	return b, nil
}

// Free releases b, which is a whole slice that Alloc returned. No handle and no transfer may use it
// any more: call Free after the Close of the handle has completed. It panics if peers may still
// read b, if b is not from Alloc, and if it was freed before.
func Free(b []byte) { pool.Free(b) }
