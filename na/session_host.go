package na

import (
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"slices"
)

// maxHosts bounds the hosts by which one peer is looked up, and that are remembered.
const maxHosts = 64

// Host is the name of the host that the peer must prove to be, when Name alone does not say it; else empty.
func (l *session) Host() string { return l.host }

// certifierOf returns the transport's, or nil.
func (e *endpoint) certifierOf() carrier.Certifier {
	c, _ := e.dom.own.Names.(carrier.Certifier)
	return c
}

// An otherHostError is the error of a peer that proves to be what was dialled, and not what else it was looked up by.
type otherHostError struct{ error }

// Unwrap returns what the certificate says.
func (e otherHostError) Unwrap() error { return e.error }

// lookedUp returns the address that text was resolved to. Locked.
func (e *endpoint) lookedUp(text Addr, name string) (Addr, error) {
	if name == "" {
		return Addr{}, brokenContract(e.dom.own.scheme, "Resolve found neither a name nor an error")
	}
	addr := MakeAddr(name, text.Target())
	c := e.certifierOf()
	if c == nil {
		return addr, nil
	}
	host := c.Host(text.Name())
	if l := e.names[addr]; l != nil && l.Up() && host != l.host {
		if err := l.isRouteOf(l.proof, host); err != nil {
			return Addr{}, err
		}
	}
	return addr.WithHost(host), nil
}

// mustBe reports why the session of l cannot be used for a, which may have been looked up by another host than the one that was
// dialled: the peer proves to be both, in the certificate that it has shown, or will show. Locked.
func (l *session) mustBe(a Addr) error {
	host := a.Host()
	if host == l.host || a.Session() != 0 {
		return nil
	}
	if l.e.certifierOf() == nil || slices.Contains(l.also, host) {
		return nil
	}
	if l.Up() {
		if err := l.isRouteOf(l.proof, host); err != nil {
			return err
		}
	}
	if len(l.also) < maxHosts {
		l.also = append(l.also, host)
	} else if !l.Up() {
		return queueFullError(maxHosts, "names of one host that is being dialled")
	}
	return nil
}

// hasProven reports whether what was proven will do for hosts. Locked.
func (l *session) hasProven(proof *carrier.Proof, hosts []string) error {
	for _, host := range hosts {
		if err := l.isRouteOf(proof, host); err != nil {
			return err
		}
	}
	return nil
}

func (l *session) isRouteOf(proof *carrier.Proof, host string) error {
	c := l.e.certifierOf()
	if c == nil {
		return nil
	}
	return c.Carries(proof, l.named.Name(), host)
}

// wantedAddr returns the address that was dialled, with the host that the peer must prove to be.
func (l *session) wantedAddr() Addr { return l.named.WithHost(l.host) }
