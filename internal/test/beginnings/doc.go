// Package beginnings sends a listener the beginnings of whatever a stranger may send it: of a session of its own protocol, of TLS, of
// other protocols, of noise. Each comes whole, in two segments, and with every way to end: closed, half closed, and silent. It is
// for tests: what they check is that the process lives, and serves others.
package beginnings
