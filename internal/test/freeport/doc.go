// Package freeport finds ports of the loopback interface for tests that need an address before they
// listen there, or listen there again.
package freeport
