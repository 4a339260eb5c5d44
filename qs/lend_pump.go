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

// A pump moves bytes between a reader or a writer of the program and a stream of one attempt of a call, on a goroutine of its own, which
// may block in the program's Read or Write:
//
//	From: r ─ Read ──► memory of the stream ─► the handler
//	Into: w ◄─ Write ─ memory of the stream ◄─ the handler
//
// It reads nothing before the handler does: until then the stream has no memory for it.
type pump struct {
	hctx *hg.Context
	log  func(text string, args ...any)
	from io.Reader  // one of these two
	into *sinkState //
	use  *streamUse // of the Source or the Sink

	file     bool // from or into is a file of this package: it does not block for long
	finished bool // of the goroutine: it has come to its end by itself

	mu           sync.Mutex    // guards the fields below
	stream       *hg.Stream    // nil until the attempt's call has begun; then the goroutine runs
	moved        int64         // bytes that were read or written
	err          error         // of r or w
	broken       error         // of the stream
	closed       bool          // nothing more is read or written
	busy         bool          // in a Read or a Write
	interrupting chan struct{} // not nil: a Read or a Write was interrupted; closed when its deadline is set
	abandoned    bool          // one was left behind: nothing of it counts
	done         chan struct{} // closed when the goroutine has
}

// maxPumpChunk is how many bytes one Read gets at the most. A stream gives and takes no more in one piece.
const maxPumpChunk = 256 << 10

// A streamUse says that an attempt uses a reader or a writer of the program. When a Read has given bytes, or was left behind, the next attempt
// would lack bytes without knowing.
type streamUse struct {
	atomic.Bool
	spent bool // there is no next one
}

var errInUse = na.WithText(ErrInvalid, "another attempt or call uses this Source or Sink: it serves one at a time")

var errSpent = na.WithText(ErrInvalid, "a call before has used bytes of this Reader, or left its Read running: lend a new one")

// newPump returns the pump of one attempt of a call, which has to release it.
func (n *Node) newPump(hctx *hg.Context, from io.Reader, into *sinkState, u *streamUse) (*pump, error) {
	if !u.CompareAndSwap(false, true) {
		return nil, errInUse
	}
	if u.spent {
		u.Store(false)
		return nil, errSpent
	}
	g := &pump{hctx: hctx, log: n.logger().Warn, from: from, into: into, use: u, done: make(chan struct{})}
	switch from.(type) {
	case nil:
		g.file = into.fileSink != nil
		into.filled.Store(0)
	case *sectionReader:
		g.file = true
	}
	return g, nil
}

// start has the goroutine move bytes through s.
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

// release lets another attempt use the reader or the writer, unless a Read or a Write was left behind: then its end does.
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

// What is given to a Read or a Write that is under way when its call ends: to return, and to a Write once it was interrupted. A Read is
// interrupted at once, since nothing is lost; a Write that is cut short may break what it writes to, such as a TLS connection.
const (
	ioGrace        = 50 * time.Millisecond
	interruptGrace = 20 * time.Millisecond
)

// close ends g: no Read or Write begins any more. It reports whether one is left behind, which neither returned nor could be interrupted.
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

// await reports whether the goroutine ends within d; a negative d is no limit.
func (g *pump) await(d time.Duration) bool {
	if g.hctx.NA().Scheduled() { // a coroutine does not wait on a channel
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

// interrupt has the Read or Write under way return, if deadlines of r or w do that. The goroutine takes the deadline back.
func (g *pump) interrupt() bool {
	set := make(chan struct{})
	defer close(set)
	g.mu.Lock()
	if !g.busy {
		g.mu.Unlock()
		return true // it ends by itself
	}
	g.interrupting = set
	g.mu.Unlock()
	return g.setDeadline(time.Unix(1, 0))
}

// setDeadline sets the deadline of the program's reader or writer, if it has one, and reports whether that has succeeded. One that panics, as
// that of an embedded net.Conn which is nil, has none.
func (g *pump) setDeadline(at time.Time) (set bool) {
	defer func() {
		if p := recover(); p != nil {
			set = false
			g.log("SetReadDeadline or SetWriteDeadline of a Reader or a Writer has panicked", "panic", p)
		}
	}()
	if g.from != nil {
		r, ok := g.from.(interface{ SetReadDeadline(time.Time) error })
		return ok && r.SetReadDeadline(at) == nil
	}
	w, ok := g.into.into.(interface{ SetWriteDeadline(time.Time) error })
	return ok && w.SetWriteDeadline(at) == nil
}

// beginIO reports whether a Read or a Write may begin.
func (g *pump) beginIO() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy = !g.closed
	return g.busy
}

// endIO notes that a Read or a Write has moved n bytes and has failed with err, if that is not nil. It reports whether to go on.
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
	if err != nil && !g.closed { // an interrupt is no error of theirs
		g.err = err
	}
	return err == nil && !g.closed
}

