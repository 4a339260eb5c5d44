package na

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// Hello implements carrier.Session. It appends l's HELLO to dst and returns the result. label is
// opaque data for the peer's carrier. f is the lane for which the connection is used. The HELLO
// contains the session's secret only if f is carrier.Messages. Hello has no side effects, so the
// carrier may call it repeatedly. e.mu must be held.
func (l *session) Hello(f carrier.Lane, dst, label []byte) []byte {
	return l.buildHello(f, dst, label, l.secret, l.named)
}

// buildHello implements Hello. The HELLO contains secret and is for the peer at address to.
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

// Greet implements carrier.Session. It handles g, the HELLO with which a dialed peer answers. If
// Greet returns an error, the carrier must call Fail with that error. e.mu must be held.
func (l *session) Greet(g *frame.Greeting) error {
	if l.state != stateDialing {
		return WithText(ErrProtocol, "unexpected HELLO frame")
	}
	if err := l.e.checkGreeting(g, true); err != nil {
		return err
	}
	// Target 0 means any context.
	if wanted := l.named.Target(); int(g.Target) != l.e.id || wanted != 0 && int(g.Context) != wanted {
		return WithText(ErrProtocol, "HELLO frame for another context")
	}
	if g.Incarnation == l.e.dom.inc {
		return WithText(ErrUnreachable, "the address connects to this process itself, which does not listen on it")
	}
	if err := l.checkNeed(g); err != nil {
		return err
	}
	if err := l.hasProvenLocked(l.shownIdentity(), l.also); err != nil {
		return otherHostError{err}
	}
	l.startUp(*g)
	return nil
}

// Incarnation implements carrier.Session. It returns the peer's incarnation once the session is up.
// e.mu must be held.
func (l *session) Incarnation() [16]byte { return l.peer.incarnation }

// buildGreeting returns the content of l's HELLO except for the label, secret, and proof.
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
	case !l.onSecondary() && l.requestsOffer():
		g.Place = l.e.dom.place
	}
	return g
}

// checkGreeting returns an error if g, a peer's HELLO, is invalid or not compatible with this side.
// dialled reports whether this side dialed the peer.
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
		return WithText(ErrProtocol, fmt.Sprintf("HELLO frame offers %d envelopes of %d bytes, out of range", g.Envelopes, g.Eager))
	}
	if need := e.dom.cfg.Need; int(g.Envelopes) < need {
		return WithText(ErrNoMemory, fmt.Sprintf(
			"the peer guarantees %d envelopes, want at least %d (na.Config.Need)", g.Envelopes, need))
	}
	return nil
}

