package engine

import (
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// confirmTag is what a PING bears, from Confirm on, whose PONG says that the peer has taken what was sent before.
const confirmTag = 1

// Drain implements na.Endpoint: Admit refuses from now on.
func (e *Endpoint) Drain() {
	e.mu.Lock()
	e.draining = true
	e.mu.Unlock()
}

// Underway implements na.Endpoint.
func (e *Endpoint) Underway() na.Underway {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := na.Underway{Reached: e.reached}
	for _, l := range e.busy {
		u.Sends += l.msgs.n + l.queued.n
		u.Moves += l.queuedMoves.n + l.inFlight.n
		u.Served += len(l.served) + len(l.sinks)
		u.Leases += l.leases.n
	}
	return u
}

// Confirm implements na.Endpoint. Control frames go before messages, so a peer is asked when there are none to leave.
func (e *Endpoint) Confirm() int {
	e.mu.Lock()
	left := 0
	for _, l := range e.sorted() {
		if l.state != linkUp || l.confirmed {
			continue
		}
		left++
		l.makeBusy()
		if l.pingTag != confirmTag && l.answers == 0 && l.flows[FlowBulk].ctl.len() == 0 {
			l.pingTag = confirmTag // of every PING to come: a PONG is for the last one
			l.control(frame.Header{Kind: frame.Ping, Tag: confirmTag})
		}
	}
	e.Unlock()
	return left
}
