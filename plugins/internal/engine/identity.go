package engine

import "github.com/quicksilver-rpc/quicksilver/na"

// Identity implements na.Endpoint.
func (e *Endpoint) Identity(peer na.Addr) (na.Identity, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.links[peer.Session()]
	if l == nil || l.state != linkUp {
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

// identity is what the peer has said of itself and what the carrier has proven.
func (l *Link) identity() na.Identity {
	var id na.Identity
	if l.proof != nil {
		id = *l.proof
	}
	id.Host, id.Incarnation = l.peer.host, l.peer.incarnation
	return id
}

// A Prover is a connection (Link.Conn) that proves who the peer is. What it returns never changes; Host and
// Incarnation in it do not count. Locked.
type Prover interface {
	Proof() na.Identity
}

// proofOf returns what a connection proves, or nil.
func proofOf(conn any) *na.Identity {
	if p, ok := conn.(Prover); ok {
		id := p.Proof()
		return &id
	}
	return nil
}
