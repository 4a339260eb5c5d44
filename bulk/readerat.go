package bulk

import (
	"context"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A ReaderAt reads the memory of a handle here and there, straight into what the caller gives. Any number of goroutines
// may use one.
type ReaderAt struct{ f flow }

var _ io.ReaderAt = (*ReaderAt)(nil)

// NewReaderAt returns a reader of s. Nothing is moved yet. The error is one of those of Transfer.
func NewReaderAt(ctx context.Context, hctx *hg.Context, s Stream) (*ReaderAt, error) {
	f, err := newFlow(ctx, hctx, Pull, s)
	if err != nil {
		return nil, err
	}
	return &ReaderAt{f}, nil
}

// Size returns the number of bytes that there are to read.
func (r *ReaderAt) Size() int64 { return r.f.Size }

// ReadAt pulls len(p) bytes from off on into p, or as many as there are, with io.EOF. After any other error nothing is
// known of what p holds, but nobody writes into it any more.
func (r *ReaderAt) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("bulk: pull: %w", na.WithText(hg.ErrInvalid, fmt.Sprintf("the offset is %d", off)))
	}
	var end error
	if left := max(r.f.Size-off, 0); int64(len(p)) > left {
		p, end = p[:left], io.EOF
	}
	if len(p) == 0 {
		return 0, end
	}
	if err := r.readAt(p, off); err != nil {
		return 0, r.f.error(0, err)
	}
	return len(p), end
}

func (r *ReaderAt) readAt(p []byte, off int64) error {
	if r.f.ctx.Err() != nil {
		return hg.ErrCanceled
	}
	x, err := r.f.newPiece(p)
	if err != nil {
		return err
	}
	x.n = len(p)
	if err := r.f.start(x, off); err != nil {
		return err
	}
	if err := r.f.wait(r.f.ctx, x.done.Load); err != nil {
		if x.op != nil {
			x.op.Cancel()
		}
		if err := r.f.wait(context.Background(), x.done.Load); err != nil {
			return err
		}
	}
	return x.err
}
