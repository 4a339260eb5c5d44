package na

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
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

// An transportOffer stands until its peer comes by it, or its time is over.
type transportOffer struct {
	to      [16]byte       // incarnation of the peer
	context int            // of ours
	named   Addr           // by which the peer is reached, as it was on the first transport
	proof   *carrier.Proof // of the peer, likewise
	until   time.Duration
}

// openSecond opens the second transport. Where this process cannot have it, which is logged, the class stays on its first, which reaches
// every peer.
func (d *domain) openSecond(p carrier.Companion) error {
	if d.driven || d.networks[0].scheme == p.Scheme() {
		return WithText(ErrUnsupported, fmt.Sprintf("%s:// takes no %s:// beside it", d.networks[0].scheme, p.Scheme()))
	}
	n, err := p.OpenBeside(d, d.networks[0].Listen != "")
	switch {
	case n == nil && err != nil:
		d.cfg.logger().Warn(p.Scheme()+":// is left out: peers on this machine are reached by the first transport, too",
			"addr", d.networks[0].self, "err", err)
		return nil
	case err != nil:
		return err
	case n == nil:
		return brokenContract(p.Scheme(), "OpenBeside returned neither a Network nor an error")
	}
	d.addContext(p.Scheme(), n)
	if err := checkNetwork(p.Scheme(), n); err != nil {
		return err
	}
	switch {
	case d.cfg.Local == LocalNever:
		d.apart = "Config.Local is LocalNever"
	case d.networks[0].Secure && d.cfg.Local != LocalAlways:
		d.apart = "TLS is asked for, and Config.Local is not LocalAlways"
	default:
		d.place = n.Place
	}
	return nil
}

// secondRoute returns the route of the second transport, or nil.
func (e *endpoint) secondRoute() *route {
	if len(e.routes) < 2 {
		return nil
	}
	return &e.routes[1]
}

// onSecondary reports whether l goes by the second transport, or tries to.
func (l *session) onSecondary() bool { return l.route != nil && l.route == l.e.secondRoute() }

// makeOffer returns what turns a peer of our place away that has come by the first transport and sent g; nil when it may stay.
func (e *endpoint) makeOffer(g *frame.Greeting, named Addr, proof *carrier.Proof) *frame.Offer {
	to := e.secondRoute()
	if to == nil || to.Listen == "" || g.Place != e.dom.place || g.Place == ([16]byte{}) {
		return nil
	}
	e.readClock()
	o := &frame.Offer{Name: to.Listen}
	e.dom.rand(o.Secret[:])
	e.dom.mu.Lock()
	defer e.dom.mu.Unlock()
	all := e.dom.offers
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
	all[o.Secret] = transportOffer{to: g.Incarnation, context: e.id, named: named, proof: proof, until: e.now + offerLife}
	return o
}

// Redirect implements carrier.Class: it has a HELLO that shows an offer, and says no context, be for the one that has made it: peers may be spread over several.
func (d *domain) Redirect(h *frame.Greeting) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o, ok := d.offers[h.Offer]; ok && h.Target == 0 {
		h.Target, h.Any = uint16(o.context), true
	}
}

// Meets reports whether l, and the connection that its peer makes to us with g, would both be turned away with an offer. Then neither
// may stay: the two sides would disagree about which one does.
func (l *session) Meets(g *frame.Greeting) bool {
	return g.Place != ([16]byte{}) && l.buildGreeting().Place == g.Place
}

// tookOffer ends the offer by which a peer has come in at the second transport, and returns it.
func (e *endpoint) tookOffer(g *frame.Greeting) (transportOffer, error) {
	e.readClock()
	e.dom.mu.Lock()
	defer e.dom.mu.Unlock()
	o, ok := e.dom.offers[g.Offer]
	delete(e.dom.offers, g.Offer)
	if !ok || o.to != g.Incarnation || o.context != e.id || o.until <= e.now {
		return o, WithText(ErrPermission, fmt.Sprintf("nobody is let in here without an offer: dial %v", e.dom.addr))
	}
	return o, nil
}

// followOffer dials what the peer offers, and reports whether that was asked for.
func (l *session) followOffer(o *frame.Offer) bool {
	to := l.e.secondRoute()
	if to == nil || l.state != stateDialing || l.onSecondary() || l.buildGreeting().Place == ([16]byte{}) || to.Names.Check(o.Name) != nil {
		return false
	}
	proof := proofOf(l.conn)
	if l.e.dom.own.Secure && (proof == nil || !proof.Secure) {
		return false // it came before the handshake was over: anyone on the path can have sent it
	}
	l.proof = proof
	l.cutConnection(frame.Bye{})
	l.e.readClock()
	left := l.born + l.e.dom.cfg.ConnectTimeout - l.e.now
	l.route, l.name, l.offerSecret, l.offerEnd = to, o.Name, o.Secret, l.e.now+min(offerTime, left/2) // the first has the rest
	l.connect()
	l.e.tickNoLaterThan(l.nextTick())
	return true
}

// usePrimary has l be dialled by the first transport again.
func (l *session) usePrimary() {
	l.route, l.name, l.offerSecret = &l.e.routes[0], l.named.Name(), frame.Secret{}
}

// fallBackToPrimary dials by the first transport again, and asks for no offer: the second has come to nothing because of err. What it held, as
// descriptors, is given back meanwhile: there may be no others.
func (l *session) fallBackToPrimary(err error) {
	l.secondaryFailure = fmt.Sprintf("%s has come to nothing: %v", l.route.scheme, err)
	l.dialAgain(err, backoffFirst)
}

// routeReason says why the session is reached by the transport by which it is, and not by the other one.
func (l *session) routeReason(g *frame.Greeting) string {
	switch second := l.e.secondRoute(); {
	case l.onSecondary():
		return "the peer is on this machine"
	case l.activeState != nil && l.secondaryFailure != "":
		return l.secondaryFailure
	case l.e.dom.apart != "":
		return l.e.dom.apart
	case g.Place == ([16]byte{}):
		return "the peer does not use " + second.scheme + " beside " + l.route.scheme + ", or has not got there"
	case g.Place != l.e.dom.place:
		return "the peer is on another machine, or behind the border of a namespace or of a directory"
	case l.dialled:
		return "the peer has made no offer"
	}
	return "the peer has not come by an offer"
}
