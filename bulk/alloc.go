package bulk

import (
	"fmt"

	"github.com/quicksilver-rpc/quicksilver/internal/pool"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Alloc returns n bytes that peers on this machine can map, so that lending them copies nothing: a pull over shared memory is one copy,
// made by the peer, and a View none. That is for handles of one segment without Options.Peer, whose Access has ReadOnly in it, and peers
// of the same user; for everything else, and where there is no such memory, they are bytes as others are. Their contents are undefined.
// They are not garbage collected: give them back with Free.
//
// The system has given us the memory when Alloc returns. If it cannot, the error matches na.ErrNoMemory; if n is negative, na.ErrInvalid.
//
// A process of the same user that has a handle can read all that this process has allocated so, for as long as it likes: Close is kept
// by Quicksilver at the other end. It cannot write.
func Alloc(n int) ([]byte, error) {
	if n < 0 {
		return nil, fmt.Errorf("bulk: alloc: a length of %d bytes: %w", n, na.ErrInvalid)
	}
	b, err := pool.Alloc(n)
	if err != nil {
		return nil, fmt.Errorf("bulk: alloc: %w", na.WithText(na.ErrNoMemory, err.Error()))
	}
	return b, nil
}

// Free gives back what Alloc has returned, all of it, when no handle or transfer uses it any more: the Close of a handle has completed.
// It panics if peers may still read it, and for memory that is not from Alloc, or was given back before.
func Free(b []byte) { pool.Free(b) }
