package carrier

import (
	"crypto/x509"
	"fmt"
	"time"
)

// A Proof is what a connection has proven of its peer.
type Proof struct {
	// Secure says that the connection is encrypted, and that the peer has proven to own the first of Certificates.
	Secure bool
	// Certificates are a chain that was verified, from the peer's own to that of an authority which is trusted here. What else
	// the peer sent is not in it. Only the peer's own is there when functions of the program looked at it instead. Nil when it
	// has shown none, or none that was verified. They are not changed.
	Certificates []*x509.Certificate
	// Name is what the transport takes the peer for (see NameOf). Empty when nothing vouches for a name.
	Name string
	// Expires is when what was proven is no longer valid: when the first certificate of the chain expires. Zero means never.
	Expires time.Time
}

// Describe says of a certificate whose it is, and until when it is valid.
func Describe(c *x509.Certificate) string {
	return fmt.Sprintf("subject %q, serial number %v, valid until %s", c.Subject, c.SerialNumber, c.NotAfter.UTC().Format(time.RFC3339))
}

// NameOf returns what a certificate calls its owner: the first URI, such as a SPIFFE ID, else the first DNS name, else the common name.
func NameOf(c *x509.Certificate) string {
	switch {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	}
	return c.Subject.CommonName
}

// A Prover is a connection (Session.Conn) that proves who the peer is. What it returns never changes. Locked.
type Prover interface {
	Proof() Proof
}

// A Locator is a connection (Session.Conn) that knows the network address of the peer, for people to read: na.Identity.Remote. Locked.
type Locator interface {
	Remote() string
}
