package engine

import (
	"strings"

	"github.com/quicksilver-rpc/quicksilver/na"
)

// Identity implements na.Endpoint.
func (e *Endpoint) Identity(peer na.Addr) (na.Identity, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.links[peer.Session()]
	if l == nil || !l.Up() {
		return na.Identity{}, false
	}
	return l.identity(), true
}

// IdentifyEnvelope implements na.Endpoint.
func (e *Endpoint) IdentifyEnvelope(env *na.Envelope) na.Identity {
	e.mu.Lock()
	defer e.mu.Unlock()
	return env.Link.(*Link).identity()
}

// identity is what the peer has said of itself and what the carrier of the session has proven.
func (l *Link) identity() na.Identity {
	var id na.Identity
	if l.proof != nil && !l.detoured() {
		id = *l.proof
	}
	id.Host, id.Incarnation, id.Transport, id.Why = l.peer.host, l.peer.incarnation, l.route.Scheme, l.because()
	id.Process, id.Remote = l.peer.process, l.remoteAddr()
	return id
}

// An Addressed is a connection (Link.Conn) that knows the network address of the peer, for people to read: na.Identity.Remote. Locked.
type Addressed interface {
	Remote() string
}

// setLabel settles the label that addresses of the session have, once the HELLO of the peer is here. One that would say what the
// address says is none.
func (l *Link) setLabel() {
	remote := l.remoteAddr()
	if !strings.HasPrefix(l.named.Name(), privatePrefix(l.e.eng.own.Scheme)) {
		remote = "" // it can be dialled
	}
	if label := na.MakeLabel(l.named, l.peer.process, remote); label != l.named.String() {
		l.label = &label
	}
}

// remoteAddr returns the network address of the peer, the last one that was known if the session has ended.
func (l *Link) remoteAddr() string {
	if a, ok := l.Conn.(Addressed); ok {
		l.remote = a.Remote()
	}
	return l.remote
}

// A Prover is a connection (Link.Conn) that proves who the peer is. What it returns never changes; Host and
// Incarnation in it do not count. Locked.
type Prover interface {
	Proof() na.Identity
}

// because is why l goes by its transport, of two; empty for one.
func (l *Link) because() string {
	if l.why == nil {
		return ""
	}
	return *l.why
}

// shown returns what the peer that was dialled has proven: when it is reached by an offer, on the connection that made it.
func (l *Link) shown() *na.Identity {
	if l.detoured() {
		return l.proof
	}
	return proofOf(l.Conn)
}

// proofOf returns what a connection proves, or nil: without TLS nothing is kept for each session.
func proofOf(conn any) *na.Identity {
	if p, ok := conn.(Prover); ok {
		if id := p.Proof(); id.Secure {
			proof := id
			return &proof
		}
	}
	return nil
}
