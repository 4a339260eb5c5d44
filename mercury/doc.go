// Package mercury calls, and serves, programs that use C Mercury over ofi+tcp: Margo and Mochi services among them.
//
//	Node.Call, Handle ─► requests, responses ─┐
//	Lend, Remote      ─► reads, writes       ─┴─► conn ◄─── TCP ───► libfabric, Mercury
//
// The other side needs nothing installed: Mercury 2.3 or later with libfabric 1.18 or later, on a little-endian machine, with
// addresses ofi+tcp://. Package mercury/proc encodes arguments as C does; Define joins it with Call.
// For Margo there are DefineMargo, whose methods are called and served at any provider, and Node.Provide, which begins a provider.
//
// What always holds: a context ends every operation; when Call, Get, Put or Region.Close returns, nobody touches the caller's memory any
// more, whether the peer is alive, frozen or gone; each length from a peer is checked, and all that a peer can make grow is bounded.
//
// It promises less than package hg, because C does: a peer that hangs is not noticed, only deadlines end calls; a cancel is not told
// to the target; a request may be dropped without an answer; nothing guarantees room at the target.
//
// There is no security: any process that can connect can call, and nothing is encrypted: listen on loopback, or on a network whose machines
// you trust. Keys of lent memory are random here; those of C are small numbers, good for every connection.
package mercury
