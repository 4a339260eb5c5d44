package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An activeState is what a session has while something goes on: it is being made, or something is open with its peer, or frames wait to
// leave. It is made by whatever begins, and goes with a tick that finds nothing, and that nothing has come since the one before.
type activeState struct {
	// Until the session is up.
	offerSecret      frame.Secret  // by which the second transport is dialled,
	offerEnd         time.Duration // and until when that is tried
	secondaryFailure string        // why it has come to nothing; empty when it has not
	born             time.Duration // when the first operation wanted it; later by what this process was frozen since
	since            time.Duration // when dialing began, or begins (waiting)
	refusal          error         // why the last attempt failed
	spared           bool          // from the end of its time, after a freeze of this process

	// Liveness.
	waiting      int           // operations that wait for the peer
	unfreed      int           // its messages that are not freed: requests that are handled, mostly
	suspected    bool          // the peer may have lost the session: its silence counts though nothing is open
	only         [16]byte      // incarnation that the peer must have for what waits; zero for any; until the session is up
	also         []string      // hosts that the peer has proven to be, beside session.host; until the session is up, must prove
	gotMessage   bool          // a message, or bulk data, arrived since the last tick
	lastHeard    time.Duration // when the last bytes arrived; at first when it became busy
	sinceHeard   time.Duration // without bytes, as far as ticks have counted it
	sinceMessage time.Duration // without a message

	// Sending.
	stateDue      bool  // sendState may have a frame
	writing       bool  // Pull gives a message to the carrier
	writeErr      error // that the carrier has called Fail with meanwhile
	flows         [carrier.Lanes]laneQueue
	pong          bool
	pongOp        uint64 // with pongTag, those of the PING
	pongTag       uint64
	pongLater     bool        // PONG has said nothing, and is owed again when all that came before the PING is whole
	msgs          opList      // messages that may go
	bodies        opList      // likewise, behind their bodies, which do
	queued        opList      // ordinary unexpected messages without an envelope
	expedited     opList      // likewise expedited ones
	expediting    int         // expedited messages that have not left
	heldLast      opList      // those that left and used the last one
	answers       int         // expected messages in msgs and bodies
	firstNotTaken uint64      // the first of our messages that the peer has not taken, as it said when it left; 0: not known
	queuedMoves   opList      // puts and gets that have not begun
	inFlight      opList      // puts and gets under way
	recvs         opList      // expected receives
	posted        postedTable // the same by their tags
	leases        opList
	views         int // memory of the peer that is being read where it is
	withdraws     withdrawalState
	reads         []remoteRead  // of which the peer was not told
	probed        time.Duration // when the peer was last asked for its credit, or messages began to wait for it

	probes   probeState
	heldBack heldReport

	// Receiving.
	requests messageTable             // messages of the peer, until they are freed
	answered int                      // answers to withdraws that wait to leave
	sinks    map[uint64]*inboundBulk  // puts of the peer, by its operation id
	arrivals map[uint64]*inboundBulk  // bodies of the peer, by their identities, that are not complete or whose message has not come
	served   map[uint64]*outboundBulk // gets of the peer, likewise

	// Streams, of both directions.
	streams map[streamKey]*Stream
	owing   fifo[*Stream] // a WINDOW or a RESET
	starved fifo[*Stream] // wait for room
	burst   int           // bytes of messages that have left since a stream had its turn
}

// toLeave is how many messages have not left.
func (l *session) toLeave() int { return l.msgs.n + l.bodies.n + l.queuedLen() }

// sendQueue is how many of these count against Config.SendQueue.
func (l *session) sendQueue() int { return l.toLeave() - l.answers - l.expediting }

// makeBusy has l ready for something, and the tick look after it.
func (l *session) makeBusy() {
	if l.activeState == nil {
		l.activeState = &activeState{}
		l.resting.remove(l)
		l.e.lookAfter(l)
		l.lastHeard = l.e.now // nothing was to be heard before
	}
}

// lookAfter has the tick look after l.
func (e *endpoint) lookAfter(l *session) {
	if len(e.busy) == 0 {
		e.readClock()
		e.lastTick = e.now
		e.timer.Store(int64(e.now + e.tickEvery()))
		e.nctx.pollSoon()
	}
	e.busy = append(e.busy, l)
}

// isOpen reports whether the peer owes a sign of life: its silence counts then.
func (l *session) isOpen() bool { return l.hasWork() || l.state == stateLeaving }

// hasWork reports whether anything is open with the peer: what we wait for, or what we do for it.
func (l *session) hasWork() bool {
	return l.waiting > 0 || l.unfreed > 0 || l.views > 0 || len(l.served) > 0 || len(l.sinks) > 0 || len(l.arrivals) > 0 || len(l.streams) > 0 || l.suspected ||
		l.asked && !l.confirmed
}

// isIdle reports whether a session has nothing open, and nothing to send.
func (l *session) isIdle() bool {
	return !l.isOpen() && l.sentAll() && !l.pending && !l.pong && !l.creditDue && !l.probes.isBusy() && !l.heldBack.isBusy()
}

// sentAll reports whether everything has left that is more than a courtesy to the peer.
func (l *session) sentAll() bool {
	return !l.stillWaits() && len(l.reads) == 0 && l.withdraws.open == 0 && l.owing.len() == 0 && l.flows[carrier.Messages].isEmpty() && l.flows[carrier.Bulk].isEmpty()
}
