// Package files implements the file operations of qs cp and qs serve. It copies files and directories between a folder
// on this machine and a folder of a target. The data is transferred in verified pieces, so that an interrupted copy can
// be resumed.
//
// The origin's side is a Copier. NewCopier lists the files to copy (plan.go). Run uploads files (send.go), downloads
// files (receive.go), and copies from and to streams (stream.go). Both use methods of the target (client.go, remote.go)
// and rpcPiece requests with bulk memory.
//
// The target's side is a Server (server.go). It manages transfers (transfers.go). Each transfers one file (transfer.go,
// move.go), in registered memory (buffers.go), and counts toward the limits of a client (caller.go).
//
// Both sides use the protocol's types (protocol.go), the local file tree (disk.go), files to send (source.go), files
// being received (part.go, journal.go), checksums (sums.go), sparse files (holes.go) and pipelining of two stages
// (overlap.go). Files with a system in their name contain the parts that depend on the system.
//
// The short calls are methods of package qs. Pieces do not use qs.Source and qs.Sink, which are limited to a single
// call. Instead, a piece is transferred through memory that is registered once for many pieces, several pieces are in
// flight in order, and the target sums and writes one megabyte while it pulls the next.
package files
