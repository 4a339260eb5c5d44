package na

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A Stream is one direction of ordered bytes that belongs to a call. The origin makes it and names
// it in the request; the target opens it when its handler begins:
//
//	origin                                                target
//	NewStream, Call with CallSpec.Streams ── request ──►  waits for its handler: no byte of a stream has moved
//	                                                      OpenStream
//	up:    ◄──────────────── WINDOW ────────────────────  Next, or Expect: it reads
//	       Write, CloseWrite ── STREAM, DATA ──────────►  Next, Release … io.EOF
//	down:  Next, Release … io.EOF ◄── STREAM, DATA ─────  Write, CloseWrite
//	Reset, by either side and at any time ── RESET ──►    the error of the other side
//
// Its frames need no envelope, no handler and no Trigger, and do not wait behind requests. The
// answer of the call is independent: it may arrive before the stream has ended, and the stream
// continues.
//
// No method blocks. A method that would block returns ErrAgain; Trigger calls the step function of
// NewStream or OpenStream when the call may be repeated. Methods may be called from any goroutine;
// one at a time writes, and one reads. The library owns the memory: Write copies, and the result of
// Next is valid until Release or Close.
//
// A window limits the unread bytes: 16 KiB at first, and up to 256 KiB, or 1 MiB for bulk data,
// when the reader is fast. They are charged to the room of the session (Config.Room) or, if none is
// left, to the StreamReserve bytes that each stream has for itself. So a stream with an active
// reader makes progress, whatever other streams hold.
type Stream struct {
	c    *Context
	l    *session // nil before the request is sent
	open bool     // in active.streams
	id   uint64
	own  bool // this side is the origin and has assigned the number
	up   bool
	bulk bool
	sent bool // this side is the sender

	step   func(data any) (ran int)
	data   any
	task   Task
	queued atomic.Bool // task is queued

	closed   bool
	finished bool  // the reserve was returned
	ofRoom   bool  // the reserve is part of the room
	err      error // the error of a stream that ended early
	wants    bool  // a method returned ErrAgain, so step must be called

	out sender
	in  receiver

	listed     bool // in a laneQueue
	starved    bool // in active.starved, waiting for room
	owesWindow bool
	owesReset  bool
	owing      bool // in active.owing
	code       Code // code and text of the RESET
	text       string
}

// A streamKey is the key of a stream in its session.
type streamKey struct {
	id  uint64
	own bool
}

const (
	// maxUnsent and maxBulkUnsent limit the unsent bytes of one stream.
	maxUnsent     = 64 << 10
	maxBulkUnsent = 1 << 20
	// maxResetText limits the text of a RESET in bytes.
	maxResetText = 512
	// MaxStreams is the maximum number of streams of one call.
	MaxStreams = 15
	// streamIDSize is the length of the number in a request that names its streams.
	streamIDSize = 8
)

// NewStream makes a stream for a Call of c: up to the target, or else down from it. It does not
// block.
//
// bulk reports that the stream carries large data rather than messages. Such data may use a lane of
// its own, and is not covered by a checksum of this module. Trigger calls step with data when a
// method that returned ErrAgain may be tried again; step returns how many callbacks of the program
// it has run.
//
// A stream that this side receives reserves StreamReserve bytes until Close. The error is
// ErrNoMemory if neither Config.Budget nor Config.Room has so many left. The caller must call
// Close, whatever the result of the call.
func (c upper) NewStream(up, bulk bool, step func(data any) (ran int), data any) (*Stream, error) {
	s := &Stream{c: c.Context, own: true, up: up, bulk: bulk, sent: up, step: step, data: data}
	if err := s.init(); err != nil {
		return nil, err
	}
	return s, nil
}

