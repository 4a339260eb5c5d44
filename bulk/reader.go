package bulk

import (
	"context"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A Reader reads the memory of a handle from its beginning to its end. It reads ahead: a window of pieces is under way
// while the caller deals with what has come. One goroutine at a time reads; Close may be called by any.
type Reader struct {
	w    window
	cur  *piece // whose end is rest
	rest []byte // arrived and not read
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
	return r, nil
}

// Read reads what has arrived, and waits if nothing has.
func (r *Reader) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	if err := r.fetch(); err != nil {
		return 0, err
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// WriteTo writes everything that was not read to to, from the buffers that it arrives in.
func (r *Reader) WriteTo(to io.Writer) (total int64, err error) {
	for {
		if err := r.fetch(); err == io.EOF {
			return total, nil
		} else if err != nil {
			return total, err
		}
		n, err := to.Write(r.rest)
		if err == nil && n < len(r.rest) {
			err = io.ErrShortWrite
		}
		r.rest = r.rest[n:]
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

// fetch waits until there is something in rest.
func (r *Reader) fetch() error {
	if err := r.w.failed(); err != nil {
		return err
	}
	if len(r.rest) > 0 {
		return nil
	}
	if r.cur != nil {
		r.w.keep(r.cur)
		r.cur = nil
	}
	if err := r.ahead(); err != nil {
		return err
	}
	p, err := r.w.oldest()
	if err != nil {
		return err
	}
	if p == nil {
		return io.EOF
	}
	r.cur, r.rest = p, p.buf[:p.n]
	return r.ahead()
}

// ahead fills the window.
func (r *Reader) ahead() error {
	for left := r.w.left(); left > 0; left = r.w.left() {
		p, err := r.w.take()
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
