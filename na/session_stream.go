package na

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// This file implements the frames of streams.
//
// At the origin, a stream is in its session's table (activeState.streams) once its request has been
// sent. At the target, it is in the table once its handler has opened it. It is removed when its
// last frame has been sent or received, or when it is reset. No record is kept afterward: a frame
// of a stream that is not in the table is late and is dropped.
//
// There is one exception. If the origin has closed a stream before the target opened it, a RESET
// would arrive before the target has a record of the stream. The origin therefore responds with a
// RESET to the frame that opens a stream if the stream is not in its table. That frame is the first
// WINDOW of a stream to the target, or the bytes at offset 0 of a stream to the origin.

const (
	// minPiece is the minimum number of bytes of a bulk stream for which a DATA frame is used. The
	// receiver does not copy the payload of a DATA frame.
	minPiece = 16 << 10
	// maxStreamFrame limits the bytes of one STREAM frame, so that streams and messages take turns.
	maxStreamFrame = 16 << 10
	// maxBurst limits the message bytes sent in a row while a stream is waiting.
	maxBurst = 64 << 10
	// maxClassUnsent limits the unsent bytes of all streams of a class. When it has been reached, each
	// stream may have no more than StreamReserve unsent bytes.
	maxClassUnsent = 64 << 20
	// firstRoom is the room, in bytes, that is reserved when a session's first stream begins.
	// maxStreamRoom is the size to which it may grow.
	firstRoom     = 256 << 10
	maxStreamRoom = 2 * maxRoom
	// maxShelved limits the bytes of a carrier.Shelf that a session's streams use. It may be exceeded
	// by one chunk. The rest is for bodies.
	maxShelved = 8 << 20
	// maxExpectedRoom limits the room that Stream.Expect reserves, in bytes.
	maxExpectedRoom = 1 << 20
)

// reserveStream reserves StreamReserve bytes for a stream that this side receives. It takes the
// bytes from the room if Config.Peers reserves the budget for envelopes or the budget is exhausted,
// and from the budget otherwise. ofRoom reports whether it took them from the room.
func (d *domain) reserveStream() (ofRoom bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	left, total, field := d.budgetLeftLocked(), d.cfg.Budget, "Budget"
	if ofRoom = d.cfg.Peers > 0 || left < StreamReserve && d.cfg.Room > 0; ofRoom {
		left, total, field = d.roomLeftLocked(), d.cfg.Room, "Room"
	}
	switch {
	case left < StreamReserve:
		return false, WithText(ErrNoMemory, fmt.Sprintf("cannot reserve %d bytes for a stream: %d of %d bytes left (na.Config.%s)",
			StreamReserve, max(left, 0), total, field))
	case ofRoom:
		d.room += StreamReserve
	default:
		d.reserved += StreamReserve
	}
	return ofRoom, nil
}

// unreserveStream returns the bytes that reserveStream has reserved. ofRoom must be the value that
// reserveStream returned.
func (d *domain) unreserveStream(ofRoom bool) {
	if ofRoom {
		d.unreserveRoom(StreamReserve)
		return
	}
	d.mu.Lock()
	d.reserved -= StreamReserve
	d.mu.Unlock()
}

// findStream returns the open stream with key k, or nil if there is none.
func (l *session) findStream(k streamKey) *Stream {
	if l.activeState == nil {
		return nil
	}
	return l.streams[k]
}

// addStream adds s to the table of streams. If this side receives s, it also reserves room.
func (l *session) addStream(s *Stream) {
	l.makeBusy()
	if l.streams == nil {
		l.streams = map[streamKey]*Stream{}
	}
	s.l, s.open = l, true
	l.streams[streamKey{s.id, s.own}] = s
	if !s.sent {
		l.growRoom(firstRoom)
	}
}

// removeStream removes s from the table of streams.
func (l *session) removeStream(s *Stream) {
	s.open = false
	if l.activeState != nil {
		delete(l.streams, streamKey{s.id, s.own})
		l.confirmLater()
	}
}

// beginStreams assigns numbers to the streams of o, a request about to be sent, writes the first
// number into the request, and adds the streams to the table.
func (l *session) beginStreams(o *Op) {
	binary.LittleEndian.PutUint64(o.buf[o.x.streamsAt:], l.streamSeq+1)
	for _, s := range o.x.streams {
		l.streamSeq++
		s.id = l.streamSeq
		if s.err == nil && (!s.closed || s.out.ending) {
			l.addStream(s)
		}
	}
}

