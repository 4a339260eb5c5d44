package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A laneQueue holds the frames, other than messages, that a session has queued for one
// carrier.Lane.
type laneQueue struct {
	ctl fifo[frame.Header]
	// ABANDON frames, on carrier.Messages only. They are not in ctl because they do not count toward
	// maxControl.
	abandons   fifo[frame.Header]
	sources    fifo[*outboundBulk] // one chunk of each in turn
	bodies     fifo[*outboundBulk] // one after the other, so that the first message completes early
	streams    fifo[*Stream]       // one chunk of each in turn
	streamed   bool                // the last piece was from a stream
	hasStreams bool                // streams is not empty
	rotates    bool                // next last returned a body
	taken      takenState
}

func (q *laneQueue) isEmpty() bool { return !q.hasControls() && q.waiting() == 0 && !q.hasStreams }

// hasControls reports whether any frames without payload are queued. They are sent before messages.
func (q *laneQueue) hasControls() bool { return q.ctl.len() > 0 || q.abandons.len() > 0 }

// waiting returns the number of sources and bodies that have bytes to send.
func (q *laneQueue) waiting() int { return q.sources.len() + q.bodies.len() }

// next removes and returns the element of sources or bodies whose next piece must be sent. It
// alternates between the first body and the sources.
func (q *laneQueue) next() *outboundBulk {
	if q.rotates = q.sources.len() == 0 || q.bodies.len() > 0 && !q.rotates; q.rotates {
		return q.bodies.pop()
	}
	return q.sources.pop()
}

// queueOf returns the queue for s: q.bodies if s is a body, and q.sources otherwise.
func (q *laneQueue) queueOf(s *outboundBulk) *fifo[*outboundBulk] {
	if s.bytes != nil {
		return &q.bodies
	}
	return &q.sources
}

// queueControl queues h, the header of a frame without payload, on carrier.Messages.
func (l *session) queueControl(h frame.Header) { l.controlOn(carrier.Messages, h) }

// controlOn queues h, the header of a frame without payload, on lane f. The lane must be that of
// the data to which the frame refers, so that the frame does not arrive before the data. If too
// many frames are queued, controlOn closes the session.
func (l *session) controlOn(f carrier.Lane, h frame.Header) {
	if l.state == stateDown {
		return
	}
	l.makeBusy()
	q := &l.flows[f].ctl
	// The peer determines how many of these frames are queued, and none may be dropped. Therefore the
	// session is closed if there are too many.
	if q.len() >= maxControl {
		l.failWith(WithText(ErrOverflow, "the peer sends requests but does not read the responses"))
		return
	}
	q.push(h)
	l.markPending()
}

// giveBack returns the header of a GIVE_BACK frame, which returns the leased memory identified by
// key.
func giveBack(key Key) frame.Header {
	return frame.Header{Kind: frame.GiveBack, Tail: frame.Tail{Token: key.Token, Length: key.Len}}
}

// cancelMove returns the header of a CANCEL frame, which cancels the put or get with the given ID.
func cancelMove(id uint64) frame.Header { return frame.Header{Kind: frame.Cancel, Op: id} }

// LaneUp implements carrier.Session. Long puts and gets that start after LaneUp has been called use
// carrier.Bulk. endpoint.mu must be held.
func (l *session) LaneUp() {
	if l.Up() {
		l.bulk = true
		l.markPending()
	}
}

// LaneDown implements carrier.Session. It reports that carrier.Bulk has been lost. If the session
// was using that lane, LaneDown closes it with err. endpoint.mu must be held.
func (l *session) LaneDown(err error) {
	if l.bulk {
		l.failWith(err)
	}
}

// flowFor returns the lane to use for n bytes of bulk data. All pieces of a transfer must use the
// same lane.
func (l *session) flowFor(n int64) carrier.Lane {
	if n >= carrier.BulkMin && l.bulk {
		return carrier.Bulk
	}
	return carrier.Messages
}

// Sends implements carrier.Session. It reports whether Pull has frames to send on either lane.
// endpoint.mu must be held.
func (l *session) Sends() bool {
	return l.activeState != nil && (l.hasMessage() || l.pong || l.stateDue || l.creditDue || l.roomUpdateDue() || l.mayBegin() ||
		!l.flows[carrier.Messages].isEmpty() || !l.flows[carrier.Bulk].isEmpty())
}

// hasMessage reports whether a message is ready to be sent and the session's state permits it.
func (l *session) hasMessage() bool { return l.msgs.n > 0 && l.state == stateUp }

