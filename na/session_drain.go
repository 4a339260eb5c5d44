package na

// refuseNewPeers has Admit refuse from now on.
func (e *endpoint) refuseNewPeers() {
	e.mu.Lock()
	e.draining = true
	e.mu.Unlock()
}

// countUnderway counts what has not ended.
func (e *endpoint) countUnderway() Underway {
	e.mu.Lock()
	defer e.mu.Unlock()
	u := Underway{Reached: e.reached}
	for _, l := range e.busy {
		u.Sends += l.toLeave()
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
