package qs

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/pieces"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A streamReader implements Source.Reader for a Reader of the caller.
type streamReader struct {
	pieces.Reader
	p        *pulledSource
	ctx      context.Context
	begun    bool
	chunkLen int // length of the current chunk, which the next call of next releases
}

// newStreamReader returns a streamReader for p.
func newStreamReader(p *pulledSource) *streamReader {
	r := &streamReader{p: p}
	r.Reader = pieces.Reader{Check: func() error { return p.checkMemory("Source") },
		Next: func() ([]byte, error) {
			b, err := r.next()
			return b, p.causeOf("Source", err)
		}}
	return r
}

// next waits for the next chunk and returns it. The chunk is valid until next is called again.
func (r *streamReader) next() ([]byte, error) {
	s := r.p.stream
	if !r.begun {
		r.begun = true
		s.Expect(r.p.length)
	}
	s.Release(r.chunkLen)
	r.chunkLen = 0
	for {
		b, err := s.Next()
		if err == nil {
			r.chunkLen = len(b)
			return b, nil
		}
		if err = r.p.waitStream(r.ctx, "source", err); err != nil {
			return nil, err
		}
	}
}

// A streamWriter implements Sink.Writer for a Writer of the caller. The lock of its pushWriter must
// be held during each call.
type streamWriter struct {
	pieces.Writer
	p   *pushedSink
	pos int64 // bytes written
}

// newStreamWriter returns a streamWriter for p.
func newStreamWriter(p *pushedSink) *streamWriter {
	w := &streamWriter{p: p}
	w.Writer = pieces.Writer{Room: w.room, Add: w.add, Skip: func() { p.stream.Commit(0) }}
	return w
}

// room waits for buffer space in the stream and returns it.
func (w *streamWriter) room() ([]byte, error) {
	for {
		if err := w.p.checkMemory("Sink"); err != nil {
			return nil, err
		}
		b, err := w.p.stream.Reserve(maxPumpChunk)
		if err == nil {
			return b, nil
		}
		if err = w.p.waitStream(w.p.w.ctx, "sink", err); err != nil {
			return nil, err
		}
	}
}

// add commits the first n bytes of the buffer returned by room.
func (w *streamWriter) add(n int) error {
	w.p.stream.Commit(n)
	w.pos += int64(n)
	return nil
}

// waitStream handles err, an error of the stream. If err is ErrAgain, it blocks until the stream
// can continue or ctx is done. Otherwise it returns the error to report to the handler. what, which
// is used in the error text, is "source" or "sink".
func (b *borrowedMem) waitStream(ctx context.Context, what string, err error) error {
	if isAgain(err) {
		if err = contextEndError(ctx, what); err != nil {
			return err
		}
		if err = b.stream.Wait(ctx); err == nil {
			return nil
		}
		if ended := contextEndError(ctx, what); ended != nil {
			return ended
		}
		return err
	}
	if err == io.EOF {
		return err
	}
	// The caller's reader or writer failed, so the code of err does not apply to this call.
	if hg.CodeOf(err) == na.ErrIO {
		return errors.New("qs: " + err.Error())
	}
	if err = b.req.explainError(b.req, err); b.req.Err() != nil {
		return contextEndError(b.req, what)
	}
	return err
}

// contextEndError returns an error with the cause of ctx if ctx is done, and nil otherwise.
func contextEndError(ctx context.Context, what string) error {
	code := hg.ErrCanceled
	switch ctx.Err() {
	case nil:
		return nil
	case context.DeadlineExceeded:
		code = hg.ErrTimeout
	}
	return fmt.Errorf("qs: %s: %w: %w", what, code, context.Cause(ctx))
}
