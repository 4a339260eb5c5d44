package na

import (
	"fmt"
	"slices"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// A probe asks whether the peer's program drives its context and is ready. It is a session frame
// that needs no envelope, authorizer, or handler, so no limit on requests delays it. It is answered
// by Trigger, not by the background poller.
//
// The origin sends PROBE n, where n is a number that grows with each PROBE. The target records only
// the newest number. When its program calls Trigger, it answers with PROBED n, which also contains
// its readiness.
//
// A session has at most one PROBE and one PROBED to send. PROBED n completes the probes of PROBE n
// and all earlier ones.

// maxProbes is the maximum number of probes in flight in one session.
const maxProbes = 1024

// A probeState is the state of one session's probes, in both directions.
type probeState struct {
	waiting opList // probes not yet sent
	asked   opList // sent probes; op.id is the number of their PROBE

	due       bool   // a PROBE from the peer is waiting for Trigger, and the session is in endpoint.probed
	number    uint64 // number of the peer's newest PROBE
	answering uint64 // number of the PROBED to send, or 0 if none
	readiness frame.Readiness
}

// isBusy reports whether a probe from the peer has not been answered.
func (p *probeState) isBusy() bool { return p.due || p.answering != 0 }

// startProbe starts the operation t, a probe of the peer at to, which fails with ErrTimeout at the
// time by.
func (e *endpoint) startProbe(t ticket, to Addr, by Deadline) {
	if e.faults != nil && e.failsAtOnce(t, nil) {
		return
	}
	e.mu.Lock()
	l, err := e.sessionForLocked(t, to)
	if err == nil && l.probes.waiting.n+l.probes.asked.n >= maxProbes {
		err = queueFullError(maxProbes, "probes in flight")
	}
	if err != nil {
		e.refuseStart(t, err)
		return
	}
	o := e.takeInLocked(t)
	o.session = l
	l.waiting++
	l.probes.waiting.push(o)
	l.stateDue = true
	sooner := by.At != 0 && e.addTimer(o, by.At)
	l.markPending()
	e.Unlock()
	if sooner {
		e.nctx.pollSoon()
	}
}

// owesState reports whether a PROBED, PROBE, or HELD frame is waiting to be sent.
func (l *session) owesState() bool {
	return l.probes.answering != 0 || l.probes.waiting.n > 0 && l.state == stateUp || l.heldBack.owes
}

// stateFrame returns the next PROBED, PROBE, or HELD frame to send, in this order of priority, and
// marks it as sent. owesState must have returned true.
func (l *session) stateFrame() frame.Header {
	p := &l.probes
	if n := p.answering; n != 0 {
		p.answering = 0
		return frame.Header{Kind: frame.Probed, Op: n, Tag: uint64(p.readiness)}
	}
	if p.waiting.n == 0 || l.state != stateUp {
		return l.heldFrame()
	}
	l.probeSeq++
	for p.waiting.n > 0 {
		o := p.waiting.pop()
		o.id = l.probeSeq
		p.asked.push(o)
	}
	return frame.Header{Kind: frame.Probe, Op: l.probeSeq}
}

// deliverProbe handles a PROBE frame. It queues the task answerProbes, so that the answer is sent
// only once the program calls Trigger.
func (l *session) deliverProbe(h *frame.Header) error {
	if h.Op == 0 || h.Tag != 0 {
		return WithText(ErrProtocol, fmt.Sprintf("PROBE frame with number %d and tag %#x", h.Op, h.Tag))
	}
	l.probes.number = h.Op
	if l.probes.due {
		return nil
	}
	l.probes.due = true
	e := l.e
	if e.probed = append(e.probed, l); len(e.probed) == 1 {
		e.nctx.Upper().Queue(&e.probeTask) // does nothing once the context has been drained
	}
	return nil
}

// answerProbes queues a PROBED for each session in which a PROBE has arrived. It is a task that
// Trigger runs.
func (e *endpoint) answerProbes(any) (ran int) {
	e.mu.Lock()
	defer e.Unlock()
	readiness := frame.Ready
	switch {
	case e.nctx.Draining():
		readiness = frame.ShuttingDown
	case !e.dom.cls.IsReady():
		readiness = frame.NotReady
	}
	for _, l := range e.probed {
		p := &l.probes
		p.due, p.answering, p.readiness, l.stateDue = false, p.number, readiness, true
		l.markPending()
	}
	clear(e.probed)
	e.probed = e.probed[:0]
	return 0
}

// forgetProbe removes l, which is being closed, from endpoint.probed, the sessions whose probes
// answerProbes answers.
func (l *session) forgetProbe() {
	if l.activeState == nil || !l.probes.due {
		return
	}
	e := l.e
	l.probes.due = false
	if i := slices.Index(e.probed, l); i >= 0 {
		e.probed = slices.Delete(e.probed, i, i+1)
	}
}

var (
	errPeerNotReady = WithText(ErrNotReady, "the target is not ready")
	errPeerEnds     = WithText(ErrDraining, "the target is shutting down")
	errNotDriven    = WithText(ErrTimeout, "no response to the probe: the peer's event loop does not run, or its program is busy")
)

// deliverProbed handles a PROBED frame. It completes all probes that were sent with the frame's
// number or an earlier one.
func (l *session) deliverProbed(h *frame.Header) error {
	if h.Op == 0 || h.Op > l.probeSeq {
		return WithText(ErrProtocol, fmt.Sprintf("PROBED frame with number %d, sent %d probes", h.Op, l.probeSeq))
	}
	r := Result{Fate: NotRun, Addr: l.addr()}
	switch h.Tag {
	case uint64(frame.Ready):
	case uint64(frame.ShuttingDown):
		r.Err = errPeerEnds
	default: // a state added in a later release counts as not ready
		r.Err = errPeerNotReady
	}
	if l.probes.asked.n == 0 {
		l.e.stats.LateDropped++
	}
	for o := l.probes.asked.head; o != nil && o.id <= h.Op; o = l.probes.asked.head {
		l.e.finishOpLocked(o, r)
	}
	return nil
}
