// Package heldby says what a request waits for at its target while nothing has accepted it: the words of a HELD frame, which the packages na
// and hg share.
package heldby
