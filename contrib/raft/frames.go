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
	// frameHead is how many bytes the length of a frame takes, before its body.
	frameHead = 4
	// maxFrame bounds the body of a frame, in bytes. It is the default of qs.Config.MaxInput, which bounds requests outside pipelines.
	maxFrame = 64 << 20
	// keptBuffer bounds the memory that a frameWriter keeps between two frames, in bytes.
	keptBuffer = 512 << 10
)

var errBadFrame = qs.Errorf(qs.ErrBadInput, "%w", errFormat)

// A frameWriter writes messages to a stream, each as its length in 4 bytes, big-endian, and its encoding. One goroutine at a time uses it.
type frameWriter struct {
	s   *hg.Stream
	buf []byte
}

// send encodes v and writes it. It blocks while the stream is full, until ctx ends.
func (w *frameWriter) send(ctx context.Context, v any) error {
	b, err := wire{}.Append(append(w.buf[:0], make([]byte, frameHead)...), v)
	if err != nil {
		return err
	}
	n := len(b) - frameHead
	if n > maxFrame {
		return qs.Errorf(hg.ErrOverflow, "raftqs: a request of %d bytes, a pipeline carries %d: make entries smaller", n, maxFrame)
	}
	binary.BigEndian.PutUint32(b, uint32(n))
	if w.buf = b; cap(b) > keptBuffer {
		w.buf = nil
	}
	_, err = w.s.WriteContext(ctx, b)
	return err
}

// A frameReader reads what a frameWriter writes. One goroutine at a time uses it.
type frameReader struct {
	s    *hg.Stream
	head []byte // of the length of the frame that is being read
	size int    // of its body, once head is whole
	body []byte // as far as it has come
}

// next returns the body of the next frame, which is the caller's. It does not block: the error is hg.ErrAgain while the frame has not come
// whole, io.EOF behind the last one, or says how the stream has ended.
func (r *frameReader) next() ([]byte, error) {
	for {
		b, err := r.s.Next()
		if err == io.EOF && len(r.head) > 0 {
			err = errBadFrame
		}
		if err != nil {
			return nil, err
		}
		n, whole, err := r.take(b)
		r.s.Release(n)
		if err != nil {
			return nil, err
		}
		if whole {
			body := r.body
			r.head, r.body = r.head[:0], nil
			return body, nil
		}
	}
}

// take copies what b has of a frame, and returns how many bytes that is, and whether the frame is whole.
func (r *frameReader) take(b []byte) (n int, whole bool, err error) {
	if missing := frameHead - len(r.head); missing > 0 {
		n = min(missing, len(b))
		if r.head = append(r.head, b[:n]...); len(r.head) < frameHead {
			return n, false, nil
		}
		size := binary.BigEndian.Uint32(r.head)
		if size > maxFrame {
			return n, false, errBadFrame
		}
		r.size = int(size)
		r.body = make([]byte, 0, min(r.size, maxRequest)) // beyond that it grows with what has come
	}
	more := min(r.size-len(r.body), len(b)-n)
	r.body = append(r.body, b[n:n+more]...)
	return n + more, len(r.body) == r.size, nil
}

// A turn has one goroutine at a time handle what comes, where each arrival calls a function that must not wait:
//
//	arrival: enter ─ false: the goroutine that runs it looks once more
//	            └─ true: handle all ─► leave ─ false: something came meanwhile, handle that, too
type turn struct {
	mu     sync.Mutex // guards the fields below
	taken  bool
	missed bool // enter has returned false since
}

// enter reports whether the caller has the turn now, until leave returns true.
func (t *turn) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken {
		t.missed = true
		return false
	}
	t.taken = true
	return true
}

// leave ends the turn of the caller, and reports true, if nobody has tried to enter.
func (t *turn) leave() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.taken, t.missed = t.missed, false
	return !t.taken
}

func isAgain(err error) bool { return errors.Is(err, hg.ErrAgain) }