// OpenStream opens a stream of the request e. id is the result of StreamID plus the index of the
// stream. up, bulk, step and data are those of NewStream. It does not block.
//
// The origin may send a stream that goes up from the first Next or Expect on. The error is
// ErrNoMemory as of NewStream, ErrPeerLost if the session of the request has ended, or ErrDuplicate
// if the stream is already open, which is a protocol violation of the peer.
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

// init reserves memory for s and initializes its task.
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
	if s.own { // the target may send at once; the origin waits for a WINDOW
		s.in.limit, s.in.granted = firstWindow, StreamReserve
	}
	s.ofRoom, err = s.c.ep.dom.reserveStream()
	return err
}

// isClosed reports whether Close was called.
func (s *Stream) isClosed() bool {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	return s.closed
}

// StreamID returns the number of the first stream of a request; b are the 8 bytes of its message at
// CallSpec.StreamsAt.
func StreamID(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// Begun reports whether the request of the stream was sent. Before that no byte of the stream has
// moved.
func (s *Stream) Begun() bool {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	return s.l != nil
}

// Moved returns how many bytes were sent, or have arrived in order.
func (s *Stream) Moved() int64 {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	if s.sent {
		return s.out.sent
	}
	return s.in.next
}

// tryAgainLocked returns ErrAgain, and enables queueStepLocked. The caller holds endpoint.mu.
func (s *Stream) tryAgainLocked() error {
	s.wants = true
	return ErrAgain
}

// queueStepLocked queues the call of step if a method has returned ErrAgain. The caller holds
// endpoint.mu.
func (s *Stream) queueStepLocked() {
	if s.wants && !s.closed {
		s.wants = false
		if s.queued.CompareAndSwap(false, true) && !s.c.Upper().Queue(&s.task) {
			s.queued.Store(false)
		}
	}
}

// checkWritableLocked returns an error if nothing may be written now. The caller holds endpoint.mu.
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

// unsentLeftLocked returns how many bytes may be written before some must be sent. The caller holds
// endpoint.mu.
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

// Write copies bytes of b into the stream and returns how many: at least one, or the error is
// ErrAgain. They are sent as the window allows. Bytes of a stream to the target are accepted only
// after its receiver has called Next or Expect. Other errors are that of the Reset of the receiver,
// ErrPeerLost, and ErrInvalid after CloseWrite, Reset or Close. It does not block; one goroutine at
// a time writes.
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

// Reserve returns memory of the stream, of 1 to n bytes, for the caller to fill. The caller owns it
// until Commit, which is always required, also after Close. The errors are those of Write, and
// ErrInvalid if n is less than 1. It does not block.
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

// reserveLocked returns memory for at most n bytes. For bulk data it is in the Shelf of the carrier
// if there is one, where the peer can read it. The Shelf is not used before the reader has begun,
// nor beyond maxShelved bytes of the session.
func (s *Stream) reserveLocked(n int64) []byte {
	s.out.chunks.shelf = nil
	if s.bulk && s.open && n >= minPiece && s.out.limit > firstWindow && s.l.shelved < maxShelved {
		if c, ok := s.l.route.carrier.(carrier.Shelver); ok {
			s.out.chunks.shelf, s.out.chunks.shelved = c.Shelf(s.l), &s.l.shelved
		}
	}
	return s.out.reserve(int(n))
}

// Commit queues the first n bytes of the memory of Reserve to be sent. It does not block.
func (s *Stream) Commit(n int) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if s.err == nil && !s.closed && n > 0 {
		s.commitLocked(n)
	}
	s.out.takeBack()
}

// commitLocked queues n more written bytes to be sent.
func (s *Stream) commitLocked(n int) {
	s.out.written += int64(n)
	s.c.ep.dom.unsent.Add(int64(n))
	s.queueOutputLocked()
}

// CloseWrite ends the writing: the receiver gets io.EOF after the last byte. The stream ends when
// all bytes have been sent; Close may be called before. It does nothing after Reset, or on a stream
// that this side receives. It does not block.
func (s *Stream) CloseWrite() {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if !s.sent || s.err != nil || s.closed || s.out.ending {
		return
	}
	s.out.ending = true
	s.queueOutputLocked()
}

