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

// read reads into iov. dry reports whether the socket has no more bytes. If nothing has arrived, read returns 0 and no
// error. At the end of the stream, it returns netconn.ErrEOF.
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

// write writes iov, whose first front bytes are not user memory. full reports whether the socket accepts no more bytes.
// In that case the caller must wait until the poller reports the socket as writable.
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

// canBorrow reports whether read may be passed user memory. It may not with TLS, because package tls would panic when
// it accesses memory without pages, such as that of a truncated file.
func (w wire) canBorrow() bool { return w.tls == nil }

// hasBuffered reports whether TLS may hold bytes that were read from the socket but not returned by read. If so, the
// next read returns only such bytes.
func (w wire) hasBuffered() bool { return w.tls != nil && w.tls.mayHaveBuffered }

// hasPending reports whether encrypted bytes have not been written to the socket yet.
func (w wire) hasPending() bool { return w.tls != nil && w.tls.sock.hasPending() }

// closeWrite sends close_notify if the socket accepts it immediately. Without TLS it does nothing.
func (w wire) closeWrite() {
	if w.tls != nil && !w.hasPending() {
		_ = w.tls.CloseWrite()
	}
}

// totalLen returns the sum of the lengths of the slices in iov.
func totalLen(iov [][]byte) (n int) {
	for _, b := range iov {
		n += len(b)
	}
	return n
}

// copySize is the maximum number of bytes, four TLS records, that are copied for one write with TLS. They are copied
// because package tls must not read user memory.
const copySize = 64 << 10

// copyBufs is a pool of buffers into which a write with TLS copies user memory. Each buffer is in use for one write.
var copyBufs = sync.Pool{New: func() any { return new([copySize]byte) }}

// maxEncrypted is the maximum number of encrypted bytes waiting to be written. It allows for those of one write and for
// short replies that TLS generates itself. Without a limit, such replies would accumulate if the peer does not read.
const maxEncrypted = copySize + 32<<10

// A tlsWire reads and writes a nonblocking descriptor through TLS, after the handshake.
//
// Data to be sent is copied from user memory and encrypted. The encrypted bytes that the socket does not accept are
// kept in sock until it is writable. No more data is encrypted until they have been written. If the socket has no bytes
// to read, package tls receives errWouldBlock, which it treats as temporary.
type tlsWire struct {
	*tlsConn
	sock            fdSocket
	mayHaveBuffered bool // TLS may hold bytes that were read from the socket
}

// newTLSWire returns a tlsWire that uses c and the descriptor fd. c continues to use its own socket until useDescriptor
// is called.
func newTLSWire(c *tlsConn, fd int) *tlsWire {
	return &tlsWire{tlsConn: c, sock: fdSocket{fd: fd}, mayHaveBuffered: true}
}

// useDescriptor makes c read and write the descriptor instead of its own socket.
func (c *tlsWire) useDescriptor() { c.lower.rw = &c.sock }

// read implements wire.read with TLS.
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

// write implements wire.write with TLS.
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

// duplicate returns a duplicate of the descriptor of nc, in nonblocking mode.
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

// An fdSocket reads and writes a nonblocking descriptor on behalf of package tls.
type fdSocket struct {
	fd        int
	drained   bool // Read must return errWouldBlock without a system call; used only by the reader
	shortRead bool // the last read emptied the socket; used only by the reader

	mu     sync.Mutex // guards the fields below; locked by the reader too, because TLS writes replies; no other lock is acquired while it is held
	unsent []byte     // encrypted bytes that the socket did not accept
	err    error      // error of a write, after which all writes fail
}

// A wouldBlockError is returned by a read that would block. It is temporary, so that package tls allows further reads.
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

// Write implements io.Writer. It either accepts all of b or fails permanently, because package tls cannot continue
// after writing part of a record.
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

// send writes as much of b as the socket accepts and returns the number of bytes written. s.mu must be held.
func (s *fdSocket) send(b []byte) int {
	n, err := unix.Write(s.fd, b)
	if err != nil && err != unix.EAGAIN && err != unix.EINTR {
		s.err = err
	}
	return max(n, 0)
}

// hasPending reports whether encrypted bytes are waiting to be written.
func (s *fdSocket) hasPending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.unsent) > 0 && s.err == nil
}

// drain writes the unsent bytes. done reports whether all of them have been written.
func (s *fdSocket) drain() (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.unsent) > 0 && s.err == nil {
		s.unsent = s.unsent[s.send(s.unsent):]
	}
	if len(s.unsent) == 0 {
		s.unsent = nil // release the buffer, so that an idle connection holds none
	}
	return len(s.unsent) == 0, s.err
}

// replyErr returns errUnreadReplies if replies of TLS could not be written because the peer does not read. The reader
// must then close the connection, because no writer may be active. Other write errors are reported to the writer.
func (s *fdSocket) replyErr() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.err, errUnreadReplies) {
		return s.err
	}
	return nil
}
