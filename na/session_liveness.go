package na

import (
	"fmt"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// readClock sets e.now to the current time. Poll does so on each call. readClock is called
// elsewhere before e.now is used for a deadline, because the last Poll may have been minutes ago.
func (e *endpoint) readClock() { e.now = max(e.now, e.dom.now()) }

// tickNoLaterThan schedules the next tick for at, unless it is already scheduled for an earlier
// time.
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
// Each tick counts at most two tick intervals as silence, even if it runs late. Therefore, if this
// process has been suspended, it sends each peer another PING and reads the answer before it closes
// the session.
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
			l.fallBackToPrimary(WithText(ErrUnreachable, fmt.Sprintf("no connection within %v", offerTime)), false)
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

// nextTick returns the time at which l, which is waiting or dialing, must be checked next. If l is
// up, it returns 0.
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

// connectTimeoutError returns an ErrUnreachable error that says that l did not connect within
// ConnectTimeout, with the error of the last attempt, if any.
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

// frozenFor returns the delay of a tick that runs at now. It returns 0 if the delay is at most
// tickGrace, because a busy machine can delay ticks by that much.
func (e *endpoint) frozenFor(now time.Duration) time.Duration {
	late := now - max(time.Duration(e.timer.Load()), e.lastTick)
	if late <= e.tickGrace() {
		return 0
	}
	return late
}

// tickGrace returns the delay of a tick beyond which this process is assumed to have been
// suspended. A dial that timed out in the meantime then has its timeout extended once.
func (e *endpoint) tickGrace() time.Duration { return min(e.tickEvery(), e.dom.cfg.ConnectTimeout/2) }

// tick adds passed to the time for which the peer has been silent, unless something has arrived.
// Depending on that time, it sends a PING or closes the session.
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
		// The session fails before PeerTimeout, so that the peer's new connection is accepted in time.
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

// checkLiveness sends a PING. If no answer arrives, a later tick closes the session before
// PeerTimeout, even if nothing is in flight. checkLiveness is called when a process with the peer's
// name connects again, because the peer may have restarted and lost this session.
func (l *session) checkLiveness() {
	l.makeBusy()
	if !l.suspected {
		l.suspected, l.gotMessage, l.sinceHeard, l.sinceMessage = true, false, 0, 0
	}
	l.sendPing()
	l.markPending()
}

// maxPartial is the number of PeerTimeout intervals during which the arriving bytes of an
// incomplete message count as a sign of life. The limit is necessary because, if the length of a
// message is damaged, the receiver reads all following frames, including PONGs, as its payload, and
// cannot verify the checksum until that many bytes have arrived.
const maxPartial = 3

// sendPing queues a PING unless one is already queued, so that PINGs to a peer that reads slowly do
// not accumulate.
func (l *session) sendPing() {
	if slices.ContainsFunc(l.flows[carrier.Messages].ctl.all(), func(h frame.Header) bool { return h.Kind == frame.Ping }) {
		return
	}
	l.queueControl(frame.Header{Kind: frame.Ping})
}

// noteIdleSign is like noteAlive, but does nothing if the session is idle.
func (l *session) noteIdleSign() {
	if l.activeState != nil {
		l.noteAlive()
	}
}

// noteAlive records that a message has arrived from the peer, so that the next tick restarts the
// measurement of silence. The session must be busy.
func (l *session) noteAlive() { l.gotMessage, l.lastHeard = true, l.e.now }

// Heard implements carrier.Session. It records that bytes have arrived from the peer. bulk reports
// whether they are bulk data, whose header has been verified, rather than part of a message.
// endpoint.mu must be held.
func (l *session) Heard(bulk bool) {
	if l.activeState != nil {
		l.gotMessage = l.gotMessage || bulk
		l.lastHeard = l.e.now
	}
}
