// Package secure has the common parts of transports with TLS 1.3: it adapts a tls.Config of the
// program for both roles, extracts the verified identity of the peer from a handshake, and explains
// its errors.
package secure
