package qs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// A pump moves bytes between a caller's reader or writer and a stream of one attempt. It runs in
// its own goroutine because the caller's Read or Write may block.
//
// For a reader, the pump passes memory of the stream to Read, and the handler receives what Read
// stored there. For a writer, the pump passes to Write the memory of the stream that holds the
// handler's data. The pump does not read until the handler does, because the stream provides no
// memory before that.
type pump struct {
	hctx *hg.Context
	log  func(text string, args ...any)
	from io.Reader  // the reader; nil if into is set
	into *sinkState // the writer; nil if from is set
	use  *streamUse // usage state of the Source or the Sink

	file     bool // from or into is a file type of this package, whose operations are short
	finished bool // fill or drain has returned; accessed only by the goroutine

	mu     sync.Mutex // guards the fields below
	stream *hg.Stream // nil until start is called
	moved  int64      // bytes read or written
	err    error      // error of the caller's reader or writer
	broken error      // error of the stream
	closed bool       // no further Read or Write may start
	busy   bool       // a Read or Write is running
	// interrupting is non-nil if a Read or Write was interrupted. It is closed once the deadline
	// has been set.
	interrupting chan struct{}
	// abandoned reports whether close returned while a Read or Write was running. The result of
	// that operation is discarded.
	abandoned bool
	done      chan struct{} // closed when the goroutine has exited
}

// maxPumpChunk is the maximum size in bytes of the buffer for one Read, and of one chunk of a
// stream.
const maxPumpChunk = 256 << 10

// A streamUse reports whether an attempt is using a caller's reader or writer. A reader is spent
// once a Read has returned bytes or has been abandoned, because another attempt would miss those
// bytes.
type streamUse struct {
	atomic.Bool
	spent bool // no other attempt may use the reader
}

var errInUse = na.WithText(ErrInvalid,
	"the Source or Sink is in use by another attempt or call")

var errSpent = na.WithText(ErrInvalid,
	"the Reader was consumed by an earlier call; use a new one")

// newPump returns a pump for one attempt. The caller must call its release method. newPump fails if
// the Source or Sink is in use or spent.
func (n *Node) newPump(hctx *hg.Context, from io.Reader, into *sinkState, u *streamUse) (*pump, error) {
	if !u.CompareAndSwap(false, true) {
		return nil, errInUse
	}
	if u.spent {
		u.Store(false)
		return nil, errSpent
	}
	g := &pump{hctx: hctx, log: n.logger().Warn, from: from, into: into, use: u,
		done: make(chan struct{})}
	switch from.(type) {
	case nil:
		g.file = into.fileSink != nil
		into.filled.Store(0)
	case *sectionReader:
		g.file = true
	}
	return g, nil
}

// start starts the pump's goroutine, which transfers bytes through s.
func (g *pump) start(s *hg.Stream) {
	g.mu.Lock()
	g.stream = s
	g.mu.Unlock()
	run := g.drain
	if g.from != nil {
		run = g.fill
	}
	g.hctx.NA().Spawn(func() {
		defer g.onReturn()
		run()
		g.finished = true
	})
}

// release marks the reader or writer as no longer in use. If a Read or Write was abandoned, release
// does nothing, and onGoroutineEnd marks the reader or writer when that operation has returned.
func (g *pump) release() {
	g.mu.Lock()
	left := g.abandoned
	if !left && g.from != nil && g.moved > 0 {
		g.use.spent = true
	}
	g.mu.Unlock()
	if !left {
		g.use.Store(false)
	}
}

// Grace periods for a Read or Write that is running when its call completes.
const (
	// ioGrace is the time that a Read or Write has to return after its call has completed.
	// interruptGrace is the additional time for a Write after it has been interrupted. A Read is
	// interrupted immediately, because nothing is lost. A Write is not, because an interrupted
	// Write may break its writer, for example a TLS connection.
	ioGrace        = 50 * time.Millisecond
	interruptGrace = 20 * time.Millisecond
)

// close prevents further Reads and Writes. It reports whether a running operation was abandoned
// because it neither returned in time nor could be interrupted.
func (g *pump) close() (left bool) {
	g.mu.Lock()
	g.closed = true
	s := g.stream
	g.mu.Unlock()
	if s == nil {
		return false
	}
	s.Close()
	if g.file {
		return !g.await(-1)
	}
	if g.from != nil {
		g.interrupt()
	}
	if g.await(ioGrace) || g.into != nil && g.interrupt() && g.await(interruptGrace) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.abandoned = !isClosed(g.done)
	return g.abandoned
}

