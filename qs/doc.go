// Package qs is RPC and bulk data transfer with types. A [Method] of another process is called like
// a function of this one, and the deadline of its context travels along. What is large is lent for
// the time of a call, by a [Source] or a [Sink] in the input, and moves straight to where it is
// wanted. For callbacks see packages hg and bulk; [Node.HG] leads there.
package qs