// endClosedStreams resets those streams of a failed call that the program has closed and the target
// has not opened. The target may never open them, and they would otherwise stay in the table.
// endClosedStreams must not be called if the call has been answered, because the target may still
// open the streams in that case.
func (x *opExtra) endClosedStreams() {
	for _, s := range x.streams {
		if s.closed && !s.isOpened() {
			s.resetLocked(ErrCanceled, "the call has ended")
		}
	}
}

// isOpened reports whether the target is known to have opened s, a stream created by this side.
func (s *Stream) isOpened() bool {
	if s.sent {
		return s.out.limit > 0
	}
	return s.in.most > 0
}

// growRoom reserves more room for the peer, up to a total of to bytes or maxStreamRoom, whichever
// is less, as far as it is available.
func (l *session) growRoom(to int64) {
	r := l.ensureRoom()
	if more := min(to, maxStreamRoom) - r.reserved; more > 0 {
		r.reserved += l.e.dom.reserveRoom(more, min(more, firstWindow), r.reserved)
	}
	l.scheduleRoomUpdate()
}

// growForReaders doubles the peer's room if it limits the peer more than this side's readers do.
// This is the case if less than a quarter of the room is left to the peer and unread data occupies
// less than half of it.
func (l *session) growForReaders() {
	if r := l.room; 4*(r.announced-r.taken) < uint64(r.reserved) && 2*r.held < r.reserved {
		l.growRoom(2 * r.reserved)
	}
}

// growRoomIfHeld doubles the peer's room if unread data of other streams occupies all of it.
// Without more room, a stream with an active reader would be limited to its reserve, 1 KiB per
// round trip. The growth is bounded because the unread data of one stream does not exceed its
// window.
func (l *session) growRoomIfHeld() {
	if r := l.ensureRoom(); r.announced == r.taken && r.unannouncedBytes() == 0 {
		l.growRoom(max(2*r.reserved, firstRoom))
	}
}

// roomLeft returns the number of bytes of room that the peer has granted to this side and that are
// unused.
func (l *session) roomLeft() int64 {
	if l.room == nil {
		return 0
	}
	return int64(l.room.granted - l.room.used)
}

// queueWindow adds s to the streams whose pending WINDOW or RESET must be sent.
func (l *session) queueWindow(s *Stream) {
	l.makeBusy()
	if !s.owing {
		s.owing = true
		l.owing.push(s)
		l.stateDue = true
	}
	l.markPending()
}

// oweWindow marks a WINDOW of s as pending and schedules it to be sent.
func (l *session) oweWindow(s *Stream) {
	s.owesWindow = true
	l.queueWindow(s)
}

// sendState sends the next queued PROBED, PROBE, HELD, RESET, or WINDOW frame. It returns false if
// w has no room for that frame.
func (l *session) sendState(w carrier.Writer, room int) bool {
	switch {
	case l.owesState():
		l.sendFrame(carrier.Messages, w, l.stateFrame())
	case l.owing.len() > 0:
		return l.sendOwed(w, room)
	default:
		l.stateDue = false
	}
	return true
}

// sendOwed sends the next pending RESET or WINDOW frame. It returns false if w has no room for that
// frame.
func (l *session) sendOwed(w carrier.Writer, room int) bool {
	s := l.owing.pop()
	h := &l.e.head
	var payload [8]byte
	switch {
	case s.owesReset && room < len(s.text), s.owesWindow && room < len(payload):
		l.owing.unpopFront(s)
		return false
	case s.owesReset:
		*h = s.frameHeader(frame.Reset)
		h.Tag = uint64(s.code)
		w.Frame(l.completeHeader(carrier.Messages, len(s.text)), []byte(s.text))
	case s.owesWindow && s.open:
		limit, granted := s.in.windowToSend(s.maxWindow())
		*h = s.frameHeader(frame.Window)
		h.Tag = uint64(limit)
		binary.LittleEndian.PutUint64(payload[:], granted)
		w.Frame(l.completeHeader(carrier.Messages, len(payload)), payload[:])
	}
	s.owing, s.owesReset, s.owesWindow = false, false, false
	if s.open && !s.sent && s.in.owesWindow() { // the first WINDOW is smaller than the window; see windowToSend
		l.oweWindow(s)
	}
	return true
}

