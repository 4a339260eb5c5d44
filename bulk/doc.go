// Package bulk moves large data between the memories of two processes. One sends a handle of its memory inside an RPC; the other
// pulls from it or pushes to it, as much and as fast as it likes.
//
//	origin                                            target
//	Create(segments) ─► Handle ─ inside RPC input ─►  Handle (remote)
//	                                                    │ Transfer(Pull or Push, offsets on both sides)
//	                                                    ▼
//	memory ◄═══════════ na Get / Put, piece by piece, a window of them under way ═══► local Handle
//	   │                                                │
//	Close: when it has completed no peer can            └─► OnProgress …, then done(op, err), in Trigger
//	touch the memory
//
// To block instead, use Do, or the io adaptors, over the memory of a peer or of this process:
//
//	ReaderAt   ReadAt(p, off): one pull straight into p
//	Reader     Read, WriteTo:  ◄── a window of pieces is pulled ahead
//	Writer     Write, ReadFrom: a window of pieces is pushed behind ──►  Flush, Close wait for all of it
//
// A File is a file mapped into memory: handles made of it move its bytes without a copy. If the file is truncated meanwhile, a
// transfer of the missing pages fails on both sides; nothing else is harmed.
//
// A handle is a key to memory: anyone who has its bytes can read or write, as its access mode allows, until it is closed. Its
// token is random, checked by the owner on every request, and never printed.
//
// Memory of Alloc is read by peers on this machine without help of its owner, with one copy, or none: see NewView. Elsewhere it is
// memory as any other.
//
// A small read-only handle carries its data inside the RPC, so a pull of it moves nothing. The peer sees the data as it was when the
// RPC was forwarded.
//
// Cancel of a transfer is local, even in the middle of a piece: once done has run, nobody touches the local memory. What the
// destination holds is then undefined.
//
// Not here: retries, checksums of the data, scheduling between transfers.
package bulk
