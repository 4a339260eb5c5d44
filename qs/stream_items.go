package qs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// How items travel: in a stream of their call, each its length as a uvarint, and its bytes.
//
//	add ─► buf ─ full, or alone, or the writer has become idle ─► hg.Stream ─► the window ─► hg.Stream ─► next: in place, or put together
//	        └─ full, and the window is, too: add waits
const (
	// batchSize is how many bytes of items leave together, and more only if one item has more.
	batchSize = 32 << 10
	// sendAtOnceAfter is how long nothing may have left for an item to leave at once.
	sendAtOnceAfter = 20 * time.Microsecond
	// busyBytes is how many bytes have to be added between two looks for the next look to come after fastLook, and not as soon as possible.
	busyBytes    = 8 << 10
	busyInterval = 500 * time.Microsecond
	// maxRetainedBuffer bounds what a buffer that nobody uses keeps, in bytes.
	maxRetainedBuffer = 128 << 10
)

// A itemBuffer has bytes of items for as long as they need it: a stream on which nothing moves has none.
type itemBuffer struct{ b []byte }

// idleBuffers are those that nobody uses.
var idleBuffers = sync.Pool{New: func() any { return &itemBuffer{} }}

// takeBuffer returns one that is empty.
func takeBuffer() *itemBuffer { return idleBuffers.Get().(*itemBuffer) }

// free gives b back, which may be nil. Its bytes are not used any more.
func (b *itemBuffer) free() {
	if b == nil {
		return
	}
	if b.b = b.b[:0]; cap(b.b) > maxRetainedBuffer {
		b.b = nil
	}
	idleBuffers.Put(b)
}

// encodeItem returns a buffer with an item, which is a pointer.
func encodeItem(c codec.Codec, item any) (b *itemBuffer, err error) {
	b = takeBuffer()
	if b.b, err = c.Append(b.b, item); err != nil {
		return nil, err
	}
	return b, nil
}

// An itemWriter sends items. One goroutine at a time adds; its lock is held around calls of the stream, which call nothing back.
type itemWriter struct {
	hctx         *hg.Context
	maxItem      int64                           // bytes of an item
	wait         func(ctx context.Context) error // until something may have changed
	notifyDriver func()                          // something is posted for who drives

	mu             sync.Mutex   // guards the fields below
	stream         *hg.Stream   // nil until the call has one
	perAttempt     bool         // an error of s is that of an attempt: there may be another,
	callEnd        func() error // unless the call has ended: then this says how
	closed         bool         // nothing follows
	wrote          int64        // bytes, in all
	buf            *itemBuffer  // what waits to be written; nil if nothing does
	written        int          // of buf: what is before has been written
	err            error
	writeAddedFunc func()        // looked, bound once
	writePending   bool          // looked is called soon: what is added until then leaves together
	added          int           // bytes since the last time
	lastWrite      time.Duration // when something was written, by hg.Context.Now
	timer          *na.Op
	items          int64
	bytes          int64
	blockedSince   time.Duration // when add began to wait, by hg.Context.Now; 0 while it does not
}

// bind has w send by s from now on.
func (w *itemWriter) bind(s *hg.Stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream = s
	w.flushLocked()
}

// pendingBytesLocked is how many bytes wait to be written. Locked.
func (w *itemWriter) pendingBytesLocked() int {
	if w.buf == nil {
		return 0
	}
	return len(w.buf.b) - w.written
}

// flushLocked writes as much as can be. Locked.
func (w *itemWriter) flushLocked() {
	for w.stream != nil && w.err == nil && w.pendingBytesLocked() > 0 {
		n, err := w.stream.Write(w.buf.b[w.written:])
		w.written += n
		w.wrote += int64(n)
		if errors.Is(err, hg.ErrAgain) {
			return
		}
		if err != nil && w.perAttempt {
			w.stream = nil
		} else {
			w.err = err
		}
	}
	if w.pendingBytesLocked() == 0 {
		w.buf.free()
		w.buf, w.written = nil, 0
		if w.closed && w.stream != nil && w.err == nil {
			w.stream.CloseWrite()
		}
	}
}

// closeWrite says that nothing is added any more: the stream ends behind what was.
func (w *itemWriter) closeWrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.flushLocked()
}

// onReady goes on when the stream says that it can.
func (w *itemWriter) onReady() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushLocked()
}

