package engine

import "time"

// flushUnlock returns the lock and sends what was queued meanwhile.
func (e *Endpoint) flushUnlock() {
	if e.corks == 0 {
		e.sendUnlock()
		return
	}
	held := len(e.kicked) > 0
	e.mu.Unlock()
	if held {
		e.nctx.Attend()
	}
}

// Cork implements na.Corker.
func (e *Endpoint) Cork() {
	e.mu.Lock()
	e.corks++
	e.mu.Unlock()
}

// Uncork implements na.Corker.
func (e *Endpoint) Uncork() {
	e.mu.Lock()
	e.corks--
	e.flushUnlock()
}

// sendUnlock is flushUnlock, corked or not.
func (e *Endpoint) sendUnlock() {
	for len(e.kicked) > 0 {
		batch := e.kicked
		e.kicked, e.spare = e.spare[:0], nil
		for _, l := range batch {
			l.kicked = false
		}
		e.mu.Unlock()
		for _, l := range batch {
			l.carrier.Flush(l)
		}
		clear(batch)
		e.mu.Lock()
		e.spare = batch[:0]
	}
	e.pending.Store(false)
	e.mu.Unlock()
	if e.eng.loop.pending.Load() {
		e.eng.loop.drain()
	}
}

// Flush implements na.Corker. Carriers call it after they have called methods of links.
func (e *Endpoint) Flush() {
	e.mu.Lock()
	e.sendUnlock()
}

// Held tells whether frames wait for an Uncork or a Flush.
func (e *Endpoint) Held() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.kicked) > 0
}

// Poll implements na.Endpoint.
func (e *Endpoint) Poll(now time.Duration) {
	if at := e.timer.Load(); at != 0 && int64(now) >= at {
		e.mu.Lock()
		e.now = now
		e.tick(now)
		e.mu.Unlock()
	}
	if at := e.due.Load(); at != 0 && int64(now) >= at {
		e.mu.Lock()
		e.expire(now)
		e.mu.Unlock()
	}
	e.carrier.Poll(now)
	if e.pending.Load() || e.eng.loop.pending.Load() {
		e.Flush()
	}
}

// NextTimer implements na.Endpoint.
func (e *Endpoint) NextTimer() (time.Duration, bool) {
	at := time.Duration(e.timer.Load())
	e.mu.Lock()
	if c := e.carrier.NextTimer(); c != 0 && (at == 0 || c < at) {
		at = c
	}
	if c := time.Duration(e.due.Load()); c != 0 && (at == 0 || c < at) {
		at = c
	}
	e.mu.Unlock()
	if e.eng.loop.pending.Load() {
		at = 1
	}
	return at, at != 0
}
