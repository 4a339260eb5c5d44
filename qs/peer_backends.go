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
	pauseFirst = time.Second
	pauseLast  = 30 * time.Second
)

// A backendAttempt is an attempt at a place.
type backendAttempt struct {
	at     *backend
	change int // of at, when it began
	begun  time.Duration
	lent   int64
}

// expectedTime returns how long an attempt takes, about, by what is known now.
func (at *backend) expectedTime(now time.Duration) time.Duration {
	return at.took >> min(max(now-at.tookAt, 0)/time.Second, 62)
}

func (at *backend) isFailing() bool { return at.state != placeUp && at.state != placeReady }

// chooseBackend returns the place for an attempt; nil if there is none. One that the call has been at is taken if there is no better one.
// Locked.
func (p *peer) chooseBackend(c *Call) *backend {
	been, now := false, p.n.now()
	p.seen = p.seen[:0]
	for _, at := range p.places {
		t := Candidate{at.addr, at.inFlight, at.lent, at.expectedTime(now), at.isFailing()}
		if !t.Failing && c.hasBeenAt(at.addr) {
			t.Failing, been = true, true
		}
		p.seen = append(p.seen, t)
	}
	at := p.pickFrom(c)
	if at == nil && been {
		for i, at := range p.places {
			p.seen[i].Failing = at.isFailing()
		}
		at = p.pickFrom(c)
	}
	if at != nil || len(p.places) == 0 {
		return at
	}
	at = p.places[0]
	for _, other := range p.places[1:] {
		if other.failed < at.failed {
			at = other
		}
	}
	return at
}

// pickFrom returns what p.pick takes of what is seen. Locked.
func (p *peer) pickFrom(c *Call) *backend {
	if len(p.seen) == 0 {
		return nil
	}
	if i := p.pick.Pick(c, p.seen); i >= 0 && i < len(p.places) {
		return p.places[i]
	}
	return nil
}

// hasOtherBackend reports whether there is an address that does not fail and that the call has not been at.
func (p Peer) hasOtherBackend(c *Call) bool {
	if p.p == nil || p.p.only != nil {
		return false
	}
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	p.p.followService(p.p.n.now())
	for _, at := range p.p.places {
		if !at.isFailing() && !c.hasBeenAt(at.addr) {
			return true
		}
	}
	return false
}

// acquireAddr begins an attempt.
func (p *peer) acquireAddr(c *Call) (backendAttempt, error) {
	if p.only != nil {
		return backendAttempt{at: p.only}, nil
	}
	t, due, err := p.acquireAddrUnprobed(c)
	if due.at != nil {
		p.probeBackend(due)
	}
	return t, err
}

// acquireAddrUnprobed is depart that leaves a probe, which is due, to the caller.
func (p *peer) acquireAddrUnprobed(c *Call) (t, due backendAttempt, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.n.now()
	p.followService(now)
	at := p.chooseBackend(c)
	if at == nil {
		return t, due, &hg.Error{Op: "forward", RPC: c.Method, Fate: NotRun, Err: p.noBackendError()}
	}
	c.goesTo(at.addr)
	if at.state == placeReady {
		at.state, at.until = placeTrying, now+at.pause
	}
	at.inFlight++
	p.used = now
	if p.health > 0 {
		p.lookLater()
	}
	for _, at := range p.places {
		switch {
		case at.until > now:
		case at.state == placeTrying: // a stream may last for days
			at.state, at.pause = placeReady, min(2*at.pause, pauseLast)
		case at.state == placeFailing && due.at == nil:
			at.state = placeProbing
			due = backendAttempt{at: at, change: at.change}
		}
	}
	return backendAttempt{at: at, change: at.change, begun: now}, due, nil
}

// addLent says how much an attempt lends.
func (p *peer) addLent(t *backendAttempt, bytes int64) {
	if p.only != nil || bytes == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.lent = bytes
	t.at.lent += bytes
}

// finishAttempt ends an attempt, with err.
func (p *peer) finishAttempt(t backendAttempt, err error) {
	if p.only != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at, now := t.at, p.n.now()
	at.inFlight--
	at.lent -= t.lent
	at.took, at.tookAt = at.expectedTime(now)*7/8+(now-t.begun)/8, now
	if at.change != t.change {
		return
	}
	_, answered := hg.RemoteOf(err)
	switch {
	case speaksAgainstAddr(err):
		switch at.failed = now; at.state {
		case placeUp:
			p.markFailing(at)
		case placeTrying:
			p.pauseBackend(at, 2*at.pause)
		}
	case err == nil || answered:
		at.answered = now
		if at.state != placeUp {
			at.change++
			at.state = placeUp
		}
	case at.state == placeTrying: // it ended before it could tell
		at.state = placeReady
	}
}

