// Package secure is what transports with TLS 1.3 have in common: how a tls.Config of the user's is made fit for both roles, what a
// handshake proves of the peer, and what its errors say.
package secure
