package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"strings"
)

// identityOf says what is known of the peer of the session that peer is bound to, or of that name; ok is false when there is none that is up.
func (e *endpoint) identityOf(peer Addr) (Identity, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.findSession(peer)
	if l == nil || !l.Up() {
		return Identity{}, false
	}
	return l.identity(), true
}

func (e *endpoint) identifyEnvelope(env *Envelope) Identity {
	e.mu.Lock()
	defer e.mu.Unlock()
	return env.session.identity()
}

// identity is what the peer has said of itself and what the carrier of the session has proven.
func (l *session) identity() Identity {
	var id Identity
	if l.proof != nil && !l.onSecondary() {
		id.Secure, id.Certificates, id.Name = l.proof.Secure, l.proof.Certificates, l.proof.Name
	}
	id.Host, id.Incarnation, id.Transport, id.Why = l.peer.host, l.peer.incarnation, l.route.scheme, l.transportReason()
	id.Process, id.Remote = l.peer.process, l.remoteAddr()
	return id
}

// setLabel settles the label that addresses of the session have, once the HELLO of the peer is here. One that would say what the
// address says is none.
func (l *session) setLabel() {
	remote := l.remoteAddr()
	if !strings.HasPrefix(l.named.Name(), privatePrefix(l.e.dom.own.scheme)) {
		remote = "" // it can be dialled
	}
	if label := MakeLabel(l.named, l.peer.process, remote); label != l.named.String() {
		l.label = &label
	}
}

// remoteAddr returns the network address of the peer, the last one that was known if the session has ended.
func (l *session) remoteAddr() string {
	if a, ok := l.conn.(carrier.Locator); ok {
		l.remote = a.Remote()
	}
	return l.remote
}

// transportReason is why l goes by its transport, of two; empty for one.
func (l *session) transportReason() string {
	if l.why == nil {
		return ""
	}
	return *l.why
}

// shownIdentity returns what the peer that was dialled has proven: when it is reached by an offer, on the connection that made it.
func (l *session) shownIdentity() *carrier.Proof {
	if l.onSecondary() {
		return l.proof
	}
	return proofOf(l.conn)
}

// proofOf returns what a connection proves, or nil: without TLS nothing is kept for each session.
func proofOf(conn any) *carrier.Proof {
	if p, ok := conn.(carrier.Prover); ok {
		if id := p.Proof(); id.Secure {
			proof := id
			return &proof
		}
	}
	return nil
}
