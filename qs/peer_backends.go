package qs

import (
	"cmp"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// Bounds of the pause before a failed address is tried again.
const (
	// While an address keeps failing, its pause doubles from minPause to maxPause. Half of each
	// pause is random.
	minPause = time.Second
	maxPause = 30 * time.Second
)

// A backendLease represents the use of a backend by one attempt, from acquireAddr to finishAttempt.
type backendLease struct {
	backend    *backend
	generation int // generation of the backend when the attempt began
	start      time.Duration
	lent       int64 // number of bytes in the Sources and Sinks of the attempt
}

// expectedTime returns the expected duration of an attempt, which is the average latency, halved
// for each second since it was last updated.
func (at *backend) expectedTime(now time.Duration) time.Duration {
	return at.latency >> min(max(now-at.latencyAt, 0)/time.Second, 62)
}

// isFailing reports whether the backend has failed and is not ready for a trial, so that other
// backends must be preferred.
func (at *backend) isFailing() bool { return at.state != backendUp && at.state != backendReady }

// chooseBackendLocked returns the backend for an attempt of c, or nil if there is none. It prefers
// backends that c has not tried yet. The caller must hold p.mu.
func (p *peer) chooseBackendLocked(c *Call) *backend {
	been, now := false, p.n.now()
	p.candidates = p.candidates[:0]
	for _, at := range p.backends {
		t := Candidate{at.addr, at.inFlight, at.lent, at.expectedTime(now), at.isFailing()}
		if !t.Failing && c.hasTriedAddr(at.addr) {
			t.Failing, been = true, true
		}
		p.candidates = append(p.candidates, t)
	}
	at := p.pickCandidateLocked(c)
	if at == nil && been {
		for i, at := range p.backends {
			p.candidates[i].Failing = at.isFailing()
		}
		at = p.pickCandidateLocked(c)
	}
	if at != nil || len(p.backends) == 0 {
		return at
	}
	at = p.backends[0]
	for _, other := range p.backends[1:] {
		if other.failedAt < at.failedAt {
			at = other
		}
	}
	return at
}

// pickCandidateLocked returns the backend that the Balancer chooses for c, or nil if it chooses
// none. The caller must hold p.mu.
func (p *peer) pickCandidateLocked(c *Call) *backend {
	if len(p.candidates) == 0 {
		return nil
	}
	if i := p.balancer.Pick(c, p.candidates); i >= 0 && i < len(p.backends) {
		return p.backends[i]
	}
	return nil
}

// hasOtherBackend reports whether there is a healthy backend that c has not tried yet.
func (p Peer) hasOtherBackend(c *Call) bool {
	if p.p == nil || p.p.single != nil {
		return false
	}
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	p.p.followServicesLocked(p.p.n.now())
	for _, at := range p.p.backends {
		if !at.isFailing() && !c.hasTriedAddr(at.addr) {
			return true
		}
	}
	return false
}

// acquireAddr chooses a backend for an attempt of c and, if another backend's pause has expired,
// probes that backend. The caller must call finishAttempt when the attempt completes.
func (p *peer) acquireAddr(c *Call) (backendLease, error) {
	if p.single != nil {
		return backendLease{backend: p.single}, nil
	}
	t, due, err := p.acquireAddrWithProbe(c)
	if due.backend != nil {
		p.probeBackend(due)
	}
	return t, err
}

// acquireAddrWithProbe chooses a backend for an attempt of c, without sending a probe. If
// due.backend is not nil, its pause has expired, and the caller must probe it with probeBackend,
// without holding p.mu.
func (p *peer) acquireAddrWithProbe(c *Call) (t, due backendLease, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.n.now()
	p.followServicesLocked(now)
	at := p.chooseBackendLocked(c)
	if at == nil {
		return t, due, &hg.Error{Op: "forward", RPC: c.Method, Fate: NotRun,
			Err: p.noBackendErrorLocked()}
	}
	c.recordAddr(at.addr)
	if at.state == backendReady {
		at.state, at.pauseEnd = backendTrying, now+at.pause
	}
	at.inFlight++
	p.lastCall = now
	if p.healthInterval > 0 {
		p.startHealthTimerLocked()
	}
	for _, at := range p.backends {
		switch {
		case at.pauseEnd > now:
		case at.state == backendTrying: // the trial takes longer than the pause, and may be a long stream
			at.state, at.pause = backendReady, min(2*at.pause, maxPause)
		case at.state == backendFailing && due.backend == nil:
			at.state = backendProbing
			due = backendLease{backend: at, generation: at.generation}
		}
	}
	return backendLease{backend: at, generation: at.generation, start: now}, due, nil
}

// addLent adds the number of bytes in the Sources and Sinks of an attempt to those of its backend.
func (p *peer) addLent(t *backendLease, bytes int64) {
	if p.single != nil || bytes == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.lent = bytes
	t.backend.lent += bytes
}

// finishAttempt releases t and updates the state of its backend for an attempt that returned err.
func (p *peer) finishAttempt(t backendLease, err error) {
	if p.single != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at, now := t.backend, p.n.now()
	at.inFlight--
	at.lent -= t.lent
	at.latency, at.latencyAt = at.expectedTime(now)*7/8+(now-t.start)/8, now
	if at.generation != t.generation {
		return
	}
	_, answered := hg.RemoteOf(err)
	switch {
	case isBackendFailure(err):
		switch at.failedAt = now; at.state {
		case backendUp:
			p.markFailingLocked(at)
		case backendTrying:
			p.pauseBackendLocked(at, 2*at.pause)
		}
	case err == nil || answered:
		at.answeredAt = now
		if at.state != backendUp {
			at.generation++
			at.state = backendUp
		}
	case at.state == backendTrying: // the trial neither succeeded nor showed a failure of the backend
		at.state = backendReady
	}
}

// markFailingLocked marks a backend that was up as failing, and makes the watches of the services
// refresh their addresses. The caller must hold p.mu.
func (p *peer) markFailingLocked(at *backend) {
	at.generation++
	at.failedAt = p.n.now()
	p.pauseBackendLocked(at, minPause)
	for i := range p.services {
		if w := p.services[i].w; w != nil {
			w.refreshSoon()
		}
	}
}

// pauseBackendLocked marks a backend as failing for the given pause. The caller must hold p.mu.
func (p *peer) pauseBackendLocked(at *backend, pause time.Duration) {
	at.state, at.pause = backendFailing, min(pause, maxPause)
	at.pauseEnd = p.n.now() + p.n.jitterOf(at.pause)
}

// probeBackend sends a probe to the failed backend of t and returns without waiting for the
// response, which is handled by the goroutine that drives the node.
func (p *peer) probeBackend(t backendLease) {
	p.sendProbe(t.backend, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t.backend.generation != t.generation || t.backend.state != backendProbing {
			return
		}
		if err == nil {
			t.backend.state = backendReady
			return
		}
		t.backend.failedAt = p.n.now()
		p.pauseBackendLocked(t.backend, 2*t.backend.pause)
	})
}

