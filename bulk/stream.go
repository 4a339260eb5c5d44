package bulk

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Stream describes the memory that a Reader, ReaderAt or Writer accesses, and how. Offset, Size
// and Chunk are in bytes.
//
// All three types block and, while blocked, drive Progress and Trigger of the hg.Context, so other
// callbacks and handlers may run inside Read and Write. They may be used inside a handler, and
// different goroutines may use different ones concurrently. When the context.Context passed to the
// constructor is done, the Reader, ReaderAt or Writer is canceled. Its errors then match
// context.Cause, and either hg.ErrTimeout if the deadline has passed or hg.ErrCanceled.
type Stream struct {
	// Peer is the owner of the memory. In a handler it is r.Peer(). It may be omitted if Handle is
	// bound or is a local handle.
	Peer   na.Addr
	Handle *Handle
	Offset int64
	// Size is the number of bytes to read or write. Zero means everything starting at Offset.
	Size int64
	// Chunk is the size of one chunk and of one buffer. Zero means 1 MiB. The minimum is 4 KiB.
	Chunk int64
	// Window is the number of chunks in flight at a time. Zero means 8. The maximum is 64. One more
	// buffer than that is allocated.
	Window int
}

// normalize applies the defaults and validates s.
func (s *Stream) normalize(dir Dir) error {
	switch {
	case s.Handle == nil || s.Handle.state == nil:
		return invalidError(dir, "Stream.Handle is not set")
	case !na.InRange(s.Offset, s.Size, s.Handle.Len()):
		return invalidError(dir, "%d bytes at Stream.Offset %d lie outside the handle of %d bytes",
			s.Size, s.Offset, s.Handle.Len())
	}
	if s.Size == 0 {
		s.Size = s.Handle.Len() - s.Offset
	}
	err := checkChunks("Stream", dir, &s.Chunk, &s.Window)
	if err == nil && s.Handle.Remote() {
		s.Peer, err = checkRemote("Stream", dir, s.Handle, s.Peer)
	}
	return err
}

// A flow is a validated Stream, together with its direction and contexts.
type flow struct {
	Stream
	dir     Dir
	ctx     context.Context
	hctx    *hg.Context
	request requestInfo
}

func newFlow(ctx context.Context, hctx *hg.Context, dir Dir, s Stream) (flow, error) {
	return flow{Stream: s, dir: dir, ctx: ctx, hctx: hctx, request: requestOf(ctx)}, s.normalize(dir)
}

// A streamChunk is a buffer of a Reader, ReaderAt or Writer, together with the transfer that fills
// it from the handle or writes it to the handle.
type streamChunk struct {
	buf    []byte
	handle *Handle // handle to buf; nil if the stream accesses local memory
	n      int     // number of bytes of buf in use
	op     *Op     // most recent transfer; nil if the stream accesses local memory
	err    error   // error of that transfer, or nil; valid once done is set
	done   atomic.Bool
}

// newChunk returns a chunk that uses buf.
func (f *flow) newChunk(buf []byte) (*streamChunk, error) {
	p := &streamChunk{buf: buf}
	if !f.Handle.Remote() {
		return p, nil
	}
	var err error
	p.handle, err = Create(f.hctx, Options{Access: LocalOnly}, buf)
	return p, err
}

// startTransfer starts moving the first p.n bytes of p from or to offset off of the handle. If the
// handle is local, startTransfer copies the bytes before it returns.
func (f *flow) startTransfer(p *streamChunk, off int64) (err error) {
	p.err = nil
	p.done.Store(false)
	if p.handle == nil {
		p.err = f.Handle.copyLocal(f.dir, f.Offset+off, p.buf[:p.n])
		p.done.Store(true)
		return nil
	}
	p.op, err = transfer(f.hctx, Spec{
		Dir: f.dir, Peer: f.Peer, Remote: f.Handle, RemoteOffset: f.Offset + off, Local: p.handle, Size: int64(p.n),
		Chunk: f.Chunk, Window: f.Window,
	}, f.request, func(_ *Op, err error) {
		p.err = err
		p.done.Store(true)
		f.hctx.Wake()
	})
	return err
}

// waitUntil drives Progress and Trigger until over returns true or ctx is done.
func (f *flow) waitUntil(ctx context.Context, over func() bool) error {
	switch err := f.hctx.Wait(ctx, over); {
	case err == nil || over():
		return nil
	case ctx.Err() != nil:
		return hg.ErrCanceled
	}
	return na.WithText(hg.ErrClosed, "the hg.Context is closed")
}

// wrapError returns err, with which the stream failed after moved bytes, as an *Error. If the
// stream's context is done, the error includes its cause.
func (f *flow) wrapError(moved int64, err error) error {
	var took time.Duration
	if e, ok := err.(*Error); ok { // err is the error of one chunk
		took, err = e.Took, e.Err
	}
	return &Error{Dir: f.dir, Peer: f.Peer, Took: took, Moved: moved, Size: f.Size, Err: contextError(f.ctx, err)}
}
