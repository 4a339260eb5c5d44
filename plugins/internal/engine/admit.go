package engine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// Hello appends to dst what our HELLO says on l, and returns it: as often as the carrier likes, it changes nothing. label is
// the carrier's own, for its other side. Only what begins the session has its secret, so f is the flow of the connection. Locked.
func (l *Link) Hello(f Flow, dst, label []byte) []byte {
	g := l.greeting()
	if g.Label = label; f == FlowMessages {
		g.Secret, g.Proof = l.secret, l.e.proofs[l.named]
	}
	return g.Append(dst)
}

// Greet takes the HELLO with which the peer answers ours. An error means that it cannot be accepted: the carrier calls Fail
// with it. Locked.
func (l *Link) Greet(g *frame.Greeting) error {
	if l.state != linkDialing {
		return na.WithText(na.ErrProtocol, "HELLO frame inside a session")
	}
	if err := l.e.checkGreeting(g); err != nil {
		return err
	}
	if wanted := l.named.Target(); int(g.Target) != l.e.id || wanted != 0 && int(g.Context) != wanted { // 0 asks for any
		return na.WithText(na.ErrProtocol, "HELLO is for another context")
	}
	if g.Incarnation == l.e.eng.inc {
		return na.WithText(na.ErrUnreachable, "the address leads back to this process, which does not listen there")
	}
	if err := l.checkNeed(g); err != nil {
		return err
	}
	if err := l.proves(l.shown(), l.also); err != nil {
		return otherHost{err}
	}
	l.up(*g)
	return nil
}

// Incarnation is that of the peer of a session that is up. Locked.
func (l *Link) Incarnation() [16]byte { return l.peer.incarnation }

func (l *Link) greeting() frame.Greeting {
	features := uint64(frame.FeatureWithdraw)
	if l.e.eng.cfg.Reserve == na.HonestReserve {
		features |= frame.FeatureReserve
	}
	g := frame.Greeting{
		Features: features, Version: frame.Version, Incarnation: l.e.eng.inc, Listen: l.e.eng.own.Listen, Host: l.e.eng.opts.Host,
		Context: uint16(l.e.id), Target: uint16(l.named.Target()), Envelopes: l.offered, Eager: uint32(l.e.eng.cfg.Eager),
		Need: uint32(l.e.eng.cfg.Need), Want: uint32(l.e.eng.cfg.Want), Process: l.e.eng.cfg.Name,
	}
	switch {
	case l.detoured() && l.state == linkDialing:
		g.Offer = l.offer
	case !l.detoured() && (l.active == nil || l.vain == ""):
		g.Place = l.e.eng.place
	}
	return g
}

// check tells why a peer's greeting cannot be accepted.
func (e *Endpoint) checkGreeting(g *frame.Greeting) error {
	if g.Version != frame.Version {
		return na.WithText(na.ErrVersion, fmt.Sprintf("peer speaks protocol version %d, this is version %d", g.Version, frame.Version))
	}
	if g.Envelopes < 1 || g.Envelopes > 4096 || g.Eager < 256 || g.Eager > 48<<10 {
		return na.WithText(na.ErrProtocol, fmt.Sprintf("peer offers %d envelopes of %d bytes, out of bounds", g.Envelopes, g.Eager))
	}
	if need := e.eng.cfg.Need; int(g.Envelopes) < need {
		return na.WithText(na.ErrNoMemory, fmt.Sprintf(
			"the peer guarantees %d envelopes, and %d are needed here (Config.Need)", g.Envelopes, need))
	}
	return nil
}

