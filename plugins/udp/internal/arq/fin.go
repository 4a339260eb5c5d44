package arq

import (
	"fmt"
	"time"
)

// An Outcome classifies the end of an association.
type Outcome uint8

const (
	// Clean means that the peer has acknowledged every packet sent to it.
	Clean Outcome = iota
	// Unconfirmed means that the peer did not acknowledge every packet in time. The peer may
	// nevertheless have received the unacknowledged packets.
	Unconfirmed
	// PeerGone means that the peer does not respond or no longer knows the association.
	PeerGone
	// Refusal means that the peer rejected or closed the association, with a code and a text.
	Refusal
)

func (o Outcome) String() string {
	return [...]string{"clean", "unconfirmed", "peer gone", "refused"}[o]
}

// An End describes the end of an association.
type End struct {
	Outcome  Outcome
	Messages int    // number of messages that the peer has not acknowledged
	Words    string // peer's last message; valid with Refusal
	// Absent qualifies PeerGone. It is true if a RESET from the peer or an error from the system
	// reported the peer's absence, and false if the peer merely did not respond.
	Absent bool
	Unsent error // system's error for the dial's HELLO, or nil; valid with Absent
}

func (e End) String() string {
	s := e.Outcome.String()
	if e.Messages > 0 {
		s += fmt.Sprintf(" (%d)", e.Messages)
	}
	if e.Outcome == Refusal {
		s += fmt.Sprintf(" %q", e.Words)
	}
	return s
}

// maxLinger limits how long an association is retained in order to acknowledge a repeated FIN. The
// association is retained for maxLinger or, if shorter, for twice the timeout that a peer uses
// before it has measured the round-trip time.
const maxLinger = 200 * time.Millisecond

// Finish begins to close a in an orderly way. The caller must not send further frames, and a
// acknowledges received packets immediately. When everything sent has been acknowledged, a sends
// FIN with words, which the peer answers with its own FIN. Upper.Ended reports the result.
//
// Finish is limited by FinTimeout and FinRetries. If a limit is exceeded, the peer may merely be
// busy and may not have seen FIN. Finish then sends words once in a REFUSE, unless words is empty.
// After the last acknowledgment, a lingers for a while in order to repeat that acknowledgment if it
// was lost.
func (a *Assoc) Finish(now time.Duration, words []byte) {
	switch a.state {
	case dialing, half:
		a.takeFlight().words = words
		a.giveUp()
	case open:
		a.state = finishing
		a.m.ending++
		f := a.takeFlight()
		f.words = words[:min(len(words), maxWords)]
		f.finDue = now + a.m.cfg.FinTimeout
		for i := range f.recv {
			f.recv[i].now = f.recv[i].now || f.recv[i].owed > 0
		}
		a.m.wake(a)
	}
}

// Cut closes a immediately. Unless words is empty, it is sent to the peer once in a REFUSE. No
// method of Upper is called for a afterward.
func (a *Assoc) Cut(words []byte) {
	if a.state == dead {
		return
	}
	if len(words) > 0 && a.state != dialing {
		a.m.refuse(a.to, a.via, a, a.peerID, a.peerToken, words)
	}
	a.m.leave(a)
}

// continueRelease takes the next step in the orderly close of a. When every other packet is
// acknowledged, it queues FIN and returns true. When both FINs are acknowledged, it calls linger.
func (a *Assoc) continueRelease(now time.Duration) bool {
	f, l := a.flight, &a.lane[0]
	if l.una != l.nxt || a.lane[1].una != a.lane[1].nxt {
		return false
	}
	if !a.ourFin {
		a.ourFin = true
		*f.send[0].push(l) = packet{flags: pktFin, body: append(a.m.alloc0(len(f.words)), f.words...)}
		return true
	}
	if a.finAcked && a.peerFin {
		a.linger(now)
	}
	return false
}

// linger passes the outcome Clean to Upper.Ended and retains a for a while after both FINs are
// acknowledged, in order to acknowledge repeated packets. If the peer is on the same host, a is
// retained only until the acknowledgment has been sent, because such an acknowledgment is rarely
// lost. If it is lost, the peer repeats its FIN without a response, but everything else that the peer sent has
// been acknowledged.
func (a *Assoc) linger(now time.Duration) {
	a.state = lingering
	a.flight.finDue = now + 1
	if !a.local {
		a.flight.finDue = now + min(2*max(a.rto(), a.m.cfg.InitialRTO), maxLinger)
	}
	a.report(End{Outcome: Clean})
}

// handleFin handles the peer's FIN, which has arrived in order and carries the peer's last message,
// words. It begins to close the association in the other direction.
func (a *Assoc) handleFin(now time.Duration, words []byte) {
	a.peerFin = true
	a.flight.recv[0].now = true
	a.m.up.Finishing(a, words)
	a.Finish(now, nil)
}

// finExpired handles expiry of the time limit in finDue. It reports whether a was ended because the
// limit has expired.
func (a *Assoc) finExpired(now time.Duration) bool {
	switch due := a.flight.finDue; {
	case due == 0 || now < due:
		return false
	case a.state == lingering:
		a.m.leave(a)
		return true
	case a.state == half:
		a.endSilent(false)
		return true
	}
	a.giveUp()
	return true
}

// giveUp ends a although the peer has not acknowledged every packet, and sends the peer the last
// message passed to Finish.
func (a *Assoc) giveUp() {
	e := End{Outcome: Unconfirmed, Messages: a.unackedMessages()}
	if a.state == finishing && e.Messages == 0 {
		e.Outcome = Clean // only FIN is unacknowledged
	}
	if words := a.flight.words; len(words) > 0 && a.state != dialing && !a.finAcked {
		a.m.refuse(a.to, a.via, a, a.peerID, a.peerToken, words)
	}
	a.end(e)
}

// unackedMessages returns the number of messages that the peer has not acknowledged.
func (a *Assoc) unackedMessages() (n int) {
	if f := a.flight; f != nil {
		n = int(f.openCount)
		for seq := a.lane[0].una; seq != a.lane[0].nxt; seq++ {
			n += int(f.send[0].at(seq).messages)
		}
	}
	return n
}

// tooMany reports whether the peer counts as lost because of tries consecutive timeouts.
func (a *Assoc) tooMany(tries int) bool {
	if a.state == finishing || a.m.finishing {
		return tries > a.m.cfg.FinRetries
	}
	return tries > a.m.cfg.MaxRetries
}

// endSilent ends a because the peer does not respond or, if absent is true, does not know the
// association. A peer that does not respond may be busy, and may read a last message later. For
// such a peer, endSilent calls Upper.Ended while a still exists, so that Ended can call Cut with a
// message.
func (a *Assoc) endSilent(absent bool) {
	e := End{Outcome: PeerGone, Messages: a.unackedMessages(), Absent: absent}
	if a.state >= finishing && e.Messages == 0 {
		e = End{Outcome: Clean}
	}
	if !absent && a.state == open {
		a.report(e)
		a.m.leave(a)
		return
	}
	a.end(e)
}

// endRefused handles p, a REFUSE with which the peer closes or rejects a.
func (a *Assoc) endRefused(p *Packet) {
	a.end(End{Outcome: Refusal, Messages: a.unackedMessages(), Words: string(p.body)})
}

// end removes a from all tables and passes e to Upper.Ended, unless linger has already called
// Ended.
func (a *Assoc) end(e End) {
	if a.state == dead {
		return
	}
	user, told := a.User, a.state == lingering
	a.m.leave(a)
	a.User = user
	if !told {
		a.report(e)
	}
}

func (a *Assoc) report(e End) { a.m.up.Ended(a, e) }
