package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A flow is what a session has to send on one carrier.Lane, beside the messages.
type laneQueue struct {
	ctl fifo[frame.Header]
	// on carrier.Messages: apart from ctl, since a peer that does not read is not cut for them
	abandons   fifo[frame.Header]
	sources    fifo[*outboundBulk] // in turn
	bodies     fifo[*outboundBulk] // one after the other: the message behind the first is wanted soon
	streams    fifo[*Stream]       // in turn
	streamed   bool                // one of streams went last
	hasStreams bool                // streams is not empty
	rotates    bool                // bodies went last
	taken      takenState
}

func (q *laneQueue) isEmpty() bool { return !q.hasControls() && q.waiting() == 0 && !q.hasStreams }

// hasControls reports whether frames without payload wait, which go before messages.
func (q *laneQueue) hasControls() bool { return q.ctl.len() > 0 || q.abandons.len() > 0 }

// waiting is how many sources there are.
func (q *laneQueue) waiting() int { return q.sources.len() + q.bodies.len() }

// next takes the source whose turn it is: the bodies together have one beside each other source.
func (q *laneQueue) next() *outboundBulk {
	if q.rotates = q.sources.len() == 0 || q.bodies.len() > 0 && !q.rotates; q.rotates {
		return q.bodies.pop()
	}
	return q.sources.pop()
}

// queueOf is where a source waits.
func (q *laneQueue) queueOf(s *outboundBulk) *fifo[*outboundBulk] {
	if s.bytes != nil {
		return &q.bodies
	}
	return &q.sources
}

// queueControl queues a frame that has no payload.
func (l *session) queueControl(h frame.Header) { l.controlOn(carrier.Messages, h) }

// controlOn queues one on a flow: behind the data that it is about.
func (l *session) controlOn(f carrier.Lane, h frame.Header) {
	if l.state == stateDown {
		return
	}
	l.makeBusy()
	q := &l.flows[f].ctl
	// nothing here is ours to drop, and memory that the peer alone makes grow needs a bound
	if q.len() >= maxControl {
		l.failWith(WithText(ErrOverflow, "the peer asks and does not read the answers"))
		return
	}
	q.push(h)
	l.markPending()
}

func giveBack(key Key) frame.Header {
	return frame.Header{Kind: frame.GiveBack, Tail: frame.Tail{Token: key.Token, Length: key.Len}}
}

func cancelMove(id uint64) frame.Header { return frame.Header{Kind: frame.Cancel, Op: id} }

// FlowUp opens carrier.Bulk for the puts and gets that begin from now on. Locked.
func (l *session) LaneUp() {
	if l.Up() {
		l.bulk = true
		l.markPending()
	}
}

// FlowDown ends carrier.Bulk. The session ends with it because of err, if it was up. Locked.
func (l *session) LaneDown(err error) {
	if l.bulk {
		l.failWith(err)
	}
}

// flowFor is where bulk data of n bytes goes. It stays there.
func (l *session) flowFor(n int64) carrier.Lane {
	if n >= carrier.BulkMin && l.bulk {
		return carrier.Bulk
	}
	return carrier.Messages
}

// Sends reports whether Pull has something to give, of either flow. Locked.
func (l *session) Sends() bool {
	return l.activeState != nil && (l.hasMessage() || l.pong || l.stateDue || l.creditDue || l.roomUpdateDue() || l.mayBegin() ||
		!l.flows[carrier.Messages].isEmpty() || !l.flows[carrier.Bulk].isEmpty())
}

// hasMessage reports whether a message may leave.
func (l *session) hasMessage() bool { return l.msgs.n > 0 && l.state == stateUp }

// Pull gives w the frames of a flow in their order, until none is left or none fits; more reports
// the latter. Locked.
//
// The order of what waits on one flow: the answer to a Ping, and probes, for somebody judges us by
// them; control, which is short, bounded, and frees memory and calls at the peer; messages; puts
// and gets that may begin, whose pieces then go in turn; last a credit that no other frame has
// carried.
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
			// It confirms everything before the Ping. While bodies of messages or bytes of streams
			// before it are on their way, it only says that we live.
			if l.pong, l.pongLater = false, l.awaitsBulk(); !l.pongLater {
				h.Op, h.Tag = l.pongOp, l.pongTag
			}
			l.sendFrame(f, w, h)
		case messages && l.stateDue:
			if !l.sendState(w, room) {
				return true
			}
		case messages && l.hasMessage() && len(l.reads) > 0:
			l.readsDue() // before it: an answer ends the use of the memory
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

// completeHeader completes endpoint.head with what every frame of the session carries.
func (l *session) completeHeader(f carrier.Lane, payload int) *frame.Header {
	h := &l.e.head
	h.Context = l.peer.context
	if h.Credit = l.advertised; f == carrier.Messages { // elsewhere the peer may see it late
		h.Credit = l.credit()
	}
	h.SetPayload(payload)
	return h
}

// sendMessage sends the first message, or ends it if it cannot leave; false when there is no room
// for it. Its operation ends here, sent.
func (l *session) sendMessage(w carrier.Writer, room int) bool {
	o := l.msgs.head
	if len(o.buf) > room && l.canTake(o) {
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
	o.room = 0 // reserved for its body; from now on the peer returns it
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

// putExpected sends an expected message, of o if that is an operation.
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

// nameBody names the body of a message that leaves.
func nameBody(h *frame.Header, o *Op) {
	if o.x != nil && o.x.bodyID != 0 {
		h.Flags |= frame.FlagBody
		h.Op, o.x.bodyID = o.x.bodyID, 0
	}
}

// putMessage sends a message whose header is in endpoint.head.
func (l *session) putMessage(w carrier.Writer, buf []byte) {
	l.countMessage(&l.e.head)
	l.burst += len(buf)
	// nobody holds its memory: its op is only ended under this lock
	w.Frame(l.completeHeader(carrier.Messages, len(buf)), buf)
	if r := l.room; r != nil && r.unannouncedBytes() > 0 {
		r.updateDue = true
	}
}
