package na

import (
	"fmt"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
)

// A target reports to its peers why their requests are waiting. While a session has unaccepted
// messages, the target checks the oldest one every heldEvery. If that message was already present
// at the previous check, a HELD reports the limit that holds it back. Another HELD reports that it
// has been accepted.
//
// The origin keeps the last report for PeerStats.HeldBy and for the error of a call that times out.
//
// A session has at most one HELD to send, and sends it only if it differs from the last one.

// heldEvery is the time between two checks. A message's reason is reported once the message has
// been waiting for between one and two intervals.
const heldEvery = 100 * time.Millisecond

// A heldReport records why requests are waiting: this side's report to the peer, and the peer's
// report to this side.
type heldReport struct {
	said heldby.State // last state sent or queued
	owes bool         // said must be sent in a HELD
	by   heldby.State // last state received from the peer
}

// isBusy reports whether the session must stay busy because a HELD must be sent now or when
// requests no longer wait.
func (h *heldReport) isBusy() bool { return h.owes || h.said.Reason != heldby.None }

// watchHeld adds l to the sessions that reportHeldLocked checks.
func (l *session) watchHeld() {
	l.watched = true
	e := l.e
	e.holding = append(e.holding, l)
	if e.heldDue.Load() == 0 {
		e.heldDue.Store(int64(max(e.now+heldEvery, 1)))
		e.nctx.pollSoon()
	}
}

// reportHeldLocked checks the sessions that have unaccepted messages and queues a HELD for each in
// which the oldest such message has begun to wait, waits for another reason, or no longer waits.
// e.mu must be held.
func (e *endpoint) reportHeldLocked(now time.Duration) {
	waiting := e.holding[:0]
	for _, l := range e.holding {
		env := l.oldestUnaccepted()
		if env == nil || !l.Up() {
			l.watched = false
			l.queueHeld(heldby.State{})
			continue
		}
		waiting = append(waiting, l)
		if env.id <= l.lookedAt {
			l.queueHeld(env.heldBy())
		} else {
			l.queueHeld(heldby.State{})
		}
		l.lookedAt = l.received
	}
	clear(e.holding[len(waiting):])
	e.holding = waiting
	next := time.Duration(0)
	if len(waiting) > 0 {
		next = now + heldEvery
	}
	e.heldDue.Store(int64(next))
}

// oldestUnaccepted returns the session's oldest message that has not been accepted, or nil if there
// is none.
func (l *session) oldestUnaccepted() *Envelope {
	if l.activeState == nil {
		return nil
	}
	return l.requests.oldestUnaccepted()
}

// heldBy returns the reason why env, which has not been accepted, is waiting.
func (env *Envelope) heldBy() heldby.State {
	switch {
	case env.inbox:
		return heldby.State{Reason: heldby.NotDriven, Active: int(env.session.held)}
	case env.holder != nil:
		return env.holder.HeldBy()
	}
	return heldby.State{Reason: heldby.Program, Active: int(env.session.held)}
}

// queueHeld queues a HELD with state h unless h is the state last reported.
func (l *session) queueHeld(h heldby.State) {
	if l.activeState == nil || !l.Up() || l.heldBack.said == h {
		return
	}
	l.heldBack.said, l.heldBack.owes, l.stateDue = h, true, true
	l.markPending()
}

// heldFrame returns the HELD frame that is queued and marks it as sent.
func (l *session) heldFrame() frame.Header {
	h := l.heldBack.said
	l.heldBack.owes = false
	return frame.HeldHeader(h.Reason, clamp32(h.Active), clamp32(h.Limit))
}

func clamp32(n int) uint32 { return uint32(min(max(int64(n), 0), math.MaxUint32)) }

// deliverHeld handles a HELD frame by recording the reason for PeerStats.HeldBy and for errors of
// calls that time out.
func (l *session) deliverHeld(h *frame.Header) error {
	reason, active, limit, ok := h.Held()
	if !ok {
		return WithText(ErrProtocol, fmt.Sprintf("HELD frame with reason %d and tag %#x", h.Op, h.Tag))
	}
	l.heldBack.by = heldby.State{Reason: reason, Active: int(active), Limit: int(limit)}
	return nil
}

// peerHeld returns the peer's last report of why this side's requests are waiting, or the zero
// State if it has sent none.
func (l *session) peerHeld() heldby.State {
	if l.activeState == nil {
		return heldby.State{}
	}
	return l.heldBack.by
}
