package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// The functions of this file track which messages a peer is known to have received. A PING has the
// number of messages that were sent before it, and its PONG repeats the number: the peer has
// received them. A credit implies how many unexpected messages were accepted.
//
// Without a lease, or a posted receive for its answer, a message has no operation after it was
// sent. The numbers of such messages are listed until the peer is known to have received them.
// Unconfirmed, and so Shutdown, returns those of sessions that ended before.

// maxUnconfirmed limits the peers in the result of Unconfirmed; the messages of others are counted
// together.
const maxUnconfirmed = 32

// confirmEvery is the number of unconfirmed messages after which a tick requests a confirmation.
const confirmEvery = 128

// askConfirmations asks peers to confirm the messages sent so far, and returns the number of peers
// and messages that are not confirmed. If last is true nothing more will be sent, and it requests
// the final confirmation of each peer. Control frames are sent before messages, so this request
// waits until no messages to the peer are queued.
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
			// every later PING requests the final confirmation too, because a PONG answers the last
			// PING
			l.asked = true
			l.lastExpected = l.sentExpected
			l.queueControl(frame.Header{Kind: frame.Ping})
		}
	}
	e.Unlock()
	return peers, messages
}

// listUnconfirmed implements upper.Unconfirmed.
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

// addUnconfirmed adds n messages of a peer to all.
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

// unconfirmedCount returns the number of messages that the peer is not known to have received,
// without requests of calls: their operations report the end of the session.
func (l *session) unconfirmedCount() int { return len(l.unconfirmedOneWay) + l.unconfirmedExpected() }

// unconfirmedExpected returns the number of expected messages that are not confirmed. It excludes
// messages sent after the request for the final confirmation, which refuse late requests.
func (l *session) unconfirmedExpected() int {
	sent := l.sentExpected
	if l.asked {
		sent = l.lastExpected
	}
	return int(sent - min(sent, l.takenExpected))
}

// noteLost records the unconfirmed messages of a session that ends. If the peer has ended it in
// order, the bye has the first message that it has not accepted. Answers count only if this context
// is draining and the peer is silent. A closed peer does not need them, and the calls of a lost
// peer end with an error.
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

// Silent implements carrier.Session. It is Fail for a peer that no longer responds and may still
// wait for messages. The caller holds e.mu.
func (l *session) Silent(err error) {
	l.silenced = true
	l.failWith(err)
}

// Confirmed implements carrier.Session. The carrier calls it when all sent data is known to be
// received. The caller holds e.mu.
func (l *session) Confirmed() {
	l.unconfirmedOneWay, l.takenExpected = nil, l.sentExpected
}

// noteSent records a sent unexpected message as unconfirmed, if its operation has ended.
func (l *session) noteSent(o *Op) {
	if l.posted.find(o.tag) == nil && (len(l.e.leases) == 0 || l.e.leases[leaseKey{l, o.tag}] == nil) {
		l.unconfirmedOneWay = append(l.unconfirmedOneWay, l.seq)
	}
}

// noteTaken records that the peer has received the unexpected messages up to number id.
func (l *session) noteTaken(id uint64) {
	n := 0
	for n < len(l.unconfirmedOneWay) && l.unconfirmedOneWay[n] <= id {
		n++
	}
	if n > 0 {
		l.unconfirmedOneWay = append(l.unconfirmedOneWay[:0], l.unconfirmedOneWay[n:]...)
	}
}

// noteCredited calls noteTaken for the messages that the peer has accepted according to its credit.
func (l *session) noteCredited() {
	if id := l.seq - uint64(uint32(l.seq)-(l.credits-l.peer.envelopes)); id <= l.seq {
		l.noteTaken(id)
	}
}

// markPing sets the fields of a PING that is sent: the number of messages before it, and whether it
// asks for the final confirmation.
func (l *session) markPing(h *frame.Header) {
	if h.Op, h.Tag = l.seq, l.sentExpected<<1; l.asked {
		h.Tag |= 1
	}
}

// deliverPong handles the fields of markPing in a PONG. It ignores impossible values.
func (l *session) deliverPong(h *frame.Header) {
	if expected := h.Tag >> 1; h.Op <= l.seq && expected <= l.sentExpected {
		l.noteTaken(h.Op)
		l.takenExpected = max(l.takenExpected, expected)
		l.confirmed = l.confirmed || l.asked && h.Tag&1 != 0
	}
}
