package na

import "github.com/quicksilver-rpc/quicksilver/na/carrier"

// refuseNewPeers makes Admit refuse new peers. Carriers leave new connections to other processes
// that share the listening socket.
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

// countUnderway returns the number of operations in flight, by kind.
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
