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
// it in the call, the target opens it when its handler begins:
//
//	origin                                                target
//	NewStream, Call with CallSpec.Streams ── request ──►  waits for its handler: no byte of a stream has moved
//	                                                      OpenStream
//	up:    ◄──────────────── WINDOW ────────────────────  Next, or Expect: it reads
//	       Write, CloseWrite ── STREAM, DATA ──────────►  Next, Release … io.EOF
//	down:  Next, Release … io.EOF ◄── STREAM, DATA ─────  Write, CloseWrite
//	Reset, by either side and at any time ── RESET ──►    the error of the other side
//
// Its frames need no envelope, no handler and no Trigger, and wait behind no request. The answer of
// the call is independent: it may come before the stream has ended, and the stream outlasts it.
//
// No method blocks: what cannot be done yet is ErrAgain, after which the function that the stream
// was made with is called, in Trigger, when it may be tried again. Methods may be called from any
// goroutine; one at a time writes, and one reads. The memory is the library's: Write copies, and
// what Next returns is valid until Release, or Close.
//
// Unread bytes are bounded by a window, of 16 KiB at first and of 256 KiB, or 1 MiB of bulk data,
// when its reader is fast. They are charged to the room of the session (Config.Room), or, where
// there is none left, to the StreamReserve bytes that each stream has of its own: so a stream whose
// reader goes on does, whatever becomes of the others.
type Stream struct {
	c    *Context
	l    *session // nil before it has begun
	open bool     // it is in the session's table
	id   uint64
	own  bool // numbered by this side, which is the origin
	up   bool
	bulk bool
	sent bool // this side sends

	step   func(data any) (ran int)
	data   any
	task   Task
	queued atomic.Bool // task is

	closed   bool
	finished bool  // its reserve has been given back,
	ofRoom   bool  // which was taken out of the room
	err      error // why it has ended before its end
	wants    bool  // the program was told ErrAgain

	out sender
	in  receiver

	listed     bool // it waits for its turn, in a laneQueue
	starved    bool // it waits for room, in active.starved
	owesWindow bool
	owesReset  bool
	owing      bool // it is in active.owing
	code       Code // of the RESET
	text       string
}

// A streamKey finds a stream in its session.
type streamKey struct {
	id  uint64
	own bool
}

const (
	// maxUnsent and maxBulkUnsent bound what waits to leave of one stream, in bytes.
	maxUnsent     = 64 << 10
	maxBulkUnsent = 1 << 20
	// maxResetText bounds the text of a RESET in bytes.
	maxResetText = 512
	// MaxStreams is how many streams one call may have.
	MaxStreams = 15
	// streamIDSize is how many bytes of a request name its streams.
	streamIDSize = 8
)

// NewStream makes a stream for a Call of c: up to the target, or else down from it. bulk says that
// it carries large data, which may leave on a lane of its own and is not covered by a checksum of
// this module, rather than messages. step is called with data in Trigger, when what was refused
// with ErrAgain may be tried again, and returns how many callbacks of the program it has run. A
// stream that this side receives reserves StreamReserve bytes until Close; where neither
// Config.Budget nor Config.Room leaves so many the error is ErrNoMemory. It does not block. Close
// follows, whatever becomes of the call.
func (c upper) NewStream(up, bulk bool, step func(data any) (ran int), data any) (*Stream, error) {
	s := &Stream{c: c.Context, own: true, up: up, bulk: bulk, sent: up, step: step, data: data}
	if err := s.init(); err != nil {
		return nil, err
	}
	return s, nil
}

// OpenStream opens a stream that a request has named: by the number of the first, which StreamID
// reads, plus its index. up, bulk, step and data are those of NewStream. A stream that goes up
// begins when Next or Expect is called: the origin may send from then on. The error is ErrNoMemory
// as that of NewStream, ErrPeerLost if the session of the request has ended, ErrDuplicate if there
// is such a stream: the peer has broken the protocol.
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
		err = WithText(ErrDuplicate, fmt.Sprintf("the peer has named stream %d twice", id))
	}
	if err != nil {
		s.closed = true
		s.finishReceiving()
		return nil, err
	}
	l.addStream(s)
	if s.sent {
		s.out.limit, s.out.granted = firstWindow, StreamReserve
	}
	return s, nil
}

// init reserves what s needs, and has its task be ready.
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
	if s.own { // a WINDOW says so of one that goes up
		s.in.limit, s.in.granted = firstWindow, StreamReserve
	}
	s.ofRoom, err = s.c.ep.dom.reserveStream()
	return err
}

func (s *Stream) isClosed() bool {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	return s.closed
}

