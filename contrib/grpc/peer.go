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

// An AuthInfo is the AuthInfo of a peer.Peer that is reached without TLS. With TLS, the AuthInfo is
// a credentials.TLSInfo in whose State only the verified certificates are set.
type AuthInfo struct {
	credentials.CommonAuthInfo
	Identity na.Identity // the peer's identity as reported by its transport
}

// AuthType returns the transport's scheme: "tcp", "udp", "sm" or "sim".
func (i AuthInfo) AuthType() string { return i.Identity.Transport }

// authInfo converts a peer's identity to its gRPC form.
func authInfo(id na.Identity) credentials.AuthInfo {
	if !id.Secure {
		level := credentials.NoSecurity
		if id.Transport == "sm" { // shared memory is accessible only to this user on this host
			level = credentials.PrivacyAndIntegrity
		}
		return AuthInfo{credentials.CommonAuthInfo{SecurityLevel: level}, id}
	}
	info := credentials.TLSInfo{
		CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
	}
	info.State = tls.ConnectionState{
		HandshakeComplete: true, Version: tls.VersionTLS13, PeerCertificates: id.Certificates,
	}
	if len(id.Certificates) > 0 {
		info.State.VerifiedChains = [][]*x509.Certificate{id.Certificates}
	}
	if u, err := url.Parse(id.Name); err == nil && u.Scheme == "spiffe" {
		info.SPIFFEID = u
	}
	return info
}

// A netAddr adapts an hg.Addr to net.Addr.
type netAddr struct{ network, text string }

// Network implements net.Addr.
func (a netAddr) Network() string { return a.network }

// String implements net.Addr.
func (a netAddr) String() string { return a.text }

// netAddrOf converts a to a net.Addr. Its text has no scheme, as gRPC programs expect.
func netAddrOf(a hg.Addr) net.Addr {
	_, text, _ := strings.Cut(a.Name(), "://")
	return netAddr{a.Scheme(), text}
}

// callerPeer returns the peer.Peer of a request's caller.
func callerPeer(c qs.Caller) *peer.Peer {
	p := &peer.Peer{Addr: netAddrOf(c.Addr), AuthInfo: authInfo(c.Identity)}
	if c.Remote != "" {
		p.Addr = netAddr{c.Transport, c.Remote}
	}
	return p
}
