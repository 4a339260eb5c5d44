package bulk

import (
	"context"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Writer writes the memory of a handle from its beginning on. It writes behind: a window of pieces is under way while
// the caller goes on, and an error is told by a later Write, Flush or Close. One goroutine at a time uses it.
type Writer struct {
	w      window
	cur    *piece // being filled, to cur.n
	closed bool
	err    error // of Close
}

var (
	_ io.WriteCloser = (*Writer)(nil)
	_ io.ReaderFrom  = (*Writer)(nil)
)

// maxEmptyReads is how often in a row a Read may give nothing and no error.
const maxEmptyReads = 100

// NewWriter returns a writer of s. What was written is complete only when Flush or Close has returned without error; to
// give up without waiting for the peer end ctx. The error is one of those of Transfer.
func NewWriter(ctx context.Context, hctx *hg.Context, s Stream) (*Writer, error) {
	w := &Writer{}
	if err := w.w.init(ctx, hctx, Push, s); err != nil {
		return nil, err
	}
	return w, nil
}

// Write copies p, and waits when the window is full. The error matches na.ErrOverflow when p does not fit the handle; as
// much as does is written.
func (w *Writer) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		room, err := w.room()
		if err != nil {
			return n, err
		}
		if len(room) == 0 {
			return n, w.full()
		}
		k := copy(room, p)
		if err := w.add(k); err != nil {
			return n, err
		}
		p = p[k:]
		n += k
	}
	return n, nil
}

// ReadFrom writes what from gives up to its end, read straight into the buffers that it leaves from.
func (w *Writer) ReadFrom(from io.Reader) (total int64, err error) {
	for empty := 0; empty < maxEmptyReads; empty++ {
		room, err := w.room()
		if err != nil {
			return total, err
		}
		full := len(room) == 0
		if full {
			room = make([]byte, 1) // is that the end, too?
		}
		n, err := from.Read(room)
		if n > 0 && full {
			return total, w.full()
		}
		if n > 0 {
			empty = 0
			if err := w.add(n); err != nil {
				return total, err
			}
			total += int64(n)
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
	return total, io.ErrNoProgress
}

// room returns where the next bytes go; nothing when the handle is full.
func (w *Writer) room() (_ []byte, err error) {
	if err := w.w.failed(); err != nil {
		return nil, err
	}
	if w.cur == nil {
		if w.w.left() == 0 {
			return nil, nil
		}
		if w.cur, err = w.w.take(); err == nil && w.cur == nil {
			w.cur, err = w.w.oldest()
		}
		if err != nil {
			return nil, err
		}
		w.cur.n = 0
	}
	end := min(int64(len(w.cur.buf)), w.w.left())
	return w.cur.buf[w.cur.n:end], nil
}

// add hears that n bytes of what room gave were filled.
func (w *Writer) add(n int) error {
	w.cur.n += n
	if int64(w.cur.n) < min(int64(len(w.cur.buf)), w.w.left()) {
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
