package na

import (
	"fmt"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// readClock advances e.now outside Poll. It is called in the few places where an old time matters:
// when the program dials, the last Poll may have been minutes ago.
func (e *endpoint) readClock() { e.now = max(e.now, e.dom.now()) }

// tickNoLaterThan makes the next tick happen no later than at.
func (e *endpoint) tickNoLaterThan(at time.Duration) {
	if t := e.timer.Load(); t == 0 || int64(at) < t {
		e.timer.Store(max(int64(at), 1))
		e.nctx.pollSoon()
	}
}

// tickEvery returns the time between two ticks while sessions are busy: a tenth of PeerTimeout or
// of WriteTimeout, whichever is shorter.
func (e *endpoint) tickEvery() time.Duration {
	every := e.dom.cfg.PeerTimeout
	if limit := e.dom.own.WriteTimeout; limit > 0 {
		every = min(every, limit)
	}
	return every / 10
}

// tick checks the busy sessions. It dials those whose backoff has expired, fails those that did not
// connect within ConnectTimeout, sends PINGs to silent peers, and closes the sessions of peers that
// have been silent for PeerTimeout.
//
// One tick adds at most two tick intervals of silence, even if it runs late. This way, after this
// process has been stopped, a peer gets another PING, and its answer is read, before its session is
// closed.
func (e *endpoint) tick(now time.Duration) {
	frozen := e.frozenFor(now)
	passed := min(now-e.lastTick, 2*e.tickEvery())
	e.lastTick = now
	next := now + e.tickEvery()
	expiry := e.retireExpired(now)
	busy := e.busy
	e.busy = nil
	for _, l := range busy {
		if l.state < stateUp {
			l.born = min(l.born+frozen, now)
		}
		idle := false
		switch {
		case l.Up():
			idle = l.retiring == nil && !l.gotMessage && l.isIdle()
			l.tick(now, passed)
			if r := l.retiring; r != nil && l.Up() {
				l.tickRetiring(now)
				next = earlierOf(next, r.by)
			}
			if l.Up() {
				l.queueReads()
			}
			if left := e.dom.cfg.PeerTimeout - l.sinceHeard; l.Up() && l.isOpen() && left < next-now {
				next = now + left // so that late ticks do not delay the timeout
			}
			if at := l.probeCredit(now); at != 0 {
				next = min(next, at)
			}
		case l.state == stateDown:
		case now-l.born >= e.dom.cfg.ConnectTimeout && frozen > 0 && !l.spared:
			// The response may have arrived but not been read.
			l.spared = true
			l.born += e.tickGrace()
		case now-l.born >= e.dom.cfg.ConnectTimeout:
			l.failWith(l.connectTimeoutError())
		case l.state == stateDialing && l.onSecondary() && now >= l.offerEnd:
			l.fallBackToPrimary(WithText(ErrUnreachable, fmt.Sprintf("no connection within %v", offerTime)))
		case l.state == stateWaiting && now >= l.since:
			l.since, l.dialled = now, true
			l.connect()
		case l.state == stateDialing && l.choices.isUndecided():
			l.startAttempts()
		}
		if l.state == stateDown {
			l.activeState = nil
			continue
		}
		if idle && l.state == stateUp {
			e.onIdle(l, now)
			continue
		}
		if at := l.nextTick(); at != 0 {
			next = min(next, at)
		}
		e.busy = append(e.busy, l)
	}
	idle := e.endIdle(now)
	if len(e.busy) == 0 {
		next = 0
	}
	next = earlierOf(earlierOf(next, idle), expiry)
	e.timer.Store(int64(next))
}

// nextTick returns the time of the next tick for a session that is waiting or dialing, or 0 for one
// that is up.
func (l *session) nextTick() time.Duration {
	end := l.born + l.e.dom.cfg.ConnectTimeout
	switch l.state {
	case stateWaiting:
		return min(l.since, end)
	case stateDialing:
		if l.onSecondary() {
			return min(l.offerEnd, end)
		}
		if at, ok := l.choices.nextAttemptAt(); ok {
			return min(at, end)
		}
		return end
	}
	return 0
}

// connectTimeoutError returns the error for a session that did not connect within ConnectTimeout.
func (l *session) connectTimeoutError() error {
	text := fmt.Sprintf("no connection within %v", l.e.dom.cfg.ConnectTimeout)
	if l.choices.isUndecided() && l.state == stateDialing {
		l.refusal = l.choices.err()
	}
	if l.refusal != nil {
		text += "; last error: " + l.refusal.Error()
	}
	return WithText(ErrUnreachable, text)
}

// frozenFor returns how late a tick runs, or 0 if the delay is within tickGrace and can be
// explained by a busy machine.
func (e *endpoint) frozenFor(now time.Duration) time.Duration {
	late := now - max(time.Duration(e.timer.Load()), e.lastTick)
	if late <= e.tickGrace() {
		return 0
	}
	return late
}

// tickGrace returns how late a tick may run before this process is considered to have been stopped.
// A dial that timed out during such a stop is given additional time once.
func (e *endpoint) tickGrace() time.Duration { return min(e.tickEvery(), e.dom.cfg.ConnectTimeout/2) }

// tick measures the peer's silence, sends a PING, and closes the session after too long a silence.
func (l *session) tick(now, passed time.Duration) {
	if !l.checkTaken(passed) {
		return
	}
	if l.unconfirmedCount() > confirmEvery {
		l.sendPing()
	}
	if l.gotMessage {
		l.gotMessage, l.suspected, l.sinceHeard, l.sinceMessage = false, false, 0, 0
		if l.isOpen() {
			l.sinceHeard = min(passed, now-l.lastHeard)
		}
		return
	}
	if !l.isOpen() {
		return
	}
	timeout := l.e.dom.cfg.PeerTimeout
	l.sinceMessage += passed
	l.sinceHeard = min(l.sinceHeard+passed, now-l.lastHeard)
	switch {
	case l.suspected && l.sinceHeard >= timeout/2:
		// Fail before PeerTimeout, so that the peer's new connection is accepted in time.
		l.failWith(WithText(ErrPeerLost, "the peer has reconnected and does not respond on this session"))
		return
	case l.sinceHeard >= timeout:
		l.Silent(WithText(ErrPeerLost, fmt.Sprintf("the peer was silent for %v", timeout)))
		return
	case l.sinceMessage >= maxPartial*timeout:
		l.Silent(WithText(ErrPeerLost, fmt.Sprintf("no complete message from the peer for %v", maxPartial*timeout)))
		return
	}
	l.sendPing()
}

// checkLiveness sends a PING and closes the session soon if no answer arrives, even if nothing is
// in flight. It is called when the peer connects again, because the peer may have restarted and
// lost this session.
func (l *session) checkLiveness() {
	l.makeBusy()
	if !l.suspected {
		l.suspected, l.gotMessage, l.sinceHeard, l.sinceMessage = true, false, 0, 0
	}
	l.sendPing()
	l.markPending()
}

// maxPartial is the number of PeerTimeouts during which bytes of an incomplete message count as a
// sign of life. If a damaged message has a wrong length, the receiver reads all following frames,
// including PONGs, as its payload. The checksum can be verified only after the whole length has
// arrived.
const maxPartial = 3

// sendPing queues a PING unless one is already waiting to be sent, so that PINGs to a slow reader
// do not accumulate.
func (l *session) sendPing() {
	if slices.ContainsFunc(l.flows[carrier.Messages].ctl.all(), func(h frame.Header) bool { return h.Kind == frame.Ping }) {
		return
	}
	l.queueControl(frame.Header{Kind: frame.Ping})
}

// noteIdleSign is like noteAlive, for a session that may be idle and thus have no activeState.
func (l *session) noteIdleSign() {
	if l.activeState != nil {
		l.noteAlive()
	}
}

// noteAlive records a sign of life and restarts the measurement of silence.
func (l *session) noteAlive() { l.gotMessage, l.lastHeard = true, l.e.now }

// Heard implements carrier.Session. It records that bytes have arrived from the peer, either bulk
// data whose header has been verified or part of a message. endpoint.mu must be held.
func (l *session) Heard(bulk bool) {
	if l.activeState != nil {
		l.gotMessage = l.gotMessage || bulk
		l.lastHeard = l.e.now
	}
}
