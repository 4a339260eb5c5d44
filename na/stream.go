package na

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Stream is an ordered, unidirectional stream of bytes that belongs to a call. The origin creates
// it and puts its number into the request. The target opens it when its handler begins:
//
//	origin                                                target
//	NewStream, Call with CallSpec.Streams ── request ──►  waits for its handler; no bytes of a stream have been sent
//	                                                      OpenStream
//	up:    ◄──────────────── WINDOW ────────────────────  Next, or Expect: it reads
//	       Write, CloseWrite ── STREAM, DATA ──────────►  Next, Release … io.EOF
//	down:  Next, Release … io.EOF ◄── STREAM, DATA ─────  Write, CloseWrite
//	Reset, by either side and at any time ── RESET ──►    an error on the other side
//
// Its frames need no envelope, handler, or Trigger, and do not wait behind requests. The call's
// answer is independent: it may arrive before the stream has ended, and the stream continues.
//
// No method blocks. A method that would block returns ErrAgain. Trigger calls the step function
// passed to NewStream or OpenStream when the method may be tried again. Methods may be called from
// any goroutine, but at most one goroutine may write and one may read at a time. The library owns
// the memory: Write copies, and the result of Next is valid until Release or Close.
//
// A window limits the unread bytes: 16 KiB at first, and up to 256 KiB, or 1 MiB for bulk data, if
// the reader is fast. Unread bytes are charged to the session's room (Config.Room) or, if none is
// left, to the StreamReserve bytes that each stream has for itself. A stream with an active reader
// therefore makes progress no matter what other streams hold.
type Stream struct {
	c    *Context
	l    *session // nil before the request has been sent
	open bool     // in activeState.streams
	id   uint64
	own  bool // this side is the origin, which created the stream and assigned its number
	up   bool
	bulk bool
	sent bool // this side is the sender

	step   func(data any) (ran int)
	data   any
	task   Task
	queued atomic.Bool // task is in the queue

	closed   bool
	finished bool  // the reserve has been returned
	ofRoom   bool  // the reserve is part of the room
	err      error // error of a stream that ended early
	wants    bool  // a method has returned ErrAgain, so step must be called

	out sender
	in  receiver

	listed     bool // in a laneQueue
	starved    bool // in activeState.starved, waiting for room
	owesWindow bool
	owesReset  bool
	owing      bool // in activeState.owing
	code       Code // code and text of the RESET
	text       string
}

// A streamKey identifies a stream within its session.
type streamKey struct {
	id  uint64
	own bool
}

const (
	// maxUnsent and maxBulkUnsent limit the unsent bytes of one stream.
	maxUnsent     = 64 << 10
	maxBulkUnsent = 1 << 20
	// maxResetText is the maximum length of the text in a RESET frame, in bytes.
	maxResetText = 512
	// MaxStreams is the maximum number of streams in one call.
	MaxStreams = 15
	// streamIDSize is the length in bytes of the stream number in a request.
	streamIDSize = 8
)

// NewStream creates a stream for a Call of c. If up is true the stream goes to the target;
// otherwise it comes from the target. NewStream does not block.
//
// bulk must be true if the stream is for large data rather than messages. Such data may use a
// separate lane, and this module adds no checksum to it. When a method that has returned ErrAgain
// may be tried again, Trigger calls step with data as its argument. step must return the number of
// user callbacks that it has called.
//
// A stream received by this side reserves StreamReserve bytes until Close. The error is ErrNoMemory
// if neither Config.Budget nor Config.Room has that many bytes left. The caller must call Close,
// whatever the result of the call.
func (c upper) NewStream(up, bulk bool, step func(data any) (ran int), data any) (*Stream, error) {
	s := &Stream{c: c.Context, own: true, up: up, bulk: bulk, sent: up, step: step, data: data}
	if err := s.init(); err != nil {
		return nil, err
	}
	return s, nil
}

