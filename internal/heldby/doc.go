// Package heldby defines the reasons why a request waits at its target before it is accepted: the
// content of a HELD frame, which the packages na and hg share.
package heldby
