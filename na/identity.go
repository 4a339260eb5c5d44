package na

import (
	"crypto/x509"
	"net/netip"
)

// An Identity describes the process at the other end of a session. Fields that the transport does
// not know are zero.
type Identity struct {
	// Host is the name of the machine, Process the name of the program (Config.Name of the peer),
	// and Incarnation identifies the instance of the class. They are claims of the peer and not
	// verified. Process is empty, or up to 64 bytes of printable characters without parentheses.
	Host        string
	Process     string
	Incarnation [16]byte
	// Transport is the scheme of the session's transport, empty for a loopback session. For a class
	// with two transports (see Open) Why is the reason for this one, as text.
	Transport, Why string
	// Remote is the network address of the peer as this process sees it. It is not verified. For
	// tcp and udp it is the host:port of the peer's socket, or of the last address translator on
	// the path; for sm "pid 4711", followed by "uid 1000" if that is another user; in the simulator
	// the name of the node. A peer whose address changes, as over udp with TLS, has the address at
	// which it was last known to receive. It is empty for a loopback session, and for a process
	// that the system does not name.
	Remote string
	// Secure reports that the session is encrypted, and that the peer has proven to own the first
	// of Certificates. With LocalAlways the second transport is not encrypted; Certificates and
	// Name are then what the peer has proven over the first.
	Secure bool
	// Certificates is a verified chain, from the peer's certificate to that of an authority that is
	// trusted here, without other certificates that the peer has sent. It has only the peer's
	// certificate if functions of the program have verified that instead. It is nil if the peer has
	// shown no certificate, or none that was verified. It must not be changed.
	Certificates []*x509.Certificate
	// Name is the name in the peer's verified certificate: the first URI, such as a SPIFFE ID, or
	// else the first DNS name, or else the common name. It is empty if there is no such
	// certificate.
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

// certificate returns the peer's certificate, or nil.
func (id Identity) certificate() *x509.Certificate {
	if len(id.Certificates) == 0 {
		return nil
	}
	return id.Certificates[0]
}

// Identity returns the Identity of the peer of the session that peer is bound to, as the address of
// a message is, or else of the session with that name. ok is false if there is none that is up.
func (c *Context) Identity(peer Addr) (id Identity, ok bool) {
	return c.ep.identityOf(peer)
}
