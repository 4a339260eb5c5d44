package bulk

import (
	"context"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pieces"
)

// A Reader reads the memory of a handle sequentially. It reads ahead, keeping a window of chunks in
// flight while the caller processes the bytes that have arrived. Only one goroutine at a time may
// read. Any goroutine may call Close.
type Reader struct {
	window  window
	chunks  pieces.Reader
	current *streamChunk // chunk that chunks reads from; nil before the first Read
}

var (
	_ io.ReadCloser = (*Reader)(nil)
	_ io.WriterTo   = (*Reader)(nil)
)

// NewReader returns a Reader that reads from s. It moves no data before the first Read. The caller
// must close the Reader after use. Errors are those documented for Transfer.
func NewReader(ctx context.Context, hctx *hg.Context, s Stream) (*Reader, error) {
	r := &Reader{}
	if err := r.window.init(ctx, hctx, Pull, s); err != nil {
		return nil, err
	}
	r.chunks = pieces.Reader{Check: r.window.haltErr, Next: r.nextChunk}
	return r, nil
}

// Read reads bytes that have arrived, and blocks while there are none; see Stream.
func (r *Reader) Read(p []byte) (int, error) { return r.chunks.Read(p) }

// WriteTo writes all remaining bytes to to, directly from the receive buffers. It blocks; see
// Stream.
func (r *Reader) WriteTo(to io.Writer) (int64, error) { return r.chunks.WriteTo(to) }

// nextChunk reuses the current chunk, starts further chunks, and waits for the next chunk in order.
func (r *Reader) nextChunk() ([]byte, error) {
	if r.current != nil {
		r.window.releaseChunk(r.current)
		r.current = nil
	}
	if err := r.fillWindow(); err != nil {
		return nil, err
	}
	p, err := r.window.waitOldest()
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, io.EOF
	}
	r.current = p
	return p.buf[:p.n], r.fillWindow()
}

// fillWindow starts chunks until the window is full or all bytes have been requested from the peer.
func (r *Reader) fillWindow() error {
	for left := r.window.remaining(); left > 0; left = r.window.remaining() {
		p, err := r.window.acquireChunk()
		if p == nil || err != nil {
			return err
		}
		p.n = int(min(int64(len(p.buf)), left))
		r.window.startChunk(p)
	}
	return nil
}

// Close cancels the chunks in flight and releases the buffers. It does not block. A blocked Read,
// and any later one, returns an error that matches hg.ErrClosed.
func (r *Reader) Close() error {
	r.window.close()
	return nil
}
