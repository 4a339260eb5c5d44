package qs

import (
	"cmp"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// The pauses before an address that has failed is tried again: doubled from one to the other while it fails, and half of each
// is drawn.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
)

// A backendLease is an attempt at a place.
type backendLease struct {
	at         *backend
	generation int // of at, when it began
	start      time.Duration
	lent       int64
}

// expectedTime returns how long an attempt takes, about, by what is known now.
func (at *backend) expectedTime(now time.Duration) time.Duration {
	return at.latency >> min(max(now-at.latencyAt, 0)/time.Second, 62)
}

func (at *backend) isFailing() bool { return at.state != backendUp && at.state != backendReady }

// chooseBackendLocked returns the place for an attempt; nil if there is none. One that the call has been at is taken if there is no better one.
// Locked.
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

// pickCandidateLocked returns what p.pick takes of what is seen. Locked.
func (p *peer) pickCandidateLocked(c *Call) *backend {
	if len(p.candidates) == 0 {
		return nil
	}
	if i := p.balancer.Pick(c, p.candidates); i >= 0 && i < len(p.backends) {
		return p.backends[i]
	}
	return nil
}

// hasOtherBackend reports whether there is an address that does not fail and that the call has not been at.
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

// acquireAddr begins an attempt.
func (p *peer) acquireAddr(c *Call) (backendLease, error) {
	if p.single != nil {
		return backendLease{at: p.single}, nil
	}
	t, due, err := p.acquireAddrWithProbe(c)
	if due.at != nil {
		p.probeBackend(due)
	}
	return t, err
}

// acquireAddrWithProbe is depart that leaves a probe, which is due, to the caller.
func (p *peer) acquireAddrWithProbe(c *Call) (t, due backendLease, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.n.now()
	p.followServicesLocked(now)
	at := p.chooseBackendLocked(c)
	if at == nil {
		return t, due, &hg.Error{Op: "forward", RPC: c.Method, Fate: NotRun, Err: p.noBackendErrorLocked()}
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
		case at.state == backendTrying: // a stream may last for days
			at.state, at.pause = backendReady, min(2*at.pause, maxPause)
		case at.state == backendFailing && due.at == nil:
			at.state = backendProbing
			due = backendLease{at: at, generation: at.generation}
		}
	}
	return backendLease{at: at, generation: at.generation, start: now}, due, nil
}

// addLent says how much an attempt lends.
func (p *peer) addLent(t *backendLease, bytes int64) {
	if p.single != nil || bytes == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.lent = bytes
	t.at.lent += bytes
}

// finishAttempt ends an attempt, with err.
func (p *peer) finishAttempt(t backendLease, err error) {
	if p.single != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at, now := t.at, p.n.now()
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
	case at.state == backendTrying: // it ended before it could tell
		at.state = backendReady
	}
}

// markFailingLocked has a place that did well fail. Locked.
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

// pauseBackendLocked leaves a place alone for a pause. Locked.
func (p *peer) pauseBackendLocked(at *backend, pause time.Duration) {
	at.state, at.pause = backendFailing, min(pause, maxPause)
	at.pauseEnd = p.n.now() + p.n.jitterOf(at.pause)
}

// probeBackend asks whether a process serves at a place that has failed. The answer is taken by the goroutine that drives the node.
func (p *peer) probeBackend(t backendLease) {
	p.sendProbe(t.at, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t.at.generation != t.generation || t.at.state != backendProbing {
			return
		}
		if err == nil {
			t.at.state = backendReady
			return
		}
		t.at.failedAt = p.n.now()
		p.pauseBackendLocked(t.at, 2*t.at.pause)
	})
}

// startHealthTimerLocked sets the timer of PeerOptions.HealthInterval. Locked.
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

// dueProbes returns the places that are to be probed now that the timer has ended, and sets it again while there are calls.
func (p *peer) dueProbes(again bool) (all []*backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.healthTimer = nil
	now := p.n.now()
	p.followServicesLocked(now)
	busy := now-p.lastCall < 2*p.healthInterval
	for _, at := range p.backends {
		busy = busy || at.inFlight > 0
	}
	if !again || !busy {
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

// checkBackend probes a place that does well. If calls are answered there meanwhile, the probe only waits behind others.
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

// sendProbe probes a place, without a goroutine, and then calls tell, in a callback, with what came of it.
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
	if !n.ending.Load() { // looked at here: dropHandles comes later, or has been seen
		if err = nctx.Probe(op, at.addr, cmp.Or(p.healthInterval, n.cfg.HG.NA.PeerTimeout, 5*time.Second)); err == nil {
			n.probes[op] = struct{}{}
		}
	}
	n.mu.Unlock()
	if err != nil {
		done(err)
	}
}

// isBackendFailure reports whether an error speaks against the address that the call went to.
func isBackendFailure(err error) bool {
	if r, ok := hg.RemoteOf(err); ok {
		return r.Refused && (r.Code == ErrNotReady || r.Code == ErrDraining || r.Code == ErrUnavailable || r.Code == hg.ErrTimeout)
	}
	switch hg.CodeOf(err) {
	case hg.ErrPeerLost, hg.ErrUnreachable, hg.ErrTimeout:
		return true
	}
	return false
}
