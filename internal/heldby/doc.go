// Package heldby defines the reasons why a request waits at its target before it is accepted.
// Packages na and hg share them, and a HELD frame carries them.
package heldby
