package bulk

import (
	"context"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pieces"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Writer writes to the memory of a handle sequentially, from its beginning. Writes are buffered
// and complete in the background, with a window of chunks in flight. A write error is therefore
// reported by a later call to Write, Flush or Close. A Writer is not safe for concurrent use.
type Writer struct {
	window   window
	chunks   pieces.Writer
	current  *streamChunk // chunk being filled; its first n bytes are in use
	closed   bool
	closeErr error // result of the first Close
}

var (
	_ io.WriteCloser = (*Writer)(nil)
	_ io.ReaderFrom  = (*Writer)(nil)
)

// NewWriter returns a Writer that writes to s. The data is known to be written only once Flush or
// Close has returned without error. To give up without waiting for the peer, cancel ctx. Errors are
// those documented for Transfer.
func NewWriter(ctx context.Context, hctx *hg.Context, s Stream) (*Writer, error) {
	w := &Writer{}
	if err := w.window.init(ctx, hctx, Push, s); err != nil {
		return nil, err
	}
	w.chunks = pieces.Writer{Room: w.nextSpace, Add: w.commit, Full: w.overflowError}
	return w, nil
}

// Write copies p into chunks. It blocks while the window is full; see Stream. If p is larger than
// the space that remains in the handle, Write writes as much as fits and returns an error that
// matches na.ErrOverflow.
func (w *Writer) Write(p []byte) (n int, err error) { return w.chunks.Write(p) }

// ReadFrom writes all bytes read from from until EOF. It reads them directly into the transfer
// buffers.
func (w *Writer) ReadFrom(from io.Reader) (int64, error) { return w.chunks.ReadFrom(from) }

// nextSpace returns a buffer for the bytes to be written next. It is empty if the handle is full.
// nextSpace blocks while the window is full.
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

// commit records that the first n bytes of the buffer returned by nextSpace have been filled. If
// this fills the chunk or reaches the end of the handle, commit starts the chunk's transfer.
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

// overflowError returns the error for a write beyond the end of the handle.
func (w *Writer) overflowError() error {
	return fmt.Errorf("bulk: push: %w",
		na.WithText(na.ErrOverflow, fmt.Sprintf("write exceeds the %d bytes that the peer has lent", w.window.Size)))
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

// Close flushes the Writer and releases its buffers. A second Close returns the result of the
// first.
func (w *Writer) Close() error {
	if !w.closed {
		w.closed = true
		w.closeErr = w.Flush()
		w.window.close()
	}
	return w.closeErr
}
