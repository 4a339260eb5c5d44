package arq

import (
	"fmt"
	"time"
)

// An Outcome is how an association has ended.
type Outcome uint8

const (
	// Clean: the peer has acknowledged everything.
	Clean Outcome = iota
	// Unconfirmed: the peer has not acknowledged everything in time; it may have it all the same.
	Unconfirmed
	// PeerGone: the peer does not answer, or does not know the association any more.
	PeerGone
	// Refusal: the peer has refused or ended the association, with a code and a text.
	Refusal
)

func (o Outcome) String() string {
	return [...]string{"clean", "unconfirmed", "peer gone", "refused"}[o]
}

// An End is how an association has ended, with the number of messages that the peer has not acknowledged.
type End struct {
	Outcome  Outcome
	Messages int
	Words    string // the peer's, with Refusal
	Absent   bool   // with PeerGone: somebody has said so, the peer that it knows of no association, or the system
	Unsent   error  // with Absent: why the system has not sent what asks for the association
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

// mostLinger bounds how long an association is kept to acknowledge a repeated FIN: otherwise twice the timeout of a peer which
// has not measured the round trip.
const mostLinger = 200 * time.Millisecond

// Finish ends a in order: from now on it takes no frames, acknowledges at once, and when all that it has sent is acknowledged it
// says words with FIN, which the peer answers with its own. It takes at most FinTimeout and FinRetries; then the peer, which may have
// been busy all the time and has not seen FIN, is told words once, unless there are none, and Upper.Ended says what is known. After
// the last acknowledgment a lingers, to repeat it: that it arrived nobody can know.
func (a *Assoc) Finish(now time.Duration, words []byte) {
	switch a.state {
	case dialing, half:
		a.takeFlight().words = words
		a.giveUp()
	case open:
		a.state = finishing
		a.m.ending++
		f := a.takeFlight()
		f.words = words[:min(len(words), mostWords)]
		f.finDue = now + a.m.cfg.FinTimeout
		for i := range f.recv {
			f.recv[i].now = f.recv[i].now || f.recv[i].owed > 0
		}
		a.m.wake(a)
	}
}

// Cut ends a at once: the peer is told words once, unless there are none. Nothing is reported, nor delivered any more.
func (a *Assoc) Cut(words []byte) {
	if a.state == dead {
		return
	}
	if len(words) > 0 && a.state != dialing {
		a.m.refuse(a.to, a.via, a, a.peerID, a.peerToken, words)
	}
	a.m.leave(a)
}

// continueRelease goes on with the release, and reports whether there is a packet to send now.
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

// linger begins when both sides have said everything. Within a machine it ends with the last acknowledgment: hardly ever is one
// lost, and a peer that repeats its FIN in vain has everything confirmed but that.
func (a *Assoc) linger(now time.Duration) {
	a.state = lingering
	a.flight.finDue = now + 1
	if !a.local {
		a.flight.finDue = now + min(2*max(a.rto(), a.m.cfg.InitialRTO), mostLinger)
	}
	a.report(End{Outcome: Clean})
}

// finHeard is called when the peer's FIN comes in order. An association ends for both.
func (a *Assoc) finHeard(now time.Duration, words []byte) {
	a.peerFin = true
	a.flight.recv[0].now = true
	a.m.up.Finishing(a, words)
	a.Finish(now, nil)
}

// finExpired runs the timer of the release, and reports whether a is dead.
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

// giveUp ends a without the peer's word that it has everything, and tells it.
func (a *Assoc) giveUp() {
	e := End{Outcome: Unconfirmed, Messages: a.unackedMessages()}
	if a.state == finishing && e.Messages == 0 {
		e.Outcome = Clean // only the release itself is open
	}
	if words := a.flight.words; len(words) > 0 && a.state != dialing && !a.finAcked {
		a.m.refuse(a.to, a.via, a, a.peerID, a.peerToken, words)
	}
	a.end(e)
}

// unackedMessages is the number of messages that the peer has not acknowledged.
func (a *Assoc) unackedMessages() (n int) {
	if f := a.flight; f != nil {
		n = int(f.openCount)
		for seq := a.lane[0].una; seq != a.lane[0].nxt; seq++ {
			n += int(f.send[0].at(seq).messages)
		}
	}
	return n
}

// tooMany reports whether the peer is lost after that many timeouts in a row.
func (a *Assoc) tooMany(tries int) bool {
	if a.state == finishing || a.m.finishing {
		return tries > a.m.cfg.FinRetries
	}
	return tries > a.m.cfg.MaxRetries
}

// endSilent ends a because nobody answers, or knows it. A peer that does not answer may be busy, and read last words later: Upper.Ended may
// Cut a with some.
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

// endRefused takes the peer's word that it has ended a, or does not want it.
func (a *Assoc) endRefused(p *Packet) {
	a.end(End{Outcome: Refusal, Messages: a.unackedMessages(), Words: string(p.body)})
}

// end takes a out of all tables and reports why, once.
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
