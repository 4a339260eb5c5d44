// Package sm carries sessions between processes of one machine through shared memory. Linux only: elsewhere Open returns
// ErrUnsupported.
//
//	origin                                                    target
//	session ─ Pull ─► own segment ══ the target reads it ══► Deliver, Place ─ session
//	                  own area    ══ bulk data, long messages, bodies ══►
//	          unix socket: handshake, descriptors, last words, the end
//	          eventfd: rung only when the other side sleeps
//
// Each process writes only memory of its own, sealed so that it cannot shrink or be written by anybody else, and maps its peers'
// read-only (internal/ring). While both sides are awake a message costs no system call: the leader of a context looks at the rings of
// the peers that it has heard of lately, and rings only a peer that has said that it sleeps.
//
// An address is sm://NAME: a socket of that name in a directory of the user's, $XDG_RUNTIME_DIR/quicksilver or
// /tmp/quicksilver-UID, which only that user can open. A * at the end of a name to listen on is replaced by something unique.
// Beside the socket is NAME.qslock, which the process holds locked as long as it lives. Both are removed at the end, and after a kill
// by the next process that listens in the directory. Nothing else is in the file system, and nothing in /dev/shm: memory is freed
// with its last user. A directory that is given in Options may hold other files. They are left alone, and Open says ErrAddrInUse if one of them
// has the name. If the socket of a running process is removed nobody reaches it, and its name is free when it ends.
//
// Bulk data goes through the area, copied once by each side. So are bodies: what a peer shares may change while it is looked at. What
// bulk.Alloc has returned is in chunks (internal/pool) that peers of the same user map: a get copies from there, once and without help of
// the owner, and a view copies nothing. That the owner has not taken the memory back meanwhile is looked at after each piece.
//
// Not here: direct access to other memory of a peer, and to any for writing.
package sm
