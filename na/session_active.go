package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An activeState is the state of a busy session: it is being made, it has operations in flight, or
// frames wait to be sent. makeBusy makes it. A tick removes it when the session is idle and nothing
// has arrived since the tick before.
type activeState struct {
	// Until the session is up.
	offerSecret      frame.Secret  // the secret of the offer, while the second transport is dialed
	offerEnd         time.Duration // end of the dial of the second transport
	secondaryFailure string        // reason why the second transport failed; empty if it did not
	// when the first operation started; moved by the time that this process was frozen
	born    time.Duration
	since   time.Duration // when dialing began, or, in stateWaiting, begins
	refusal error         // the error of the last attempt
	spared  bool          // timeout was extended once, after a freeze of this process

	// Liveness.
	waiting int // the number of operations that wait for the peer
	// the number of its messages that were not freed, mostly requests that are being handled
	unfreed int
	// the peer may have lost the session: silence is detected although nothing is in flight
	suspected bool
	// the incarnation that the peer must have; zero: any; used until the session is up
	only [16]byte
	// host names in addition to session.host that the peer's certificate has, or must have until it
	// is up
	also         []string
	gotMessage   bool          // a message or bulk data has arrived since the last tick
	lastHeard    time.Duration // when the last bytes have arrived; at first when the session became busy
	sinceHeard   time.Duration // the time without received bytes, as counted by ticks
	sinceMessage time.Duration // the time without a received message, as counted by ticks

	// Sending.
	stateDue   bool  // sendState may have a frame
	writing    bool  // Pull is passing a message to the carrier
	writeErr   error // the error of a Fail that the carrier has called while writing
	flows      [carrier.Lanes]laneQueue
	pong       bool   // a PONG is due
	pongOp     uint64 // the operation field of the PING
	pongTag    uint64 // the tag of the PING
	pongLater  bool   // another PONG is due when the messages before the PING are complete
	msgs       opList // messages that can be sent
	bodies     opList // messages whose bodies are being sent
	queued     opList // ordinary unexpected messages that wait for an envelope
	expedited  opList // expedited messages that wait for an envelope
	expediting int    // the number of expedited messages that were not sent
	heldLast   opList // sent messages that have used the last envelope
	answers    int    // the number of expected messages in msgs and bodies
	// the first message that the peer has not accepted, as reported at the end of the session; 0:
	// unknown
	firstNotTaken uint64
	queuedMoves   opList      // puts and gets that have not started
	inFlight      opList      // puts and gets in flight
	recvs         opList      // posted receives of expected messages, and calls whose request was sent
	posted        postedTable // posted receives and calls by tag
	leases        opList
	views         int // the number of views of the peer's memory
	withdraws     withdrawalState
	reads         []remoteRead  // direct reads that were not reported to the peer
	probed        time.Duration // when the peer's credit was last requested, or messages began to wait

	probes   probeState
	heldBack heldReport

	// Receiving.
	requests messageTable            // messages of the peer, until they are freed
	answered int                     // the number of answers to WITHDRAW that wait to be sent
	sinks    map[uint64]*inboundBulk // puts of the peer, by its operation ID
	// bodies of the peer by ID that are not complete, or whose message has not arrived
	arrivals map[uint64]*inboundBulk
	served   map[uint64]*outboundBulk // gets of the peer, by its operation ID

	// Streams of both directions.
	streams map[streamKey]*Stream
	owing   fifo[*Stream] // streams with a WINDOW or a RESET to send
	starved fifo[*Stream] // streams that wait for room
	burst   int           // bytes of messages sent since the last turn of a stream
}

// unsentLen returns the number of messages that were not sent.
func (l *session) unsentLen() int { return l.msgs.n + l.bodies.n + l.queuedLen() }

// sendQueue returns the number of messages that count against Config.SendQueue.
func (l *session) sendQueue() int { return l.unsentLen() - l.answers - l.expediting }

// makeBusy allocates the activeState of l, if it has none, and adds l to the sessions that ticks
// check.
func (l *session) makeBusy() {
	if l.activeState == nil {
		l.activeState = &activeState{}
		l.resting.remove(l)
		l.e.addBusy(l)
		l.lastHeard = l.e.now // earlier silence is ignored
	}
}

// addBusy adds l to the sessions that ticks check.
func (e *endpoint) addBusy(l *session) {
	if len(e.busy) == 0 {
		e.readClock()
		e.lastTick = e.now
		e.timer.Store(int64(e.now + e.tickEvery()))
		e.nctx.pollSoon()
	}
	e.busy = append(e.busy, l)
}

// isOpen reports whether PeerTimeout applies.
func (l *session) isOpen() bool { return l.hasWork() || l.state == stateLeaving }

// hasWork reports whether anything is in flight with the peer, in either direction.
func (l *session) hasWork() bool {
	return l.waiting > 0 || l.unfreed > 0 || l.views > 0 || len(l.served) > 0 || len(l.sinks) > 0 || len(l.arrivals) > 0 || len(l.streams) > 0 || l.suspected ||
		l.asked && !l.confirmed
}

// isIdle reports whether nothing is in flight and nothing waits to be sent.
func (l *session) isIdle() bool {
	return !l.isOpen() && l.sentAll() && !l.pending && !l.pong && !l.creditDue && !l.probes.isBusy() && !l.heldBack.isBusy()
}

// sentAll reports whether all frames that the peer needs have been sent.
func (l *session) sentAll() bool {
	return !l.stillWaits() && len(l.reads) == 0 && l.withdraws.open == 0 && l.owing.len() == 0 && l.flows[carrier.Messages].isEmpty() && l.flows[carrier.Bulk].isEmpty()
}
