// Package files is what qs cp and qs serve do with files: it copies them and directories between a folder of this machine and that
// of a target, in pieces that are verified, so that a copy that was broken off goes on where it was.
//
//	origin   NewCopier (plan.go: what there is to do) ─► Run ─► send.go: upload, receive.go: download; stream.go: from and to pipes
//	              │ client.go, remote.go: methods, and rpcPiece with bulk memory        │
//	target   Serve ─► server.go ─► transfers.go ─► transfer.go, move.go: one file ──────┴─ source.go, part.go with journal.go, sums.go
//
// Small calls are methods of package qs. Pieces are not, and lend no qs.Source and Sink: those end with one call,
// where a piece goes through memory that is registered once, several are under way in order, and the target sums and writes one
// megabyte while it pulls the next.
//
//	both   protocol.go; disk.go with nonblock_*.go; source.go with populate_*.go; part.go with reserve_*.go and lock_*.go;
//	       holes.go with holes_*.go (sparse files); buffers.go, overlap.go; caller.go (whose limits a transfer counts for)
package files
