package na

import (
	"fmt"
	"time"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A class may have a second transport, shared memory, for peers on the same machine. Peers are
// still named and dialed using the first transport. A peer whose HELLO has the same place ID is
// refused with an offer and then dials the second transport. Because the place ID in a HELLO is not
// verified, a connection over the second transport is accepted only with the secret that was sent
// over the first.
//
//	dialer                                  listener
//	HELLO, place          ── first ──►
//	                      ◄── first ──      GOAWAY, offer: name, secret
//	HELLO, secret         ── second ─►
//	                      ◄─ second ──      HELLO
//
// If the second transport fails, the dialer falls back to the first. It sends its place ID once more
// if the second transport failed because the process that made the offer was ending: another
// process may have taken over its socket and makes an offer of its own. Otherwise, and after a
// second failure, it sends no place ID.

const (
	// offerTime limits how long a dialer tries the second transport.
	offerTime = time.Second
	// offerLife is how long an unused offer remains valid.
	offerLife = 5 * time.Second
	// maxOffers is the maximum number of valid offers in a class. At the limit, peers receive no offer
	// and use the first transport.
	maxOffers = 4096
	// maxFollowed is the maximum number of offers that one dial follows.
	maxFollowed = 2
)

// A transportOffer is an offer to one peer to use the second transport. It is valid until the peer
// has used it or the time until has passed.
type transportOffer struct {
	to      [16]byte       // the peer's incarnation
	context int            // ID of the context of this side
	named   Addr           // the peer's address on the first transport
	proof   *carrier.Proof // the peer's proof on the first transport
	until   time.Duration
}

// openSecond opens p as the class's second transport. If p is unavailable in this process,
// openSecond logs the reason and returns nil, and the class uses only its first transport.
func (d *domain) openSecond(p carrier.Companion) error {
	if d.driven || d.networks[0].scheme == p.Scheme() {
		return WithText(ErrUnsupported, fmt.Sprintf("%s:// cannot be combined with %s://", d.networks[0].scheme, p.Scheme()))
	}
	n, err := p.OpenBeside(d, d.networks[0].Listen != "")
	switch {
	case n == nil && err != nil:
		d.cfg.logger().Warn(p.Scheme()+":// is unavailable; using the first transport for peers on this machine",
			"address", d.networks[0].self, "error", err)
		return nil
	case err != nil:
		return err
	case n == nil:
		return brokenContract(p.Scheme(), "OpenBeside returned neither a Network nor an error")
	}
	d.addNetwork(p.Scheme(), n)
	if err := checkNetwork(p.Scheme(), n); err != nil {
		return err
	}
	switch {
	case d.cfg.Local == LocalNever:
		d.apart = "Config.Local is LocalNever"
	case d.networks[0].Secure && d.cfg.Local != LocalAlways:
		d.apart = "TLS is enabled and Config.Local is not LocalAlways"
	default:
		d.place = n.Place
	}
	return nil
}

// secondRoute returns the route of the second transport, or nil if there is none.
func (e *endpoint) secondRoute() *route {
	if len(e.routes) < 2 {
		return nil
	}
	return &e.routes[1]
}

// onSecondary reports whether l uses or is dialing the second transport.
func (l *session) onSecondary() bool { return l.route != nil && l.route == l.e.secondRoute() }

// makeOffer creates an offer of the second transport for the peer that sent g over the first
// transport. It returns nil if the peer must use the first transport.
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

// Redirect implements carrier.Class. If h presents an offer and names no target context, Redirect
// sets the target to the context that made the offer. That context need not be the first, because
// new peers may be distributed among the contexts of a class.
func (d *domain) Redirect(h *frame.Greeting) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if o, ok := d.offers[h.Offer]; ok && h.Target == 0 {
		h.Target, h.Any = uint16(o.context), true
	}
}

// Meets implements carrier.Session. l is being dialed, and its peer has opened another connection
// with HELLO g. Meets reports whether both connections would be refused with an offer. If so, the
// carrier must keep neither, because the two sides could otherwise keep different ones.
func (l *session) Meets(g *frame.Greeting) bool {
	return g.Place != ([16]byte{}) && l.buildGreeting().Place == g.Place
}

// useOffer returns the offer that g, a HELLO on the second transport, presents, and invalidates it.
// It returns an error if there is no such offer or the offer is not valid for this peer.
func (e *endpoint) useOffer(g *frame.Greeting) (transportOffer, error) {
	e.readClock()
	e.dom.mu.Lock()
	defer e.dom.mu.Unlock()
	o, ok := e.dom.offers[g.Offer]
	delete(e.dom.offers, g.Offer)
	if !ok || o.to != g.Incarnation || o.context != e.id || o.until <= e.now {
		return o, WithText(ErrPermission, fmt.Sprintf("connection refused, no valid offer presented: dial %v", e.dom.addr))
	}
	return o, nil
}

// followOffer dials the peer over the second transport as specified by o and returns true. It
// returns false if this side did not request an offer or cannot use o.
func (l *session) followOffer(o *frame.Offer) bool {
	to := l.e.secondRoute()
	if to == nil || l.state != stateDialing || l.onSecondary() || l.buildGreeting().Place == ([16]byte{}) || to.Names.Check(o.Name) != nil {
		return false
	}
	proof := proofOf(l.conn)
	if l.e.dom.own.Secure && (proof == nil || !proof.Secure) {
		return false // received before the handshake completed, so it may be forged
	}
	l.proof = proof
	l.cutConnection(frame.Bye{})
	l.e.readClock()
	left := l.born + l.e.dom.cfg.ConnectTimeout - l.e.now
	// At least half of the remaining time is reserved for falling back to the first transport.
	l.route, l.name, l.offerSecret, l.offerEnd = to, o.Name, o.Secret, l.e.now+min(offerTime, left/2)
	l.followed++
	l.connect()
	l.e.tickNoLaterThan(l.nextTick())
	return true
}

// usePrimary sets the route and name of l to those of the first transport and discards any offer.
func (l *session) usePrimary() {
	l.route, l.name, l.offerSecret = &l.e.routes[0], l.named.Name(), frame.Secret{}
}

// fallBackToPrimary schedules a dial over the first transport after dialing the second has failed
// with err. ended reports whether the process that made the offer may have ended; see maxFollowed.
// The pause before the dial gives the carrier time to free the resources of the failed attempt,
// such as file descriptors.
func (l *session) fallBackToPrimary(err error, ended bool) {
	l.secondaryFailure = fmt.Sprintf("%s failed: %v", l.route.scheme, err)
	l.keepsPlace = ended && l.followed < maxFollowed
	l.dialAgain(err, backoffFirst)
}

// requestsOffer reports whether l's next HELLO over the first transport contains the place ID.
func (l *session) requestsOffer() bool {
	return l.activeState == nil || l.secondaryFailure == "" || l.keepsPlace
}

// routeReason returns a text that explains why the session uses its transport rather than the
// class's other one.
func (l *session) routeReason(g *frame.Greeting) string {
	switch second := l.e.secondRoute(); {
	case l.onSecondary():
		return "the peer is on this machine"
	case l.activeState != nil && l.secondaryFailure != "":
		return l.secondaryFailure
	case l.e.dom.apart != "":
		return l.e.dom.apart
	case g.Place == ([16]byte{}):
		return "the peer does not use " + second.scheme + " beside " + l.route.scheme + ", or cannot reach it yet"
	case g.Place != l.e.dom.place:
		return "the peer is on another machine, or in another namespace or directory"
	case l.dialled:
		return "the peer sent no offer"
	}
	return "the peer has not used the offer"
}
