package qs

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A pushWriter is the stream of a Sink at its handler. Goroutines that a handler has left behind may still use it when the handler has
// returned, and the library flushes it then: so they take turns, and what the user's reader does in ReadFrom is outside of a turn.
type pushWriter struct {
	p       *pushedSink
	busy    atomic.Bool  // somebody has the turn
	waiters atomic.Int32 // for it

	// Of who has the turn.
	ctx          context.Context // bounds what the user calls; what is under way then, and the flush, end with the request only
	pos          int64           // bytes before w
	pendingBytes int64           // bytes that w has taken
	pending      *pushState      // nil when nothing is under way
	stop         func()
	stream       *streamWriter // of Writer, instead
}

// A pushState is what is under way, until ctx ends.
type pushState struct {
	*bulk.Writer
	ctx    context.Context
	cancel context.CancelFunc
}

// begin takes the turn, unless the handler has returned.
func (w *pushWriter) begin() error {
	if err := w.p.checkMemory("Sink"); err != nil {
		return err
	}
	if err := w.lock(context.Background()); err != nil {
		return err
	}
	if err := w.p.checkMemory("Sink"); err != nil {
		w.unlock()
		return err
	}
	return nil
}

// lock waits for the turn. After an error, that ctx has ended or the node is closed, it has none.
func (w *pushWriter) lock(ctx context.Context) error {
	for !w.busy.CompareAndSwap(false, true) {
		w.waiters.Add(1)
		err := w.p.req.n.hctx.Wait(ctx, func() bool { return !w.busy.Load() })
		w.waiters.Add(-1)
		if err != nil {
			return err
		}
	}
	return nil
}

// unlock gives it up.
func (w *pushWriter) unlock() {
	bw := w.pending
	w.busy.Store(false)
	if bw != nil && bw.ctx.Err() != nil { // stopped meanwhile
		w.close(bw)
	}
	if w.waiters.Load() > 0 {
		w.p.req.n.hctx.Wake()
	}
}

// close ends what is under way, whose context has ended, so that it waits for nothing; if somebody has the turn, leave does it.
func (w *pushWriter) close(bw *pushState) {
	if w.busy.CompareAndSwap(false, true) {
		_ = bw.Close()
		w.busy.Store(false)
	}
}

// open returns what to write to.
func (w *pushWriter) open() (io.Writer, error) {
	if w.stream != nil {
		return w.stream, nil
	}
	if w.pending == nil {
		if w.pos == w.p.handle.Len() {
			return nil, fmt.Errorf("qs: the Sink is full: the caller has lent room for %d bytes; FileBuffer and Writer lend more: %w", w.pos, hg.ErrOverflow)
		}
		ctx, cancel := context.WithCancel(w.p.req)
		to, err := bulk.NewWriter(ctx, w.p.req.r.HG(), bulk.Stream{Peer: w.p.peer, Handle: w.p.handle, Offset: w.pos})
		if err != nil {
			cancel()
			return nil, err
		}
		bw := &pushState{to, ctx, cancel}
		w.pending = bw
		w.stop = w.p.stopAtReturn(func() { // without waiting for what is under way
			cancel()
			w.close(bw)
		})
	}
	return w.pending, nil
}

// bindContext has the end of the user's context end what is under way, until the function that it returns is called.
func (w *pushWriter) bindContext() (unbound func() bool, err error) {
	if w.ctx == context.Context(w.p.req) {
		return func() bool { return true }, nil
	}
	if err := w.contextError(); err != nil {
		return nil, err
	}
	if w.pending == nil { // of Writer, which waits for this context itself
		return func() bool { return true }, nil
	}
	return context.AfterFunc(w.ctx, w.pending.cancel), nil
}

// contextError says why the user's context has ended; nil while it has not.
func (w *pushWriter) contextError() error { return contextEndError(w.ctx, "sink") }

// finishUserCall counts n bytes, and returns the error of the user's call.
func (w *pushWriter) finishUserCall(n int64, err error) error {
	w.pendingBytes += n
	if ended := w.contextError(); err != nil && ended != nil {
		err = ended
	}
	w.unlock()
	return w.p.causeOf("Sink", err)
}

func (w *pushWriter) Write(b []byte) (n int, err error) {
	if len(b) == 0 {
		return 0, nil
	}
	if err := w.begin(); err != nil {
		return 0, err
	}
	to, err := w.open()
	if err != nil {
		return 0, w.finishUserCall(0, err)
	}
	unbound, err := w.bindContext()
	if err != nil {
		return 0, w.finishUserCall(0, err)
	}
	defer unbound()
	n, err = to.Write(b)
	return n, w.finishUserCall(int64(n), err)
}

// ReadFrom implements io.ReaderFrom: without a copy of its own.
func (w *pushWriter) ReadFrom(r io.Reader) (n int64, err error) {
	if err := w.begin(); err != nil {
		return 0, err
	}
	to, err := w.open()
	if err != nil {
		err = w.finishUserCall(0, err)
		if n, rerr := r.Read(make([]byte, 1)); n == 0 && rerr == io.EOF {
			return 0, nil
		}
		return 0, err
	}
	unbound, err := w.bindContext()
	if err != nil {
		return 0, w.finishUserCall(0, err)
	}
	defer unbound()
	in := &unlockedReader{w: w, r: r}
	defer func() {
		n := n - in.counted
		if !in.unlocked { // else r has panicked or ended the goroutine, or the node is closed: it has no turn
			err = w.finishUserCall(n, err)
		}
	}()
	return to.(io.ReaderFrom).ReadFrom(in)
}

// An unlockedReader reads outside of the turn.
type unlockedReader struct {
	w        *pushWriter
	r        io.Reader
	unlocked bool // now

	lastRead, counted int64 // bytes of the last Read; of all before, which have been taken
}

func (o *unlockedReader) Read(b []byte) (int, error) {
	o.w.pendingBytes += o.lastRead
	o.counted += o.lastRead
	o.lastRead, o.unlocked = 0, true
	o.w.unlock()
	n, err := o.r.Read(b)
	if err := o.w.lock(context.Background()); err != nil {
		return 0, err
	}
	o.unlocked = false
	if over := o.w.p.checkMemory("Sink"); over != nil { // b is nobody's any more
		return 0, over
	}
	o.lastRead = int64(n)
	return n, err
}

// flushBounded is settle until the context ends.
func (w *pushWriter) flushBounded() error {
	if w.pending == nil && w.stream == nil {
		return nil
	}
	unbound, err := w.bindContext()
	if err != nil {
		return err
	}
	defer unbound()
	err = w.flush()
	if ended := w.contextError(); err != nil && ended != nil {
		return ended
	}
	return err
}

// flush waits until what was written has arrived; a stream ends behind that.
func (w *pushWriter) flush() error {
	if w.stream != nil {
		w.p.stream.CloseWrite()
		w.pos = w.stream.pos
		return nil
	}
	if w.pending == nil {
		return nil
	}
	err := w.pending.Close()
	w.stop()
	w.pending = nil
	if err == nil {
		w.pos += w.pendingBytes
	}
	w.pendingBytes = 0
	return err
}
