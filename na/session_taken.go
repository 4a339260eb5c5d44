package na

import (
	"fmt"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"time"
)

// takenState is what is known of one flow of a session.
type takenState struct {
	waits bool // at the last look
	count uint64
	since time.Duration // how long it waits and the count has not grown
}

// Waits is called by a carrier.WriteMeter when something begins to wait for the peer to take it.
// Locked.
func (l *session) Waits() {
	if l.e.dom.own.WriteTimeout > 0 && l.Up() {
		l.makeBusy()
		l.flows[carrier.Messages].taken.waits = true // until the next tick has looked
	}
}

// wasWaiting reports whether something waited for the peer at the last look.
func (l *session) wasWaiting() bool {
	return l.flows[carrier.Messages].taken.waits || l.flows[carrier.Bulk].taken.waits
}

// stillWaits is waits, of now: what waited at the last look may have been taken since.
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

// checkTaken looks at both flows, and reports false when it has ended the session.
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
			l.Silent(WithText(ErrPeerLost, fmt.Sprintf("the peer took nothing of what was sent to it for %v", limit)))
			return false
		}
	}
	return true
}
