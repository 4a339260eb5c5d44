// Package bulk moves large data between the memories of two processes. One process sends a handle
// of its memory inside an RPC; the other one pulls from that memory or pushes to it, at its own
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
// To block instead, use Do or the io adaptors, which work on the memory of a peer or of this
// process:
//
//	ReaderAt   ReadAt(p, off):  one pull directly into p
//	Reader     Read, WriteTo:   ◄── a window of chunks is pulled ahead
//	Writer     Write, ReadFrom: a window of chunks is pushed behind ──►  Flush, Close wait for all of them
//
// A File is a file mapped into memory: handles of it move its bytes without a copy. If the file is
// truncated meanwhile, a transfer of the missing pages fails on both sides, and nothing else fails.
//
// A handle is a capability: every process that has its bytes can read or write the memory, as its
// access mode allows, until it is closed. Its token is random, checked by the owner on every
// request, and never printed.
//
// Peers on this machine read memory of Alloc without help of its owner, with one copy or none; see
// NewView. For other peers it is ordinary memory.
//
// A small read-only handle carries its data inside the RPC, so a pull of it moves nothing. The peer
// sees the data as it was when the RPC was forwarded.
//
// Cancel of a transfer is local, even in the middle of a chunk: once done has run, the local memory
// is not accessed any more. The contents of the destination are then undefined.
//
// The package does not retry, does not compute checksums of the data, and does not schedule between
// transfers.
package bulk