// await waits for the goroutine to exit and reports whether it did so within d. If d is negative,
// there is no limit.
func (g *pump) await(d time.Duration) bool {
	if g.hctx.NA().Scheduled() { // a coroutine of the simulator must not block on a channel
		over := func() bool { return isClosed(g.done) }
		_ = g.hctx.WaitFor(context.Background(), d, over)
		return over()
	}
	if d < 0 {
		<-g.done
		return true
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-g.done:
		return true
	case <-t.C:
		return isClosed(g.done)
	}
}

// interrupt sets a deadline in the past to make the running Read or Write return. It returns false
// if the reader or writer does not support deadlines. The pump's goroutine clears the deadline.
func (g *pump) interrupt() bool {
	set := make(chan struct{})
	defer close(set)
	g.mu.Lock()
	if !g.busy {
		g.mu.Unlock()
		return true // the goroutine exits on its own
	}
	g.interrupting = set
	g.mu.Unlock()
	return g.setDeadline(time.Unix(1, 0))
}

// setDeadline sets the deadline of the caller's reader or writer and reports whether it succeeded.
// A SetReadDeadline or SetWriteDeadline that panics, such as that of a nil embedded net.Conn, is
// treated as missing.
func (g *pump) setDeadline(at time.Time) (set bool) {
	defer func() {
		if p := recover(); p != nil {
			set = false
			g.log("SetReadDeadline or SetWriteDeadline of a Reader or a Writer panicked", "panic", p)
		}
	}()
	if g.from != nil {
		r, ok := g.from.(interface{ SetReadDeadline(time.Time) error })
		return ok && r.SetReadDeadline(at) == nil
	}
	w, ok := g.into.into.(interface{ SetWriteDeadline(time.Time) error })
	return ok && w.SetWriteDeadline(at) == nil
}

// beginIO reports whether a Read or Write may start, and if so marks it as running.
func (g *pump) beginIO() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = !g.closed
	return g.busy
}

// endIO records the result of a Read or Write and reports whether the pump should continue.
func (g *pump) endIO(n int, err error) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = false
	if g.abandoned {
		return false
	}
	g.moved += int64(n)
	if g.into != nil {
		g.into.filled.Store(g.moved)
	}
	if err != nil && !g.closed { // after close, the error may be due to the interrupt
		g.err = err
	}
	return err == nil && !g.closed
}

// wait handles the stream error err. If err is ErrAgain, it blocks until the stream can continue
// and returns true. Otherwise, or if that wait fails, it records the error and returns false.
func (g *pump) wait(err error) bool {
	if isAgain(err) {
		if err = g.stream.Wait(context.Background()); err == nil {
			return true
		}
	}
	g.mu.Lock()
	g.broken = err
	g.mu.Unlock()
	return false
}

// isAgain reports whether err is temporary, meaning that the stream cannot continue yet.
func isAgain(err error) bool { return errors.Is(err, hg.ErrAgain) }

// fill copies from the caller's reader to the stream.
func (g *pump) fill() {
	for empty := 0; ; {
		b, err := g.stream.Reserve(maxPumpChunk)
		if err != nil {
			if !g.wait(err) {
				return
			}
			continue
		}
		if !g.beginIO() {
			g.stream.Commit(0)
			return
		}
		n, err := g.from.Read(b)
		end := err == io.EOF
		switch {
		case n < 0 || n > len(b):
			n, err = 0, fmt.Errorf("invalid Read: buffer of %d bytes, returned %d", len(b), n)
		case end:
			err = nil
		case err != nil:
			err = programError{err}
		case n > 0:
			empty = 0
		default:
			if empty++; empty == 100 {
				err = io.ErrNoProgress
			}
		}
		more := g.endIO(n, err)
		g.stream.Commit(n)
		switch {
		case err != nil:
			g.fail(err)
			return
		case end:
			g.stream.CloseWrite()
			return
		case !more:
			return
		}
	}
}

// drain copies from the stream to the caller's writer.
func (g *pump) drain() {
	for {
		b, err := g.stream.Next()
		switch {
		case err == io.EOF:
			return
		case err != nil:
			if !g.wait(err) {
				return
			}
			continue
		case !g.beginIO():
			return
		}
		n, err := g.into.into.Write(b)
		switch {
		case err != nil:
			err = programError{err}
		case n < len(b):
			err = io.ErrShortWrite
		case n > len(b):
			err = fmt.Errorf("invalid Write: buffer of %d bytes, returned %d", len(b), n)
		}
		more := g.endIO(max(min(n, len(b)), 0), err)
		g.stream.Release(len(b))
		if err != nil {
			g.fail(err)
		}
		if !more {
			return
		}
	}
}

// fail sends err, the error of the caller's reader or writer, to the handler. The handler receives
// a reader's error after all bytes that were read before it.
func (g *pump) fail(err error) {
	if g.from != nil {
		g.stream.Fail(na.ErrIO, fmt.Sprintf("the caller's reader failed: %v", err))
		return
	}
	g.stream.Reset(na.ErrIO, fmt.Sprintf("the caller's writer failed: %v", err))
}

