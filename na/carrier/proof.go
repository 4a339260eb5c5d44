package carrier

import (
	"crypto/x509"
	"fmt"
	"time"
)

// A Proof holds verified information about the peer of a connection.
type Proof struct {
	// Secure reports whether the connection is encrypted and the peer has proven that it owns the
	// first of Certificates.
	Secure bool
	// Certificates holds a verified chain, from the peer's own certificate to that of a trusted
	// authority, without any other certificates that the peer has sent. If the peer was verified by
	// functions of the program instead, only its own certificate is present. Certificates is nil if
	// the peer has presented none or none was verified. The certificates must not be modified.
	Certificates []*x509.Certificate
	// Name is the verified name of the peer (see NameOf), or empty if there is none.
	Name string
	// Expires is the time at which the proof becomes invalid because the first certificate in the
	// chain expires. Zero means never.
	Expires time.Time
}

// Describe returns a text with the subject, serial number, and expiration time of a certificate.
func Describe(c *x509.Certificate) string {
	return fmt.Sprintf("subject %q, serial number %v, valid until %s", c.Subject, c.SerialNumber, c.NotAfter.UTC().Format(time.RFC3339))
}

// NameOf returns the name in a certificate: the first URI, such as a SPIFFE ID, or else the first
// DNS name, or else the common name.
func NameOf(c *x509.Certificate) string {
	switch {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	}
	return c.Subject.CommonName
}

// A Prover is a connection (Session.Conn) that has verified its peer. Proof must always return the
// same result. Locked.
type Prover interface {
	Proof() Proof
}

// A Locator is a connection (Session.Conn) that knows its peer's network address, for logs and
// tools. See na.Identity.Remote. Locked.
type Locator interface {
	Remote() string
}
