// Package sm carries sessions between processes of one machine through shared memory. Linux only:
// elsewhere Open returns ErrUnsupported.
//
//	origin                                                    target
//	session ─ Pull ─► own segment ══ the target reads it ══► Deliver, Place ─ session
//	                  own area    ══ bulk data, long messages, bodies ══►
//	          unix socket: handshake, descriptors, the last message, the end of the process
//	          eventfd (the bell): written only when the other side sleeps
//
// Each process writes only memory of its own, which is sealed so that it cannot shrink or be
// written by others, and maps that of its peers read-only (internal/ring). While both sides are
// awake a message needs no system call: the goroutine that polls a context checks the rings of the
// peers that have sent something lately, and writes the eventfd of a peer only if that has
// announced that it sleeps.
//
// An address is sm://NAME: a socket of that name in a directory of the user's,
// $XDG_RUNTIME_DIR/quicksilver or /tmp/quicksilver-UID, which only that user can open. A * at the
// end of a name to listen on is replaced by something unique. Beside the socket is NAME.qslock,
// which the process holds locked as long as it lives. Both files are removed at the end of the
// process, and after a kill by the next process that listens in the directory. There are no other
// files, and none in /dev/shm: memory is freed with its last user.
//
// A directory that is given in Options may have other files. They are not touched, and Open returns
// ErrAddrInUse if one of them has the name. If the socket of a running process is removed, the
// process cannot be reached, and its name is free when it ends.
//
// Bulk data, and bodies of messages, go through the area and are copied once by each side: shared
// memory may change while it is read. Memory of bulk.Alloc is in chunks (internal/pool) that peers
// of the same user map. A get copies from there, once and without the owner's help, and a view
// copies nothing. After each piece it is checked that the owner has not withdrawn the memory.
//
// There is no direct access to other memory of a peer, and none for writing.
package sm
