package na

import (
	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// The functions in this file track which messages a peer is known to have received. A PING carries
// the number of messages sent before it, and its PONG repeats that number to confirm their receipt.
// A credit implies how many unexpected messages have been accepted.
//
// A message with neither a lease nor a posted receive for its answer has no operation once it has
// been sent. The numbers of such messages are listed until the peer is known to have received them.
// Unconfirmed, and therefore Shutdown, returns those of sessions that closed before that.

// maxUnconfirmed is the number of peers that Unconfirmed lists separately. It combines the counts
// of all other peers in one entry.
const maxUnconfirmed = 32

// confirmEvery is the number of unconfirmed messages in a session above which a tick sends a PING
// to have them confirmed.
const confirmEvery = 128

// askConfirmations requests that peers confirm the messages sent so far. It returns the number of
// peers that have not confirmed all messages and the number of unconfirmed messages. If last is
// true, the caller must send no more messages, and askConfirmations requests each peer's final
// confirmation. Because control frames are sent ahead of messages, it delays that request until no
// messages to the peer are queued.
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
			// Every later PING also requests the final confirmation, because a PONG answers the last
			// PING.
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
			all = addUnconfirmed(all, l.addr(), l.unconfirmedCount())
		}
	}
	return all
}

// addUnconfirmed adds n messages to peer's entry in all, or to the combined entry if all is full,
// and returns the updated slice. Sessions to the same address share an entry.
func addUnconfirmed(all []Unconfirmed, peer Addr, n int) []Unconfirmed {
	if n == 0 {
		return all
	}
	for i := range all {
		if all[i].Peer.Named() == peer.Named() || i == maxUnconfirmed {
			all[i].Messages += n
			return all
		}
	}
	if len(all) == maxUnconfirmed {
		peer = Addr{}
	}
	return append(all, Unconfirmed{Peer: peer, Messages: n})
}

// unconfirmedCount returns the number of messages that the peer is not known to have received. It
// excludes the requests of calls, whose operations report that the session was closed.
func (l *session) unconfirmedCount() int { return len(l.unconfirmedOneWay) + l.unconfirmedExpected() }

// unconfirmedExpected returns the number of unconfirmed expected messages. It excludes messages
// sent after the final confirmation was requested, because those only refuse late requests.
func (l *session) unconfirmedExpected() int {
	sent := l.sentExpected
	if l.asked {
		sent = l.lastExpected
	}
	return int(sent - min(sent, l.takenExpected))
}

// noteLost adds the unconfirmed messages of a session that is being closed to endpoint.lost. If the
// peer has reported the first message that it did not accept, earlier messages count as confirmed.
// Answers are added only if this context is draining and the peer is silent. Otherwise the peer has
// either closed its side, and does not need them, or its calls fail with an error.
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
	l.e.lost = addUnconfirmed(l.e.lost, l.addr(), n)
}

// Silent implements carrier.Session. It is like Fail, but records that the peer stopped responding
// and may not have received messages sent to it. e.mu must be held.
func (l *session) Silent(err error) {
	l.silenced = true
	l.failWith(err)
}

// Confirmed implements carrier.Session. The carrier calls it when all sent data is known to have
// been received. e.mu must be held.
func (l *session) Confirmed() {
	l.unconfirmedOneWay, l.takenExpected = nil, l.sentExpected
}

// noteSent adds the unexpected message that o has just sent to the unconfirmed messages. It does
// nothing if a posted receive or a lease is waiting for the peer's answer, because that operation
// reports the message's fate.
func (l *session) noteSent(o *Op) {
	if l.posted.find(o.tag) == nil && (len(l.e.leases) == 0 || l.e.leases[leaseKey{l, o.tag}] == nil) {
		l.unconfirmedOneWay = append(l.unconfirmedOneWay, l.seq)
	}
}

// noteTaken records that the peer has received all unexpected messages up to and including number
// id.
func (l *session) noteTaken(id uint64) {
	n := 0
	for n < len(l.unconfirmedOneWay) && l.unconfirmedOneWay[n] <= id {
		n++
	}
	if n > 0 {
		l.unconfirmedOneWay = append(l.unconfirmedOneWay[:0], l.unconfirmedOneWay[n:]...)
	}
}

// noteCredited calls noteTaken for the messages whose acceptance the peer's credit implies.
func (l *session) noteCredited() {
	if id := l.seq - uint64(uint32(l.seq)-(l.credits-l.peer.envelopes)); id <= l.seq {
		l.noteTaken(id)
	}
}

// markPing sets the fields of h, a PING about to be sent, to the number of messages sent before it
// and to whether it requests the final confirmation.
func (l *session) markPing(h *frame.Header) {
	if h.Op, h.Tag = l.seq, l.sentExpected<<1; l.asked {
		h.Tag |= 1
	}
}

// deliverPong handles the fields of a PONG, which repeat those that markPing set in the PING. It
// ignores numbers of messages that have not been sent.
func (l *session) deliverPong(h *frame.Header) {
	if expected := h.Tag >> 1; h.Op <= l.seq && expected <= l.sentExpected {
		l.noteTaken(h.Op)
		l.takenExpected = max(l.takenExpected, expected)
		l.confirmed = l.confirmed || l.asked && h.Tag&1 != 0
	}
}