// writeAdded writes what has been added meanwhile. While much is added it is called from time to time, and add writes what is full.
func (w *itemWriter) writeAdded() {
	w.mu.Lock()
	defer w.mu.Unlock()
	added := w.added
	w.added, w.writePending = 0, false
	if w.err != nil {
		return
	}
	if w.pendingBytesLocked() > 0 {
		w.lastWrite = w.hctx.Now()
		w.flushLocked()
	}
	if added >= busyBytes {
		if w.timer == nil {
			w.timer = w.hctx.NA().NewOp(func(*na.Op, na.Result) { w.writeAdded() })
		}
		w.writePending = w.hctx.NA().Timer(w.timer, busyInterval) == nil
	}
}

// checkErrorLocked returns why nothing can be added. Locked.
func (w *itemWriter) checkErrorLocked(ctx context.Context) error {
	switch {
	case w.err == errStreamOver:
		return w.err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if w.callEnd != nil {
		if err := w.callEnd(); err != nil {
			return err
		}
	}
	return w.err
}

var errStreamOver = hg.Errorf(ErrClosed, "qs: the handler of the stream has returned; items are sent until then")

// add takes an item, with its buffer. While the stream is full it waits, until ctx ends.
func (w *itemWriter) add(ctx context.Context, b *itemBuffer) error {
	item := b.b
	if int64(len(item)) > w.maxItem {
		b.free()
		return hg.Errorf(hg.ErrOverflow, "qs: an item of %d bytes, hg.Config.MaxOutput is %d", len(item), w.maxItem)
	}
	w.mu.Lock()
	if err := w.checkErrorLocked(ctx); err != nil {
		w.mu.Unlock()
		b.free()
		return err
	}
	if w.buf == nil {
		w.buf = takeBuffer()
	}
	before := len(w.buf.b)
	w.buf.b = append(binary.AppendUvarint(w.buf.b, uint64(len(item))), item...)
	w.items++
	w.bytes += int64(len(item))
	w.added += len(w.buf.b) - before
	b.free()
	posted := false
	switch {
	case w.pendingBytesLocked() >= batchSize:
		w.flushLocked()
	case w.writePending:
	default:
		if now := w.hctx.Now(); now-w.lastWrite >= sendAtOnceAfter {
			w.lastWrite = now
			w.flushLocked()
			break
		}
		if w.writeAddedFunc == nil {
			w.writeAddedFunc = w.writeAdded
		}
		posted = w.hctx.Post(w.writeAddedFunc) == nil
		w.writePending = posted
	}
	full := w.pendingBytesLocked() >= batchSize
	w.mu.Unlock()
	if posted {
		w.notifyDriver()
	}
	if full {
		return w.drain(ctx, batchSize)
	}
	return nil
}

// drain waits until fewer than so many bytes wait to be written.
func (w *itemWriter) drain(ctx context.Context, most int) error {
	for {
		w.mu.Lock()
		w.flushLocked()
		err := w.checkErrorLocked(ctx)
		done := w.pendingBytesLocked() < most
		switch {
		case done || err != nil:
			w.blockedSince = 0
		case w.blockedSince == 0:
			w.blockedSince = w.hctx.Now()
		}
		w.mu.Unlock()
		if done {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.wait(ctx); err != nil && ctx.Err() == nil { // else fails says it
			return err
		}
	}
}

// stop has nothing be added any more.
func (w *itemWriter) stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; w.timer != nil {
		w.timer.Cancel()
	}
}

// movedBytes returns how many bytes have been written to the stream.
func (w *itemWriter) movedBytes() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrote
}

// flow describes the stream for hg.Context.Calls.
func (w *itemWriter) flow() *inspect.Flow {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &inspect.Flow{Items: w.items, Bytes: w.bytes, Waiting: int64(w.pendingBytesLocked())}
	if w.blockedSince != 0 {
		f.Stuck = max(w.hctx.Now()-w.blockedSince, 1)
	}
	return f
}

// An itemReader receives items. One goroutine at a time calls next.
type itemReader struct {
	hctx    *hg.Context
	maxItem int64 // bytes of an item

	mu         sync.Mutex // guards the fields below, and Next of the stream
	stream     *hg.Stream // nil until the call has one
	received   int64      // bytes that Next has returned
	released   int64      // of these, that are done with
	items      int64      // in them
	bytes      int64
	polls      int64
	lastActive time.Duration // when bytes were last taken, or came when there were none, by hg.Context.Now

	chunk      []byte      // what Next has returned
	chunkOff   int         // of it
	chunkItems int64       // items of it,
	chunkBytes int64       // and their bytes
	part       *itemBuffer // of an item that does not lie in one piece, with its length; nil without one
	partLen    int         // how long part will be; 0: not known
}

// bind has r read s from now on.
func (r *itemReader) bind(s *hg.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream, r.lastActive = s, r.hctx.Now()
}

