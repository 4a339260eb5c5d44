package na

import (
	"fmt"
	"math"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// A peer hears what its requests wait for here. Each heldEvery, while messages of a session are not accepted, the target looks at the
// oldest one: if it was there at the look before, HELD says which limit holds it, and when that is over, HELD says so.
//
//	target: messages of the session that are not accepted ─ look ─ look: the oldest has waited ── HELD reason, active, limit ──►
//	origin: keeps the last one: PeerStats.HeldBy, and the error of a call that ends at its deadline
//
// A session has at most one HELD to send, and it is sent only when it says something new.

// heldEvery is how long a message has waited, at least, when its sender hears why, and at most twice that.
const heldEvery = 100 * time.Millisecond

// A HeldReason is why requests wait at their target.
type HeldReason uint8

// The reasons. They cross the wire: appended, never renumbered.
const (
	NotHeld        = HeldReason(frame.NotHeld)        // they do not wait
	HeldNotDriven  = HeldReason(frame.HeldNotDriven)  // nobody runs the callbacks of the context
	HeldPerPeer    = HeldReason(frame.HeldPerPeer)    // hg.Config.MaxActivePerPeer
	HeldTotal      = HeldReason(frame.HeldTotal)      // hg.Config.MaxActive
	HeldMethod     = HeldReason(frame.HeldMethod)     // hg.RPC.MaxActive, qs.MaxConcurrent
	HeldWorkers    = HeldReason(frame.HeldWorkers)    // what hg.Config.Dispatch has, qs.Config.MaxConcurrent
	HeldAuthorizer = HeldReason(frame.HeldAuthorizer) // hg.Config.Authorize has not decided
	HeldProgram    = HeldReason(frame.HeldProgram)    // something else of the program that has taken them
)

// A Held says what requests wait for at their target. The zero value says that they do not wait.
type Held struct {
	Reason HeldReason
	Active int // requests that count against the limit
	Limit  int // 0 where there is none, or it is not known
}

// String says it of the target, for example "it handles 128 requests of this process, its limit (MaxActivePerPeer)". It is empty for the
// zero value.
func (h Held) String() string {
	switch h.Reason {
	case NotHeld:
		return ""
	case HeldNotDriven:
		return "nobody drives it, or its program is busy"
	case HeldPerPeer:
		return fmt.Sprintf("it handles %d requests of this process, its limit (MaxActivePerPeer)", h.Limit)
	case HeldTotal:
		return fmt.Sprintf("it handles %d requests, its limit (MaxActive)", h.Limit)
	case HeldMethod:
		return fmt.Sprintf("it handles %d requests of one method, whose limit that is (MaxConcurrent)", h.Limit)
	case HeldWorkers:
		return fmt.Sprintf("none of its workers is free, and %d requests are active", h.Active)
	case HeldAuthorizer:
		return "its authorizer has not decided"
	}
	return "its program has not accepted them"
}

// A Holder is what holds back a message that the layer above has taken and not accepted. HeldBy is called with the lock of the endpoint held,
// from any goroutine, until the message is accepted or freed: it does not block, takes no lock, and calls nothing of this package.
type Holder interface{ HeldBy() Held }

// held is what an active session has of HELD.
type held struct {
	said Held // that the peer knows, or will
	owes bool // said has not left
	by   Held // what the peer has said
}

// busy reports whether the peer is still to hear that its requests do not wait any more.
func (h *held) busy() bool { return h.owes || h.said.Reason != NotHeld }

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
			l.sayHeld(Held{})
			continue
		}
		waiting = append(waiting, l)
		if env.id <= l.lookedAt {
			l.sayHeld(env.heldBy())
		} else {
			l.sayHeld(Held{})
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
	if l.active == nil {
		return nil
	}
	return l.requests.oldestUnaccepted()
}

// heldBy tells what a message waits for.
func (env *Envelope) heldBy() Held {
	switch {
	case env.inbox:
		return Held{Reason: HeldNotDriven, Active: int(env.session.held)}
	case env.holder != nil:
		return env.holder.HeldBy()
	}
	return Held{Reason: HeldProgram, Active: int(env.session.held)}
}

// sayHeld has the peer hear of h, if that is new.
func (l *session) sayHeld(h Held) {
	if l.active == nil || !l.Up() || l.heldBack.said == h {
		return
	}
	l.heldBack.said, l.heldBack.owes, l.stateDue = h, true, true
	l.markPending()
}

// heldFrame returns the HELD that leaves now.
func (l *session) heldFrame() frame.Header {
	h := l.heldBack.said
	l.heldBack.owes = false
	return frame.HeldHeader(frame.HeldReason(h.Reason), clamp32(h.Active), clamp32(h.Limit))
}

func clamp32(n int) uint32 { return uint32(min(max(int64(n), 0), math.MaxUint32)) }

// deliverHeld keeps what the peer says.
func (l *session) deliverHeld(h *frame.Header) error {
	reason, active, limit, ok := h.Held()
	if !ok {
		return WithText(ErrProtocol, fmt.Sprintf("HELD with the reason %d and the tag %#x", h.Op, h.Tag))
	}
	l.heldBack.by = Held{HeldReason(reason), int(active), int(limit)}
	return nil
}

// heldThere is what requests to the peer wait for there, as far as it has said.
func (l *session) heldThere() Held {
	if l.active == nil {
		return Held{}
	}
	return l.heldBack.by
}
