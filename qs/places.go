package qs

import (
	"time"

	"github.com/quicksilver-rpc/quicksilver/hg"
)

// A place is what a Peer knows of one of its addresses. It stays the same when the list of addresses changes. No call waits for
// an address that has failed: a probe asks hg/health there, then one call tries it, and only then do all others.
//
//	up ─── an attempt fails ───► failing ─── pause over, at the next attempt anywhere ───► probing
//	▲                               ▲ ▲                                                       │
//	│                               │ └──── no answer, or not ready: a longer pause ──────────┤
//	└── an attempt is answered ── trying ◄──── an attempt takes it ─── ready ◄── answered ────┘
//	     (in any state)             ├ fails: a longer pause, as above
//	                                └ lasts longer than the pause did: ready for another, and the next time after twice as long
//
// An attempt that began before the last change between up and failing says nothing: those that hang in a frozen process end
// all at once, and are one failure.
type place struct {
	addr     hg.Addr
	inFlight int
	lent     int64
	took     time.Duration // by an attempt, about
	tookAt   time.Duration // when that was known
	answered time.Duration // when there was an answer
	asked    bool          // a probe of Health is under way
	state    placeState
	change   int           // counts those between up and failing
	failed   time.Duration // when it last did
	pause    time.Duration
	until    time.Duration // its end; when trying, until when no other attempt does
}

type placeState uint8

const (
	placeUp placeState = iota
	placeFailing
	placeProbing
	placeReady
	placeTrying
)

// The pauses before an address that has failed is tried again: doubled from one to the other while it fails, and half of each
// is drawn.
const (
	pauseFirst = time.Second
	pauseLast  = 30 * time.Second
)

// A trip is an attempt at a place.
type trip struct {
	at     *place
	change int // of at, when it began
	begun  time.Duration
	lent   int64
}

// pace returns how long an attempt takes, about, by what is known now.
func (at *place) pace(now time.Duration) time.Duration {
	return at.took >> min(max(now-at.tookAt, 0)/time.Second, 62)
}

func (at *place) fails() bool { return at.state != placeUp && at.state != placeReady }

// choose returns the place for an attempt; nil if there is none. One that the call has been at is taken if there is no better one.
// Locked.
func (p *peer) choose(c *Call) *place {
	been, now := false, p.n.now()
	p.seen = p.seen[:0]
	for _, at := range p.places {
		t := Candidate{at.addr, at.inFlight, at.lent, at.pace(now), at.fails()}
		if !t.Failing && c.hasBeenAt(at.addr) {
			t.Failing, been = true, true
		}
		p.seen = append(p.seen, t)
	}
	at := p.picked(c)
	if at == nil && been {
		for i, at := range p.places {
			p.seen[i].Failing = at.fails()
		}
		at = p.picked(c)
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

// picked returns what p.pick takes of what is seen. Locked.
func (p *peer) picked(c *Call) *place {
	if len(p.seen) == 0 {
		return nil
	}
	if i := p.pick.Pick(c, p.seen); i >= 0 && i < len(p.places) {
		return p.places[i]
	}
	return nil
}

// elsewhere reports whether there is an address that does not fail and that the call has not been at.
func (p Peer) elsewhere(c *Call) bool {
	if p.p == nil || p.p.only != nil {
		return false
	}
	p.p.mu.Lock()
	defer p.p.mu.Unlock()
	p.p.follow(p.p.n.now())
	for _, at := range p.p.places {
		if !at.fails() && !c.hasBeenAt(at.addr) {
			return true
		}
	}
	return false
}

// depart begins an attempt.
func (p *peer) depart(c *Call) (trip, error) {
	if p.only != nil {
		return trip{at: p.only}, nil
	}
	t, due, err := p.departs(c)
	if due.at != nil {
		p.probe(due)
	}
	return t, err
}

// departs is depart that leaves a probe, which is due, to the caller.
func (p *peer) departs(c *Call) (t, due trip, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.n.now()
	p.follow(now)
	at := p.choose(c)
	if at == nil {
		return t, due, &hg.Error{Op: "forward", RPC: c.Method, Fate: NotRun, Err: p.nobody()}
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
			due = trip{at: at, change: at.change}
		}
	}
	return trip{at: at, change: at.change, begun: now}, due, nil
}

// lends says how much an attempt lends.
func (p *peer) lends(t *trip, bytes int64) {
	if p.only != nil || bytes == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.lent = bytes
	t.at.lent += bytes
}

// arrive ends an attempt, with err.
func (p *peer) arrive(t trip, err error) {
	if p.only != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	at, now := t.at, p.n.now()
	at.inFlight--
	at.lent -= t.lent
	at.took, at.tookAt = at.pace(now)*7/8+(now-t.begun)/8, now
	if at.change != t.change {
		return
	}
	_, answered := hg.RemoteOf(err)
	switch {
	case suspect(err):
		switch at.failed = now; at.state {
		case placeUp:
			p.fails(at)
		case placeTrying:
			p.rest(at, 2*at.pause)
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

// fails has a place that did well fail. Locked.
func (p *peer) fails(at *place) {
	at.change++
	at.failed = p.n.now()
	p.rest(at, pauseFirst)
	for i := range p.services {
		if w := p.services[i].w; w != nil {
			w.ask()
		}
	}
}

// rest leaves a place alone for a pause. Locked.
func (p *peer) rest(at *place, pause time.Duration) {
	at.state, at.pause = placeFailing, min(pause, pauseLast)
	at.until = p.n.now() + p.n.jitter(at.pause)
}