// StreamID returns the number of the first stream that a request names: those 8 bytes of its
// message were at CallSpec.StreamsAt.
func StreamID(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

// Begun reports whether the request of the stream has left: before, nothing of it has moved.
func (s *Stream) Begun() bool {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	return s.l != nil
}

// Moved returns how many bytes have left, or have come in order.
func (s *Stream) Moved() int64 {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	if s.sent {
		return s.out.sent
	}
	return s.in.next
}

// tryAgain is ErrAgain, and has step be called when it may be tried again. Locked.
func (s *Stream) tryAgain() error {
	s.wants = true
	return ErrAgain
}

// queueStep has step be called, if the program was told ErrAgain. Locked.
func (s *Stream) queueStep() {
	if s.wants && !s.closed {
		s.wants = false
		if s.queued.CompareAndSwap(false, true) && !s.c.Upper().Queue(&s.task) {
			s.queued.Store(false)
		}
	}
}

// checkWritable tells why nothing may be written, nil if something may. Locked.
func (s *Stream) checkWritable() error {
	switch {
	case !s.sent || s.out.ending || s.closed:
		return ErrInvalid
	case s.err != nil:
		return s.err
	case s.out.limit == 0 || s.unsentLeft() <= 0:
		return s.tryAgain()
	}
	return nil
}

// unsentLeft is how many bytes may be written before some have left.
func (s *Stream) unsentLeft() int64 {
	most := int64(maxUnsent)
	if s.bulk {
		most = maxBulkUnsent
	}
	if s.c.ep.dom.unsent.Load() >= maxClassUnsent {
		most = StreamReserve
	}
	return most - s.out.unsentBytes()
}

// Write copies as many bytes of b as go into the stream, which leave as its window allows, and
// returns how many; at least one, or ErrAgain. Nothing may be written to a stream that goes up
// before its receiver has called Next or Expect. Other errors are that of the Reset of the
// receiver, ErrPeerLost, and ErrInvalid after CloseWrite, Reset or Close.
func (s *Stream) Write(b []byte) (n int, err error) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if len(b) == 0 {
		return 0, nil
	}
	if err := s.checkWritable(); err != nil {
		return 0, err
	}
	for left := s.unsentLeft(); n < len(b) && left > 0; {
		to := s.reserveLocked(min(int64(len(b)-n), left))
		k := copy(to, b[n:])
		s.commitLocked(k)
		n += k
		left -= int64(k)
	}
	return n, nil
}

// Reserve returns memory of the stream for at most n bytes, at least one, to be filled. Commit
// follows in any case, also after Close: the memory is the caller's until then, whatever becomes of
// the stream. The errors are those of Write.
func (s *Stream) Reserve(n int) ([]byte, error) {
	s.c.ep.mu.Lock()
	defer s.c.ep.mu.Unlock()
	if err := s.checkWritable(); err != nil {
		return nil, err
	}
	s.out.takeBack()
	b := s.reserveLocked(min(int64(n), s.unsentLeft()))
	s.out.lend()
	return b, nil
}

// reserveLocked returns memory for at most n bytes: where the peer can read it, if there is such a
// place. Streams whose readers have not begun have none of that, and all of a session together up
// to maxShelved. Locked.
func (s *Stream) reserveLocked(n int64) []byte {
	s.out.chunks.shelf = nil
	if s.bulk && s.open && n >= minPiece && s.out.limit > firstWindow && s.l.shelved < maxShelved {
		if c, ok := s.l.route.carrier.(carrier.Shelver); ok {
			s.out.chunks.shelf, s.out.chunks.shelved = c.Shelf(s.l), &s.l.shelved
		}
	}
	return s.out.reserve(int(n))
}

// Commit has the first n bytes of what Reserve has returned leave, as the window allows.
func (s *Stream) Commit(n int) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if s.err == nil && !s.closed && n > 0 {
		s.commitLocked(n)
	}
	s.out.takeBack()
}

// commitLocked has n more bytes wait to leave. Locked.
func (s *Stream) commitLocked(n int) {
	s.out.written += int64(n)
	s.c.ep.dom.unsent.Add(int64(n))
	s.queueOutput()
}

// CloseWrite says that nothing more is written: the receiver reads io.EOF behind what was. The
// stream ends by itself when that has left, Close may follow at once. It does nothing after Reset,
// or for a stream that this side receives.
func (s *Stream) CloseWrite() {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if !s.sent || s.err != nil || s.closed || s.out.ending {
		return
	}
	s.out.ending = true
	s.queueOutput()
}

// Fail is CloseWrite with an error: the receiver gets that behind what was written, instead of
// io.EOF. Reset drops what has not been read. The text is cut to 512 bytes.
func (s *Stream) Fail(code Code, text string) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if !s.sent || s.err != nil || s.closed || s.out.ending {
		return
	}
	s.code, s.text = code, frame.CutText(text, maxResetText)
	s.out.ending, s.out.cause = true, true
	s.queueOutput()
}

