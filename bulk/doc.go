// Package bulk moves large data between the memory of two processes. One process sends a handle to
// its memory inside an RPC. The other process pulls from that memory or pushes to it, at its own
// pace.
//
// The origin of the RPC calls Create with segments of its memory and sends the Handle in the input.
// At the target, the decoded Handle is remote. The target calls Transfer with the remote Handle, a
// local Handle and the direction. The data is moved in chunks, of which a limited number, the
// window, are in flight at a time. OnProgress and then done run in Trigger. Once Close of the
// origin's Handle has completed, no peer can access the memory.
//
// To block until a transfer completes, use Do or one of the following types, which work on the
// memory of a peer or of this process:
//
//   - A ReaderAt pulls directly into the caller's buffer, with one transfer for each ReadAt.
//   - A Reader reads sequentially and pulls a window of chunks ahead.
//   - A Writer writes sequentially and pushes a window of chunks in the background. Flush and Close
//     wait for all of them.
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
