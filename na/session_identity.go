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

// identity returns the peer's Identity, which consists of data from its HELLO and of the proof of
// its connection. In a session over the second transport, the proof is from the first transport,
// over which only this peer received the offer's secret.
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

// setLabel sets the label of the session's addresses from the peer's HELLO, which must have
// arrived. It leaves the label unset if it would equal the text of the address.
func (l *session) setLabel() {
	remote := l.remoteAddr()
	if !strings.HasPrefix(l.named.Name(), privatePrefix(l.e.dom.own.scheme)) {
		remote = "" // the peer can be dialed, so its name is its location
	}
	if label := MakeLabel(l.named, l.peer.process, remote); label != l.named.String() {
		l.label = &label
	}
}

// remoteAddr returns the peer's network address. If the connection has been closed, it returns the
// last known one.
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

// shownIdentity returns the proof of a dialed peer: that of the current connection or, over the
// second transport, that of the connection over which the offer was received.
func (l *session) shownIdentity() *carrier.Proof {
	if l.onSecondary() {
		return l.proof
	}
	return proofOf(l.conn)
}

// proofOf returns the proof of conn. It returns nil if the connection is not secure, so that
// sessions without TLS do not allocate a Proof.
func proofOf(conn any) *carrier.Proof {
	if p, ok := conn.(carrier.Prover); ok {
		if id := p.Proof(); id.Secure {
			proof := id
			return &proof
		}
	}
	return nil
}
