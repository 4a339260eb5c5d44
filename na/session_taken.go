package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// A takenState tracks how long the peer has read no data on one lane, in order to enforce
// carrier.Network.WriteTimeout.
type takenState struct {
	waits bool          // bytes were waiting for the peer at the last check
	count uint64        // last count returned by carrier.WriteMeter.Taken
	since time.Duration // time for which bytes have been waiting without count growing
}

// Waits implements carrier.Session. A carrier.WriteMeter calls it when sent bytes begin to wait for
// the peer to read them. endpoint.mu must be held.
func (l *session) Waits() {
	if l.e.dom.own.WriteTimeout > 0 && l.Up() {
		l.makeBusy()
		l.flows[carrier.Messages].taken.waits = true // until the next tick checks it
	}
}

// wasWaiting reports whether, at the last check, sent bytes were waiting for the peer to read them.
func (l *session) wasWaiting() bool {
	return l.flows[carrier.Messages].taken.waits || l.flows[carrier.Bulk].taken.waits
}

// stillWaits reports whether sent bytes were waiting for the peer at the last check and still are
// on any lane.
func (l *session) stillWaits() bool {
	t, ok := l.route.carrier.(carrier.WriteMeter)
	if !ok || !l.wasWaiting() {
		return false
	}
	for i := range l.flows {
		f := &l.flows[i].taken
		if _, waits := t.Taken(l, carrier.Lane(i)); !waits {
			f.waits, f.since = false, 0
		} else {
			f.waits = true
		}
	}
	return l.wasWaiting()
}

// checkTaken closes the session if, on any lane, the peer has read none of the waiting data for
// WriteTimeout. passed is the time since the last check. checkTaken reports whether the session is
// still up.
func (l *session) checkTaken(passed time.Duration) bool {
	t, ok := l.route.carrier.(carrier.WriteMeter)
	limit := l.e.dom.own.WriteTimeout
	if !ok || limit <= 0 || !l.wasWaiting() {
		return true
	}
	for i := range l.flows {
		f := &l.flows[i].taken
		count, waits := t.Taken(l, carrier.Lane(i))
		if !waits || count != f.count {
			f.since = 0
		} else {
			f.since += passed
		}
		f.waits, f.count = waits, count
		if f.since >= limit {
			l.Silent(WithText(ErrPeerLost, fmt.Sprintf("the peer has read nothing for %v", limit)))
			return false
		}
	}
	return true
}