// markFailing has a place that did well fail. Locked.
func (p *peer) markFailing(at *backend) {
	at.change++
	at.failed = p.n.now()
	p.pauseBackend(at, pauseFirst)
	for i := range p.services {
		if w := p.services[i].w; w != nil {
			w.refreshSoon()
		}
	}
}

// pauseBackend leaves a place alone for a pause. Locked.
func (p *peer) pauseBackend(at *backend, pause time.Duration) {
	at.state, at.pause = placeFailing, min(pause, pauseLast)
	at.until = p.n.now() + p.n.jitterOf(at.pause)
}

// probeBackend asks whether a process serves at a place that has failed. The answer is taken by the goroutine that drives the node.
func (p *peer) probeBackend(t backendAttempt) {
	p.sendProbe(t.at, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t.at.change != t.change || t.at.state != placeProbing {
			return
		}
		if err == nil {
			t.at.state = placeReady
			return
		}
		t.at.failed = p.n.now()
		p.pauseBackend(t.at, 2*t.at.pause)
	})
}

// lookLater sets the timer of PeerOptions.HealthInterval. Locked.
func (p *peer) lookLater() {
	if p.look != nil {
		return
	}
	nctx := p.n.all[p.i].NA()
	op := nctx.NewOp(func(op *na.Op, r na.Result) {
		p.n.mu.Lock()
		delete(p.n.looks, op)
		p.n.mu.Unlock()
		for _, at := range p.dueProbes(r.Err == nil) {
			p.checkBackend(at)
		}
	})
	p.n.mu.Lock()
	defer p.n.mu.Unlock()
	if p.n.ending.Load() || nctx.Timer(op, p.health) != nil {
		return
	}
	p.look = op
	p.n.looks[op] = struct{}{}
}

// dueProbes returns the places that are to be probed now that the timer has ended, and sets it again while there are calls.
func (p *peer) dueProbes(again bool) (all []*backend) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.look = nil
	now := p.n.now()
	p.followService(now)
	busy := now-p.used < 2*p.health
	for _, at := range p.places {
		busy = busy || at.inFlight > 0
	}
	if !again || !busy {
		return nil
	}
	for _, at := range p.places {
		if at.state == placeUp && !at.asked {
			at.asked = true
			all = append(all, at)
		}
	}
	p.lookLater()
	return all
}

// checkBackend probes a place that does well. If calls are answered there meanwhile, the probe only waits behind others.
func (p *peer) checkBackend(at *backend) {
	begun := p.n.now()
	p.sendProbe(at, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		at.asked = false
		if at.state != placeUp {
			return
		}
		switch code := hg.CodeOf(err); {
		case err == nil, code == hg.ErrClosed, code == hg.ErrCanceled:
		case code == ErrNotReady, code == ErrDraining, at.answered < begun:
			p.markFailing(at)
		}
	})
}

// sendProbe probes a place, without a goroutine, and then calls tell, in a callback, with what came of it.
func (p *peer) sendProbe(at *backend, tell func(error)) {
	n := p.n
	nctx := n.all[p.i].NA()
	op := nctx.NewOp(func(op *na.Op, r na.Result) {
		n.mu.Lock()
		delete(n.probes, op)
		n.mu.Unlock()
		tell(r.Err)
	})
	err := error(hg.ErrClosed)
	n.mu.Lock()
	if !n.ending.Load() { // looked at here: dropHandles comes later, or has been seen
		if err = nctx.Probe(op, at.addr, cmp.Or(p.health, n.cfg.HG.NA.PeerTimeout, 5*time.Second)); err == nil {
			n.probes[op] = struct{}{}
		}
	}
	n.mu.Unlock()
	if err != nil {
		tell(err)
	}
}

// speaksAgainstAddr reports whether an error speaks against the address that the call went to.
func speaksAgainstAddr(err error) bool {
	if r, ok := hg.RemoteOf(err); ok {
		return r.Refused && (r.Code == ErrNotReady || r.Code == ErrDraining || r.Code == ErrUnavailable || r.Code == hg.ErrTimeout)
	}
	switch hg.CodeOf(err) {
	case hg.ErrPeerLost, hg.ErrUnreachable, hg.ErrTimeout:
		return true
	}
	return false
}
