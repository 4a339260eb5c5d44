// Package bulk moves large data between the memories of two processes: the one that needs the data, or has it, sends a
// handle inside an RPC; the other pulls or pushes, as much and as fast as it likes.
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
// A File is memory that is a file's: handles made of it move its bytes without a copy. Memory that is gone, because a file
// was cut short under its mapping, is an error of the transfer that meets it, on both sides, and of nothing else.
//
// A handle is a key to memory: whoever has its bytes can read or write, as its access mode allows, until it is closed. Its
// token is random, is checked by the owner on every request, and is not printed.
//
// A small handle that peers may only read takes its data along inside the RPC: a pull of it moves nothing. The peer sees
// the data as it was when the RPC was forwarded.
//
// Cancel of a transfer is local, in the middle of a piece too: when done has run, the local memory is not touched any
// more. What has arrived by then is undefined on the side that was written.
//
// Not here: retries, checksums of the data, scheduling between transfers.
package bulk
