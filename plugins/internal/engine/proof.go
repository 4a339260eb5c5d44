package engine

import "github.com/quicksilver-rpc/quicksilver/na"

// A Prover is a connection (Link.Conn, Link.Lane) that proves who the peer is. What it returns never changes; Host and
// Incarnation in it do not count. Locked.
type Prover interface {
	Proof() na.Identity
}

// proofOf returns what a connection proves.
func proofOf(conn any) na.Identity {
	if p, ok := conn.(Prover); ok {
		return p.Proof()
	}
	return na.Identity{}
}

// checkLane tells why conn cannot be the lane of l: somebody else is at its other end.
func (l *Link) checkLane(conn any) error {
	a, b := proofOf(conn), l.Proof
	same := a.Secure == b.Secure && len(a.Certificates) > 0 == (len(b.Certificates) > 0)
	if same && len(a.Certificates) > 0 {
		same = a.Certificates[0].Equal(b.Certificates[0])
	}
	if !same {
		return na.WithText(na.ErrPermission, "the lane does not lead to the peer that the session is with: other certificates")
	}
	return nil
}
