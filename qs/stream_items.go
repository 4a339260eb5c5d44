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

// Items are sent on a stream of their call. On the wire, an item is its length as a uvarint
// followed by its bytes. The sender buffers items and writes them to the stream when a batch is
// full, after an idle time, or in a callback that it has posted. It blocks while both the buffer
// and the window are full.
const (
	// batchSize is the number of buffered bytes at which a batch is written. Items larger than
	// batchSize are not split.
	batchSize = 32 << 10
	// sendAtOnceAfter is the idle time after which an item is written immediately instead of being
	// buffered.
	sendAtOnceAfter = 20 * time.Microsecond
	// If at least busyBytes are added between two calls to writeAdded, the next call is delayed by
	// busyInterval.
	busyBytes    = 8 << 10
	busyInterval = 500 * time.Microsecond
	// maxRetainedBuffer is the maximum capacity, in bytes, of a buffer kept in the pool.
	maxRetainedBuffer = 128 << 10
)

// An itemBuffer holds encoded items. A stream without buffered items holds no itemBuffer.
type itemBuffer struct{ b []byte }

// idleBuffers is a pool of empty buffers.
var idleBuffers = sync.Pool{New: func() any { return &itemBuffer{} }}

// takeBuffer returns an empty buffer from the pool.
func takeBuffer() *itemBuffer { return idleBuffers.Get().(*itemBuffer) }

// free returns b to the pool. b may be nil.
func (b *itemBuffer) free() {
	if b == nil {
		return
	}
	if b.b = b.b[:0]; cap(b.b) > maxRetainedBuffer {
		b.b = nil
	}
	idleBuffers.Put(b)
}

// encodeItem returns a buffer holding the encoded item. item is a pointer to the value to encode.
func encodeItem(c codec.Codec, item any) (b *itemBuffer, err error) {
	b = takeBuffer()
	if b.b, err = c.Append(b.b, item); err != nil {
		return nil, err
	}
	return b, nil
}

// An itemWriter sends items on a stream. add must not be called concurrently. The stream's methods
// are called with mu held and never call back into the itemWriter.
type itemWriter struct {
	hctx    *hg.Context
	maxItem int64                           // maximum size of an encoded item in bytes
	wait    func(ctx context.Context) error // blocks until the stream may accept more bytes
	// notifyDriver ensures that the context is driven soon. It is called after writeAdded was
	// posted.
	notifyDriver func()

	mu     sync.Mutex // guards the fields below
	stream *hg.Stream // nil until bind is called
	// perAttempt is set if a failed stream ends only the current attempt, because another attempt
	// may follow.
	perAttempt     bool
	callEnd        func() error // if not nil, returns the error for add once the call has completed
	closed         bool         // closeWrite was called
	wrote          int64        // number of bytes written to the streams of all attempts
	buf            *itemBuffer  // bytes to be written; nil if none
	written        int          // number of bytes of buf already written
	err            error        // error for all further calls to add
	writeAddedFunc func()       // method value w.writeAdded, kept to save an allocation
	// writePending is set while a call to writeAdded is posted. It will write all items added
	// before it.
	writePending bool
	added        int           // number of bytes added since the last call to writeAdded
	lastWrite    time.Duration // time of the last write, from hg.Context.Now
	timer        *na.Op        // calls writeAdded; nil before its first use
	items        int64         // number of items added
	bytes        int64         // total size of the items added, in bytes
	// blockedSince is the time at which the blocked add began to block, from hg.Context.Now, or 0
	// if none is blocked.
	blockedSince time.Duration
}

// bind sets the stream to which items are written, and writes the buffered ones.
func (w *itemWriter) bind(s *hg.Stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream = s
	w.flushLocked()
}

// pendingBytesLocked returns the number of buffered bytes not yet written. The caller must hold
// w.mu.
func (w *itemWriter) pendingBytesLocked() int {
	if w.buf == nil {
		return 0
	}
	return len(w.buf.b) - w.written
}

// flushLocked writes as many of the buffered bytes as the stream accepts. The caller must hold
// w.mu.
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

// closeWrite closes the stream for writing once all items have been written. It does not block.
func (w *itemWriter) closeWrite() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.flushLocked()
}

// onReady writes buffered items. The stream calls it when flow control permits more data.
func (w *itemWriter) onReady() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushLocked()
}

// writeAdded writes the items added since the last write. At high data rates a timer calls it, and
// add writes only full batches.
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

// checkErrorLocked returns the error for add if no item can be added, or nil. The caller must hold
// w.mu.
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

// errSendClosed is returned by add after closeWrite.
var errSendClosed = hg.Errorf(ErrClosed, "qs: Send called after CloseSend or Close")

