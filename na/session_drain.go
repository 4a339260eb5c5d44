package na

import "github.com/quicksilver-rpc/quicksilver/na/carrier"

// refuseNewPeers makes Admit refuse new peers. It also makes carriers stop accepting connections,
// so that other processes that share the listening socket accept them.
func (e *endpoint) refuseNewPeers() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.draining = true; e.shut {
		return
	}
	for i := range e.routes {
		if d, ok := e.routes[i].carrier.(carrier.Drainer); ok {
			d.Drain()
		}
	}
}

// countUnderway returns the number of operations in flight, by kind, in all sessions of e.
func (e *endpoint) countUnderway() Underway {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := Underway{Reached: e.reached}
	for _, l := range e.busy {
		u.Sends += l.unsentLen()
		u.Moves += l.queuedMoves.n + l.inFlight.n
		u.Served += len(l.served) + len(l.sinks)
		u.Leases += l.leases.n
		for _, s := range l.streams {
			if s.sent && s.out.ending {
				u.Streams++
			}
		}
	}
	return u
}