// Admit takes in a peer that connected to us and sent g. verified tells that the machine it connected from is the one
// that g.Listen names, so that operations to that name may use this session. c is the carrier, conn becomes the link's Conn. An error is
// what the carrier tells the peer before it closes the connection. Locked.
func (e *Endpoint) Admit(c Carrier, conn any, g *frame.Greeting, verified bool) (*Link, error) {
	if e.shut {
		return nil, na.WithText(na.ErrClosed, "the context is closed")
	}
	if err := e.checkGreeting(g); err != nil {
		return nil, err
	}
	if int(g.Target) != e.id {
		return nil, na.WithText(na.ErrNoEntry, fmt.Sprintf("there is no context %d", g.Target))
	}
	if g.Incarnation == e.eng.inc {
		return nil, na.WithText(na.ErrUnreachable, "the address leads back to the process itself, whose name is another")
	}
	if e.draining {
		return nil, na.WithText(na.ErrClosed, "the process is shutting down")
	}
	r, proof := e.routeOf(c), proofOf(conn)
	var named na.Addr // nobody else is reached by our own name, whatever he says
	if r == e.second() {
		o, err := e.tookOffer(g)
		if err != nil {
			return nil, err
		}
		named, proof = o.named, o.proof
	} else if g.Listen != "" && g.Listen != e.eng.own.Self && verified &&
		strings.HasPrefix(g.Listen, e.eng.own.Scheme+"://") && e.eng.own.Names.Check(g.Listen) == nil {
		named = na.MakeAddr(g.Listen, int(g.Context))
	}
	if old := e.names[named]; old != nil && !old.Up() && !named.IsZero() &&
		(old.proves(proof, []string{old.host}) != nil || old.proves(proof, old.also) != nil) {
		named = na.Addr{} // it is not the peer that is being dialled there
	}
	if o := e.makeOffer(g, named, proof); o != nil {
		return nil, o
	}
	for old := e.names[named]; old != nil && !named.IsZero() && !old.besides(g); old = e.names[named] { // twice, if what waited for old's end dials
		if old.short && !old.reserveFor(g) {
			return nil, errMakingRoom
		}
		if err := e.compete(old, g); err != nil {
			return nil, err
		}
		if old.state != linkDown {
			old.adopt(r, conn, proof, g)
			return old, nil
		}
	}
	l, err := e.newLink(named, g.Need, g.Want, false)
	if err != nil {
		return nil, err
	}
	if named.IsZero() {
		l.named = na.MakeAddr(privateName(e.eng.own.Scheme, g.Incarnation), int(g.Context))
	}
	l.adopt(r, conn, proof, g)
	return l, nil
}

// besides reports whether a HELLO in the name of l's peer begins another session than l, which stays: where peers are spread over several
// contexts we have dialled any of the peer's, and it was not the one that dials; or that one has dialled any of ours, so that it does
// not know l by the name that it has dialled.
func (l *Link) besides(g *frame.Greeting) bool {
	return l.Up() && l.dialled && l.peer.incarnation == g.Incarnation && (l.peer.context != g.Context || g.Any && l.e.id != 0)
}

// Forgeable notes that the HELLO which Admit took may have come from anywhere. Until a frame follows there is no peer that could be
// lost. Locked.
func (l *Link) Forgeable() { l.forged = true }

// compete decides between a link that exists and a connection that says it is of the same peer. It returns nil with old taken down,
// or fit to adopt the new connection, and an error when the new one must go. Anybody on the peer's machine can say its name and
// its incarnation. So a session ends only for somebody who knows its secret: the peer, which had this session and has lost it. Anybody
// else has the peer asked whether it lives: a peer that has restarted, one that had not heard of the session, and a stranger.
// Of two connections that are being made at the same time the one that the larger incarnation dialled stays.
func (e *Endpoint) compete(old *Link, g *frame.Greeting) error {
	ours := slices.Compare(e.eng.inc[:], g.Incarnation[:]) > 0
	switch {
	case old.Up() && old.secret.Matches(g.Proof):
		old.fail(na.WithText(na.ErrPeerLost, "the peer connected anew"))
	case old.Up():
		old.suspect()
		return na.WithText(na.ErrDuplicate, "a session with this address is up; its peer is asked whether it lives")
	case ours && old.state == linkDialing:
		return na.WithText(na.ErrDuplicate, "a connection of this pair is being made")
	default: // it waits or dials, and the peer's connection is the one that stays
		if err := old.checkNeed(g); err != nil {
			return err
		}
		old.route.carrier.Cut(old, frame.Bye{})
		old.dialled = false
	}
	return nil
}

// adopt brings l up over a connection that the peer made.
func (l *Link) adopt(r *route, conn any, proof *na.Identity, g *frame.Greeting) {
	l.route, l.Conn, l.proof = r, conn, proof
	l.up(*g)
}
