package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// takenState tracks whether the peer reads the data sent on one lane, for Config.WriteTimeout.
type takenState struct {
	waits bool          // bytes were waiting for the peer at the last check
	count uint64        // last count returned by carrier.WriteMeter.Taken
	since time.Duration // how long bytes have been waiting while count did not grow
}

// Waits is called by a carrier.WriteMeter when bytes begin to wait for the peer. endpoint.mu must
// be held.
func (l *session) Waits() {
	if l.e.dom.own.WriteTimeout > 0 && l.Up() {
		l.makeBusy()
		l.flows[carrier.Messages].taken.waits = true // until the next tick checks it
	}
}

// wasWaiting reports whether bytes were waiting for the peer at the last check.
func (l *session) wasWaiting() bool {
	return l.flows[carrier.Messages].taken.waits || l.flows[carrier.Bulk].taken.waits
}

// stillWaits reports whether bytes that were waiting at the last check are still waiting.
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

// checkTaken measures how long the peer has read nothing on a lane, and closes the session after
// Config.WriteTimeout. It reports whether the session is still up.
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
