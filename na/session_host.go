package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"slices"
)

// maxHosts is the maximum number of host names that a session records for its peer.
const maxHosts = 64

// Host implements carrier.Session. It returns the host name that the peer's certificate must
// contain, or "" if that is the name itself.
func (l *session) Host() string { return l.host }

// certifierOf returns the carrier.Certifier of the first transport, or nil if its peers have no
// certificates.
func (e *endpoint) certifierOf() carrier.Certifier {
	c, _ := e.dom.own.Names.(carrier.Certifier)
	return c
}

// An otherHostError is returned when a peer's certificate is valid for the dialed host name but not
// for another name by which the same peer was looked up.
type otherHostError struct{ error }

// Unwrap returns the certificate error.
func (e otherHostError) Unwrap() error { return e.error }

// lookedUpLocked returns the address for text, which has been resolved to the canonical name. e.mu
// must be held.
func (e *endpoint) lookedUpLocked(text Addr, name string) (Addr, error) {
	if name == "" {
		return Addr{}, brokenContract(e.dom.own.scheme, "Resolve returned neither a name nor an error")
	}
	addr := MakeAddr(name, text.Target())
	c := e.certifierOf()
	if c == nil {
		return addr, nil
	}
	host := c.Host(text.Name())
	if l := e.names[addr]; l != nil && l.Up() && host != l.host {
		if err := l.checkHost(l.proof, host); err != nil {
			return Addr{}, err
		}
	}
	return addr.WithHost(host), nil
}

// checkHostLocked returns an error if operations with address a cannot use l. If a was looked up by
// a host name other than the dialed one, the peer's certificate must be valid for both. If l is not
// up, checkHostLocked records the name, and Greet checks the certificate. e.mu must be held.
func (l *session) checkHostLocked(a Addr) error {
	host := a.Host()
	if host == l.host || a.Session() != 0 {
		return nil
	}
	if l.e.certifierOf() == nil || slices.Contains(l.also, host) {
		return nil
	}
	if l.Up() {
		if err := l.checkHost(l.proof, host); err != nil {
			return err
		}
	}
	if len(l.also) < maxHosts {
		l.also = append(l.also, host)
	} else if !l.Up() {
		return queueFullError(maxHosts, "names for one host")
	}
	return nil
}

// hasProvenLocked returns an error if the certificate in proof is not valid for every host in
// hosts.
func (l *session) hasProvenLocked(proof *carrier.Proof, hosts []string) error {
	for _, host := range hosts {
		if err := l.checkHost(proof, host); err != nil {
			return err
		}
	}
	return nil
}

// checkHost returns an error if the certificate in proof is not valid for host.
func (l *session) checkHost(proof *carrier.Proof, host string) error {
	c := l.e.certifierOf()
	if c == nil {
		return nil
	}
	return c.Carries(proof, l.named.Name(), host)
}

// wantedAddr returns the address with which the session was dialed, including the host name that
// the peer's certificate must contain.
func (l *session) wantedAddr() Addr { return l.named.WithHost(l.host) }
