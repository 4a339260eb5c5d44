package bulk

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Alloc returns n bytes of memory that peers on this machine can map. A pull over shared memory
// then makes one copy, in the peer, and a View makes none.
//
// Peers that run as the same user map the memory for handles that have one segment, no
// Options.Peer, and an Access that includes ReadOnly. For other handles, and on systems without
// support for it, the memory behaves like any other.
//
//   - The contents are undefined. The memory is not garbage collected and must be released with Free.
//   - The pages are allocated before Alloc returns, so Alloc may block on the operating system.
//   - Errors match na.ErrNoMemory if the system is out of memory, and na.ErrInvalid if n is negative.
//
// Security: a process of the same user that has received a handle can read all memory that this
// process obtained from Alloc, even after the handle was closed. A process running unmodified
// Quicksilver code does not do so after Close. Peers can never write to the memory.
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

// Free releases b, which must be a whole slice returned by Alloc. Before calling Free, the caller
// must wait until the Close of every handle to b has completed and no transfer uses b. Free panics
// if peers may still read b, if b was not returned by Alloc, or if b has already been freed.
func Free(b []byte) { pool.Free(b) }
