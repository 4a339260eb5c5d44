package bulk

import (
	"context"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ReaderAt reads the memory of a handle at any offset, directly into the buffer of the caller.
// Several goroutines may use one at the same time.
type ReaderAt struct{ flow flow }

var _ io.ReaderAt = (*ReaderAt)(nil)

// NewReaderAt returns a reader of s. Nothing is moved yet. The error is one of those of Transfer.
func NewReaderAt(ctx context.Context, hctx *hg.Context, s Stream) (*ReaderAt, error) {
	f, err := newFlow(ctx, hctx, Pull, s)
	if err != nil {
		return nil, err
	}
	return &ReaderAt{f}, nil
}

// Size returns the number of bytes that can be read.
func (r *ReaderAt) Size() int64 { return r.flow.Size }

// ReadAt pulls len(p) bytes at offset off into p, or as many as there are, with io.EOF. It blocks;
// see Stream. After any other error the contents of p are undefined, but p is not written to any
// more.
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

// pull moves len(p) bytes at offset off into p with one transfer, and waits for its end.
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
