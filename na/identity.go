package na

import (
	"crypto/x509"
	"net/netip"
)

// An Identity is what is known of the process at the other end of a session. What a transport does not know stays zero.
type Identity struct {
	// Host names the machine, Process the program (Config.Name of the peer), and Incarnation the instance of the class: the peer says
	// so, and nobody has checked it. Process is empty, or up to 64 bytes of printable characters without parentheses.
	Host        string
	Process     string
	Incarnation [16]byte
	// Transport is the scheme of what the peer is reached by, empty for the own process. Of a class with two (see Open) Why says in words
	// why it is this one.
	Transport, Why string
	// Remote is the network address of the peer as this process sees it, which nobody has verified: of tcp and udp the host:port of
	// its socket, or of the last machine on the way that translates addresses; of sm "pid 4711", followed by "uid 1000" if that is
	// another user; in the simulator the name of the node. A peer that moves, as over udp with TLS, has the address from which it
	// was last known to receive. Empty for the own process, and for a process that the system does not name.
	Remote string
	// Secure says that the session is encrypted, and that the peer has proven to own the first of Certificates.
	Secure bool
	// Certificates are a chain that was verified, from the peer's own to that of an authority which is trusted here. What else
	// the peer sent is not in it. Only the peer's own is there when functions of the program looked at it instead. Nil when it
	// has shown none, or none that was verified. They are not changed.
	Certificates []*x509.Certificate
	// Name is what the transport takes the peer for: of its verified certificate the first URI, such as a SPIFFE ID, else the
	// first DNS name, else the common name. Empty when nothing vouches for a name.
	Name string
}

// URIs returns the URIs in the peer's verified certificate, such as its SPIFFE ID.
func (id Identity) URIs() (uris []string) {
	if c := id.certificate(); c != nil {
		for _, u := range c.URIs {
			uris = append(uris, u.String())
		}
	}
	return uris
}

// DNSNames returns the DNS names in the peer's verified certificate. One may begin with "*.".
func (id Identity) DNSNames() []string {
	if c := id.certificate(); c != nil {
		return append([]string(nil), c.DNSNames...)
	}
	return nil
}

// IPs returns the IP addresses in the peer's verified certificate.
func (id Identity) IPs() (ips []netip.Addr) {
	if c := id.certificate(); c != nil {
		for _, ip := range c.IPAddresses {
			if a, ok := netip.AddrFromSlice(ip); ok {
				ips = append(ips, a.Unmap())
			}
		}
	}
	return ips
}

// certificate returns the peer's own, or nil.
func (id Identity) certificate() *x509.Certificate {
	if len(id.Certificates) == 0 {
		return nil
	}
	return id.Certificates[0]
}

// Identity says what is known of the peer of the session that peer is bound to, as the address of a message is, or of that name; ok is
// false when there is none that is up.
func (c *Context) Identity(peer Addr) (id Identity, ok bool) {
	return c.ep.identityOf(peer)
}