// Fail is CloseWrite with an error, which the receiver gets after the last byte instead of io.EOF.
// Unlike Reset it drops nothing. text is cut to 512 bytes.
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

// Next returns the next bytes, some or all of those that have arrived, without a copy. They are
// valid until Release. The error is ErrAgain if none have arrived, and after the last byte io.EOF,
// that of Fail or of the sender's Reset, or ErrPeerLost. It does not block; one goroutine at a time
// reads.
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

// startReceivingLocked sends the first WINDOW of a stream to the target, when its receiver begins
// to read. The caller holds endpoint.mu.
func (s *Stream) startReceivingLocked() {
	if s.open && s.in.limit == 0 {
		s.l.oweWindow(s)
	}
}

// Expect announces that about n bytes will arrive. The receiver calls it if it knows the size. The
// window then begins with that size, as far as the room of the session allows, instead of growing
// as bytes arrive. The sender of a stream to this side is notified when the first bytes were read.
// Expect also begins a stream to the target, as Next does. It does nothing once the stream has
// ended, and n may be wrong.
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
	// a target that has not opened the stream would drop a WINDOW
	if s.in.limit > 0 && (!s.own || s.isOpened()) && s.in.owesWindow() {
		s.l.oweWindow(s)
	}
}

// Release ends the use of the first n bytes of the result of Next: the sender may send as many
// more.
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

// Reset ends the stream early: unsent bytes are dropped, and the other side gets an error with code
// and text, which is cut to 512 bytes. On a stream that has ended it does nothing, and returns the
// error of an early end.
func (s *Stream) Reset(code Code, text string) (ended error) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	ended = s.err
	s.resetLocked(code, text)
	return ended
}

// resetLocked is Reset.
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

// isOverLocked reports whether s has ended regularly: all bytes were sent, or were read. The caller
// holds endpoint.mu.
func (s *Stream) isOverLocked() bool {
	if s.sent {
		return s.out.ended
	}
	return s.in.isRead()
}

// Close ends the use of the stream by the program; step is not called any more. After CloseWrite
// the written bytes are still sent. A stream that has not ended is Reset with ErrCanceled. Close
// may be called at any time, and repeatedly. It does not block.
func (s *Stream) Close() {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if s.closed {
		return
	}
	if s.sent && s.out.ending && (s.open || s.l == nil) && s.err == nil {
		s.closed = true // ends when all bytes were sent
		return
	}
	s.resetLocked(ErrCanceled, "the stream was closed")
	s.closed = true
	s.dropBytesLocked()
	s.finishReceivingLocked()
}

// dropBytesLocked drops all bytes of s. The caller holds endpoint.mu.
func (s *Stream) dropBytesLocked() {
	if s.sent {
		s.c.ep.dom.unsent.Add(-s.out.unsentBytes())
		s.out.written = s.out.sent
		s.out.chunks.dropAll()
		return
	}
	s.freeRoomLocked(s.in.drop())
}

// freeRoomLocked returns n bytes of room. The caller holds endpoint.mu.
func (s *Stream) freeRoomLocked(n int64) {
	if n > 0 {
		s.l.freeBytes(int(n), firstRoom)
	}
}

// finishReceivingLocked removes s from the table, and returns the reserve of a receiving stream,
// once. The caller holds endpoint.mu.
func (s *Stream) finishReceivingLocked() {
	if s.open {
		s.l.removeStream(s)
	}
	if !s.sent && !s.finished && s.in.unreadBytes() == 0 {
		s.finished = true
		s.c.ep.dom.unreserveStream(s.ofRoom)
	}
}

// failWithLocked ends s because its session or the peer has ended it. Bytes that have arrived in
// order can still be read. The caller holds endpoint.mu.
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