// Admit implements carrier.Core. It returns the session, usually a new one, for a peer that dialed
// this side and sent g, or an error if the peer is refused. The carrier must then send the error to
// the peer and close the connection. verified reports whether the connection comes from the machine
// that g.Listen names. Only then may operations with that name use this session. conn becomes the
// result of the session's Conn method. e.mu must be held.
func (e *endpoint) Admit(c carrier.Carrier, conn any, g *frame.Greeting, verified bool) (carrier.Session, error) {
	l, err := e.admitHello(c, conn, g, verified)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// admitHello implements Admit. Its result has the concrete type.
func (e *endpoint) admitHello(c carrier.Carrier, conn any, g *frame.Greeting, verified bool) (*session, error) {
	if e.shut {
		return nil, WithText(ErrClosed, "the na.Context is closed")
	}
	if err := e.checkGreeting(g, false); err != nil {
		return nil, err
	}
	if int(g.Target) != e.id {
		return nil, WithText(ErrNoEntry, fmt.Sprintf("no such context: %d", g.Target))
	}
	if g.Incarnation == e.dom.inc {
		return nil, WithText(ErrUnreachable, "the address connects to this process itself under another name")
	}
	if e.draining {
		return nil, WithText(ErrClosed, "the process is shutting down")
	}
	r, proof := e.routeOf(c), proofOf(conn)
	if e.dom.hasExpired(proof) {
		return nil, WithText(ErrPermission, errExpired(proof))
	}
	// named is zero if the peer cannot be dialed. It is never the name of this class, even if the
	// peer claims that name.
	var named Addr
	if r == e.secondRoute() {
		o, err := e.useOffer(g)
		if err != nil {
			return nil, err
		}
		named, proof = o.named, o.proof
	} else if g.Listen != "" && g.Listen != e.dom.own.self && verified &&
		strings.HasPrefix(g.Listen, e.dom.own.scheme+"://") && e.dom.own.Names.Check(g.Listen) == nil {
		named = MakeAddr(g.Listen, int(g.Context))
	}
	if old := e.sessionReachingLocked(named); old != nil && !old.Up() && !named.IsZero() &&
		(old.hasProvenLocked(proof, []string{old.host}) != nil || old.hasProvenLocked(proof, old.also) != nil) {
		named = Addr{} // its certificate does not match the peer being dialed
	}
	if e.isCrossedDial(named, g) {
		return nil, WithText(ErrDuplicate, "superseded by another connection to the peer")
	}
	if o := e.makeOffer(g, named, proof); o != nil {
		return nil, o
	}
	// Operations that were waiting for old to close may dial again, so the new session may have to be
	// compared with theirs as well.
	for old := e.sessionReachingLocked(named); old != nil && !named.IsZero() && !old.isSecondConnection(g); old = e.sessionReachingLocked(named) {
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

// isSecondConnection reports whether g, a HELLO with the name of l's peer, starts another session
// in addition to l rather than replacing it. This happens when a process has several contexts and
// is dialed without naming one. Either this side dialed the peer in that way, and g is from another
// of its contexts, or the peer is dialing this side in that way and cannot know that l leads to the
// same process.
func (l *session) isSecondConnection(g *frame.Greeting) bool {
	return l.Up() && l.dialled && l.peer.incarnation == g.Incarnation && (l.peer.context != g.Context || g.Any && l.e.id != 0)
}

// isCrossedDial reports whether g is a late HELLO from a dial that the peer has since abandoned in
// favor of a connection dialed by this side. Such a HELLO contains the same secret as the peer's
// HELLO on the other connection, whereas a peer that had lost the session would use a new secret. A
// late HELLO must not close the session, nor start another one after the session has been closed.
//
// This applies only to sessions dialed by this side. In a session dialed by the peer, the peer
// sends the same secret when it dials again because the answer was lost.
func (e *endpoint) isCrossedDial(named Addr, g *frame.Greeting) bool {
	if named.IsZero() {
		return false
	}
	last := e.proofs[named]
	if l := e.sessionReachingLocked(named); l != nil && l.Up() {
		last = lastSession{secret: l.peer.secret, dialled: l.dialled}
	}
	return last.dialled && last.secret.Matches(g.Secret)
}

// Unproven implements carrier.Session. It records that the source address of the peer's HELLO may
// be forged. Until another frame arrives, the loss of the session is reported to OnFault only if an
// operation was waiting for the peer. e.mu must be held.
func (l *session) Unproven() { l.forged = true }

// chooseConnection decides between old, an existing session, and a new connection, with HELLO g,
// whose peer has the same name. It returns an error if the new connection must be refused.
// Otherwise old has been closed, is retiring, or can adopt the new connection.
//
// Any process on the peer's machine can claim the peer's name and incarnation. Therefore a session
// that is up is closed only for a HELLO with its secret, which shows that the peer had the session
// and lost it. Otherwise old's peer is probed: it may have restarted, it may not know of the
// session, or the HELLO may be from another process. Late HELLOs of crossed dials have been handled
// before; see isCrossedDial.
//
// Of two concurrent dials, the one by the side with the larger incarnation is kept.
func (e *endpoint) chooseConnection(old *session, g *frame.Greeting) error {
	ours := slices.Compare(e.dom.inc[:], g.Incarnation[:]) > 0
	switch {
	case old.Up() && old.secret.Matches(g.Proof):
		if g.Features&frame.FeatureRetires != 0 {
			old.startRetiringLocked("superseded by a new session from the peer")
		} else {
			old.failWith(WithText(ErrPeerLost, "superseded by a new connection from the peer"))
		}
	case old.Up():
		old.checkLiveness()
		return WithText(ErrDuplicate, "a session with this address exists and is being probed")
	case ours && old.state == stateDialing:
		return WithText(ErrDuplicate, "another connection to the peer is being established")
	default: // old is waiting or dialing, and the peer's connection is kept
		if err := old.checkNeed(g); err != nil {
			return err
		}
		old.cutConnection(frame.Bye{})
		old.dialled = false
	}
	return nil
}

// adoptConnection makes l, which is not up, use conn, which the peer has dialed, and completes the
// handshake with the peer's HELLO g.
func (l *session) adoptConnection(r *route, conn any, proof *carrier.Proof, g *frame.Greeting) {
	l.route, l.conn, l.proof = r, conn, proof
	l.noteSuccessor(g)
	l.startUp(*g)
}
