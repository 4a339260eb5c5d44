package engine

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// A Taker is a Carrier that knows what a peer takes of what is sent to it. A peer that takes nothing for Options.TakeTimeout, while
// there is something for it, is lost, although it may still send.
type Taker interface {
	// Taken returns a count that grows whenever the peer takes something of a flow of l, and reports whether any waits for that
	// now. Locked.
	Taken(l *Link, f Flow) (count uint64, waits bool)
}

// taken is what is known of one flow of a Link.
type taken struct {
	waits bool // at the last look
	count uint64
	since time.Duration // how long it waits and the count has not grown
}

// Waits is called by a Taker when something begins to wait for the peer to take it. Locked.
func (l *Link) Waits() {
	if l.e.eng.opts.TakeTimeout > 0 && l.Up() {
		l.makeBusy()
		l.flows[FlowMessages].taken.waits = true // until the next tick has looked
	}
}

// waits reports whether something waited for the peer at the last look.
func (l *Link) waits() bool {
	return l.flows[FlowMessages].taken.waits || l.flows[FlowBulk].taken.waits
}

// stillWaits is waits, of now: what waited at the last look may have been taken since.
func (l *Link) stillWaits() bool {
	t, ok := l.route.carrier.(Taker)
	if !ok || !l.waits() {
		return false
	}
	for i := range l.flows {
		f := &l.flows[i].taken
		if _, waits := t.Taken(l, Flow(i)); !waits {
			f.waits, f.since = false, 0
		} else {
			f.waits = true
		}
	}
	return l.waits()
}

// checkTaken looks at both flows, and reports false when it has ended the session.
func (l *Link) checkTaken(passed time.Duration) bool {
	t, ok := l.route.carrier.(Taker)
	limit := l.e.eng.opts.TakeTimeout
	if !ok || limit <= 0 || !l.waits() {
		return true
	}
	for i := range l.flows {
		f := &l.flows[i].taken
		count, waits := t.Taken(l, Flow(i))
		if !waits || count != f.count {
			f.since = 0
		} else {
			f.since += passed
		}
		f.waits, f.count = waits, count
		if f.since >= limit {
			l.Silent(na.WithText(na.ErrPeerLost, fmt.Sprintf("the peer took nothing of what was sent to it for %v", limit)))
			return false
		}
	}
	return true
}
