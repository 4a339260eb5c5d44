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

// identity returns the peer's Identity, based on its HELLO and the carrier's proof. Over the second
// transport, the proof is that of the first, over which only this peer received the offer's secret.
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

// setLabel sets the label of the session's addresses after the peer's HELLO has arrived. It sets
// none if the label would equal the address text.
func (l *session) setLabel() {
	remote := l.remoteAddr()
	if !strings.HasPrefix(l.named.Name(), privatePrefix(l.e.dom.own.scheme)) {
		remote = "" // the peer can be dialed, so its name is its location
	}
	if label := MakeLabel(l.named, l.peer.process, remote); label != l.named.String() {
		l.label = &label
	}
}

// remoteAddr returns the peer's network address, or the last known one if the session has been
// closed.
func (l *session) remoteAddr() string {
	if a, ok := l.conn.(carrier.Locator); ok {
		l.remote = a.Remote()
	}
	return l.remote
}

// transportReason returns the reason for l's choice of transport, or "" if the class has only one.
func (l *session) transportReason() string {
	if l.why == nil {
		return ""
	}
	return *l.why
}

// shownIdentity returns the proof of the dialed peer. If the peer was reached through an offer, it
// is the proof from the connection over which the offer was received.
func (l *session) shownIdentity() *carrier.Proof {
	if l.onSecondary() {
		return l.proof
	}
	return proofOf(l.conn)
}

// proofOf returns the proof of a connection. Without TLS it returns nil to save memory.
func proofOf(conn any) *carrier.Proof {
	if p, ok := conn.(carrier.Prover); ok {
		if id := p.Proof(); id.Secure {
			proof := id
			return &proof
		}
	}
	return nil
}
