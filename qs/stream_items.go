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

// Items travel through a stream of their call. An item is its length as a uvarint, and its bytes.
//
//	add ─► buf ─ full, or idle before, or posted ─► hg.Stream ─► window ─► hg.Stream ─► next: in place or copied
//	        └─ buf and the window are full: add blocks
const (
	// batchSize is the number of bytes of items at which a batch is written. A larger item is
	// written whole.
	batchSize = 32 << 10
	// sendAtOnceAfter is the idle time after which an item is written at once, without waiting for
	// more.
	sendAtOnceAfter = 20 * time.Microsecond
	// If at least busyBytes were added between two calls of writeAdded, the next call is delayed by
	// busyInterval.
	busyBytes    = 8 << 10
	busyInterval = 500 * time.Microsecond
	// maxRetainedBuffer limits the memory of a pooled buffer, in bytes.
	maxRetainedBuffer = 128 << 10
)

// An itemBuffer holds bytes of items. A stream without traffic has no itemBuffer.
type itemBuffer struct{ b []byte }

// idleBuffers pools empty buffers.
var idleBuffers = sync.Pool{New: func() any { return &itemBuffer{} }}

// takeBuffer returns an empty buffer.
func takeBuffer() *itemBuffer { return idleBuffers.Get().(*itemBuffer) }

// free returns b, which may be nil, to the pool.
func (b *itemBuffer) free() {
	if b == nil {
		return
	}
	if b.b = b.b[:0]; cap(b.b) > maxRetainedBuffer {
		b.b = nil
	}
	idleBuffers.Put(b)
}

// encodeItem returns a buffer with the encoded item, which is a pointer.
func encodeItem(c codec.Codec, item any) (b *itemBuffer, err error) {
	b = takeBuffer()
	if b.b, err = c.Append(b.b, item); err != nil {
		return nil, err
	}
	return b, nil
}

// An itemWriter sends items. One goroutine at a time adds items. mu is held during calls of the
// stream, which call nothing back.
type itemWriter struct {
	hctx    *hg.Context
	maxItem int64                           // largest size of an item, in bytes
	wait    func(ctx context.Context) error // waits until the stream may have changed
	// Called when writeAdded was posted, so that the context is driven soon.
	notifyDriver func()

	mu     sync.Mutex // guards the fields below
	stream *hg.Stream // nil until bind
	// perAttempt is set if an error of stream ends only the attempt, since another attempt may
	// follow.
	perAttempt     bool
	callEnd        func() error // returns the error of items if the call has ended; may be nil
	closed         bool         // no item follows
	wrote          int64        // number of bytes written to streams
	buf            *itemBuffer  // bytes to be written; nil if there are none
	written        int          // number of bytes of buf that were written
	err            error        // error of every further item
	writeAddedFunc func()       // the method value writeAdded
	// WriteAdded will be called soon: items added until then are written together.
	writePending bool
	added        int           // number of bytes added since the last writeAdded
	lastWrite    time.Duration // time of the last write, by hg.Context.Now
	timer        *na.Op        // calls writeAdded; nil before its first use
	items        int64         // number of items added
	bytes        int64         // number of bytes of items added
	// blockedSince is the time at which add began to block, by hg.Context.Now; 0 while it does not.
	blockedSince time.Duration
}

// bind makes s the stream to write to.
func (w *itemWriter) bind(s *hg.Stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream = s
	w.flushLocked()
}

// pendingBytesLocked returns the number of bytes to be written. The caller holds mu.
func (w *itemWriter) pendingBytesLocked() int {
	if w.buf == nil {
		return 0
	}
	return len(w.buf.b) - w.written
}

// flushLocked writes as much as the stream accepts. The caller holds mu.
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

// closeWrite ends the items: the stream ends after those added before.
func (w *itemWriter) closeWrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.flushLocked()
}

// onReady continues writing. The stream calls it when its window has opened.
func (w *itemWriter) onReady() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushLocked()
}

// writeAdded writes the items added since the last write. While many bytes are added a timer calls
// it, and add writes full batches.
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

// checkErrorLocked returns an error if no item can be added. The caller holds mu.
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

var errStreamOver = hg.Errorf(ErrClosed,
	"qs: send called after the stream's handler returned")

// errSendClosed is the error of an item that was added after closeWrite.
var errSendClosed = hg.Errorf(ErrClosed, "qs: Send called after CloseSend or Close")