// OpenStream opens a stream of the request e. id is the result of StreamID plus the index of the
// stream. up, bulk, step, and data are as for NewStream. OpenStream does not block.
//
// The origin may send on an up stream once Next or Expect has been called. The error is ErrNoMemory
// as for NewStream, ErrPeerLost if the request's session has been closed, or ErrDuplicate if the
// stream is already open, which is a protocol violation by the peer.
func (c upper) OpenStream(e *Envelope, id uint64, up, bulk bool, step func(data any) (ran int), data any) (*Stream, error) {
	s := &Stream{c: c.Context, id: id, up: up, bulk: bulk, sent: !up, step: step, data: data}
	if err := s.init(); err != nil {
		return nil, err
	}
	c.ep.mu.Lock()
	defer c.ep.Unlock()
	l := e.session
	var err error
	switch {
	case l == nil || !l.Up():
		err = WithText(ErrPeerLost, "the session of the request has ended")
	case c.ep.shut:
		err = ErrClosed
	case l.findStream(streamKey{id, false}) != nil:
		err = WithText(ErrDuplicate, fmt.Sprintf("duplicate stream %d", id))
	}
	if err != nil {
		s.closed = true
		s.finishReceivingLocked()
		return nil, err
	}
	l.addStream(s)
	if s.sent {
		s.out.limit, s.out.granted = firstWindow, StreamReserve
	}
	return s, nil
}

// init sets the function that the task of s runs and, if this side receives s, reserves
// StreamReserve bytes.
func (s *Stream) init() (err error) {
	s.task.Init(func(any) int {
		s.queued.Store(false)
		if s.isClosed() {
			return 0
		}
		return s.step(s.data)
	}, nil)
	if s.sent {
		s.out.chunks.bulk = s.bulk
		return nil
	}
	s.in = newReceiver()
	s.in.chunks.bulk = s.bulk
	if s.own { // the target may send immediately; the origin waits for a WINDOW
		s.in.limit, s.in.granted = firstWindow, StreamReserve
	}
	s.ofRoom, err = s.c.ep.dom.reserveStream()
	return err
}

// isClosed reports whether Close has been called.
func (s *Stream) isClosed() bool {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	return s.closed
}

// StreamID returns the number of a request's first stream. b holds the 8 bytes of the message at
// CallSpec.StreamsAt.
func StreamID(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// Begun reports whether the request that contains the stream's number has been sent. Before that,
// no bytes of the stream are transferred.
func (s *Stream) Begun() bool {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	return s.l != nil
}

// Moved returns the number of bytes that this side has sent or, if it is the receiver, that have
// arrived without a gap before them.
func (s *Stream) Moved() int64 {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	if s.sent {
		return s.out.sent
	}
	return s.in.next
}

// tryAgainLocked returns ErrAgain and makes the next queueStepLocked queue a call of step.
// endpoint.mu must be held.
func (s *Stream) tryAgainLocked() error {
	s.wants = true
	return ErrAgain
}

// queueStepLocked queues a call of step if a method has returned ErrAgain. endpoint.mu must be
// held.
func (s *Stream) queueStepLocked() {
	if s.wants && !s.closed {
		s.wants = false
		if s.queued.CompareAndSwap(false, true) && !s.c.Upper().Queue(&s.task) {
			s.queued.Store(false)
		}
	}
}

// checkWritableLocked returns the error for a write that cannot accept any bytes now, or nil if a
// write can. endpoint.mu must be held.
func (s *Stream) checkWritableLocked() error {
	switch {
	case !s.sent || s.out.ending || s.closed:
		return ErrInvalid
	case s.err != nil:
		return s.err
	case s.out.limit == 0 || s.unsentLeftLocked() <= 0:
		return s.tryAgainLocked()
	}
	return nil
}

// unsentLeftLocked returns the number of bytes that may still be written before the limit on unsent
// bytes is reached. endpoint.mu must be held.
func (s *Stream) unsentLeftLocked() int64 {
	most := int64(maxUnsent)
	if s.bulk {
		most = maxBulkUnsent
	}
	if s.c.ep.dom.unsent.Load() >= maxClassUnsent {
		most = StreamReserve
	}
	return most - s.out.unsentBytes()
}

// Write copies bytes from b into the stream and returns the number of bytes copied. If it cannot
// copy at least one, the error is ErrAgain. The bytes are sent as the window allows. A stream to
// the target accepts bytes only after its receiver has called Next or Expect. Other errors are the
// error of the receiver's Reset, ErrPeerLost, and, after CloseWrite, Reset, or Close, ErrInvalid.
// Write does not block. At most one goroutine may write at a time.
func (s *Stream) Write(b []byte) (n int, err error) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	if err := s.checkWritableLocked(); err != nil {
		return 0, err
	}
	for left := s.unsentLeftLocked(); n < len(b) && left > 0; {
		to := s.reserveLocked(min(int64(len(b)-n), left))
		k := copy(to, b[n:])
		s.commitLocked(k)
		n += k
		left -= int64(k)
	}
	return n, nil
}

