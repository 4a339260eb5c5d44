// Package httpgate serves methods of package qs over HTTP, as JSON: for browsers, curl, and programs in other languages.
//
//	POST /greet  "Ada"                 ──► JSON ──► qs.Method.Call ──► the node of a Peer: its own, or others
//	200  "Hello, Ada"                  ◄── JSON ◄── output, or an error with a code and a fate
//	GET  /ticks?input=3, event stream  ──► JSON ──► qs.Stream.Call
//	data: 1 … data: 2 … event: end     ◄── JSON ◄── items
//
// It needs no generated code: JSON is read and written by the types of the methods, as "qs call"
// does. It adds no authentication of its own: the caller of each call is the gate's node, which the
// Authorize of the target sees. Wrap the handler to authenticate clients.
package httpgate
