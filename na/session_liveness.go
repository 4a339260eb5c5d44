package na

import (
	"fmt"
	"slices"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// readClock is for the rare steps that happen long after a Poll: a program may drive nothing for
// minutes, then dial.
func (e *endpoint) readClock() { e.now = max(e.now, e.dom.now()) }

// tickNoLaterThan makes the next tick no later than at.
func (e *endpoint) tickNoLaterThan(at time.Duration) {
	if t := e.timer.Load(); t == 0 || int64(at) < t {
		e.timer.Store(max(int64(at), 1))
		e.nctx.pollSoon()
	}
}

// tickEvery is how often busy sessions are looked after.
func (e *endpoint) tickEvery() time.Duration {
	every := e.dom.cfg.PeerTimeout
	if limit := e.dom.own.WriteTimeout; limit > 0 {
		every = min(every, limit)
	}
	return every / 10
}

// tick looks after the busy sessions: dials after a backoff, gives up dialling, asks silent peers
// for a sign of life and gives up those that have been silent for PeerTimeout. Silence, and the
// time that a dial takes, count only as fast as ticks come: after a freeze of this process a peer
// is asked afresh, and what it has answered is read, before it is judged.
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
				l.readsDue()
			}
			if left := e.dom.cfg.PeerTimeout - l.sinceHeard; l.Up() && l.isOpen() && left < next-now {
				next = now + left // it is judged in time, however late the ticks were that came before
			}
			if at := l.probeCredit(now); at != 0 {
				next = min(next, at)
			}
		case l.state == stateDown:
		case now-l.born >= e.dom.cfg.ConnectTimeout && frozen > 0 && !l.spared: // the answer may have come
			l.spared = true
			l.born += e.tickGrace()
		case now-l.born >= e.dom.cfg.ConnectTimeout:
			l.failWith(l.tooLate())
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

// nextTick is when a session that waits or dials has to be looked after; 0 for one that is up.
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

// tooLate is the error of a session that could not be made in time.
func (l *session) tooLate() error {
	text := fmt.Sprintf("no connection within %v", l.e.dom.cfg.ConnectTimeout)
	if l.choices.isUndecided() && l.state == stateDialing {
		l.refusal = l.choices.err()
	}
	if l.refusal != nil {
		text += ", at last: " + l.refusal.Error()
	}
	return WithText(ErrUnreachable, text)
}

// frozenFor is how much too late a tick comes, if that is more than a busy machine explains.
func (e *endpoint) frozenFor(now time.Duration) time.Duration {
	late := now - max(time.Duration(e.timer.Load()), e.lastTick)
	if late <= e.tickGrace() {
		return 0
	}
	return late
}

// tickGrace is how late a tick may come without being a freeze, and what a dial is left with after
// one that outlasts it.
func (e *endpoint) tickGrace() time.Duration { return min(e.tickEvery(), e.dom.cfg.ConnectTimeout/2) }

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
	case l.suspected && l.sinceHeard >= timeout/2: // so that the new connection gets in before it is given up
		l.failWith(WithText(ErrPeerLost, "the peer restarted, or has lost this session: it connected anew, and is silent here"))
		return
	case l.sinceHeard >= timeout:
		l.Silent(WithText(ErrPeerLost, fmt.Sprintf("the peer was silent for %v", timeout)))
		return
	case l.sinceMessage >= maxPartial*timeout:
		l.Silent(WithText(ErrPeerLost, fmt.Sprintf("no message of the peer was complete for %v", maxPartial*timeout)))
		return
	}
	l.sendPing()
}

// checkLiveness asks the peer for a sign of life, and judges it, whether anything is open or not:
// it has connected although it has a session, and may have lost that one without a word.
func (l *session) checkLiveness() {
	l.makeBusy()
	if !l.suspected {
		l.suspected, l.gotMessage, l.sinceHeard, l.sinceMessage = true, false, 0, 0
	}
	l.sendPing()
	l.markPending()
}

// maxPartial times PeerTimeout bytes of the peer are a sign of life without a message that is
// complete. What they are part of may be damaged: a length that is too large swallows what comes
// after it, signs of life included, and no checksum tells until there are as many bytes.
const maxPartial = 3

// sendPing asks the peer for a sign of life. One at a time: a peer that reads slowly is not
// flooded.
func (l *session) sendPing() {
	if slices.ContainsFunc(l.flows[carrier.Messages].ctl.all(), func(h frame.Header) bool { return h.Kind == frame.Ping }) {
		return
	}
	l.queueControl(frame.Header{Kind: frame.Ping})
}

// noteIdleSign notes a sign of life of a session that may not be looked after.
func (l *session) noteIdleSign() {
	if l.activeState != nil {
		l.noteAlive()
	}
}

// noteAlive notes a sign of life: silence counts from here.
func (l *session) noteAlive() { l.gotMessage, l.lastHeard = true, l.e.now }

// Heard notes that bytes of the peer arrived: of bulk data whose front was verified, or of a
// message that may not be complete. Locked.
func (l *session) Heard(bulk bool) {
	if l.activeState != nil {
		l.gotMessage = l.gotMessage || bulk
		l.lastHeard = l.e.now
	}
}
