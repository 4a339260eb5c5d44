// Package files implements the file operations of qs cp and qs serve. It copies files and directories between a folder
// on this machine and a folder of a target. The data is transferred in verified pieces, so that an interrupted copy can
// be resumed.
//
//	origin   NewCopier (plan.go: what to copy) ─► Run ─► send.go: upload, receive.go: download; stream.go: from and to pipes
//	              │ client.go, remote.go: methods, and rpcPiece with bulk memory        │
//	target   Serve ─► server.go ─► transfers.go ─► transfer.go, move.go: one file ──────┴─ source.go, part.go with journal.go, sums.go
//
// Small calls are methods of package qs. Pieces are not, and do not use qs.Source and qs.Sink, which end with one call.
// A piece, by contrast, uses memory that is registered once, several pieces are in flight in order, and the target sums
// and writes one megabyte while it pulls the next.
//
//	both   protocol.go; disk.go with nonblock_*.go; source.go with populate_*.go; part.go with reserve_*.go and lock_*.go;
//	       holes.go with holes_*.go (sparse files); buffers.go, overlap.go; caller.go (whose limits a transfer counts for)
package files