// frameHeader returns a header of kind k that identifies stream s.
func (s *Stream) frameHeader(k frame.Kind) frame.Header {
	h := frame.Header{Kind: k, Op: s.id}
	if !s.own {
		h.Flags = frame.FlagAnswer
	}
	return h
}

// maxWindow returns the maximum window of s. It is limited to an eighth of the free room, so that
// streams whose readers have stopped leave room for others.
func (s *Stream) maxWindow() int64 {
	most := int64(maxMessageWindow)
	if s.bulk {
		most = maxBulkWindow
	}
	r := s.l.ensureRoom()
	return max(min(most, (maxStreamRoom-r.held)/8, r.reserved), firstWindow)
}

// queueOutputLocked queues s in its lane if some of its bytes, or its end, may be sent now. If only
// a lack of room prevents that, it adds s to activeState.starved, so that feedStreams queues s
// later. endpoint.mu must be held.
func (s *Stream) queueOutputLocked() {
	l := s.l
	if !s.open || s.listed || s.err != nil {
		return
	}
	n, toRoom := s.out.allowance(l.roomLeft())
	switch {
	case n > 0, s.out.isEnding():
		s.listed = true
		lane := carrier.Messages
		if s.bulk && l.bulk && toRoom && n >= minPiece {
			lane = carrier.Bulk
		}
		l.flows[lane].streams.push(s)
		l.flows[lane].hasStreams = true
		l.markPending()
	case s.out.unsentBytes() > 0 && s.out.limit > s.out.sent && !s.starved:
		s.starved = true
		l.starved.push(s)
	}
}

// feedStreams queues the streams in activeState.starved for sending while there is room.
func (l *session) feedStreams() {
	if l.activeState == nil {
		return
	}
	for n := l.starved.len(); n > 0 && l.roomLeft() > 0; n-- {
		s := l.starved.pop()
		s.starved = false
		s.queueOutputLocked()
	}
}

// streamPiece sends bytes or the end of the next stream that is queued on lane f. room and piece
// are the limits returned by w.Room. streamPiece returns false if w has no room for any of them.
func (l *session) streamPiece(f carrier.Lane, w carrier.Writer, room, piece int) bool {
	q := &l.flows[f]
	s := q.streams.pop()
	s.listed, q.hasStreams = false, q.streams.len() > 0
	n, toRoom := s.out.allowance(l.roomLeft())
	if !s.open || s.err != nil || n == 0 && !s.out.isEnding() {
		s.queueOutputLocked()
		return true
	}
	var c *chunk
	var b []byte
	if n > 0 {
		c, b = s.out.piece(n)
	}
	most, whole := min(room, maxStreamFrame), true
	if toRoom && s.bulk && (len(b) >= minPiece || f != carrier.Messages && len(b) > 0) {
		most, whole = piece, false
		if c.shelf != nil && piece > 0 {
			most = len(b)
		}
	} else if f != carrier.Messages { // the end is sent on carrier.Messages
		s.queueOutputLocked()
		return true
	}
	if most <= 0 && len(b) > 0 {
		s.listed, q.hasStreams = true, true
		q.streams.unpopFront(s)
		return false
	}
	b = b[:min(len(b), most)]
	h := &l.e.head
	if whole && s.out.cause && s.out.unsentBytes() == int64(len(b)) { // the error is sent before the end
		s.listed, q.hasStreams = true, true
		q.streams.unpopFront(s)
		if room < len(s.text) {
			return false
		}
		s.out.cause = false
		*h = s.frameHeader(frame.Reset)
		h.Tag = uint64(s.code)
		h.Flags |= frame.FlagEnd
		w.Frame(l.completeHeader(f, len(s.text)), []byte(s.text))
		return true
	}
	l.burst = 0
	*h = s.frameHeader(frame.Stream)
	h.Tag = uint64(s.out.sent)
	if toRoom && len(b) > 0 {
		h.Flags |= frame.FlagRoom
		l.room.used += uint64(len(b))
	}
	if whole {
		if s.out.ending && s.out.unsentBytes() == int64(len(b)) {
			h.Flags |= frame.FlagEnd
			s.out.ended = true
			l.removeStream(s)
		}
		w.Frame(l.completeHeader(f, len(b)), b)
	} else {
		h.Kind = frame.Data
		h.Flags |= frame.FlagStream
		c.refs++
		v := view{bytes: c.buf, off: s.out.sent%s.out.chunks.span() - int64(c.base), n: int64(len(b)), chunk: c, stream: s}
		w.Piece(l.completeHeader(f, len(b)), l.e.lendViewLocked(v))
	}
	if s.err != nil { // the carrier has closed the session, which dropped the bytes
		return true
	}
	s.out.noteLeft(int64(len(b)), toRoom)
	l.e.dom.unsent.Add(-int64(len(b)))
	s.queueOutputLocked()
	if s.unsentLeftLocked() >= s.out.unsentBytes() {
		s.queueStepLocked()
	}
	return true
}

