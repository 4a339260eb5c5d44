package na

import (
	"crypto/x509"
	"net/netip"
)

// An Identity describes the process at the other end of a session. Fields that the transport cannot
// determine are zero.
type Identity struct {
	// Host is the machine's name, Process is the program's name (the peer's Config.Name), and
	// Incarnation identifies the instance of the class. They are reported by the peer and are not
	// verified. Process has at most 64 bytes, all printable characters other than parentheses, and
	// may be empty.
	Host        string
	Process     string
	Incarnation [16]byte
	// Transport is the scheme of the session's transport. It is empty for a loopback session. For a
	// class with two transports (see Open), Why describes why this one was chosen.
	Transport, Why string
	// Remote is the peer's network address as seen by this process. It is not verified. For tcp and
	// udp it is the host:port of the peer's socket, or of the last network address translator on
	// the path. For sm it is "pid 4711", followed by "uid 1000" if the peer runs as another user.
	// In the simulator it is the node's name. If a peer's address can change, as over udp with TLS,
	// it is the address at which the peer was last known to receive. It is empty for a loopback
	// session and for a process that the system does not identify.
	Remote string
	// Secure reports whether the session is encrypted and the peer has proven possession of the key
	// of the first certificate in Certificates. With LocalAlways the second transport is not
	// encrypted; Certificates and Name then hold what the peer proved over the first transport.
	Secure bool
	// Certificates is the verified chain, from the peer's certificate to that of a trusted
	// authority. It omits any other certificates that the peer sent. If functions of the program
	// verified the peer instead, it contains only the peer's certificate. It is nil if the peer
	// presented no certificate or none that was verified. It must not be modified.
	Certificates []*x509.Certificate
	// Name is the name in the peer's verified certificate: the first URI, such as a SPIFFE ID, or
	// else the first DNS name, or else the common name. It is empty if there is no verified
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

// DNSNames returns the DNS names in the peer's verified certificate. A name may begin with "*.".
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

// Identity returns the identity of a session's peer. If peer is bound to a session, as the address
// of a received message is, Identity uses that session. Otherwise it uses the session with the
// peer of that name. ok is false if no such session is up.
func (c *Context) Identity(peer Addr) (id Identity, ok bool) {
	return c.ep.identityOf(peer)
}