// onBytes says that there is something to take, which there was not before.
func (r *itemReader) onBytes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastActive = r.hctx.Now()
}

// releaseRead has Next return more bytes, when those that it has returned have been used.
func (r *itemReader) releaseRead() (err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.chunk != nil {
		r.stream.Release(len(r.chunk))
		r.released += int64(len(r.chunk))
		r.items += r.chunkItems
		r.bytes += r.chunkBytes
		r.chunk, r.chunkOff, r.chunkItems, r.chunkBytes = nil, 0, 0, 0
		r.lastActive = r.hctx.Now()
	}
	if r.stream == nil {
		return hg.ErrAgain
	}
	if r.chunk, err = r.stream.Next(); err == nil {
		r.received += int64(len(r.chunk))
	}
	if err == io.EOF && r.part != nil {
		err = hg.Errorf(na.ErrProtocol, "the stream ends within an item")
	}
	return err
}

// releaseItem ends the use of what next has returned.
func (r *itemReader) releaseItem() {
	if r.partLen > 0 && len(r.part.b) == r.partLen {
		r.part.free()
		r.part, r.partLen = nil, 0
	}
}

// next returns the next item, which is valid until done, or the next call. The error is hg.ErrAgain if it has not come, io.EOF behind the last, or says
// how the stream has ended.
func (r *itemReader) next() ([]byte, error) {
	r.releaseItem()
	for {
		if r.chunkOff == len(r.chunk) {
			if err := r.releaseRead(); err != nil {
				return nil, err
			}
		}
		b := r.chunk[r.chunkOff:]
		if r.part == nil {
			size, head := binary.Uvarint(b)
			if err := r.check(size, head); err != nil {
				return nil, err
			}
			if head > 0 && size <= uint64(len(b)-head) {
				end := head + int(size)
				r.chunkOff += end
				r.chunkItems++
				r.chunkBytes += int64(size)
				return b[head:end:end], nil
			}
		}
		item, err := r.gather(b)
		if item != nil || err != nil {
			return item, err
		}
	}
}

// check refuses a length that cannot be.
func (r *itemReader) check(size uint64, head int) error {
	switch {
	case head < 0:
		return hg.Errorf(na.ErrProtocol, "an item whose length has more than 64 bits")
	case head > 0 && size > uint64(r.maxItem):
		return hg.Errorf(hg.ErrOverflow, "an item of %d bytes, hg.Config.MaxOutput is %d", size, r.maxItem)
	}
	return nil
}

// gather takes what b, which is not empty, has of an item, and returns that when it is complete.
func (r *itemReader) gather(b []byte) (item []byte, err error) {
	if r.part == nil {
		r.part = takeBuffer()
	}
	part, head := r.part, 0
	for r.partLen == 0 && len(b) > 0 {
		part.b = append(part.b, b[0])
		b = b[1:]
		r.chunkOff++
		var size uint64
		size, head = binary.Uvarint(part.b)
		if err := r.check(size, head); err != nil {
			return nil, err
		}
		if head > 0 {
			r.partLen = head + int(size)
		}
	}
	n := min(len(b), r.partLen-len(part.b))
	if r.partLen == 0 {
		return nil, nil
	}
	part.b = append(part.b, b[:n]...)
	r.chunkOff += n
	if len(part.b) < r.partLen {
		return nil, nil
	}
	size, head := binary.Uvarint(part.b)
	r.chunkItems++
	r.chunkBytes += int64(size)
	return part.b[head:r.partLen:r.partLen], nil
}

// movedBytes returns how many bytes have come.
func (r *itemReader) movedBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		return r.received
	}
	return max(r.received, r.stream.Moved())
}

// progress is moved that grows, too, while there is something to take.
func (r *itemReader) progress() int64 {
	n := r.movedBytes()
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.released {
		r.polls++
	}
	return n + r.polls
}

// flow describes the stream for hg.Context.Calls.
func (r *itemReader) flow() *inspect.Flow {
	n := r.movedBytes()
	r.mu.Lock()
	defer r.mu.Unlock()
	f := &inspect.Flow{In: true, Items: r.items, Bytes: r.bytes, Waiting: n - r.released}
	if f.Waiting > 0 {
		f.Stuck = max(r.hctx.Now()-r.lastActive, 1)
	}
	return f
}

// brokenStream returns err, with which the stream of a call to a peer is broken.
func brokenStream(m *method, to hg.Addr, err error) error {
	if e, ok := err.(*hg.Error); ok {
		err = fmt.Errorf("%s: %w", e.RPC, e.Err)
	}
	return &hg.Error{Op: "output of", RPC: m.name, Peer: to, Fate: Ran, Err: err}
}
