// Package sm implements a transport between processes on the same machine that uses shared memory.
// It is available only on Linux; on other systems Open returns ErrUnsupported.
//
//	origin                                                    target
//	session ─ Pull ─► own segment ══ the target reads it ══► Deliver, Place ─ session
//	                  own area    ══ bulk data, long messages, bodies ══►
//	          unix socket: handshake, descriptors, the last message, the end of the process
//	          eventfd (the bell): written only when the other side sleeps
//
// Each process writes only to its own memory, which is sealed so that it cannot shrink or be
// written by others. It maps the memory of its peers read-only (internal/ring). While both sides
// are awake, a message requires no system call: the goroutine that polls a context checks the rings
// of the peers that have recently sent something, and it writes to a peer's eventfd only if the
// peer has announced that it is sleeping.
//
// An address has the form sm://NAME. It refers to a socket of that name in a directory of the user,
// $XDG_RUNTIME_DIR/quicksilver or /tmp/quicksilver-UID, which only that user can open. A trailing *
// in a name to listen on is replaced with a unique string. Next to the socket is the file
// NAME.qslock, which the process keeps locked while it runs. Both files are removed when the
// process exits or, if it was killed, by the next process that listens in the directory. There are
// no other files, and none in /dev/shm: memory is freed when its last user exits.
//
// A directory specified in Options may contain other files. They are not modified, and Open returns
// ErrAddrInUse if one of them has the requested name. If the socket of a running process is
// removed, the process becomes unreachable, and its name becomes available when it exits.
//
// Bulk data and message bodies pass through the area, and each side copies them once, because
// shared memory may change while it is being read. Memory allocated with bulk.Alloc is in chunks
// (internal/pool) that peers of the same user map. A get copies directly from such a chunk, once
// and without the owner's help, and a view copies nothing. After each piece, the reader verifies
// that the owner has not revoked access to the memory.
//
// Other memory of a peer cannot be accessed directly, and no memory of a peer can be written
// directly.
package sm