// Pull implements carrier.Session. It writes the frames of lane f to w in order until none are left
// or w has no room for the next one. more reports whether any are left. endpoint.mu must be held.
//
// The order on a lane is:
//
//  1. PONG and probes, whose delay the peer measures
//  2. control frames, which are short and bounded and which free memory and calls at the peer
//  3. messages
//  4. the pieces of puts, gets, bodies, and streams, in turn
//  5. CREDIT, if no other frame has carried the credit
func (l *session) Pull(f carrier.Lane, w carrier.Writer) (more bool) {
	if l.activeState == nil {
		return false
	}
	q := &l.flows[f]
	for l.Up() {
		room, piece := w.Room()
		switch messages := f == carrier.Messages; {
		case room < 0:
			return !q.isEmpty() || messages && (l.pong || l.stateDue || l.hasMessage() || l.creditDue || l.roomUpdateDue() || l.mayBegin())
		case messages && l.pong:
			h := frame.Header{Kind: frame.Pong}
			// A PONG with a number confirms everything that the peer sent before the PING. If some of it,
			// such as message bodies or stream bytes, has yet to arrive, the PONG contains no number and
			// shows only that this side is alive.
			if l.pong, l.pongLater = false, l.awaitsBulk(); !l.pongLater {
				h.Op, h.Tag = l.pongOp, l.pongTag
			}
			l.sendFrame(f, w, h)
		case messages && l.stateDue:
			if !l.sendState(w, room) {
				return true
			}
		case messages && l.hasMessage() && len(l.reads) > 0:
			l.queueReads() // before the message, because an answer ends the use of the memory
		case q.ctl.len() > 0:
			h := q.ctl.pop()
			switch h.Kind {
			case frame.Withdrawn:
				l.answered--
			case frame.Ping:
				l.markPing(&h)
			}
			l.sendFrame(f, w, h)
		case q.abandons.len() > 0:
			l.sendFrame(f, w, q.abandons.pop())
		case messages && l.hasMessage() && (l.burst < maxBurst || !q.hasStreams):
			l.writing = true
			left := l.sendMessage(w, room)
			l.writing = false
			if err := l.writeErr; err != nil {
				l.writeErr = nil
				l.failWith(err)
			} else if !left {
				return true
			}
		case messages && l.mayBegin():
			l.beginMoves()
		case q.hasStreams && (q.waiting() == 0 || !q.streamed):
			q.streamed = true
			if !l.streamPiece(f, w, room, piece) {
				return true
			}
		case q.waiting() > 0:
			q.streamed = false
			if piece <= 0 {
				return true
			}
			l.sendPiece(f, w, piece)
		case messages && (l.creditDue || l.roomUpdateDue()):
			l.sendFrame(f, w, frame.Header{Kind: frame.Credit, Op: l.creditOp(), Tag: l.announceRoom()})
		default:
			return false
		}
	}
	return false
}

// sendFrame writes a frame with header h and without payload to w.
func (l *session) sendFrame(f carrier.Lane, w carrier.Writer, h frame.Header) {
	l.e.head = h
	w.Frame(l.completeHeader(f, 0), nil)
}

// completeHeader sets the context ID, the credit, and the payload length in endpoint.head, and
// returns a pointer to it.
func (l *session) completeHeader(f carrier.Lane, payload int) *frame.Header {
	h := &l.e.head
	h.Context = l.peer.context
	// Frames on another lane may be read late, so only frames on carrier.Messages announce new credit.
	if h.Credit = l.advertised; f == carrier.Messages {
		h.Credit = l.credit()
	}
	h.SetPayload(payload)
	return h
}

// sendMessage sends the first message in l.msgs and completes its operation. If the message cannot
// be sent, the operation completes with an error. sendMessage returns false if w has no room for
// the message.
func (l *session) sendMessage(w carrier.Writer, room int) bool {
	o := l.msgs.head
	if len(o.buf) > room && l.fitsPeer(o) {
		return false
	}
	if err := l.unsendableError(o); err != nil {
		if o.kind != kindSendExpected {
			l.returnCredit()
		}
		l.e.finishOpLocked(o, Result{Err: err, Fate: NotRun})
		return true
	}
	if o.kind == kindSendExpected {
		n := int64(len(o.buf))
		if o.hasBody() {
			n += int64(len(o.x.body))
		}
		l.putExpected(w, o.tag, o.buf, o)
		l.e.finishOpLocked(o, Result{N: n, Addr: l.addr(), ID: l.seq})
		return true
	}
	l.seq++
	h := &l.e.head
	*h = frame.Header{Kind: frame.Unexpected, Op: l.seq, Tag: uint64(o.tag)}
	l.noteSent(o)
	if o.by.At != 0 {
		h.Flags = frame.FlagTimed
	}
	nameBody(h, o)
	if o.x != nil && len(o.x.streams) > 0 {
		l.beginStreams(o)
	}
	o.room = 0 // the peer now returns the room of the body
	if l.converts {
		l.e.dom.cls.messages.convert(o.buf, l.peer.messages)
	}
	l.putMessage(w, o.buf)
	switch {
	case o.kind == kindCall && !o.oneWay:
		l.awaitReply(o)
	case o.last:
		l.holdLast(o)
	default:
		l.e.finishOpLocked(o, Result{N: int64(len(o.buf)), Addr: l.addr(), ID: l.seq})
	}
	return true
}

// putExpected writes the expected message buf with the given tag to w. o is the message's
// operation, or nil if it has none.
func (l *session) putExpected(w carrier.Writer, tag Tag, buf []byte, o *Op) {
	h := &l.e.head
	*h = frame.Header{Kind: frame.Expected, Tag: uint64(tag)}
	if l.sentExpected++; len(l.e.leases) > 0 && l.e.leases[leaseKey{l, tag}] != nil {
		h.Flags = frame.FlagTell
	}
	if o != nil {
		nameBody(h, o)
	}
	l.putMessage(w, buf)
}

// nameBody sets the body ID in h, the header of o's message, if the message has a body.
func nameBody(h *frame.Header, o *Op) {
	if o.x != nil && o.x.bodyID != 0 {
		h.Flags |= frame.FlagBody
		h.Op, o.x.bodyID = o.x.bodyID, 0
	}
}

// putMessage writes a message to w. Its header is endpoint.head and its payload is buf.
func (l *session) putMessage(w carrier.Writer, buf []byte) {
	l.countMessage(&l.e.head)
	l.burst += len(buf)
	// buf remains valid because its operation completes only while endpoint.mu is held.
	w.Frame(l.completeHeader(carrier.Messages, len(buf)), buf)
	if r := l.room; r != nil && r.unannouncedBytes() > 0 {
		r.updateDue = true
	}
}
