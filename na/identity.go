package na

import "crypto/x509"

// An Identity is what is known of the process at the other end of a session. What a transport does not know stays zero.
type Identity struct {
	// Host names the machine, and Incarnation the instance of the class: the peer says so, and nobody has checked it.
	Host        string
	Incarnation [16]byte
	// Secure says that the session is encrypted, and that the peer has proven to own the first of Certificates.
	Secure bool
	// Certificates are a chain that was verified, from the peer's own to that of an authority which is trusted here. What else
	// the peer sent is not in it. Only the peer's own is there when functions of the program looked at it instead. Nil when it
	// has shown none, or none that was verified. They are not changed.
	Certificates []*x509.Certificate
	// Name is what the transport takes the peer for: what its certificate was verified to say. Empty when nothing vouches
	// for a name.
	Name string
}

// Identity says what is known of the peer of the session that peer is bound to, as the address of a message is; ok is false
// when that session has ended.
func (c *Context) Identity(peer Addr) (id Identity, ok bool) {
	return c.ep.Identity(peer)
}
