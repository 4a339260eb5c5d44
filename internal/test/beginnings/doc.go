// Package beginnings sends a listener the beginnings of messages of untrusted peers: of a session
// of its own protocol, of TLS, of other protocols, of noise. Each is sent whole, in two segments,
// and with every kind of end: closed, half closed, and silent. It is for tests, which check that
// the process survives and serves others.
package beginnings
