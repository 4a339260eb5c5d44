package qs

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A pushWriter is the writer returned by Sink.Writer. It has a lock because goroutines of the
// handler may still use it while the library flushes it after the handler has returned. ReadFrom
// does not hold the lock while it reads from the user's reader.
type pushWriter struct {
	p       *pushedSink
	busy    atomic.Bool  // the lock; true while held
	waiters atomic.Int32 // number of goroutines waiting for the lock

	// The lock guards the fields below.
	//
	// ctx is the context for the user's calls. Transfers in flight and the flush use the request's
	// context instead.
	ctx          context.Context
	pos          int64         // number of bytes written before those in pending
	pendingBytes int64         // number of bytes written to pending
	pending      *pushState    // the current writer; nil if nothing is in flight
	stop         func()        // closes pending
	stream       *streamWriter // replaces pending for a Writer of the caller
}

// A pushState is an active bulk.Writer with its context.
type pushState struct {
	*bulk.Writer
	ctx    context.Context
	cancel context.CancelFunc
}

// begin acquires the lock. It fails if the handler has returned.
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

// lock acquires the lock. It fails without acquiring it if ctx is done or the node is closed.
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

// unlock releases the lock.
func (w *pushWriter) unlock() {
	bw := w.pending
	w.busy.Store(false)
	// If the function passed to stopAtReturn found the lock held, it left closing bw to unlock.
	if bw != nil && bw.ctx.Err() != nil {
		w.close(bw)
	}
	if w.waiters.Load() > 0 {
		w.p.req.n.hctx.Wake()
	}
}

// close closes bw. The context of bw must be done, so that Close does not wait. If the lock is
// held, close leaves the work to unlock.
func (w *pushWriter) close(bw *pushState) {
	if w.busy.CompareAndSwap(false, true) {
		_ = bw.Close()
		w.busy.Store(false)
	}
}

// open returns the current writer, creating it if necessary.
func (w *pushWriter) open() (io.Writer, error) {
	if w.stream != nil {
		return w.stream, nil
	}
	if w.pending == nil {
		if w.pos == w.p.handle.Len() {
			return nil, fmt.Errorf("qs: sink: write exceeds the Sink's size of %d bytes: %w",
				w.pos, hg.ErrOverflow)
		}
		ctx, cancel := context.WithCancel(w.p.req)
		to, err := bulk.NewWriter(ctx, w.p.req.r.HG(),
			bulk.Stream{Peer: w.p.peer, Handle: w.p.handle, Offset: w.pos})
		if err != nil {
			cancel()
			return nil, err
		}
		bw := &pushState{to, ctx, cancel}
		w.pending = bw
		w.stop = w.p.stopAtReturn(func() { // does not wait for transfers in flight
			cancel()
			w.close(bw)
		})
	}
	return w.pending, nil
}

// bindContext arranges for pending to be canceled when the user's context is done. The caller must
// call unbound when its operation has completed.
func (w *pushWriter) bindContext() (unbound func() bool, err error) {
	if w.ctx == context.Context(w.p.req) {
		return func() bool { return true }, nil
	}
	if err := w.contextError(); err != nil {
		return nil, err
	}
	if w.pending == nil { // a stream watches the context on its own
		return func() bool { return true }, nil
	}
	return context.AfterFunc(w.ctx, w.pending.cancel), nil
}

// contextError returns an error with the cause of the user's context if that context is done, and
// nil otherwise.
func (w *pushWriter) contextError() error { return contextEndError(w.ctx, "sink") }

// finishUserCall completes a Write or ReadFrom that has written n bytes and failed with err, or
// succeeded if err is nil. It releases the lock and returns the error to report to the user.
func (w *pushWriter) finishUserCall(n int64, err error) error {
	w.pendingBytes += n
	if ended := w.contextError(); err != nil && ended != nil {
		err = ended
	}
	w.unlock()
	return w.p.causeOf("Sink", err)
}

// Write implements io.Writer.
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

// ReadFrom implements io.ReaderFrom. It avoids copying into an intermediate buffer.
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
		if !in.unlocked { // unlocked if r panicked or called runtime.Goexit, or if the node is closed
			err = w.finishUserCall(n, err)
		}
	}()
	return to.(io.ReaderFrom).ReadFrom(in)
}

// An unlockedReader releases the lock of a pushWriter while it reads from r.
type unlockedReader struct {
	w        *pushWriter
	r        io.Reader
	unlocked bool // the lock is currently not held

	lastRead int64 // bytes returned by the last Read, not yet passed to the writer
	counted  int64 // bytes returned by all earlier Reads
}

// Read implements io.Reader.
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
	if over := o.w.p.checkMemory("Sink"); over != nil { // the memory of b may already be in use elsewhere
		return 0, over
	}
	o.lastRead = int64(n)
	return n, err
}

// flushBounded is like flush, but fails when the user's context is done.
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

// flush waits until all written data has arrived. For a stream, it only marks the end of the data.
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
