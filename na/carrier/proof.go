package carrier

import (
	"crypto/x509"
	"fmt"
	"time"
)

// A Proof is the verified information about the peer of a connection.
type Proof struct {
	// Secure means that the connection is encrypted, and that the peer has proven to own the first
	// of Certificates.
	Secure bool
	// Certificates are a verified chain, from the peer's own certificate to that of a trusted
	// authority, without other certificates that the peer has sent. If functions of the program
	// verified the peer instead, only its own certificate is present. Nil if the peer has presented
	// none, or none that was verified. They must not be modified.
	Certificates []*x509.Certificate
	// Name is the verified name of the peer (see NameOf); empty if there is none.
	Name string
	// Expires is when the proof becomes invalid: when the first certificate of the chain expires.
	// Zero means never.
	Expires time.Time
}

// Describe returns the subject, serial number and end of validity of a certificate as text.
func Describe(c *x509.Certificate) string {
	return fmt.Sprintf("subject %q, serial number %v, valid until %s", c.Subject, c.SerialNumber, c.NotAfter.UTC().Format(time.RFC3339))
}

// NameOf returns the name in a certificate: the first URI, such as a SPIFFE ID, else the first DNS
// name, else the common name.
func NameOf(c *x509.Certificate) string {
	switch {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	}
	return c.Subject.CommonName
}

// A Prover is a connection (Session.Conn) that has verified the peer. The result of Proof never
// changes. Locked.
type Prover interface {
	Proof() Proof
}

// A Locator is a connection (Session.Conn) that knows the network address of the peer, for logs and
// tools: na.Identity.Remote. Locked.
type Locator interface {
	Remote() string
}
