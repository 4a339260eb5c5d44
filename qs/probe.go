package qs

import (
	"cmp"
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// probe asks whether a process serves at a place that has failed. The answer is taken by whoever drives the node.
func (p *peer) probe(t trip) {
	p.ask(t.at, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t.at.change != t.change || t.at.state != placeProbing {
			return
		}
		if serves(err) {
			t.at.state = placeReady
			return
		}
		t.at.failed = p.n.now()
		p.rest(t.at, 2*t.at.pause)
	})
}

// serves reports whether a probe that ended with err speaks for an address.
func serves(err error) bool {
	r, answered := hg.RemoteOf(err)
	return err == nil || answered && r.Code != ErrNotReady && !suspect(err)
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
		for _, at := range p.due(r.Err == nil) {
			p.check(at)
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

// due returns the places that are to be probed now that the timer has ended, and sets it again while there are calls.
func (p *peer) due(again bool) (all []*place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.look = nil
	now := p.n.now()
	p.follow(now)
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

// check probes a place that does well. If calls are answered there meanwhile, the probe only waits behind others.
func (p *peer) check(at *place) {
	begun := p.n.now()
	p.ask(at, func(err error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		at.asked = false
		_, refused := hg.RemoteOf(err)
		if at.state == placeUp && !serves(err) && (refused || at.answered < begun) && hg.CodeOf(err) != hg.ErrClosed && hg.CodeOf(err) != hg.ErrCanceled {
			p.fails(at)
		}
	})
}

// ask calls hg/health at a place, without a goroutine, and then calls tell, in a callback, with what came of it.
func (p *peer) ask(at *place, tell func(error)) {
	n := p.n
	h, err := n.all[p.i].Create(at.addr, hg.HashName(hg.HealthRPC))
	if err != nil {
		tell(err)
		return
	}
	h.SetTimeout(cmp.Or(p.health, n.cfg.HG.NA.PeerTimeout, 5*time.Second))
	n.mu.Lock()
	if n.ending.Load() { // looked at here: dropHandles comes later, or has been seen
		err = hg.ErrClosed
	} else if err = h.Forward(nil, func(_ *hg.Handle, err error) {
		n.mu.Lock()
		delete(n.probes, h)
		n.mu.Unlock()
		_ = h.Close()
		tell(err)
	}); err == nil {
		n.probes[h] = struct{}{}
	}
	n.mu.Unlock()
	if err != nil {
		_ = h.Close()
		tell(err)
	}
}
