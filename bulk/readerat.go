package bulk

import (
	"context"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ReaderAt reads the memory of a handle at any offset, directly into the caller's buffer. It is
// safe for concurrent use.
type ReaderAt struct{ flow flow }

var _ io.ReaderAt = (*ReaderAt)(nil)

// NewReaderAt returns a ReaderAt that reads from s. It does not move any data. Errors are those
// documented for Transfer.
func NewReaderAt(ctx context.Context, hctx *hg.Context, s Stream) (*ReaderAt, error) {
	f, err := newFlow(ctx, hctx, Pull, s)
	if err != nil {
		return nil, err
	}
	return &ReaderAt{f}, nil
}

// Size returns the number of bytes that can be read.
func (r *ReaderAt) Size() int64 { return r.flow.Size }

// ReadAt pulls len(p) bytes at offset off into p. If fewer bytes are available, it pulls those and
// returns io.EOF. ReadAt blocks; see Stream. After any other error the contents of p are undefined,
// but p is not written to after ReadAt returns.
func (r *ReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("bulk: pull: %w", na.WithText(hg.ErrInvalid, fmt.Sprintf("negative offset %d", off)))
	}
	var end error
	if left := max(r.flow.Size-off, 0); int64(len(p)) > left {
		p, end = p[:left], io.EOF
	}
	if len(p) == 0 {
		return 0, end
	}
	if err := r.pull(p, off); err != nil {
		return 0, r.flow.wrapError(0, err)
	}
	return len(p), end
}

// pull moves len(p) bytes at offset off into p. It uses a single transfer and waits for it to
// complete.
func (r *ReaderAt) pull(p []byte, off int64) error {
	if r.flow.ctx.Err() != nil {
		return hg.ErrCanceled
	}
	x, err := r.flow.newChunk(p)
	if err != nil {
		return err
	}
	x.n = len(p)
	if err := r.flow.startTransfer(x, off); err != nil {
		return err
	}
	if err := r.flow.waitUntil(r.flow.ctx, x.done.Load); err != nil {
		if x.op != nil {
			x.op.Cancel()
		}
		if err := r.flow.waitUntil(context.Background(), x.done.Load); err != nil {
			return err
		}
	}
	return x.err
}
