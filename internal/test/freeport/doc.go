// Package freeport finds ports of the loopback interface for tests that must know an address before
// they listen there, or listen there again.
package freeport
