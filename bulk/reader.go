package bulk

import (
	"context"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pieces"
)

// A Reader reads the memory of a handle from its beginning to its end. It reads ahead: a window of pieces is under way
// while the caller deals with what has come. One goroutine at a time reads; Close may be called by any.
type Reader struct {
	w   window
	in  pieces.Reader
	cur *piece // that in reads
}

var (
	_ io.ReadCloser = (*Reader)(nil)
	_ io.WriterTo   = (*Reader)(nil)
)

// NewReader returns a reader of s, which is to be closed. Nothing is moved before the first Read. The error is one of
// those of Transfer.
func NewReader(ctx context.Context, hctx *hg.Context, s Stream) (*Reader, error) {
	r := &Reader{}
	if err := r.w.init(ctx, hctx, Pull, s); err != nil {
		return nil, err
	}
	r.in = pieces.Reader{Check: r.w.failed, Next: r.next}
	return r, nil
}

// Read reads what has arrived, and waits if nothing has.
func (r *Reader) Read(p []byte) (int, error) { return r.in.Read(p) }

// WriteTo writes everything that was not read to to, from the buffers that it arrives in.
func (r *Reader) WriteTo(to io.Writer) (int64, error) { return r.in.WriteTo(to) }

// next waits for the next piece.
func (r *Reader) next() ([]byte, error) {
	if r.cur != nil {
		r.w.keep(r.cur)
		r.cur = nil
	}
	if err := r.ahead(); err != nil {
		return nil, err
	}
	p, err := r.w.oldest()
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, io.EOF
	}
	r.cur = p
	return p.buf[:p.n], r.ahead()
}

// ahead fills the window.
func (r *Reader) ahead() error {
	for left := r.w.unlaunched(); left > 0; left = r.w.unlaunched() {
		p, err := r.w.freePiece()
		if p == nil || err != nil {
			return err
		}
		p.n = int(min(int64(len(p.buf)), left))
		r.w.launch(p)
	}
	return nil
}

// Close cancels what is under way, gives the buffers back and waits for nothing. A Read that waits returns with an
// error that matches hg.ErrClosed, like every later one.
func (r *Reader) Close() error {
	r.w.close()
	return nil
}
