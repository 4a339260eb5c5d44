package engine

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// A class may have a second transport, by which peers of one place reach each other better: shared memory, on one machine. Peers
// are named and dialled by the first all the same. One whose HELLO says that it is of our place is turned away with an offer, and
// goes where that says. What a HELLO says of its place is a stranger's claim, so nobody comes in at the second transport who
// does not show the secret that was told over the first.
//
//	dialer                                  listener
//	HELLO, place          ── first ──►
//	                      ◄── first ──      GOAWAY, offer: name, secret
//	HELLO, secret         ── second ─►
//	                      ◄─ second ──      HELLO
//
// If the second comes to nothing, the dialer goes back to the first, and names no place there.

const (
	// offerTime is how long a dialer tries what it was offered, and offerLife how long the offer stands.
	offerTime = time.Second
	offerLife = 5 * time.Second
	// maxOffers bounds those of a class that stand. A peer that gets none stays on the first transport.
	maxOffers = 4096
)

// An offer stands until its peer comes by it, or its time is over.
type offer struct {
	to      [16]byte     // incarnation of the peer
	context int          // of ours
	named   na.Addr      // by which the peer is reached, as it was on the first transport
	proof   *na.Identity // of the peer, likewise
	until   time.Duration
}

// Join adds a second transport, before the first endpoint is made. close gives back what it holds.
func (g *Engine) Join(t Transport, close func()) error {
	if t.Scheme == g.own.Scheme || len(g.opts.Transports) > 1 || g.opts.Driven {
		return na.WithText(na.ErrUnsupported, fmt.Sprintf("%s:// takes no %s:// beside it", g.own.Scheme, t.Scheme))
	}
	g.opts.Transports = append(g.opts.Transports, t)
	g.own, g.closeSecond = &g.opts.Transports[0], close
	switch {
	case g.cfg.Local == na.LocalNever:
		g.apart = "Config.Local is LocalNever"
	case g.opts.Secure && g.cfg.Local != na.LocalAlways:
		g.apart = "TLS is asked for, and Config.Local is not LocalAlways"
	default:
		g.place = t.Place
	}
	return nil
}

// Listens reports whether peers can dial the class.
func (g *Engine) Listens() bool { return g.own.Listen != "" }

// second returns the route of the second transport, or nil.
func (e *Endpoint) second() *route {
	if len(e.routes) < 2 {
		return nil
	}
	return &e.routes[1]
}

// detoured reports whether l goes by the second transport, or tries to.
func (l *Link) detoured() bool { return l.route != nil && l.route == l.e.second() }

// makeOffer returns what turns a peer of our place away that has come by the first transport and sent g; nil when it may stay.
func (e *Endpoint) makeOffer(g *frame.Greeting, named na.Addr, proof *na.Identity) *frame.Offer {
	to := e.second()
	if to == nil || to.Listen == "" || g.Place != e.eng.place || g.Place == ([16]byte{}) {
		return nil
	}
	e.readClock()
	o := &frame.Offer{Name: to.Listen}
	e.eng.opts.Rand(o.Secret[:])
	e.eng.mu.Lock()
	defer e.eng.mu.Unlock()
	all := e.eng.offers
	if len(all) >= maxOffers {
		for s, old := range all {
			if old.until <= e.now {
				delete(all, s)
			}
		}
		if len(all) >= maxOffers {
			return nil
		}
	}
	all[o.Secret] = offer{to: g.Incarnation, context: e.id, named: named, proof: proof, until: e.now + offerLife}
	return o
}

// Direct has a HELLO that shows an offer, and says no context, be for the one that has made it: peers may be spread over several.
func (g *Engine) Direct(h *frame.Greeting) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o, ok := g.offers[h.Offer]; ok && h.Target == 0 {
		h.Target, h.Any = uint16(o.context), true
	}
}

// Meets reports whether l, and the connection that its peer makes to us with g, would both be turned away with an offer. Then neither
// may stay: the two sides would disagree about which one does.
func (l *Link) Meets(g *frame.Greeting) bool {
	return g.Place != ([16]byte{}) && l.greeting().Place == g.Place
}

// tookOffer ends the offer by which a peer has come in at the second transport, and returns it.
func (e *Endpoint) tookOffer(g *frame.Greeting) (offer, error) {
	e.readClock()
	e.eng.mu.Lock()
	defer e.eng.mu.Unlock()
	o, ok := e.eng.offers[g.Offer]
	delete(e.eng.offers, g.Offer)
	if !ok || o.to != g.Incarnation || o.context != e.id || o.until <= e.now {
		return o, na.WithText(na.ErrPermission, fmt.Sprintf("nobody is let in here without an offer: dial %v", e.eng.addr))
	}
	return o, nil
}

// followOffer dials what the peer offers, and reports whether that was asked for.
func (l *Link) followOffer(o *frame.Offer) bool {
	to := l.e.second()
	if to == nil || l.state != linkDialing || l.detoured() || l.greeting().Place == ([16]byte{}) || to.Names.Check(o.Name) != nil {
		return false
	}
	proof := proofOf(l.Conn)
	if l.e.eng.opts.Secure && (proof == nil || !proof.Secure) {
		return false // it came before the handshake was over: anyone on the path can have sent it
	}
	l.proof = proof
	l.route.carrier.Cut(l, frame.Bye{})
	l.e.readClock()
	left := l.born + l.e.eng.cfg.ConnectTimeout - l.e.now
	l.route, l.name, l.offer, l.offerEnd = to, o.Name, o.Secret, l.e.now+min(offerTime, left/2) // the first has the rest
	l.dial()
	l.e.hurry(l.due())
	return true
}

// home has l be dialled by the first transport again.
func (l *Link) home() {
	l.route, l.name, l.offer = &l.e.routes[0], l.named.Name(), frame.Secret{}
}

// inVain dials by the first transport again, and asks for no offer: the second has come to nothing because of err. What it held, as
// descriptors, is given back meanwhile: there may be no others.
func (l *Link) inVain(err error) {
	l.vain = fmt.Sprintf("%s has come to nothing: %v", l.route.Scheme, err)
	l.dialAgain(err, backoffFirst)
}

// reason says why the session is reached by the transport by which it is, and not by the other one.
func (l *Link) reason(g *frame.Greeting) string {
	switch second := l.e.second(); {
	case l.detoured():
		return "the peer is on this machine"
	case l.active != nil && l.vain != "":
		return l.vain
	case l.e.eng.apart != "":
		return l.e.eng.apart
	case g.Place == ([16]byte{}):
		return "the peer does not use " + second.Scheme + " beside " + l.route.Scheme + ", or has not got there"
	case g.Place != l.e.eng.place:
		return "the peer is on another machine, or behind the border of a namespace or of a directory"
	case l.dialled:
		return "the peer has made no offer"
	}
	return "the peer has not come by an offer"
}
