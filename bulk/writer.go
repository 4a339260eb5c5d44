package bulk

import (
	"context"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pieces"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Writer writes the memory of a handle from its beginning on. It writes behind: a window of
// chunks is in flight while the caller goes on, and an error is returned by a later Write, Flush or
// Close. One goroutine at a time uses it.
type Writer struct {
	window   window
	chunks   pieces.Writer
	current  *streamChunk // being filled, to cur.n
	closed   bool
	closeErr error // of Close
}

var (
	_ io.WriteCloser = (*Writer)(nil)
	_ io.ReaderFrom  = (*Writer)(nil)
)

// NewWriter returns a writer of s. The written bytes are complete only when Flush or Close has
// returned without error. To give up without waiting for the peer, cancel ctx. The error is one of
// those of Transfer.
func NewWriter(ctx context.Context, hctx *hg.Context, s Stream) (*Writer, error) {
	w := &Writer{}
	if err := w.window.init(ctx, hctx, Push, s); err != nil {
		return nil, err
	}
	w.chunks = pieces.Writer{Room: w.nextSpace, Add: w.commit, Full: w.overflowError}
	return w, nil
}

// Write copies p into chunks. It blocks while the window is full; see Stream. If p does not fit the
// rest of the handle, as much as fits is written and the error matches na.ErrOverflow.
func (w *Writer) Write(p []byte) (n int, err error) { return w.chunks.Write(p) }

// ReadFrom writes the bytes of from, up to its end. It reads them directly into the buffers of the
// transfers.
func (w *Writer) ReadFrom(from io.Reader) (int64, error) { return w.chunks.ReadFrom(from) }

// nextSpace returns the buffer for the next bytes; an empty one when the handle is full. It waits
// while the window is.
func (w *Writer) nextSpace() (_ []byte, err error) {
	if err := w.window.haltErr(); err != nil {
		return nil, err
	}
	if w.current == nil {
		if w.window.remaining() == 0 {
			return nil, nil
		}
		if w.current, err = w.window.acquireChunk(); err == nil && w.current == nil {
			w.current, err = w.window.waitOldest()
		}
		if err != nil {
			return nil, err
		}
		w.current.n = 0
	}
	end := min(int64(len(w.current.buf)), w.window.remaining())
	return w.current.buf[w.current.n:end], nil
}

// commit is called when the first n bytes of the buffer that nextSpace returned have been filled.
// It starts the chunk if that is full, or the handle is.
func (w *Writer) commit(n int) error {
	w.current.n += n
	if int64(w.current.n) < min(int64(len(w.current.buf)), w.window.remaining()) {
		return nil
	}
	return w.startCurrent()
}

// startCurrent starts the transfer of the current chunk.
func (w *Writer) startCurrent() error {
	w.window.startChunk(w.current)
	w.current = nil
	return w.window.haltErr()
}

// overflowError returns the error of a write beyond the end of the handle.
func (w *Writer) overflowError() error {
	return fmt.Errorf("bulk: push: %w",
		na.WithText(na.ErrOverflow, fmt.Sprintf("write exceeds the %d bytes of the window", w.window.Size)))
}

// Flush blocks until all written bytes have arrived in the memory of the handle; see Stream.
func (w *Writer) Flush() error {
	if err := w.window.haltErr(); err != nil {
		return err
	}
	if w.current != nil && w.current.n > 0 {
		if err := w.startCurrent(); err != nil {
			return err
		}
	}
	for {
		p, err := w.window.waitOldest()
		if p == nil || err != nil {
			return err
		}
		w.window.releaseChunk(p)
	}
}

// Close is Flush, and releases the buffers. A second Close returns the result of the first.
func (w *Writer) Close() error {
	if !w.closed {
		w.closed = true
		w.closeErr = w.Flush()
		w.window.close()
	}
	return w.closeErr
}
