package na

import (
	"fmt"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
)

// A target reports to its peers what their requests wait for. Each heldEvery, while messages of a
// session are not accepted, it checks the oldest one. If that was there at the check before, HELD
// reports the limit that holds it; when it is accepted, HELD reports that.
//
//	target: unaccepted messages of the session ─ check ─ check: the oldest has waited ── HELD reason, active, limit ──►
//	origin: keeps the last one for PeerStats.HeldBy, and for the error of a call that ends at its deadline
//
// A session has at most one HELD to send, and sends it only if it is different from the last one.

// heldEvery is the time between two checks. A reason is reported after a message has waited for one
// to two of them.
const heldEvery = 100 * time.Millisecond

// A heldReport is the state of HELD in a session.
type heldReport struct {
	said heldby.State // the last state that was sent or queued
	owes bool         // said must be sent in a HELD
	by   heldby.State // the last state that the peer has sent
}

// isBusy reports whether the session must stay busy to report that requests do not wait any more.
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

// reportHeldLocked checks the sessions with messages not yet accepted.
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

// oldestUnaccepted returns the oldest message that is not accepted, or nil.
func (l *session) oldestUnaccepted() *Envelope {
	if l.activeState == nil {
		return nil
	}
	return l.requests.oldestUnaccepted()
}

// heldBy returns what a message waits for.
func (env *Envelope) heldBy() heldby.State {
	switch {
	case env.inbox:
		return heldby.State{Reason: heldby.NotDriven, Active: int(env.session.held)}
	case env.holder != nil:
		return env.holder.HeldBy()
	}
	return heldby.State{Reason: heldby.Program, Active: int(env.session.held)}
}

// queueHeld queues a HELD with h, if h is different from the last state.
func (l *session) queueHeld(h heldby.State) {
	if l.activeState == nil || !l.Up() || l.heldBack.said == h {
		return
	}
	l.heldBack.said, l.heldBack.owes, l.stateDue = h, true, true
	l.markPending()
}

// heldFrame returns the HELD that is sent now.
func (l *session) heldFrame() frame.Header {
	h := l.heldBack.said
	l.heldBack.owes = false
	return frame.HeldHeader(h.Reason, clamp32(h.Active), clamp32(h.Limit))
}

func clamp32(n int) uint32 { return uint32(min(max(int64(n), 0), math.MaxUint32)) }

// deliverHeld handles a HELD.
func (l *session) deliverHeld(h *frame.Header) error {
	reason, active, limit, ok := h.Held()
	if !ok {
		return WithText(ErrProtocol, fmt.Sprintf("HELD frame with reason %d and tag %#x", h.Op, h.Tag))
	}
	l.heldBack.by = heldby.State{Reason: reason, Active: int(active), Limit: int(limit)}
	return nil
}

// peerHeld returns the peer's last report of what requests wait for.
func (l *session) peerHeld() heldby.State {
	if l.activeState == nil {
		return heldby.State{}
	}
	return l.heldBack.by
}
