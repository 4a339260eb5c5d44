package na

import (
	"fmt"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/heldby"
)

// A peer learns what its requests wait for here. Each heldEvery, while messages of a session are not accepted, the target looks at the
// oldest one: if it was there at the look before, HELD says which limit holds it, and when that is over, HELD says so.
//
//	target: messages of the session that are not accepted ─ look ─ look: the oldest has waited ── HELD reason, active, limit ──►
//	origin: keeps the last one: PeerStats.HeldBy, and the error of a call that ends at its deadline
//
// A session has at most one HELD to send, and it is sent only when it says something new.

// heldEvery is how long a message has waited, at least, when its sender learns why, and at most twice that.
const heldEvery = 100 * time.Millisecond

// heldReport is what an active session has of HELD.
type heldReport struct {
	said heldby.State // that the peer knows, or will
	owes bool         // said has not left
	by   heldby.State // what the peer has said
}

// isBusy reports whether the peer is still to learn that its requests do not wait any more.
func (h *heldReport) isBusy() bool { return h.owes || h.said.Reason != heldby.None }

// watchHeld has the messages of l looked at.
func (l *session) watchHeld() {
	l.watched = true
	e := l.e
	e.holding = append(e.holding, l)
	if e.heldDue.Load() == 0 {
		e.heldDue.Store(int64(max(e.now+heldEvery, 1)))
		e.nctx.pollSoon()
	}
}

// reportHeld looks at the sessions with messages that are not accepted. Locked.
func (e *endpoint) reportHeld(now time.Duration) {
	waiting := e.holding[:0]
	for _, l := range e.holding {
		env := l.oldestUnaccepted()
		if env == nil || !l.Up() {
			l.watched = false
			l.sayHeld(heldby.State{})
			continue
		}
		waiting = append(waiting, l)
		if env.id <= l.lookedAt {
			l.sayHeld(env.heldBy())
		} else {
			l.sayHeld(heldby.State{})
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

// heldBy tells what a message waits for.
func (env *Envelope) heldBy() heldby.State {
	switch {
	case env.inbox:
		return heldby.State{Reason: heldby.NotDriven, Active: int(env.session.held)}
	case env.holder != nil:
		return env.holder.HeldBy()
	}
	return heldby.State{Reason: heldby.Program, Active: int(env.session.held)}
}

// sayHeld sends h to the peer, if that is new.
func (l *session) sayHeld(h heldby.State) {
	if l.activeState == nil || !l.Up() || l.heldBack.said == h {
		return
	}
	l.heldBack.said, l.heldBack.owes, l.stateDue = h, true, true
	l.markPending()
}

// heldFrame returns the HELD that leaves now.
func (l *session) heldFrame() frame.Header {
	h := l.heldBack.said
	l.heldBack.owes = false
	return frame.HeldHeader(h.Reason, clamp32(h.Active), clamp32(h.Limit))
}

func clamp32(n int) uint32 { return uint32(min(max(int64(n), 0), math.MaxUint32)) }

// deliverHeld keeps what the peer says.
func (l *session) deliverHeld(h *frame.Header) error {
	reason, active, limit, ok := h.Held()
	if !ok {
		return WithText(ErrProtocol, fmt.Sprintf("HELD with the reason %d and the tag %#x", h.Op, h.Tag))
	}
	l.heldBack.by = heldby.State{Reason: reason, Active: int(active), Limit: int(limit)}
	return nil
}

// heldThere is what requests to the peer wait for there, as far as it has said.
func (l *session) heldThere() heldby.State {
	if l.activeState == nil {
		return heldby.State{}
	}
	return l.heldBack.by
}
