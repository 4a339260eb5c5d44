// Package secure contains code shared by transports that use TLS 1.3. It adapts a program's
// tls.Config for both roles, extracts the peer's verified identity from a handshake, and explains
// TLS errors.
package secure
