package na

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// An activeState is the state of a busy session, which is one that is being established, has
// operations in flight, or has frames to send. makeBusy allocates it. A tick removes it if the
// session is idle and nothing has arrived since the previous tick.
type activeState struct {
	// Until the session is up.
	offerSecret      frame.Secret  // secret of the offer while the second transport is being dialed
	offerEnd         time.Duration // time at which dialing the second transport is abandoned
	secondaryFailure string        // why the second transport failed; empty if it did not
	followed         int           // number of offers followed
	keepsPlace       bool          // another offer is requested, although the second transport has failed
	// time at which the first operation started, shifted by any time during which this process was
	// frozen
	born    time.Duration
	since   time.Duration // time at which dialing began or, in stateWaiting, will begin
	refusal error         // error of the last attempt
	spared  bool          // the timeout has been extended once, after this process was frozen

	// Liveness.
	waiting int // number of operations waiting for the peer
	// number of the peer's messages not yet freed, mostly requests being handled
	unfreed int
	// the peer may have lost the session, so its silence is measured even if nothing is in flight
	suspected bool
	// incarnation that the peer must have, or zero for any; used until the session is up
	only [16]byte
	// host names, in addition to session.host, that the peer's certificate contains or, until the
	// session is up, must contain
	also         []string
	gotMessage   bool          // a message or bulk data has arrived since the last tick
	lastHeard    time.Duration // time at which the last bytes arrived; initially the time at which the session became busy
	sinceHeard   time.Duration // time without received bytes, as counted by ticks
	sinceMessage time.Duration // time without a received message, as counted by ticks

	// Sending.
	stateDue   bool  // sendState may have a frame to send
	writing    bool  // Pull is passing a message to the carrier
	writeErr   error // error of a Fail that the carrier called while writing
	flows      [carrier.Lanes]laneQueue
	pong       bool   // a PONG must be sent
	pongOp     uint64 // operation field of the PING
	pongTag    uint64 // tag of the PING
	pongLater  bool   // another PONG must be sent when the messages before the PING are complete
	msgs       opList // messages ready to be sent
	bodies     opList // messages whose bodies are being sent
	queued     opList // ordinary unexpected messages waiting for an envelope
	expedited  opList // expedited messages waiting for an envelope
	expediting int    // number of expedited messages not yet sent
	heldLast   opList // sent messages that used the last envelope
	answers    int    // number of expected messages in msgs and bodies
	// number of the first message that the peer did not accept, as reported when it closed the
	// session; 0 if unknown
	firstNotTaken uint64
	queuedMoves   opList      // puts and gets not yet started
	inFlight      opList      // puts and gets in flight
	recvs         opList      // posted receives of expected messages, and calls whose request has been sent
	posted        postedTable // posted receives and calls, by tag
	leases        opList
	views         int // number of views of the peer's memory
	withdraws     withdrawalState
	reads         []remoteRead  // direct reads not yet reported to the peer
	probed        time.Duration // time at which the peer's credit was last requested or messages began to wait

	probes   probeState
	heldBack heldReport

	// Receiving.
	requests messageTable            // the peer's messages until they are freed
	answered int                     // number of answers to WITHDRAW waiting to be sent
	sinks    map[uint64]*inboundBulk // the peer's puts, by its operation ID
	// the peer's bodies that are incomplete or whose message has not arrived, by ID
	arrivals map[uint64]*inboundBulk
	served   map[uint64]*outboundBulk // the peer's gets, by its operation ID

	// Streams in both directions.
	streams map[streamKey]*Stream
	owing   fifo[*Stream] // streams with a WINDOW or RESET to send
	starved fifo[*Stream] // streams waiting for room
	burst   int           // message bytes sent since the last turn of a stream
}

// unsentLen returns the number of messages not yet sent.
func (l *session) unsentLen() int { return l.msgs.n + l.bodies.n + l.queuedLen() }

// sendQueue returns the number of unsent messages that count toward Config.SendQueue, which
// excludes answers and expedited messages.
func (l *session) sendQueue() int { return l.unsentLen() - l.answers - l.expediting }

// makeBusy makes l busy if it is idle: it allocates an activeState and adds l to the sessions that
// ticks check.
func (l *session) makeBusy() {
	if l.activeState == nil {
		l.activeState = &activeState{}
		l.resting.remove(l)
		l.e.addBusy(l)
		l.lastHeard = l.e.now // earlier silence is ignored
	}
}

// addBusy adds l to endpoint.busy, the sessions that ticks check, and starts the ticks if l is the
// only one.
func (e *endpoint) addBusy(l *session) {
	if len(e.busy) == 0 {
		e.readClock()
		e.lastTick = e.now
		e.timer.Store(int64(e.now + e.tickEvery()))
		e.nctx.pollSoon()
	}
	e.busy = append(e.busy, l)
}

// isOpen reports whether PeerTimeout applies because the session has work in flight or a LEAVE has
// been sent.
func (l *session) isOpen() bool { return l.hasWork() || l.state == stateLeaving }

// hasWork reports whether anything is in flight to or from the peer.
func (l *session) hasWork() bool {
	return l.waiting > 0 || l.unfreed > 0 || l.views > 0 || len(l.served) > 0 || len(l.sinks) > 0 || len(l.arrivals) > 0 || len(l.streams) > 0 || l.suspected ||
		l.asked && !l.confirmed
}

// isIdle reports whether l may lose its activeState because nothing is in flight or waiting to be
// sent.
func (l *session) isIdle() bool {
	return !l.isOpen() && l.sentAll() && !l.pending && !l.pong && !l.creditDue && !l.probes.isBusy() && !l.heldBack.isBusy()
}

// sentAll reports whether all frames that the peer needs have been sent.
func (l *session) sentAll() bool {
	return !l.stillWaits() && len(l.reads) == 0 && l.withdraws.open == 0 && l.owing.len() == 0 && l.flows[carrier.Messages].isEmpty() && l.flows[carrier.Bulk].isEmpty()
}
