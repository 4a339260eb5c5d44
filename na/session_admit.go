package na

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Hello appends to dst what our HELLO says on l, and returns it: as often as the carrier likes, it changes nothing. label is
// the carrier's own, for its other side. Only what begins the session has its secret, so f is the flow of the connection. Locked.
func (l *session) Hello(f carrier.Lane, dst, label []byte) []byte {
	return l.buildHello(f, dst, label, l.secret, l.named)
}

// buildHello is Hello with a secret, for the peer at an address.
func (l *session) buildHello(f carrier.Lane, dst, label []byte, secret frame.Secret, to Addr) []byte {
	g := l.buildGreeting()
	if g.Label = label; f == carrier.Messages {
		last := l.e.proofs[to]
		if g.Secret, g.Proof = secret, last.secret; last.retires {
			g.Features |= frame.FeatureRetires
		}
	}
	return g.Append(dst)
}

// Greet takes the HELLO with which the peer answers ours. An error means that it cannot be accepted: the carrier calls Fail
// with it. Locked.
func (l *session) Greet(g *frame.Greeting) error {
	if l.state != stateDialing {
		return WithText(ErrProtocol, "HELLO frame inside a session")
	}
	if err := l.e.checkGreeting(g, true); err != nil {
		return err
	}
	if wanted := l.named.Target(); int(g.Target) != l.e.id || wanted != 0 && int(g.Context) != wanted { // 0 asks for any
		return WithText(ErrProtocol, "HELLO is for another context")
	}
	if g.Incarnation == l.e.dom.inc {
		return WithText(ErrUnreachable, "the address leads back to this process, which does not listen there")
	}
	if err := l.checkNeed(g); err != nil {
		return err
	}
	if err := l.hasProven(l.shownIdentity(), l.also); err != nil {
		return otherHostError{err}
	}
	l.startUp(*g)
	return nil
}

// Incarnation is that of the peer of a session that is up. Locked.
func (l *session) Incarnation() [16]byte { return l.peer.incarnation }

func (l *session) buildGreeting() frame.Greeting {
	features := uint64(frame.FeatureWithdraw | laterFeatures)
	if l.e.dom.cfg.Reserve == HonestReserve {
		features |= frame.FeatureReserve
	}
	g := frame.Greeting{
		Features: features, Versions: frame.Versions(), Messages: l.e.dom.cls.messages.Range, Incarnation: l.e.dom.inc, Listen: l.e.dom.own.Listen, Host: l.e.dom.own.Host,
		Context: uint16(l.e.id), Target: uint16(l.named.Target()), Envelopes: l.guaranteed, Eager: uint32(l.e.dom.cfg.Eager),
		Need: uint32(l.e.dom.cfg.Need), Want: uint32(l.e.dom.cfg.Want), Process: l.e.dom.cfg.Name,
	}
	switch {
	case l.onSecondary() && l.state == stateDialing:
		g.Offer = l.offerSecret
	case !l.onSecondary() && (l.activeState == nil || l.secondaryFailure == ""):
		g.Place = l.e.dom.place
	}
	return g
}

// checkGreeting returns why the HELLO of a peer, which we have dialled or which has dialled us, cannot be accepted.
func (e *endpoint) checkGreeting(g *frame.Greeting, dialled bool) error {
	agree := func(what string, ours, theirs frame.Range) error {
		if !dialled {
			ours, theirs = theirs, ours
		}
		_, err := frame.Agree(what, ours, theirs)
		return err
	}
	if err := agree("frames", frame.Versions(), g.Versions); err != nil {
		return err
	}
	if ours := e.dom.cls.messages.Range; ours != (frame.Range{}) && g.Messages != (frame.Range{}) {
		if err := agree("RPC headers", ours, g.Messages); err != nil {
			return err
		}
	}
	if g.Envelopes < 1 || g.Envelopes > 4096 || g.Eager < 256 || g.Eager > 48<<10 {
		return WithText(ErrProtocol, fmt.Sprintf("peer offers %d envelopes of %d bytes, out of bounds", g.Envelopes, g.Eager))
	}
	if need := e.dom.cfg.Need; int(g.Envelopes) < need {
		return WithText(ErrNoMemory, fmt.Sprintf(
			"the peer guarantees %d envelopes, and %d are needed here (Config.Need)", g.Envelopes, need))
	}
	return nil
}

