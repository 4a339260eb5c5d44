// Package bulk moves large data between the memory of two processes. One process sends a handle to
// its memory inside an RPC. The other process pulls from that memory or pushes to it, at its own
// pace.
//
//	origin                                            target
//	Create(segments) ─► Handle ─ inside RPC input ─►  Handle (remote)
//	                                                    │ Transfer(Pull or Push, offsets on both sides)
//	                                                    ▼
//	memory ◄═══════════ na Get / Put of chunks, a window of them in flight ═════════► local Handle
//	   │                                                │
//	Close: once it has completed no peer can            └─► OnProgress …, then done(op, err), in Trigger
//	access the memory
//
// To block until a transfer completes, use Do or one of the io adapters. The adapters work on the
// memory of a peer or of this process:
//
//	ReaderAt   ReadAt(p, off):  one pull directly into p
//	Reader     Read, WriteTo:   ◄── a window of chunks is pulled ahead
//	Writer     Write, ReadFrom: a window of chunks is pushed behind ──►  Flush, Close wait for all of them
//
// A File is a memory-mapped file. Handles to it move the file's bytes without copying them. If the
// file is truncated while it is mapped, transfers that touch the missing pages fail on both sides.
// Nothing else fails.
//
// A handle is a capability: until it is closed, any process that has its bytes can read or write
// the memory, as its access mode permits. Its token is random, is checked by the owner on every
// request, and is never printed.
//
// Peers on the same machine read memory returned by Alloc without involving its owner, with at most
// one copy; see NewView. To other peers it is ordinary memory.
//
// A small read-only handle carries its data inside the RPC, so that a pull from it moves nothing
// over the network. The peer sees the data as it was when the RPC was forwarded.
//
// Canceling a transfer is a local operation, even in the middle of a chunk. Once done has run, the
// transfer no longer accesses the local memory. The contents of the destination are then undefined.
//
// The package does not retry transfers, compute checksums, or schedule one transfer against
// another.
package bulk
