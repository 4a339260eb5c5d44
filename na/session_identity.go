package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"strings"
)

// identityOf implements Context.Identity.
func (e *endpoint) identityOf(peer Addr) (Identity, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findSessionLocked(peer)
	if l == nil || !l.Up() {
		return Identity{}, false
	}
	return l.identity(), true
}

// identifyEnvelope implements Envelope.Identity.
func (e *endpoint) identifyEnvelope(env *Envelope) Identity {
	e.mu.Lock()
	defer e.mu.Unlock()
	return env.session.identity()
}

// identity returns the Identity of the peer, from its HELLO and from the proof of the carrier. Over
// the second transport the proof is that of the first, where only this peer got the secret of the
// offer.
func (l *session) identity() Identity {
	var id Identity
	if l.proof != nil {
		id.Secure = l.proof.Secure && !l.onSecondary() // the second transport is not encrypted
		id.Certificates, id.Name = l.proof.Certificates, l.proof.Name
	}
	id.Host, id.Incarnation, id.Transport, id.Why = l.peer.host, l.peer.incarnation, l.route.scheme, l.transportReason()
	id.Process, id.Remote = l.peer.process, l.remoteAddr()
	return id
}

// setLabel sets the label of the session's addresses, after the HELLO of the peer. It sets none if
// the label would equal the text of the address.
func (l *session) setLabel() {
	remote := l.remoteAddr()
	if !strings.HasPrefix(l.named.Name(), privatePrefix(l.e.dom.own.scheme)) {
		remote = "" // the peer can be dialed, so its name is its location
	}
	if label := MakeLabel(l.named, l.peer.process, remote); label != l.named.String() {
		l.label = &label
	}
}

// remoteAddr returns the network address of the peer, or the last known one if the session has
// ended.
func (l *session) remoteAddr() string {
	if a, ok := l.conn.(carrier.Locator); ok {
		l.remote = a.Remote()
	}
	return l.remote
}

// transportReason returns the reason for the transport of l, "" if the class has only one.
func (l *session) transportReason() string {
	if l.why == nil {
		return ""
	}
	return *l.why
}

// shownIdentity returns the proof of the dialed peer. For a peer that was reached by an offer, it
// is the proof from the connection of the offer.
func (l *session) shownIdentity() *carrier.Proof {
	if l.onSecondary() {
		return l.proof
	}
	return proofOf(l.conn)
}

// proofOf returns the proof of a connection. It is nil without TLS, to save memory.
func proofOf(conn any) *carrier.Proof {
	if p, ok := conn.(carrier.Prover); ok {
		if id := p.Proof(); id.Secure {
			proof := id
			return &proof
		}
	}
	return nil
}
