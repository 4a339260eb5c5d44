// Package mercury is a client and server for programs that use C Mercury over ofi+tcp, such as Margo and Mochi
// services.
//
//	Node.Call, Handle ─► requests, responses ─┐
//	Lend, Remote      ─► reads, writes       ─┴─► conn ◄─── TCP ───► libfabric, Mercury
//
// The other side needs no changes. It must use Mercury 2.3 or later with libfabric 1.18 or later, run on a
// little-endian machine, and use ofi+tcp:// addresses. Package mercury/proc encodes arguments as C does, and Define
// combines it with Call. For Margo, DefineMargo defines methods that can be called and served at any provider, and
// Node.Provide starts a provider.
//
// Every operation completes when its context is done. Once Call, Get, Put or Region.Close has returned, the caller's
// memory is no longer accessed, whether the peer is running, hanging or dead. Every length received from a peer is
// checked, and the memory that a peer can cause this process to use is limited.
//
// These guarantees are weaker than those of package hg because of the C protocol. A peer that hangs is not detected, so
// that only a deadline completes a call to it. The target is not notified of a cancellation. A request may be dropped
// without a response. No memory is reserved at the target.
//
// There is no security. Every process that can connect can make calls, and nothing is encrypted. Listen on loopback, or
// on a network on which you trust all machines. The keys of memory lent by this package are random. Those of C are
// small numbers that are valid on every connection.
package mercury