// add adds an item, and frees its buffer. It blocks while the stream is full, until ctx is done.
func (w *itemWriter) add(ctx context.Context, b *itemBuffer) error {
	item := b.b
	if int64(len(item)) > w.maxItem {
		b.free()
		return hg.Errorf(hg.ErrOverflow, "qs: item of %d bytes exceeds hg.Config.MaxOutput of %d", len(item),
			w.maxItem)
	}
	w.mu.Lock()
	err := w.checkErrorLocked(ctx)
	if err == nil && w.closed {
		err = errSendClosed
	}
	if err != nil {
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

// drain waits until fewer than limit bytes are to be written.
func (w *itemWriter) drain(ctx context.Context, limit int) error {
	for {
		w.mu.Lock()
		w.flushLocked()
		err := w.checkErrorLocked(ctx)
		done := w.pendingBytesLocked() < limit
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
		// If ctx is done, checkErrorLocked returns its cause.
		if err := w.wait(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// stop makes every further add fail with err.
func (w *itemWriter) stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; w.timer != nil {
		w.timer.Cancel()
	}
}

// movedBytes returns the number of bytes written to streams.
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

// An itemReader receives items. One goroutine at a time calls next. The fields after lastActive
// belong to it.
type itemReader struct {
	hctx    *hg.Context
	maxItem int64 // largest size of an item, in bytes

	mu       sync.Mutex // guards the fields up to lastActive, and Next of the stream
	stream   *hg.Stream // nil until the call has one
	received int64      // number of bytes that Next has returned
	released int64      // number of received bytes that are no longer used
	items    int64      // number of items in the released bytes
	bytes    int64      // number of bytes of these items
	polls    int64      // number of calls of progress that found bytes not released
	// lastActive is the time at which bytes were last released, or arrived after a pause, by
	// hg.Context.Now.
	lastActive time.Duration

	chunk      []byte // bytes that Next has returned
	chunkOff   int    // number of bytes of chunk that were used
	chunkItems int64  // number of items that end in chunk
	chunkBytes int64  // number of bytes of these items
	// part holds the bytes of an item that spans chunks, with its length. It is nil if there is
	// none.
	part    *itemBuffer
	partLen int // final length of part; 0 if it is unknown
}

// bind makes s the stream to read from.
func (r *itemReader) bind(s *hg.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream, r.lastActive = s, r.hctx.Now()
}

// onBytes records that bytes have arrived after a pause. The stream calls it.
func (r *itemReader) onBytes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastActive = r.hctx.Now()
}

// releaseRead releases the current chunk, and takes the next one from the stream.
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
		err = hg.Errorf(na.ErrProtocol, "the stream ended in the middle of an item")
	}
	return err
}

// releaseItem ends the use of the item that next has returned.
func (r *itemReader) releaseItem() {
	if r.partLen > 0 && len(r.part.b) == r.partLen {
		r.part.free()
		r.part, r.partLen = nil, 0
	}
}

// nextBuffered is next for an item that lies completely in the current chunk; otherwise it returns
// nil, and next continues. It takes no lock.
func (r *itemReader) nextBuffered() []byte {
	r.releaseItem()
	if r.part != nil {
		return nil
	}
	b := r.chunk[r.chunkOff:]
	size, head := binary.Uvarint(b)
	if head <= 0 || size > uint64(len(b)-head) || size > uint64(r.maxItem) {
		return nil
	}
	end := head + int(size)
	r.chunkOff += end
	r.chunkItems++
	r.chunkBytes += int64(size)
	return b[head:end:end]
}

// next returns the next item, which is valid until releaseItem or the next call. It does not block.
// The error is hg.ErrAgain if the item has not arrived completely, io.EOF after the last one, and
// otherwise the reason why the stream ended.
func (r *itemReader) next() ([]byte, error) {
	for {
		if item := r.nextBuffered(); item != nil {
			return item, nil
		}
		if r.chunkOff == len(r.chunk) {
			if err := r.releaseRead(); err != nil {
				return nil, err
			}
			continue
		}
		b := r.chunk[r.chunkOff:]
		if r.part == nil {
			if err := r.check(binary.Uvarint(b)); err != nil {
				return nil, err
			}
		}
		item, err := r.gather(b)
		if item != nil || err != nil {
			return item, err
		}
	}
}

// check returns an error for an invalid length of an item.
func (r *itemReader) check(size uint64, head int) error {
	switch {
	case head < 0:
		return hg.Errorf(na.ErrProtocol, "malformed item: its length has more than 64 bits")
	case head > 0 && size > uint64(r.maxItem):
		return hg.Errorf(hg.ErrOverflow, "item of %d bytes exceeds hg.Config.MaxOutput of %d", size,
			r.maxItem)
	}
	return nil
}

// gather adds bytes of b, which is not empty, to part. It returns the item when it is complete.
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

// movedBytes returns the number of bytes that have arrived.
func (r *itemReader) movedBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		return r.received
	}
	return max(r.received, r.stream.Moved())
}

// progress returns movedBytes, and more each time it is called while there are bytes to take.
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

// brokenStream returns the error of a call whose stream to a peer failed with err.
func brokenStream(m *method, to hg.Addr, err error) error {
	if e, ok := err.(*hg.Error); ok {
		err = fmt.Errorf("%s: %w", e.RPC, e.Err)
	}
	return &hg.Error{Op: "output of", RPC: m.name, Peer: to, Fate: Ran, Err: err}
}
