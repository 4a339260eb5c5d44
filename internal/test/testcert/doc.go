// Package testcert makes certificates for tests: for 127.0.0.1, in both roles, each its own authority.
//
//	New ─► tls.Certificate ─► Pool: trust in it      Write ─► PEM files, as programs take them
package testcert
