package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// What a peer is known to have taken. A PING carries how many messages have left before it, and its PONG carries the same: they
// are there. A credit says how many unexpected ones were accepted, and so have come.
//
// Who sends a request with no receive posted for an answer, and no lease, learns nothing more of it when it has left. Such messages
// are listed until the peer is known to have them; Unconfirmed returns those of sessions that ended before, and so Shutdown reports them.

// maxUnconfirmed bounds the peers that Unconfirmed names; the messages of the others are counted together.
const maxUnconfirmed = 32

// confirmEvery bounds what is not confirmed of a session with much traffic, but for what comes between two ticks.
const confirmEvery = 128

// askConfirmations asks peers for a sign of what they have taken, and returns how many have not given it. Control frames go before messages, so a peer is asked when there are none to leave.
func (e *endpoint) askConfirmations(last bool) (peers, messages int) {
	e.mu.Lock()
	if last && !e.finishing {
		e.finishing = true
		for i := range e.routes {
			if f, ok := e.routes[i].carrier.(carrier.Finisher); ok {
				f.Finish()
			}
		}
	}
	for _, l := range e.sortedSessions() {
		if !l.Up() || l.confirmed {
			continue
		}
		peers++
		messages += l.unconfirmedCount()
		l.makeBusy()
		if !last {
			if !l.asking {
				l.asking = true
				l.sendPing()
			}
			continue
		}
		if !l.asked && l.answers == 0 && l.flows[carrier.Bulk].ctl.len() == 0 {
			l.asked = true // of every PING to come: a PONG is for the last one
			l.lastExpected = l.sentExpected
			l.queueControl(frame.Header{Kind: frame.Ping})
		}
	}
	e.Unlock()
	return peers, messages
}

// listUnconfirmed returns what upper.Unconfirmed does.
func (e *endpoint) listUnconfirmed() []Unconfirmed {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := append([]Unconfirmed(nil), e.lost...)
	for _, l := range e.sortedSessions() {
		if l.Up() {
			all = addUnconfirmed(all, l.addr().Named(), l.unconfirmedCount())
		}
	}
	return all
}

func addUnconfirmed(all []Unconfirmed, peer Addr, n int) []Unconfirmed {
	if n == 0 {
		return all
	}
	for i := range all {
		if all[i].Peer == peer || i == maxUnconfirmed {
			all[i].Messages += n
			return all
		}
	}
	if len(all) == maxUnconfirmed {
		peer = Addr{}
	}
	return append(all, Unconfirmed{Peer: peer, Messages: n})
}

// unconfirmedCount is the number of messages that the peer is not known to have taken, requests of calls not counted: these end with
// the session, and say so.
func (l *session) unconfirmedCount() int { return len(l.unconfirmedOneWay) + l.unconfirmedExpected() }

// unconfirmedExpected leaves out what has left after Confirm has asked: requests that came too late were refused.
func (l *session) unconfirmedExpected() int {
	sent := l.sentExpected
	if l.asked {
		sent = l.lastExpected
	}
	return int(sent - min(sent, l.takenExpected))
}

// noteLost notes what the peer has not confirmed of a session that ends. If it has ended the session in order, it has said what it has
// not taken. Answers count at the end of this context, if the peer has fallen silent: one that has gone misses none, and to one that
// was lost before its own error says it.
func (l *session) noteLost() {
	n, notTaken := 0, uint64(0)
	if l.activeState != nil {
		notTaken = l.firstNotTaken
	}
	for _, id := range l.unconfirmedOneWay {
		if id >= notTaken {
			n++
		}
	}
	if l.e.draining && l.silenced {
		n += l.unconfirmedExpected()
	}
	l.e.lost = addUnconfirmed(l.e.lost, l.addr().Named(), n)
}

// Silent is Fail of a peer that does not answer any more: it may wait for what was sent to it. Locked.
func (l *session) Silent(err error) {
	l.silenced = true
	l.failWith(err)
}

// Confirmed notes that the peer has everything that was sent. A carrier calls it that knows. Locked.
func (l *session) Confirmed() {
	l.unconfirmedOneWay, l.takenExpected = nil, l.sentExpected
}

// noteSent notes an unexpected message that leaves.
func (l *session) noteSent(o *Op) {
	if l.posted.find(o.tag) == nil && (len(l.e.leases) == 0 || l.e.leases[leaseKey{l, o.tag}] == nil) {
		l.unconfirmedOneWay = append(l.unconfirmedOneWay, l.seq)
	}
}

// noteTaken notes that the peer has taken the unexpected messages up to number id.
func (l *session) noteTaken(id uint64) {
	n := 0
	for n < len(l.unconfirmedOneWay) && l.unconfirmedOneWay[n] <= id {
		n++
	}
	if n > 0 {
		l.unconfirmedOneWay = append(l.unconfirmedOneWay[:0], l.unconfirmedOneWay[n:]...)
	}
}

// tookCredited does it for those that the peer has accepted, by its credit.
func (l *session) tookCredited() {
	if id := l.seq - uint64(uint32(l.seq)-(l.credits-l.peer.envelopes)); id <= l.seq {
		l.noteTaken(id)
	}
}

// markPing completes a PING that leaves: what has left before, and whether it is the last question.
func (l *session) markPing(h *frame.Header) {
	if h.Op, h.Tag = l.seq, l.sentExpected<<1; l.asked {
		h.Tag |= 1
	}
}

// deliverPong takes in what mark has said. What cannot be true says nothing.
func (l *session) deliverPong(h *frame.Header) {
	if expected := h.Tag >> 1; h.Op <= l.seq && expected <= l.sentExpected {
		l.noteTaken(h.Op)
		l.takenExpected = max(l.takenExpected, expected)
		l.confirmed = l.confirmed || l.asked && h.Tag&1 != 0
	}
}