// add adds the encoded item in b and frees b. It blocks while at least batchSize bytes are
// buffered, until ctx is done.
func (w *itemWriter) add(ctx context.Context, b *itemBuffer) error {
	item := b.b
	if int64(len(item)) > w.maxItem {
		b.free()
		return hg.Errorf(hg.ErrOverflow, "qs: item of %d bytes exceeds the sender's hg.Config.MaxOutput of %d", len(item),
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

// drain blocks until fewer than limit bytes are buffered. It returns an error if ctx is done first.
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
		// If ctx is done, checkErrorLocked returns its cause in the next iteration.
		if err := w.wait(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// stop makes every later call to add return err.
func (w *itemWriter) stop(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err = err; w.timer != nil {
		w.timer.Cancel()
	}
}

// movedBytes returns the number of bytes written to the streams of all attempts.
func (w *itemWriter) movedBytes() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrote
}

// flow returns a description of the stream for hg.Context.Calls.
func (w *itemWriter) flow() *inspect.Flow {
	w.mu.Lock()
	defer w.mu.Unlock()
	f := &inspect.Flow{Items: w.items, Bytes: w.bytes, Waiting: int64(w.pendingBytesLocked())}
	if w.blockedSince != 0 {
		f.Stuck = max(w.hctx.Now()-w.blockedSince, 1)
	}
	return f
}

// An itemReader receives items from a stream. next must not be called concurrently. The fields
// after lastActive are used only by the goroutine that calls next.
type itemReader struct {
	hctx    *hg.Context
	maxItem int64 // maximum size of an encoded item in bytes

	mu       sync.Mutex // guards the fields up to lastActive and calls to stream.Next
	stream   *hg.Stream // nil until bind is called
	received int64      // number of bytes returned by stream.Next
	released int64      // number of received bytes in released chunks
	items    int64      // number of items that end in released chunks
	bytes    int64      // total size of these items in bytes
	polls    int64      // number of calls to progress while there were unreleased bytes
	// lastActive is the last time at which bytes were released, or arrived after a pause, from
	// hg.Context.Now.
	lastActive time.Duration

	chunk      []byte // current chunk, returned by stream.Next
	chunkOff   int    // number of bytes of chunk consumed
	chunkItems int64  // number of items that end in chunk
	chunkBytes int64  // total size of these items in bytes
	// part holds the beginning of an item that spans chunks, including its length prefix. It is nil
	// if there is no such item.
	part    *itemBuffer
	partLen int // final length of part, or 0 if it is not yet known
}

// bind sets the stream from which items are read.
func (r *itemReader) bind(s *hg.Stream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stream, r.lastActive = s, r.hctx.Now()
}

// onBytes records that bytes have arrived. The stream calls it when bytes arrive after a pause.
func (r *itemReader) onBytes() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastActive = r.hctx.Now()
}

// releaseRead releases the current chunk and reads the next one from the stream. It does not block.
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

// releaseItem releases the item returned by next.
func (r *itemReader) releaseItem() {
	if r.partLen > 0 && len(r.part.b) == r.partLen {
		r.part.free()
		r.part, r.partLen = nil, 0
	}
}

// nextBuffered returns the next item if the current chunk contains it entirely. Otherwise it
// returns nil, and the caller must call next. It does not lock r.mu.
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

// next returns the next item, which is valid until the next call to releaseItem or next. It does
// not block. It returns hg.ErrAgain if the item has not arrived completely and io.EOF after the
// last item. Otherwise the error is the reason why the stream failed.
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

// check returns an error if an item's length prefix is invalid. size and head are the results of
// binary.Uvarint for the prefix.
func (r *itemReader) check(size uint64, head int) error {
	switch {
	case head < 0:
		return hg.Errorf(na.ErrProtocol, "malformed item: its length has more than 64 bits")
	case head > 0 && size > uint64(r.maxItem):
		return hg.Errorf(hg.ErrOverflow, "item of %d bytes exceeds the receiver's hg.Config.MaxOutput of %d", size,
			r.maxItem)
	}
	return nil
}

// gather appends bytes from b, which must not be empty, to r.part. It returns the item if it is
// then complete, and nil otherwise.
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

// movedBytes returns the number of bytes received, including those not yet read.
func (r *itemReader) movedBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stream == nil {
		return r.received
	}
	return max(r.received, r.stream.Moved())
}

// progress returns a counter that increases with each byte received, and with each call to progress
// while there are unreleased bytes.
func (r *itemReader) progress() int64 {
	n := r.movedBytes()
	r.mu.Lock()
	defer r.mu.Unlock()
	if n > r.released {
		r.polls++
	}
	return n + r.polls
}

// flow returns a description of the stream, as reported by hg.Context.Calls.
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

// brokenStream returns the error for a call of m to to whose stream failed with err.
func brokenStream(m *method, to hg.Addr, err error) error {
	if e, ok := err.(*hg.Error); ok {
		err = fmt.Errorf("%s: %w", e.RPC, e.Err)
	}
	return &hg.Error{Op: "output of", RPC: m.name, Peer: to, Fate: Ran, Err: err}
}
