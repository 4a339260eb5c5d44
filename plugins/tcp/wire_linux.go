package tcp

import (
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/memfault"
	"github.com/quicksilver-rpc/quicksilver/internal/netconn"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A wire is a nonblocking socket, with or without TLS.
type wire struct {
	fd  int
	tls *tlsWire // nil without TLS
}

// read reads into iov. dry reports that nothing more has arrived; if nothing had at all, n is 0 and err nil. The end
// of the stream is netconn.ErrEOF.
func (w wire) read(iov [][]byte) (n int, dry bool, err error) {
	switch {
	case w.tls != nil:
		return w.tls.read(iov[0])
	case len(iov) == 1:
		n, err = unix.Read(w.fd, iov[0])
	default:
		n, err = unix.Readv(w.fd, iov)
	}
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, true, nil
	case err == nil && n == 0:
		return 0, false, netconn.ErrEOF
	}
	return max(n, 0), n < totalLen(iov), err
}

// write writes iov, whose first front bytes are not user memory. full reports that the socket accepts no more until the
// poller reports it writable.
func (w wire) write(iov [][]byte, front int) (n int, full bool, err error) {
	switch {
	case w.tls != nil:
		return w.tls.write(iov, front)
	case len(iov) == 1:
		n, err = unix.Write(w.fd, iov[0])
	default:
		n, err = unix.Writev(w.fd, iov)
	}
	if err == unix.EAGAIN || err == unix.EINTR {
		return 0, true, nil
	}
	return max(n, 0), n < totalLen(iov), err
}

// canBorrow reports whether read may get user memory. Package tls must not: an access to memory without pages would
// panic in it.
func (w wire) canBorrow() bool { return w.tls == nil }

// hasBuffered reports whether TLS may hold bytes from the socket that read has not returned. The next read then
// returns only those.
func (w wire) hasBuffered() bool { return w.tls != nil && w.tls.mayHaveBuffered }

// hasPending reports whether encrypted bytes wait to be written to the socket.
func (w wire) hasPending() bool { return w.tls != nil && w.tls.sock.hasPending() }

// closeWrite sends close_notify, if that is possible at once.
func (w wire) closeWrite() {
	if w.tls != nil && !w.hasPending() {
		_ = w.tls.CloseWrite()
	}
}

// totalLen returns the number of bytes in iov.
func totalLen(iov [][]byte) (n int) {
	for _, b := range iov {
		n += len(b)
	}
	return n
}

// copySize is how many bytes are copied for one write with TLS, which must not read user memory: four records.
const copySize = 64 << 10

// copyBufs holds buffers for the time of one write.
var copyBufs = sync.Pool{New: func() any { return new([copySize]byte) }}

// maxEncrypted is the largest number of encrypted bytes that wait to be written: those of one write, and short
// replies of TLS itself, which a peer that does not read could otherwise accumulate.
const maxEncrypted = copySize + 32<<10

// A tlsWire is TLS above a descriptor, after its handshake:
//
//	user memory ─ copy ─► write ─► TLS ─► lowerConn ─► fdSocket ─► socket, or unsent until the socket is writable
//	In.Space    ◄──────── read  ◄─ TLS ◄─ lowerConn ◄─ fdSocket ◄─ socket, or errWouldBlock, a temporary error for TLS
//
// Nothing more is encrypted while encrypted bytes wait to be written.
type tlsWire struct {
	*tlsConn
	sock            fdSocket
	mayHaveBuffered bool // TLS may hold bytes from the socket
}

// newTLSWire returns a tlsWire of c with the descriptor fd. c uses its own socket until useDescriptor.
func newTLSWire(c *tlsConn, fd int) *tlsWire {
	return &tlsWire{tlsConn: c, sock: fdSocket{fd: fd}, mayHaveBuffered: true}
}

// useDescriptor makes c read and write the descriptor from now on.
func (c *tlsWire) useDescriptor() { c.lower.rw = &c.sock }

// read is wire.read with TLS.
func (c *tlsWire) read(b []byte) (n int, dry bool, err error) {
	c.sock.shortRead = false
	for c.sock.drained = c.mayHaveBuffered; n < len(b) && err == nil; {
		var k int
		k, err = c.Read(b[n:])
		n += k
	}
	c.mayHaveBuffered = err == nil
	switch failed := c.sock.replyErr(); {
	case failed != nil:
		return n, true, failed
	case err == errWouldBlock:
		return n, c.sock.shortRead, nil
	case err == io.EOF:
		err = netconn.ErrEOF
	}
	return n, false, err
}