// startHealthTimerLocked starts the timer for PeerOptions.HealthInterval, unless it is already
// running. The caller must hold p.mu.
func (p *peer) startHealthTimerLocked() {
	if p.healthTimer != nil {
		return
	}
	nctx := p.n.contexts[p.i].NA()
	op := nctx.NewOp(func(op *na.Op, r na.Result) {
		p.n.mu.Lock()
		delete(p.n.healthTimers, op)
		p.n.mu.Unlock()
		for _, at := range p.dueProbes(r.Err == nil) {
			p.checkBackend(at)
		}
	})
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.n.ending.Load() || nctx.Timer(op, p.healthInterval) != nil {
		return
	}
	p.healthTimer = op
	p.n.healthTimers[op] = struct{}{}
}

// dueProbes returns the backends to probe when the health timer fires, and restarts the timer if
// there have been calls recently. If expired is false, the timer was canceled and there are none.
func (p *peer) dueProbes(expired bool) (all []*backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healthTimer = nil
	now := p.n.now()
	p.followServicesLocked(now)
	busy := now-p.lastCall < 2*p.healthInterval
	for _, at := range p.backends {
		busy = busy || at.inFlight > 0
	}
	if !expired || !busy {
		return nil
	}
	for _, at := range p.backends {
		if at.state == backendUp && !at.probing {
			at.probing = true
			all = append(all, at)
		}
	}
	p.startHealthTimerLocked()
	return all
}

// checkBackend probes a backend that is up. If the probe times out although the backend has
// responded to calls in the meantime, the backend stays up, because only the probe was delayed.
func (p *peer) checkBackend(at *backend) {
	begun := p.n.now()
	p.sendProbe(at, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		at.probing = false
		if at.state != backendUp {
			return
		}
		switch code := hg.CodeOf(err); {
		case err == nil, code == hg.ErrClosed, code == hg.ErrCanceled:
		case code == ErrNotReady, code == ErrDraining, at.answeredAt < begun:
			p.markFailingLocked(at)
		}
	})
}

// sendProbe sends a probe to a backend and calls done with its result. It starts no goroutine and
// does not block. It calls done from a callback or, if the probe cannot be sent, before it returns.
func (p *peer) sendProbe(at *backend, done func(error)) {
	n := p.n
	nctx := n.contexts[p.i].NA()
	op := nctx.NewOp(func(op *na.Op, r na.Result) {
		n.mu.Lock()
		delete(n.probes, op)
		n.mu.Unlock()
		done(r.Err)
	})
	err := error(hg.ErrClosed)
	n.mu.Lock()
	if !n.ending.Load() { // checked with n.mu held, so that dropHandles cannot miss the handle of a probe
		if err = nctx.Probe(op, at.addr,
			cmp.Or(p.healthInterval, n.cfg.HG.NA.PeerTimeout, 5*time.Second)); err == nil {
			n.probes[op] = struct{}{}
		}
	}
	n.mu.Unlock()
	if err != nil {
		done(err)
	}
}

// isBackendFailure reports whether err, the result of an attempt, means that the backend has
// failed.
func isBackendFailure(err error) bool {
	if r, ok := hg.RemoteOf(err); ok {
		return r.Refused && (r.Code == ErrNotReady || r.Code == ErrDraining || r.Code == ErrUnavailable ||
			r.Code == hg.ErrTimeout)
	}
	switch hg.CodeOf(err) {
	case hg.ErrPeerLost, hg.ErrUnreachable, hg.ErrTimeout:
		return true
	}
	return false
}
