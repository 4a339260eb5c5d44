package bulk

import (
	"context"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pieces"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Writer writes the memory of a handle from its beginning on. It writes behind: a window of pieces is under way while
// the caller goes on, and an error is told by a later Write, Flush or Close. One goroutine at a time uses it.
type Writer struct {
	w      window
	out    pieces.Writer
	cur    *piece // being filled, to cur.n
	closed bool
	err    error // of Close
}

var (
	_ io.WriteCloser = (*Writer)(nil)
	_ io.ReaderFrom  = (*Writer)(nil)
)

// NewWriter returns a writer of s. What was written is complete only when Flush or Close has returned without error; to
// give up without waiting for the peer end ctx. The error is one of those of Transfer.
func NewWriter(ctx context.Context, hctx *hg.Context, s Stream) (*Writer, error) {
	w := &Writer{}
	if err := w.w.init(ctx, hctx, Push, s); err != nil {
		return nil, err
	}
	w.out = pieces.Writer{Room: w.room, Add: w.add, Full: w.full}
	return w, nil
}

// Write copies p, and waits when the window is full. The error matches na.ErrOverflow when p does not fit the handle; as
// much as does is written.
func (w *Writer) Write(p []byte) (n int, err error) { return w.out.Write(p) }

// ReadFrom writes what from gives up to its end, read straight into the buffers that it leaves from.
func (w *Writer) ReadFrom(from io.Reader) (int64, error) { return w.out.ReadFrom(from) }

// room returns where the next bytes go; nothing when the handle is full.
func (w *Writer) room() (_ []byte, err error) {
	if err := w.w.failed(); err != nil {
		return nil, err
	}
	if w.cur == nil {
		if w.w.unlaunched() == 0 {
			return nil, nil
		}
		if w.cur, err = w.w.freePiece(); err == nil && w.cur == nil {
			w.cur, err = w.w.oldest()
		}
		if err != nil {
			return nil, err
		}
		w.cur.n = 0
	}
	end := min(int64(len(w.cur.buf)), w.w.unlaunched())
	return w.cur.buf[w.cur.n:end], nil
}

// add is called when n bytes of what room gave have been filled.
func (w *Writer) add(n int) error {
	w.cur.n += n
	if int64(w.cur.n) < min(int64(len(w.cur.buf)), w.w.unlaunched()) {
		return nil
	}
	return w.launch()
}

func (w *Writer) launch() error {
	w.w.launch(w.cur)
	w.cur = nil
	return w.w.failed()
}

func (w *Writer) full() error {
	return fmt.Errorf("bulk: push: %w", na.WithText(na.ErrOverflow, fmt.Sprintf("more than the %d bytes that fit", w.w.Size)))
}

// Flush waits until everything that was written has arrived.
func (w *Writer) Flush() error {
	if err := w.w.failed(); err != nil {
		return err
	}
	if w.cur != nil && w.cur.n > 0 {
		if err := w.launch(); err != nil {
			return err
		}
	}
	for {
		p, err := w.w.oldest()
		if p == nil || err != nil {
			return err
		}
		w.w.keep(p)
	}
}

// Close is Flush, and gives the buffers back. A second one returns what the first did.
func (w *Writer) Close() error {
	if !w.closed {
		w.closed = true
		w.err = w.Flush()
		w.w.close()
	}
	return w.err
}