// streamOf returns the stream to which a frame with header h belongs, or nil if that stream is no
// longer open. own reports whether this side is the stream's origin. streamOf returns an error if
// the stream has never existed.
func (l *session) streamOf(h *frame.Header) (s *Stream, own bool, err error) {
	own = h.Flags&frame.FlagAnswer != 0
	if own && h.Op > l.streamSeq {
		return nil, own, WithText(ErrProtocol, fmt.Sprintf("%v frame for stream %d, which is not open; the last is %d", h.Kind, h.Op, l.streamSeq))
	}
	return l.streams[streamKey{h.Op, own}], own, nil
}

// admitStream validates the header h of a frame with n bytes of a stream, charges the bytes to the
// stream's reserve or the session's room, and returns the stream. If the stream is no longer open,
// s is nil and the caller must drop the bytes.
func (l *session) admitStream(h *frame.Header, n int64) (s *Stream, err error) {
	s, own, err := l.streamOf(h)
	if err != nil {
		return nil, err
	}
	end, toRoom := h.Flags&frame.FlagEnd != 0, h.Flags&frame.FlagRoom != 0
	switch {
	case n == 0 && !end, n == 0 && toRoom, n > maxStreamFrame && h.Kind == frame.Stream, h.Tag > math.MaxInt64:
		return nil, WithText(ErrProtocol, fmt.Sprintf("%v frame with %d bytes at offset %d of stream %d", h.Kind, n, h.Tag, h.Op))
	case toRoom && (l.room == nil || l.room.announced-l.room.taken < uint64(n)):
		return nil, WithText(ErrProtocol, fmt.Sprintf("%d bytes of stream %d without room granted", n, h.Op))
	case s != nil && s.sent:
		return nil, WithText(ErrProtocol, fmt.Sprintf("%v frame for send-only stream %d", h.Kind, h.Op))
	case s != nil && h.Kind == frame.Data && (!s.bulk || !toRoom):
		return nil, WithText(ErrProtocol, fmt.Sprintf("DATA frame for stream %d, which carries messages or has no room", h.Op))
	case s != nil:
		if err := s.in.check(int64(h.Tag), n, end, toRoom, h.Op); err != nil {
			return nil, err
		}
		s.in.charge(int64(h.Tag), n, end, toRoom)
	}
	if toRoom {
		l.room.claim(int(n))
	}
	if s == nil {
		l.e.stats.LateDropped++
		if toRoom {
			l.freeBytes(int(n), 0)
		}
		if own && h.Tag == 0 {
			l.queueControl(frame.Header{Kind: frame.Reset, Op: h.Op, Tag: uint64(ErrCanceled)})
		}
		return nil, nil
	}
	if toRoom {
		l.growForReaders()
	}
	return s, nil
}

// deliverStream handles a STREAM frame by making its payload available to the stream's reader.
func (l *session) deliverStream(h *frame.Header, payload []byte) error {
	s, err := l.admitStream(h, int64(len(payload)))
	if s != nil {
		s.onBytesLocked(s.in.write(int64(h.Tag), payload))
	}
	return err
}

// onBytesLocked must be called after bytes of s have arrived. more must report whether more bytes
// can be read than before, in which case onBytesLocked queues a call of the step function if one is
// needed. If the stream has ended, onBytesLocked removes it from the table. endpoint.mu must be
// held.
func (s *Stream) onBytesLocked(more bool) {
	if more {
		s.queueStepLocked()
	}
	switch {
	case s.in.isRead():
		s.finishReceivingLocked()
	case s.in.isComplete():
		s.l.removeStream(s)
	}
}

