package bulk

import (
	"errors"
	"fmt"
	"os"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// An Error ends a transfer: in which direction, with whom, how far it came, and why.
type Error struct {
	Dir   Dir
	Peer  na.Addr
	Moved int64 // bytes in whole pieces
	Size  int64
	Err   error
}

// Error returns for example "bulk: pull from tcp://10.0.0.7:9000: operation canceled after 3145728 of 16777216 bytes".
func (e *Error) Error() string {
	prep := "from"
	if e.Dir == Push {
		prep = "to"
	}
	peer := e.Peer.String()
	if e.Peer.IsZero() { // an adaptor of local memory
		peer = "local memory"
	}
	cause := e.Err
	if op, ok := cause.(*na.OpError); ok {
		cause = op.Err
	}
	return fmt.Sprintf("bulk: %v %s %s: %v after %d of %d bytes", e.Dir, prep, peer, cause, e.Moved, e.Size)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout tells whether the cause is a timeout.
func (e *Error) Timeout() bool { return errors.Is(e.Err, os.ErrDeadlineExceeded) }
