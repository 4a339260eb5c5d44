// Package httpgate serves methods of package qs as JSON over HTTP, for browsers, curl, and programs
// in other languages.
//
//	POST /greet  "Ada"                 ──► JSON ──► qs.Method.Call ──► the node of a Peer (the gate's own or another)
//	200  "Hello, Ada"                  ◄── JSON ◄── output, or an error with its code and fate
//	GET  /ticks?input=3, event stream  ──► JSON ──► qs.Stream.Call
//	data: 1 … data: 2 … event: end     ◄── JSON ◄── items
//
// No generated code is needed. JSON is converted according to the types of the methods, as in the
// command "qs call". The package does not authenticate HTTP clients. To the target's Authorize
// function, the caller is always the gate's node. To authenticate clients, wrap the Gate in a
// handler that does so.
package httpgate
