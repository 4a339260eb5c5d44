package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A laneQueue holds the frames other than messages that a session has to send on one carrier.Lane.
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
	rotates    bool                // the last piece from a source was from a body
	taken      takenState
}

func (q *laneQueue) isEmpty() bool { return !q.hasControls() && q.waiting() == 0 && !q.hasStreams }

// hasControls reports whether frames without payload are waiting. They are sent before messages.
func (q *laneQueue) hasControls() bool { return q.ctl.len() > 0 || q.abandons.len() > 0 }

// waiting returns the number of waiting sources and bodies.
func (q *laneQueue) waiting() int { return q.sources.len() + q.bodies.len() }

// next removes and returns the source of which to send a piece. It alternates between the first
// body and the sources.
func (q *laneQueue) next() *outboundBulk {
	if q.rotates = q.sources.len() == 0 || q.bodies.len() > 0 && !q.rotates; q.rotates {
		return q.bodies.pop()
	}
	return q.sources.pop()
}

// queueOf returns the queue to which s belongs.
func (q *laneQueue) queueOf(s *outboundBulk) *fifo[*outboundBulk] {
	if s.bytes != nil {
		return &q.bodies
	}
	return &q.sources
}

// queueControl queues a frame without payload on carrier.Messages.
func (l *session) queueControl(h frame.Header) { l.controlOn(carrier.Messages, h) }

// controlOn queues a frame without payload on a lane, behind the data to which it refers.
func (l *session) controlOn(f carrier.Lane, h frame.Header) {
	if l.state == stateDown {
		return
	}
	l.makeBusy()
	q := &l.flows[f].ctl
	// These frames must not be dropped, and the peer controls the length of the queue, so the queue
	// is limited.
	if q.len() >= maxControl {
		l.failWith(WithText(ErrOverflow, "the peer sends requests but does not read the responses"))
		return
	}
	q.push(h)
	l.markPending()
}

// giveBack returns the GIVE_BACK frame for the memory identified by key.
func giveBack(key Key) frame.Header {
	return frame.Header{Kind: frame.GiveBack, Tail: frame.Tail{Token: key.Token, Length: key.Len}}
}

// cancelMove returns the CANCEL frame for the put or get with the given ID.
func cancelMove(id uint64) frame.Header { return frame.Header{Kind: frame.Cancel, Op: id} }

// LaneUp implements carrier.Session. Puts and gets that start after LaneUp use carrier.Bulk.
// endpoint.mu must be held.
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

// flowFor returns the lane for n bytes of bulk data. All pieces of a transfer use the same lane.
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

// hasMessage reports whether a message can be sent.
func (l *session) hasMessage() bool { return l.msgs.n > 0 && l.state == stateUp }

// Pull implements carrier.Session. It writes a lane's frames to w in order until there are no more
// or the next one does not fit. more reports the latter. endpoint.mu must be held.
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
			// A PONG with a number confirms everything before the PING. If message bodies or stream bytes
			// from before the PING have yet to arrive, the PONG has no number and shows only that this
			// side is up.
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

// sendFrame sends a frame without payload.
func (l *session) sendFrame(f carrier.Lane, w carrier.Writer, h frame.Header) {
	l.e.head = h
	w.Frame(l.completeHeader(f, 0), nil)
}

// completeHeader fills in the fields of endpoint.head that all frames of the session have.
func (l *session) completeHeader(f carrier.Lane, payload int) *frame.Header {
	h := &l.e.head
	h.Context = l.peer.context
	// A frame on another lane may be read late, so it carries no new credit.
	if h.Credit = l.advertised; f == carrier.Messages {
		h.Credit = l.credit()
	}
	h.SetPayload(payload)
	return h
}

// sendMessage sends the first waiting message and completes its operation, with an error if the
// message cannot be sent. It returns false if w has no room for the message.
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

// putExpected sends an expected message. o is its operation or nil.
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

// nameBody writes the ID of o's body, if it has one, into the header of its message.
func nameBody(h *frame.Header, o *Op) {
	if o.x != nil && o.x.bodyID != 0 {
		h.Flags |= frame.FlagBody
		h.Op, o.x.bodyID = o.x.bodyID, 0
	}
}

// putMessage sends the message whose header is in endpoint.head.
func (l *session) putMessage(w carrier.Writer, buf []byte) {
	l.countMessage(&l.e.head)
	l.burst += len(buf)
	// No hold is needed because the operation completes only under this lock.
	w.Frame(l.completeHeader(carrier.Messages, len(buf)), buf)
	if r := l.room; r != nil && r.unannouncedBytes() > 0 {
		r.updateDue = true
	}
}
