package raftqs

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

const (
	// frameHeaderLen is the size of a frame header in bytes. The header holds the length of the
	// body.
	frameHeaderLen = 4
	// maxFrameBody limits the body of a frame, in bytes. It equals the default of
	// qs.Config.MaxInput, which limits requests outside pipelines.
	maxFrameBody = 64 << 20
	// maxRetainedBuffer limits the size of the buffer that a frameWriter reuses for its next frame,
	// in bytes.
	maxRetainedBuffer = 512 << 10
)

var errBadFrame = qs.Errorf(qs.ErrBadInput, "%w", errFormat)

// A frameWriter writes messages to a stream. A frame consists of the body's length, as 4 bytes in
// big-endian order, and the body, which is an encoded message. A frameWriter is not safe for
// concurrent use.
type frameWriter struct {
	stream *hg.Stream
	buf    []byte
}

// send encodes v and writes it as one frame. It blocks while the stream's flow-control window is
// full, until ctx is done.
func (w *frameWriter) send(ctx context.Context, v any) error {
	b, err := wireCodec{}.Append(append(w.buf[:0], make([]byte, frameHeaderLen)...), v)
	if err != nil {
		return err
	}
	n := len(b) - frameHeaderLen
	if n > maxFrameBody {
		return qs.Errorf(hg.ErrOverflow,
			"raftqs: request of %d bytes exceeds the limit of %d; use smaller log entries",
			n, maxFrameBody)
	}
	binary.BigEndian.PutUint32(b, uint32(n))
	if w.buf = b; cap(b) > maxRetainedBuffer {
		w.buf = nil
	}
	_, err = w.stream.WriteContext(ctx, b)
	return err
}

// A frameReader reads frames written by a frameWriter. It is not safe for concurrent use.
type frameReader struct {
	stream  *hg.Stream
	header  []byte // bytes of the current frame's header received so far
	bodyLen int    // length of the body; valid once the header is complete
	body    []byte // body bytes received so far
}

// next returns the body of the next frame, which the caller owns. It does not block. It returns
// hg.ErrAgain if the frame has not arrived completely, io.EOF after the last frame, and otherwise
// the error that ended the stream.
func (r *frameReader) next() ([]byte, error) {
	for {
		b, err := r.stream.Next()
		if err == io.EOF && len(r.header) > 0 {
			err = errBadFrame
		}
		if err != nil {
			return nil, err
		}
		n, complete, err := r.consume(b)
		r.stream.Release(n)
		if err != nil {
			return nil, err
		}
		if complete {
			body := r.body
			r.header, r.body = r.header[:0], nil
			return body, nil
		}
	}
}

// consume copies bytes of the current frame from b. It returns their number and reports whether the
// frame is complete.
func (r *frameReader) consume(b []byte) (n int, complete bool, err error) {
	if missing := frameHeaderLen - len(r.header); missing > 0 {
		n = min(missing, len(b))
		if r.header = append(r.header, b[:n]...); len(r.header) < frameHeaderLen {
			return n, false, nil
		}
		size := binary.BigEndian.Uint32(r.header)
		if size > maxFrameBody {
			return n, false, errBadFrame
		}
		r.bodyLen = int(size)
		// A header alone must not make the receiver allocate 64 MiB. Above maxRequest the body
		// grows as data arrives.
		r.body = make([]byte, 0, min(r.bodyLen, maxRequest))
	}
	more := min(r.bodyLen-len(r.body), len(b)-n)
	r.body = append(r.body, b[n:n+more]...)
	return n + more, len(r.body) == r.bodyLen, nil
}

// A notifyLock coordinates callbacks that must not block but share work that only one goroutine at
// a time may do. Each callback calls tryLock. If tryLock returns true, the callback does all the
// work there is and calls tryUnlock. If tryUnlock returns false, another callback has called
// tryLock meanwhile, and the holder must look for work again. No work is therefore missed.
type notifyLock struct {
	mu     sync.Mutex // guards the fields below
	locked bool
	missed bool // tryLock has failed since the holder last looked for work
}

// tryLock acquires the lock and returns true. If the lock is held, tryLock returns false, which
// makes the holder's next tryUnlock fail.
func (t *notifyLock) tryLock() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.locked {
		t.missed = true
		return false
	}
	t.locked = true
	return true
}

// tryUnlock releases the lock and returns true. If tryLock has failed in the meantime, it keeps the
// lock and returns false.
func (t *notifyLock) tryUnlock() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.locked, t.missed = t.missed, false
	return !t.locked
}

// isAgain reports whether err means that a stream has no data to read yet.
func isAgain(err error) bool { return errors.Is(err, hg.ErrAgain) }
