package bulk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/errtext"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// An Error describes a failed transfer, or a failed operation of a Reader, ReaderAt or Writer.
type Error struct {
	Dir   Dir
	Peer  na.Addr       // owner of the remote memory; zero for local memory
	Took  time.Duration // time from start to completion; 0 if the transfer was not started
	Moved int64         // bytes in completed chunks; the rest of the destination is undefined
	Size  int64         // number of bytes requested
	Err   error         // underlying cause
}

// Error returns a description such as "bulk: pull from tcp://10.0.0.7:9000: operation canceled
// (moved 3145728 of 16777216 bytes in 2.03s)".
func (e *Error) Error() string {
	prep := "from"
	if e.Dir == Push {
		prep = "to"
	}
	peer := e.Peer.Label()
	if e.Peer.IsZero() { // an adapter of a local handle
		peer = "local memory"
	}
	cause := e.Err
	if op, ok := cause.(*na.OpError); ok {
		cause = op.Err
	}
	moved := fmt.Sprintf("moved %d of %d bytes", e.Moved, e.Size)
	if e.Took > 0 {
		moved += " in " + errtext.Round(e.Took).String()
	}
	return fmt.Sprintf("bulk: %v %s %s: %s%s", e.Dir, prep, peer, errtext.Cause(cause), errtext.Suffix(moved))
}

// Unwrap returns the underlying cause.
func (e *Error) Unwrap() error { return e.Err }

// Timeout reports whether the underlying cause is a timeout.
func (e *Error) Timeout() bool { return errors.Is(e.Err, os.ErrDeadlineExceeded) }

// contextError returns err with the cause of ctx added, if err is a cancellation and ctx is done.
// If the deadline of ctx has passed, the result matches hg.ErrTimeout instead of hg.ErrCanceled.
func contextError(ctx context.Context, err error) error {
	switch {
	case ctx.Err() == nil || na.CodeOf(err) != hg.ErrCanceled:
		return err
	case ctx.Err() == context.DeadlineExceeded:
		return fmt.Errorf("%w: %w", hg.ErrTimeout, context.Cause(ctx))
	}
	return fmt.Errorf("%w: %w", hg.ErrCanceled, context.Cause(ctx))
}