// Next returns the bytes that can be read next, some of them or all, without a copy: they are valid
// until Release. The error is ErrAgain when none have come, io.EOF behind the last, that of Fail or
// of the Reset of the sender, or ErrPeerLost; these come behind what had come.
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
	s.startReceiving()
	return nil, s.tryAgain()
}

// startReceiving has the first WINDOW of a stream that goes up leave: its receiver reads now.
// Locked.
func (s *Stream) startReceiving() {
	if s.open && s.in.limit == 0 {
		s.l.oweWindow(s)
	}
}

// Expect says, at the receiver, that about n bytes are about to come, which its sender has
// announced by other means: the window begins with so many, within what the room of the session
// allows, instead of growing as they come; that of a stream that goes down is told to its sender
// when the first bytes have been read. It also begins a stream that goes up, as Next does. It
// promises nothing, and does nothing once the stream has ended.
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
	s.startReceiving()
	// else the target may not know it yet, and would drop a WINDOW
	if s.in.limit > 0 && (!s.own || s.isOpened()) && s.in.owesWindow() {
		s.l.oweWindow(s)
	}
}

// Release ends the use of the first n bytes of what Next has returned: its sender may send as many
// more.
func (s *Stream) Release(n int) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	s.in.chunks.lent = false
	n = int(min(int64(n), s.in.next-s.in.read)) // after Reset there is nothing
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
	s.freeRoom(room)
	if s.open && room > 0 { // all of it may have come at once, before anything could be read
		s.l.growForReaders()
	}
	if s.in.isRead() {
		s.finishReceiving()
	}
}

// Reset ends the stream before its end: what has not left is dropped, and the other side gets an
// error with code and text, which is cut to 512 bytes. It does nothing to a stream that has ended,
// and returns why, if that was before its end.
func (s *Stream) Reset(code Code, text string) (ended error) {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	ended = s.err
	s.resetLocked(code, text)
	return ended
}

// resetLocked is Reset. Locked.
func (s *Stream) resetLocked(code Code, text string) {
	if s.err != nil || s.isOver() {
		return
	}
	s.code, s.text = code, frame.CutText(text, maxResetText)
	s.err = WithText(code, text)
	s.dropBytes()
	if s.open {
		s.owesReset = true
		s.l.queueWindow(s)
	}
	s.finishReceiving()
}

// isOver reports whether s has come to its end: everything has left, or has been read.
func (s *Stream) isOver() bool {
	if s.sent {
		return s.out.ended
	}
	return s.in.isRead()
}

// Close ends the use of the stream by the program: after CloseWrite what was written still leaves,
// and nothing else calls step. A stream that has not come to its end is Reset with ErrCanceled. It
// may be called at any time, and again.
func (s *Stream) Close() {
	s.c.ep.mu.Lock()
	defer s.c.ep.Unlock()
	if s.closed {
		return
	}
	if s.sent && s.out.ending && (s.open || s.l == nil) && s.err == nil {
		s.closed = true // it ends when all has left
		return
	}
	s.resetLocked(ErrCanceled, "the stream was closed")
	s.closed = true
	s.dropBytes()
	s.finishReceiving()
}

// dropBytes lets go of all bytes. Locked.
func (s *Stream) dropBytes() {
	if s.sent {
		s.c.ep.dom.unsent.Add(-s.out.unsentBytes())
		s.out.written = s.out.sent
		s.out.chunks.dropAll()
		return
	}
	s.freeRoom(s.in.drop())
}

// freeRoom gives back the room of n bytes. Locked.
func (s *Stream) freeRoom(n int64) {
	if n > 0 {
		s.l.freeBytes(int(n), firstRoom)
	}
}

// finishReceiving gives back what is reserved for a stream that receives nothing more, once.
// Locked.
func (s *Stream) finishReceiving() {
	if s.open {
		s.l.removeStream(s)
	}
	if !s.sent && !s.finished && s.in.unreadBytes() == 0 {
		s.finished = true
		s.c.ep.dom.unreserveStream(s.ofRoom)
	}
}

// failWith ends s because of its session or of the peer. What has come in order can still be read.
// Locked.
func (s *Stream) failWith(err error) {
	if s.err != nil || s.isOver() {
		return
	}
	if s.sent || !s.in.isComplete() {
		s.err = err
	}
	if s.sent {
		s.dropBytes()
	}
	s.queueStep()
	if s.sent || s.in.unreadBytes() == 0 {
		s.finishReceiving()
	}
}