// wait waits until the stream can go on, after ErrAgain, and reports whether it can. Anything else ends the pump.
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

func isAgain(err error) bool { return errors.Is(err, hg.ErrAgain) }

// fill reads from the program's reader.
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
			n, err = 0, fmt.Errorf("a Read of %d bytes returned %d", len(b), n)
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

// drain writes to the program's writer.
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
			err = fmt.Errorf("a Write of %d bytes returned %d", len(b), n)
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

// fail lets the handler know with what the program's reader or writer has failed: behind what the reader has given.
func (g *pump) fail(err error) {
	if g.from != nil {
		g.stream.Fail(na.ErrIO, fmt.Sprintf("the caller's reader has failed: %v", err))
		return
	}
	g.stream.Reset(na.ErrIO, fmt.Sprintf("the caller's writer has failed: %v", err))
}

// onReturn is the end of the goroutine that reads or writes.
func (g *pump) onReturn() {
	err := errGoexit
	p := recover() // of the program's reader or writer: it fails the call instead of the process
	if p != nil {
		err = fmt.Errorf("panic: %v", p)
	}
	if !g.finished {
		g.endIO(0, err)
		if g.from != nil {
			g.stream.Commit(0) // of what Read was given
		}
		g.fail(err)
	}
	defer g.onGoroutineEnd() // deferred: SetReadDeadline may end the goroutine
	g.mu.Lock()
	set := g.interrupting
	g.mu.Unlock()
	if set != nil {
		<-set
		g.setDeadline(time.Time{})
	}
}

// onGoroutineEnd is the end of the goroutine: those who wait for it go on.
func (g *pump) onGoroutineEnd() {
	g.mu.Lock()
	left := g.abandoned
	close(g.done)
	g.mu.Unlock()
	if left { // the node may be gone
		g.use.spent = g.from != nil
		g.use.Store(false)
		return
	}
	g.hctx.Wake()
}

var errGoexit = error(hg.Errorf(hg.ErrAborted, "the Read or Write of the caller's stream ended its goroutine (runtime.Goexit)"))

// pumpedBytes returns how many bytes were read or written, and the error of the program's reader or writer.
func (g *pump) pumpedBytes() (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.moved, g.err
}

// passedBytes returns how many bytes have left for the handler, or have been written.
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

// progress grows with each byte that moves.
func (g *pump) progress() int64 {
	g.mu.Lock()
	s, n := g.stream, g.moved
	g.mu.Unlock()
	if s == nil {
		return 0
	}
	return n + s.Moved()
}

// finish waits, after a call that has succeeded, until the program's writer has got all bytes.
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
		return na.WithText(na.ErrIO, "the caller's writer has failed")
	}
	return g.broken
}

// expectedOf returns how many bytes a reader is about to give, for readers of the standard library that know it; else -1. It is a hint, of which nothing depends.
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

// restOf returns what is left of size bytes behind the offset of r.
func restOf(r io.Seeker, size int64) int64 {
	at, err := r.Seek(0, io.SeekCurrent)
	if err != nil || at > size {
		return -1
	}
	return size - at
}

// sectionReader reads a file from its beginning, whatever its offset is.
type sectionReader struct {
	f   *os.File
	off int64
}

func (r *sectionReader) Read(b []byte) (int, error) {
	n, err := r.f.ReadAt(b, r.off)
	r.off += int64(n)
	return n, err
}

// A programError is an error of the program's own reader or writer. It matches what that does, but for codes and the errors of contexts,
// which would speak of the call.
type programError struct{ error }

func (e programError) Is(target error) bool {
	switch target.(type) {
	case hg.Code, *hg.RemoteError, *hg.Error:
		return false
	}
	return target != context.Canceled && target != context.DeadlineExceeded && target != os.ErrDeadlineExceeded && errors.Is(e.error, target)
}

func (e programError) As(target any) bool {
	switch target.(type) {
	case *hg.Code, **hg.RemoteError, **hg.Error:
		return false
	}
	return errors.As(e.error, target)
}