// Admit takes in a peer that connected to us and sent g. verified tells that the machine it connected from is the one
// that g.Listen names, so that operations to that name may use this session. c is the carrier, conn becomes the session's Conn. An error is
// what the carrier tells the peer before it closes the connection. Locked.
func (e *endpoint) Admit(c carrier.Carrier, conn any, g *frame.Greeting, verified bool) (carrier.Session, error) {
	l, err := e.admitHello(c, conn, g, verified)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (e *endpoint) admitHello(c carrier.Carrier, conn any, g *frame.Greeting, verified bool) (*session, error) {
	if e.shut {
		return nil, WithText(ErrClosed, "the context is closed")
	}
	if err := e.checkGreeting(g, false); err != nil {
		return nil, err
	}
	if int(g.Target) != e.id {
		return nil, WithText(ErrNoEntry, fmt.Sprintf("there is no context %d", g.Target))
	}
	if g.Incarnation == e.dom.inc {
		return nil, WithText(ErrUnreachable, "the address leads back to the process itself, whose name is another")
	}
	if e.draining {
		return nil, WithText(ErrClosed, "the process is shutting down")
	}
	r, proof := e.routeOf(c), proofOf(conn)
	if e.dom.hasExpired(proof) {
		return nil, WithText(ErrPermission, errExpired(proof))
	}
	var named Addr // nobody else is reached by our own name, whatever he says
	if r == e.secondRoute() {
		o, err := e.tookOffer(g)
		if err != nil {
			return nil, err
		}
		named, proof = o.named, o.proof
	} else if g.Listen != "" && g.Listen != e.dom.own.self && verified &&
		strings.HasPrefix(g.Listen, e.dom.own.scheme+"://") && e.dom.own.Names.Check(g.Listen) == nil {
		named = MakeAddr(g.Listen, int(g.Context))
	}
	if old := e.sessionReaching(named); old != nil && !old.Up() && !named.IsZero() &&
		(old.hasProven(proof, []string{old.host}) != nil || old.hasProven(proof, old.also) != nil) {
		named = Addr{} // it is not the peer that is being dialled there
	}
	if e.isCrossedDial(named, g) {
		return nil, WithText(ErrDuplicate, "the peer has taken another connection of the pair since")
	}
	if o := e.makeOffer(g, named, proof); o != nil {
		return nil, o
	}
	for old := e.sessionReaching(named); old != nil && !named.IsZero() && !old.isSecondConnection(g); old = e.sessionReaching(named) { // twice, if what waited for old's end dials
		if old.short && !old.reserveFor(g) {
			return nil, errMakingRoom
		}
		if err := e.chooseConnection(old, g); err != nil {
			return nil, err
		}
		if old.state != stateDown && old.retiring == nil {
			old.settleOn(named)
			old.adoptConnection(r, conn, proof, g)
			return old, nil
		}
	}
	l, err := e.newSession(named, g.Need, g.Want, false)
	if err != nil {
		return nil, err
	}
	if named.IsZero() {
		l.named = MakeAddr(privateName(e.dom.own.scheme, g.Incarnation), int(g.Context))
	}
	l.adoptConnection(r, conn, proof, g)
	return l, nil
}

// isSecondConnection reports whether a HELLO in the name of l's peer begins another session than l, which stays: where peers are spread over several
// contexts we have dialled any of the peer's, and it was not the one that dials; or that one has dialled any of ours, so that it does
// not know l by the name that it has dialled.
func (l *session) isSecondConnection(g *frame.Greeting) bool {
	return l.Up() && l.dialled && l.peer.incarnation == g.Incarnation && (l.peer.context != g.Context || g.Any && l.e.id != 0)
}

// isCrossedDial reports whether a HELLO in the name of a peer is of a dial that the peer has given up for a connection of ours, and comes late. In both the
// peer has sent the secret of its session, which is a new one once it has lost that. So the HELLO is no sign that it has, and begins no session after
// the end of that one. In a session that the peer has dialled the secret proves nothing: the peer sends it again when it dials again, because our
// answer was lost.
func (e *endpoint) isCrossedDial(named Addr, g *frame.Greeting) bool {
	if named.IsZero() {
		return false
	}
	last := e.proofs[named]
	if l := e.sessionReaching(named); l != nil && l.Up() {
		last = lastSession{secret: l.peer.secret, dialled: l.dialled}
	}
	return last.dialled && last.secret.Matches(g.Secret)
}

// Unproven notes that the HELLO which Admit took may have come from anywhere. Until a frame follows there is no peer that could be
// lost. Locked.
func (l *session) Unproven() { l.forged = true }

// chooseConnection decides between a session that exists and a connection that says it is of the same peer. It returns nil with old taken down,
// retiring, or fit to adopt the new connection, and an error when the new one must go. Anybody on the peer's machine can say its name and
// its incarnation. So a session ends only for somebody who knows its secret: the peer, which had this session and has lost it. Anybody
// else has the peer asked whether it lives: a peer that has restarted, one that had not heard of the session, and a stranger. A HELLO that
// has only crossed with ours does not come here.
// Of two connections that are being made at the same time the one that the larger incarnation dialled stays.
func (e *endpoint) chooseConnection(old *session, g *frame.Greeting) error {
	ours := slices.Compare(e.dom.inc[:], g.Incarnation[:]) > 0
	switch {
	case old.Up() && old.secret.Matches(g.Proof):
		if g.Features&frame.FeatureRetires != 0 {
			old.startRetiring("the peer has made another session in its place")
		} else {
			old.failWith(WithText(ErrPeerLost, "the peer connected anew"))
		}
	case old.Up():
		old.checkLiveness()
		return WithText(ErrDuplicate, "a session with this address is up; its peer is asked whether it lives")
	case ours && old.state == stateDialing:
		return WithText(ErrDuplicate, "a connection of this pair is being made")
	default: // it waits or dials, and the peer's connection is the one that stays
		if err := old.checkNeed(g); err != nil {
			return err
		}
		old.cutConnection(frame.Bye{})
		old.dialled = false
	}
	return nil
}

// adoptConnection brings l up over a connection that the peer made.
func (l *session) adoptConnection(r *route, conn any, proof *carrier.Proof, g *frame.Greeting) {
	l.route, l.conn, l.proof = r, conn, proof
	l.noteSuccessor(g)
	l.startUp(*g)
}