// write is wire.write with TLS.
func (c *tlsWire) write(iov [][]byte, front int) (n int, full bool, err error) {
	if done, err := c.sock.drain(); !done || err != nil || len(iov) == 0 {
		return 0, !done, err
	}
	b := iov[0][:min(len(iov[0]), copySize)]
	if len(iov) > 1 || len(iov[0]) > front {
		buf := copyBufs.Get().(*[copySize]byte)
		defer copyBufs.Put(buf)
		var ok bool
		if n, ok = memfault.Gather(buf[:], iov); !ok {
			return 0, false, unix.EFAULT
		}
		b = buf[:n]
	}
	_, err = c.Write(b)
	return len(b), c.sock.hasPending(), err
}

// duplicate returns a new descriptor of a connection of package net. It is nonblocking.
func duplicate(nc *net.TCPConn) (fd int, err error) {
	raw, err := nc.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	err = raw.Control(func(theirs uintptr) { fd, failed = unix.FcntlInt(theirs, unix.F_DUPFD_CLOEXEC, 0) })
	if err == nil {
		err = failed
	}
	if err != nil {
		return -1, err
	}
	return fd, nil
}

// fdSocket reads and writes a nonblocking descriptor.
type fdSocket struct {
	fd        int
	drained   bool // used by the reader: return errWouldBlock without a system call
	shortRead bool // used by the reader: the last read has emptied the socket

	mu     sync.Mutex // guards the fields below, also against the reader, because TLS writes replies; no other lock is taken with it
	unsent []byte     // encrypted bytes that the socket did not accept
	err    error      // of a write
}

// wouldBlockError is the error of a read that would block. It is temporary: package tls can continue to read after it.
type wouldBlockError struct{}

func (wouldBlockError) Error() string   { return "the read would block" }
func (wouldBlockError) Timeout() bool   { return true }
func (wouldBlockError) Temporary() bool { return true }

var (
	errWouldBlock    net.Error = wouldBlockError{}
	errUnreadReplies           = codes.WithText(codes.ErrProtocol, "the peer does not read the replies to its TLS records")
)

// Read implements io.Reader.
func (s *fdSocket) Read(b []byte) (int, error) {
	if s.drained {
		return 0, errWouldBlock
	}
	n, err := unix.Read(s.fd, b)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		s.shortRead = true
		return 0, errWouldBlock
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	s.drained = n < len(b)
	s.shortRead = s.drained
	return n, nil
}

// Write implements io.Writer. It accepts all bytes or fails forever: package tls cannot continue after half a record.
func (s *fdSocket) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	n := 0
	if len(s.unsent) == 0 {
		n = s.send(b)
	}
	if len(s.unsent)+len(b)-n > maxEncrypted {
		s.err = errUnreadReplies
	}
	if s.err == nil && n < len(b) {
		s.unsent = append(s.unsent, b[n:]...)
	}
	return len(b), s.err
}

// send writes b as far as the socket accepts it, and returns the number of bytes. mu is held.
func (s *fdSocket) send(b []byte) int {
	n, err := unix.Write(s.fd, b)
	if err != nil && err != unix.EAGAIN && err != unix.EINTR {
		s.err = err
	}
	return max(n, 0)
}

// hasPending reports whether encrypted bytes wait to be written.
func (s *fdSocket) hasPending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unsent) > 0 && s.err == nil
}

// drain writes waiting bytes, and reports whether none are left.
func (s *fdSocket) drain() (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unsent) > 0 && s.err == nil {
		s.unsent = s.unsent[s.send(s.unsent):]
	}
	if len(s.unsent) == 0 {
		s.unsent = nil // so that an idle connection holds no buffer
	}
	return len(s.unsent) == 0, s.err
}

// replyErr returns errUnreadReplies if that has happened: the reader must end the connection then, because there may
// be no writer. Other errors of writes are left to the writer.
func (s *fdSocket) replyErr() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.err, errUnreadReplies) {
		return s.err
	}
	return nil
}
