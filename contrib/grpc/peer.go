package grpcqs

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/url"
	"strings"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/qs"
)

// An AuthInfo is the AuthInfo of a peer.Peer that is reached without TLS. With TLS it is a credentials.TLSInfo, whose State has the verified
// certificates and nothing else.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Identity na.Identity // what the transport and the peer say
}

// AuthType returns the scheme of the transport: "tcp", "udp", "sm" or "sim".
func (i AuthInfo) AuthType() string { return i.Identity.Transport }

// authInfo returns what is known of a peer.
func authInfo(id na.Identity) credentials.AuthInfo {
	if !id.Secure {
		level := credentials.NoSecurity
		if id.Transport == "sm" { // of this host, and this user
			level = credentials.PrivacyAndIntegrity
		}
		return AuthInfo{credentials.CommonAuthInfo{SecurityLevel: level}, id}
	}
	info := credentials.TLSInfo{CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}
	info.State = tls.ConnectionState{HandshakeComplete: true, Version: tls.VersionTLS13, PeerCertificates: id.Certificates}
	if len(id.Certificates) > 0 {
		info.State.VerifiedChains = [][]*x509.Certificate{id.Certificates}
	}
	if u, err := url.Parse(id.Name); err == nil && u.Scheme == "spiffe" {
		info.SPIFFEID = u
	}
	return info
}

// A netAddr is an address of package hg as one of package net.
type netAddr struct{ network, text string }

// Network implements net.Addr.
func (a netAddr) Network() string { return a.network }

// String implements net.Addr.
func (a netAddr) String() string { return a.text }

// addrOf returns a as programs of gRPC know addresses: without the scheme.
func addrOf(a hg.Addr) net.Addr {
	_, text, _ := strings.Cut(a.Name(), "://")
	return netAddr{a.Scheme(), text}
}

// callerPeer describes who has called.
func callerPeer(c qs.Caller) *peer.Peer {
	p := &peer.Peer{Addr: addrOf(c.Addr), AuthInfo: authInfo(c.Identity)}
	if c.Remote != "" {
		p.Addr = netAddr{c.Transport, c.Remote}
	}
	return p
}
