// Package mercury is a client and server for programs that use C Mercury over ofi+tcp, such as Margo and Mochi
// services.
//
//	Node.Call, Handle ─► requests, responses ─┐
//	Lend, Remote      ─► reads, writes       ─┴─► conn ◄─── TCP ───► libfabric, Mercury
//
// The other side needs no changes. It must have Mercury 2.3 or later with libfabric 1.18 or later, run on a
// little-endian machine, and use addresses ofi+tcp://. Package mercury/proc encodes arguments as C does; Define
// combines it with Call. For Margo there are DefineMargo, whose methods are called and served at any provider, and
// Node.Provide, which starts a provider.
//
// Guarantees: a context ends every operation. When Call, Get, Put or Region.Close has returned, the memory of the
// caller is not accessed any more, whether the peer is running, frozen or dead. Each length from a peer is checked,
// and all memory that a peer can make the process use is limited.
//
// The guarantees are weaker than those of package hg, because of the protocol of C: a peer that hangs is not
// detected, only deadlines end calls; the target is not notified of a cancel; a request may be dropped without a
// response; nothing reserves memory at the target.
//
// There is no security: every process that can connect can make calls, and nothing is encrypted. Listen on loopback,
// or on a network whose machines you trust. Keys of lent memory are random here; those of C are small numbers that
// are valid on every connection.
package mercury
