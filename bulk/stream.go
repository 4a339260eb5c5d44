package bulk

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Stream says what a Reader, ReaderAt or Writer reads or writes, and how. Offset, Size and Chunk are in bytes.
//
// All three block, and drive Progress and Trigger of the context meanwhile: callbacks and handlers of others may run in
// Read and Write. They can be used inside a handler, and any number of them at a time in several goroutines. The end of
// the context.Context that they are made with cancels them: their errors match hg.ErrCanceled and its cause then.
type Stream struct {
	// Peer owns the memory: in a handler r.Peer(). It may be left out when Handle is bound, or of this process.
	Peer   na.Addr
	Handle *Handle
	Offset int64
	// Size is the length of what is read or written. Zero means all from Offset on.
	Size int64
	// Chunk is the length of one piece, and of one buffer. Zero means 1 MiB; at least 4 KiB.
	Chunk int64
	// Window is how many pieces are under way at a time. Zero means 8; at most 64. There is one buffer more than that.
	Window int
}

// check fills in the defaults and says what is wrong.
func (s *Stream) check(dir Dir) error {
	switch {
	case s.Handle == nil || s.Handle.in == nil:
		return invalid(dir, "Stream.Handle is not set")
	case !na.InRange(s.Offset, s.Size, s.Handle.Len()):
		return invalid(dir, "Stream.Offset is %d: %d bytes from there lie outside the handle of %d bytes", s.Offset, s.Size, s.Handle.Len())
	}
	if s.Size == 0 {
		s.Size = s.Handle.Len() - s.Offset
	}
	err := checkPieces("Stream", dir, &s.Chunk, &s.Window)
	if err == nil && s.Handle.Remote() {
		s.Peer, err = checkRemote("Stream", dir, s.Handle, s.Peer)
	}
	return err
}

// A flow is a Stream in use, in one direction.
type flow struct {
	Stream
	dir  Dir
	ctx  context.Context
	hctx *hg.Context
	of   owner
}

func newFlow(ctx context.Context, hctx *hg.Context, dir Dir, s Stream) (flow, error) {
	return flow{Stream: s, dir: dir, ctx: ctx, hctx: hctx, of: ownerOf(ctx)}, s.check(dir)
}

// A piece is a buffer whose bytes are moved.
type piece struct {
	buf   []byte
	local *Handle // over buf; nil when no peer is concerned
	n     int     // bytes of buf that count
	op    *Op
	err   error // once done
	done  atomic.Bool
}

func (f *flow) newPiece(buf []byte) (*piece, error) {
	p := &piece{buf: buf}
	if !f.Handle.Remote() {
		return p, nil
	}
	var err error
	p.local, err = Create(f.hctx, Options{Access: LocalOnly}, buf)
	return p, err
}

// start begins to move the first p.n bytes of p to or from off. They are moved at once if no peer is concerned.
func (f *flow) start(p *piece, off int64) (err error) {
	p.err = nil
	p.done.Store(false)
	if p.local == nil {
		p.err = f.Handle.copyLocal(f.dir, f.Offset+off, p.buf[:p.n])
		p.done.Store(true)
		return nil
	}
	p.op, err = transfer(f.hctx, Spec{
		Dir: f.dir, Peer: f.Peer, Remote: f.Handle, RemoteOffset: f.Offset + off, Local: p.local, Size: int64(p.n),
		Chunk: f.Chunk, Window: f.Window,
	}, f.of, func(_ *Op, err error) {
		p.err = err
		p.done.Store(true)
		f.hctx.Wake()
	})
	return err
}

// wait drives Progress and Trigger until over reports true or ctx ends.
func (f *flow) wait(ctx context.Context, over func() bool) error {
	switch err := f.hctx.Wait(ctx, over); {
	case err == nil || over():
		return nil
	case ctx.Err() != nil:
		return hg.ErrCanceled
	}
	return na.WithText(hg.ErrClosed, "the context is closed")
}

// error says how far a flow came and why no further. It matches the cause of its context if that has ended.
func (f *flow) error(moved int64, err error) error {
	var took time.Duration
	if e, ok := err.(*Error); ok { // of one piece
		took, err = e.Took, e.Err
	}
	return &Error{Dir: f.dir, Peer: f.Peer, Took: took, Moved: moved, Size: f.Size, Err: endedBy(f.ctx, err)}
}