// onReturn must be deferred by the pump's goroutine. It handles a Read or Write that panicked or
// called runtime.Goexit, and clears the deadline set by interrupt.
func (g *pump) onReturn() {
	err := errGoexit
	p := recover() // a panic in the caller's Read or Write fails the call, not the process
	if p != nil {
		err = fmt.Errorf("panic: %v", p)
	}
	if !g.finished {
		g.endIO(0, err)
		if g.from != nil {
			g.stream.Commit(0) // returns the buffer that was passed to Read
		}
		g.fail(err)
	}
	defer g.onGoroutineEnd() // deferred because SetReadDeadline may call runtime.Goexit
	g.mu.Lock()
	set := g.interrupting
	g.mu.Unlock()
	if set != nil {
		<-set
		g.setDeadline(time.Time{})
	}
}

// onGoroutineEnd closes done and marks an abandoned reader or writer as no longer in use.
func (g *pump) onGoroutineEnd() {
	g.mu.Lock()
	left := g.abandoned
	close(g.done)
	g.mu.Unlock()
	if left { // the node may already be closed
		g.use.spent = g.from != nil
		g.use.Store(false)
		return
	}
	g.hctx.Wake()
}

var errGoexit = error(hg.Errorf(hg.ErrAborted,
	"Read or Write of the caller's stream called runtime.Goexit"))

// pumpedBytes returns the number of bytes read or written, and the error of the caller's reader or
// writer.
func (g *pump) pumpedBytes() (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.moved, g.err
}

// passedBytes returns the number of bytes sent to the handler or written to the caller's writer.
func (g *pump) passedBytes() int64 {
	g.mu.Lock()
	s, n := g.stream, g.moved
	g.mu.Unlock()
	switch {
	case s == nil:
		return 0
	case g.from == nil:
		return n
	}
	return s.Moved()
}

// progress returns a counter that grows with each byte read, written or sent.
func (g *pump) progress() int64 {
	g.mu.Lock()
	s, n := g.stream, g.moved
	g.mu.Unlock()
	if s == nil {
		return 0
	}
	return n + s.Moved()
}

// finish blocks until all bytes have been written to the caller's writer or ctx is done. It must be
// called after a successful call.
func (g *pump) finish(ctx context.Context, n *Node, i int) error {
	if g.into == nil {
		return nil
	}
	if err := n.awaitDone(ctx, i, g.done); err != nil {
		if ctx.Err() == context.DeadlineExceeded {
			return hg.ErrTimeout
		} else if ctx.Err() != nil {
			return hg.ErrCanceled
		}
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return na.WithText(na.ErrIO, "the caller's writer failed")
	}
	return g.broken
}

// expectedOf returns the number of bytes left in from if it is a standard library reader that can
// report it, and -1 otherwise. It is a hint for buffer sizes.
func expectedOf(from io.Reader) int64 {
	switch r := from.(type) {
	case *bytes.Reader:
		return int64(r.Len())
	case *bytes.Buffer:
		return int64(r.Len())
	case *strings.Reader:
		return int64(r.Len())
	case *io.SectionReader:
		return restOf(r, r.Size())
	case *os.File:
		if r == nil {
			return -1
		}
		if info, err := r.Stat(); err == nil && info.Mode().IsRegular() {
			return restOf(r, info.Size())
		}
	}
	return -1
}

// restOf returns the number of bytes between the current offset of r and size, or -1 if that number
// is unknown.
func restOf(r io.Seeker, size int64) int64 {
	at, err := r.Seek(0, io.SeekCurrent)
	if err != nil || at > size {
		return -1
	}
	return size - at
}

// A sectionReader reads a file from its beginning, regardless of the file's offset.
type sectionReader struct {
	f   *os.File
	off int64
}

// Read implements io.Reader.
func (r *sectionReader) Read(b []byte) (int, error) {
	n, err := r.f.ReadAt(b, r.off)
	r.off += int64(n)
	return n, err
}

// A programError wraps an error of the caller's reader or writer. It does not match the codes and
// context errors of the wrapped error, because they would look like those of the call.
type programError struct{ error }

// Is implements errors.Is.
func (e programError) Is(target error) bool {
	switch target.(type) {
	case hg.Code, *hg.RemoteError, *hg.Error:
		return false
	}
	return target != context.Canceled && target != context.DeadlineExceeded &&
		target != os.ErrDeadlineExceeded && errors.Is(e.error, target)
}

// As implements errors.As.
func (e programError) As(target any) bool {
	switch target.(type) {
	case *hg.Code, **hg.RemoteError, **hg.Error:
		return false
	}
	return errors.As(e.error, target)
}
