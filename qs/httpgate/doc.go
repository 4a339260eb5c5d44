// Package httpgate serves methods of package qs as JSON over HTTP, for browsers, curl, and programs
// in other languages.
//
// A POST request to /greet with the body "Ada" calls the method greet. The response has status 200
// and the body "Hello, Ada", or reports an error with its code and the fate of the request. A GET
// request to /ticks?input=3 calls a stream, whose items are sent as server-sent events. All calls go
// to one Peer, which may be the gate's own node or another one.
//
// No generated code is needed. JSON is converted according to the types of the methods, as in the
// command "qs call". The package does not authenticate HTTP clients. To the target's Authorize
// function, the caller is always the gate's node. To authenticate clients, wrap the Gate in a
// handler that does so.
package httpgate