// Reserve returns between 1 and n bytes of the stream's memory for the caller to fill. The caller
// must call Commit, even after Close, and owns the memory until then. Errors are those documented
// for Write, and ErrInvalid if n is less than 1. Reserve does not block.
func (s *Stream) Reserve(n int) ([]byte, error) {
	if n < 1 {
		return nil, WithText(ErrInvalid, fmt.Sprintf("reserve: size is %d, want at least 1", n))
	}
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	if err := s.checkWritableLocked(); err != nil {
		return nil, err
	}
	s.out.takeBack()
	b := s.reserveLocked(min(int64(n), s.unsentLeftLocked()))
	s.out.lend()
	return b, nil
}

// reserveLocked returns memory for between 1 and n bytes that follow those written. For bulk data,
// it prefers memory in the carrier's Shelf, if there is one, which the peer can read in place. It
// uses the Shelf only once the reader has begun to read, and for no more than maxShelved bytes per
// session. endpoint.mu must be held.
func (s *Stream) reserveLocked(n int64) []byte {
	s.out.chunks.shelf = nil
	if s.bulk && s.open && n >= minPiece && s.out.limit > firstWindow && s.l.shelved < maxShelved {
		if c, ok := s.l.route.carrier.(carrier.Shelver); ok {
			s.out.chunks.shelf, s.out.chunks.shelved = c.Shelf(s.l), &s.l.shelved
		}
	}
	return s.out.reserve(int(n))
}

// Commit queues the first n bytes of the memory returned by Reserve for sending. The caller must
// not access the memory afterward. Commit does not block.
func (s *Stream) Commit(n int) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if s.err == nil && !s.closed && n > 0 {
		s.commitLocked(n)
	}
	s.out.takeBack()
}

// commitLocked queues n bytes, which have been written to the memory after the previous ones, for
// sending. endpoint.mu must be held.
func (s *Stream) commitLocked(n int) {
	s.out.written += int64(n)
	s.c.ep.dom.unsent.Add(int64(n))
	s.queueOutputLocked()
}

// CloseWrite marks the end of the stream, so that the receiver gets io.EOF after the last byte.
// Bytes that have not been sent are still sent, even if Close is called in the meantime. CloseWrite
// does nothing after Reset or on a stream received by this side. It does not block.
func (s *Stream) CloseWrite() {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if !s.sent || s.err != nil || s.closed || s.out.ending {
		return
	}
	s.out.ending = true
	s.queueOutputLocked()
}

// Fail is like CloseWrite, but the receiver gets an error after the last byte instead of io.EOF.
// Unlike Reset, it drops no data. text is truncated to 512 bytes. Fail does not block.
func (s *Stream) Fail(code Code, text string) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if !s.sent || s.err != nil || s.closed || s.out.ending {
		return
	}
	s.code, s.text = code, frame.CutText(text, maxResetText)
	s.out.ending, s.out.cause = true, true
	s.queueOutputLocked()
}

// Next returns some or all of the bytes that have arrived, without copying them. They are valid
// until Release. If none have arrived, the error is ErrAgain. After the last byte, the error is
// io.EOF, the error of the sender's Fail or Reset, or ErrPeerLost. Next does not block. At most one
// goroutine may read at a time.
func (s *Stream) Next() ([]byte, error) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if s.sent || s.closed {
		return nil, ErrInvalid
	}
	if b := s.in.peek(); b != nil {
		s.in.chunks.lent = true
		return b, nil
	}
	switch {
	case s.in.isRead() && s.in.cause != nil:
		return nil, s.in.cause
	case s.in.isRead():
		return nil, io.EOF
	case s.err != nil:
		return nil, s.err
	}
	s.startReceivingLocked()
	return nil, s.tryAgainLocked()
}

// startReceivingLocked queues the first WINDOW of s, which allows the origin to send, if none has
// been sent. It must be called when the receiver begins to read. endpoint.mu must be held.
func (s *Stream) startReceivingLocked() {
	if s.open && s.in.limit == 0 {
		s.l.oweWindow(s)
	}
}

// Expect increases the window to n bytes, as far as the session's room allows. A receiver that
// knows the approximate length of the stream may call it, so that the window need not grow as bytes
// arrive. At the origin, the sender is notified only when the first bytes have been read. At the
// target, Expect allows the origin to begin sending, as Next does. Expect does nothing on a stream
// that has ended. It does not block.
func (s *Stream) Expect(n int64) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if s.sent || !s.open || n < 0 {
		return
	}
	if n > firstWindow {
		s.l.growRoom(min(n, maxExpectedRoom))
		s.in.expect(n, s.maxWindow())
	}
	s.startReceivingLocked()
	// A target that has not opened the stream would drop a WINDOW.
	if s.in.limit > 0 && (!s.own || s.isOpened()) && s.in.owesWindow() {
		s.l.oweWindow(s)
	}
}

