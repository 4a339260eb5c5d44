package engine

import "github.com/quicksilver-rpc/quicksilver/na"

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
		u.Sends += l.toLeave()
		u.Moves += l.queuedMoves.n + l.inFlight.n
		u.Served += len(l.served) + len(l.sinks)
		u.Leases += l.leases.n
	}
	return u
}