// placeStream returns a view of the memory into which the carrier must write the payload of h, a
// DATA frame of a stream.
func (l *session) placeStream(h *frame.Header) (v view, err error) {
	n := int64(h.Payload())
	v.n = n
	off := int64(h.Tag)
	if h.Flags&frame.FlagEnd != 0 || n == 0 || off/bulkChunk != (off+n-1)/bulkChunk {
		return v, WithText(ErrProtocol, fmt.Sprintf("DATA frame with %d bytes at offset %d of stream %d", n, off, h.Op))
	}
	s, err := l.admitStream(h, n)
	if s == nil {
		return v, err
	}
	c, at := s.in.chunks.place(off, n)
	v.bytes, v.off, v.chunk, v.stream, v.at = c.buf, int64(at), c, s, off
	return v, nil
}

// placedStream must be called after the carrier has written the payload to v, which placeStream has
// returned. It makes the bytes available to the reader.
func (l *session) placedStream(v *view) {
	if s := v.stream; s.err == nil && !s.closed {
		s.onBytesLocked(s.in.notePlaced(v.chunk, v.at, v.n))
	}
	v.chunk.drop()
}

// deliverWindow handles a WINDOW frame, which sets the offset up to which this side may send the
// stream.
func (l *session) deliverWindow(h *frame.Header, payload []byte) error {
	s, own, err := l.streamOf(h)
	if err != nil {
		return err
	}
	if len(payload) != 8 || s != nil && !s.sent {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame of %d bytes for stream %d", h.Kind, len(payload), h.Op))
	}
	granted := binary.LittleEndian.Uint64(payload)
	if s == nil {
		if own && h.Tag == firstWindow { // only the first WINDOW has this offset; all others have a larger one
			l.queueControl(frame.Header{Kind: frame.Reset, Op: h.Op, Tag: uint64(ErrCanceled)})
		}
		return nil
	}
	if h.Tag > math.MaxInt64 || int64(h.Tag)-s.out.sent > maxGrant || int64(granted-s.out.used) > maxGrant {
		return WithText(ErrProtocol, fmt.Sprintf("%v frame acknowledges %d bytes of stream %d, sent %d", h.Kind, h.Tag, h.Op, s.out.sent))
	}
	s.out.limit = max(s.out.limit, int64(h.Tag))
	if int64(granted-s.out.granted) > 0 {
		s.out.granted = granted
	}
	s.queueOutputLocked()
	if s.unsentLeftLocked() > 0 {
		s.queueStepLocked()
	}
	return nil
}

// deliverReset handles a RESET frame. The stream fails with the peer's error. If the frame has
// FlagEnd, the stream continues, and its reader receives the error in place of io.EOF.
func (l *session) deliverReset(h *frame.Header, payload []byte) error {
	s, _, err := l.streamOf(h)
	switch {
	case err != nil:
		return err
	case len(payload) > maxResetText || h.Tag > 255:
		return WithText(ErrProtocol, fmt.Sprintf("%v frame with code %d and %d bytes of text", h.Kind, h.Tag, len(payload)))
	case s == nil:
		return nil
	case h.Flags&frame.FlagEnd != 0 && s.sent:
		return WithText(ErrProtocol, fmt.Sprintf("%v frame for send-only stream %d", h.Kind, h.Op))
	}
	code, text := Code(h.Tag), string(payload)
	if code == OK {
		code = ErrCanceled
	}
	if text == "" {
		text = code.Error()
	}
	err = WithText(code, "stream reset by peer: "+text)
	if h.Flags&frame.FlagEnd != 0 {
		s.in.cause = err
		return nil
	}
	l.removeStream(s)
	s.failWithLocked(err)
	return nil
}

// endStreams fails all streams of the session, which has been closed, with err. It does so in order
// of stream number, so that runs in a simulator are reproducible.
func (l *session) endStreams(err error) {
	all := make([]*Stream, 0, len(l.streams))
	for _, s := range l.streams {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *Stream) int {
		if a.own != b.own {
			if a.own {
				return -1
			}
			return 1
		}
		return int(int64(a.id - b.id))
	})
	l.streams, l.owing, l.starved = nil, fifo[*Stream]{}, fifo[*Stream]{}
	for _, s := range all {
		s.open = false
		s.failWithLocked(err)
	}
}