// Release releases the first n bytes of the slice returned by Next, which allows the sender to send
// as many more. The caller must not access them afterward. Release does not block.
func (s *Stream) Release(n int) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	s.in.chunks.lent = false
	n = int(min(int64(n), s.in.next-s.in.read)) // none after Reset
	if s.closed || n <= 0 {
		return
	}
	room := s.in.consume(int64(n))
	if s.open && s.in.owesWindow() {
		s.l.oweWindow(s)
	}
	if s.open && room < int64(n) {
		s.l.growRoomIfHeld()
	}
	s.freeRoomLocked(room)
	if s.open && room > 0 { // all bytes may have arrived before the first Next
		s.l.growForReaders()
	}
	if s.in.isRead() {
		s.finishReceivingLocked()
	}
}

// Reset ends the stream early. Unsent bytes are dropped, and the other side gets an error that
// matches code and has the given text, truncated to 512 bytes. If the stream has already ended,
// Reset does nothing. If it has ended early, Reset returns the error with which it ended. Reset
// does not block.
func (s *Stream) Reset(code Code, text string) (ended error) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	ended = s.err
	s.resetLocked(code, text)
	return ended
}

// resetLocked implements Reset. endpoint.mu must be held.
func (s *Stream) resetLocked(code Code, text string) {
	if s.err != nil || s.isOverLocked() {
		return
	}
	s.code, s.text = code, frame.CutText(text, maxResetText)
	s.err = WithText(code, text)
	s.dropBytesLocked()
	if s.open {
		s.owesReset = true
		s.l.queueWindow(s)
	}
	s.finishReceivingLocked()
}

// isOverLocked reports whether s has ended normally because all of its bytes have been sent or
// read. endpoint.mu must be held.
func (s *Stream) isOverLocked() bool {
	if s.sent {
		return s.out.ended
	}
	return s.in.isRead()
}

// Close releases the stream. step is not called afterward. If CloseWrite has been called, bytes
// that have not been sent are still sent. Otherwise a stream that has not ended is reset with
// ErrCanceled. Subsequent calls to Close do nothing. Close does not block.
func (s *Stream) Close() {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if s.closed {
		return
	}
	if s.sent && s.out.ending && (s.open || s.l == nil) && s.err == nil {
		s.closed = true // ends when all bytes have been sent
		return
	}
	s.resetLocked(ErrCanceled, "the stream was closed")
	s.closed = true
	s.dropBytesLocked()
	s.finishReceivingLocked()
}

// dropBytesLocked drops all unsent or unread bytes of s. endpoint.mu must be held.
func (s *Stream) dropBytesLocked() {
	if s.sent {
		s.c.ep.dom.unsent.Add(-s.out.unsentBytes())
		s.out.written = s.out.sent
		s.out.chunks.dropAll()
		return
	}
	s.freeRoomLocked(s.in.drop())
}

// freeRoomLocked frees n bytes of the session's room that bytes of s occupied. endpoint.mu must be
// held.
func (s *Stream) freeRoomLocked(n int64) {
	if n > 0 {
		s.l.freeBytes(int(n), firstRoom)
	}
}

// finishReceivingLocked removes s from the table and, if this side is the receiver, returns the
// reserve once all received bytes have been read or dropped. endpoint.mu must be held.
func (s *Stream) finishReceivingLocked() {
	if s.open {
		s.l.removeStream(s)
	}
	if !s.sent && !s.finished && s.in.unreadBytes() == 0 {
		s.finished = true
		s.c.ep.dom.unreserveStream(s.ofRoom)
	}
}

// failWithLocked ends s with err, because its session has been closed or the peer has reset it.
// Bytes that have arrived without a gap can still be read. endpoint.mu must be held.
func (s *Stream) failWithLocked(err error) {
	if s.err != nil || s.isOverLocked() {
		return
	}
	if s.sent || !s.in.isComplete() {
		s.err = err
	}
	if s.sent {
		s.dropBytesLocked()
	}
	s.queueStepLocked()
	if s.sent || s.in.unreadBytes() == 0 {
		s.finishReceivingLocked()
	}
}
