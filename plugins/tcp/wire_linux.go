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

// A wire is what a conn reads and writes without waiting: a socket, or TLS above one.
type wire struct {
	fd  int
	tls *tlsWire // nil without
}

// read reads, and reports whether nothing more has come. n is 0 and err nil when nothing had. The end of the stream is netconn.ErrEOF.
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
	return max(n, 0), n < total(iov), err
}

// write writes, and reports whether no more will be taken until the poller says so. The first front bytes are no user memory.
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
	return max(n, 0), n < total(iov), err
}

// lends reports whether read may be given user memory, which TLS must not meet: it may be gone.
func (w wire) lends() bool { return w.tls == nil }

// holds reports whether something was taken from the socket that read has not returned. Then the next read takes no more.
func (w wire) holds() bool { return w.tls != nil && w.tls.holds }

// pending reports whether something that was written has not been sent.
func (w wire) pending() bool { return w.tls != nil && w.tls.sock.pending() }

// end says that nothing more will be written, if that can be done at once.
func (w wire) end() {
	if w.tls != nil && !w.pending() {
		_ = w.tls.CloseWrite()
	}
}

func total(iov [][]byte) (n int) {
	for _, b := range iov {
		n += len(b)
	}
	return n
}

// copySize is what is copied for one write of TLS, which must not be lent user memory: four records.
const copySize = 64 << 10

// copyBufs are for the time of one write.
var copyBufs = sync.Pool{New: func() any { return new([copySize]byte) }}

// maxEncrypted bounds what is encrypted and not written: what is encrypted at a time, and short answers of TLS itself that
// a peer which does not read could have us heap up.
const maxEncrypted = copySize + 32<<10

// A tlsWire is TLS above a descriptor, after its handshake:
//
//	user memory ─ copy ─► write ─► TLS ─► lowerConn ─► fdSocket ─► socket, or out until the poller says there is room
//	In.Space    ◄──────── read  ◄─ TLS ◄─ lowerConn ◄─ fdSocket ◄─ socket, or errNothing, which TLS can be asked after again
//
// Nothing is encrypted while something encrypted waits.
type tlsWire struct {
	*tlsConn
	sock  fdSocket
	holds bool // TLS may hold bytes that came
}

// newTLSWire returns c above fd. The connection goes on as it was until begin.
func newTLSWire(c *tlsConn, fd int) *tlsWire {
	return &tlsWire{tlsConn: c, sock: fdSocket{fd: fd}, holds: true}
}

func (c *tlsWire) begin() { c.lower.rw = &c.sock }

func (c *tlsWire) read(b []byte) (n int, dry bool, err error) {
	c.sock.short = false
	for c.sock.dry = c.holds; n < len(b) && err == nil; {
		var k int
		k, err = c.Read(b[n:])
		n += k
	}
	c.holds = err == nil
	switch failed := c.sock.failed(); {
	case failed != nil:
		return n, true, failed
	case err == errNothing:
		return n, c.sock.short, nil
	case err == io.EOF:
		err = netconn.ErrEOF
	}
	return n, false, err
}

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
	return len(b), c.sock.pending(), err
}

// duplicate returns a descriptor of our own for a connection of package net, which has O_NONBLOCK.
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

// fdSocket reads and writes a descriptor without waiting.
type fdSocket struct {
	fd    int
	dry   bool // nothing more is to be read now
	short bool // the last read left nothing; both of the reader

	mu  sync.Mutex // guards the fields below; the last lock. A reader writes too: TLS answers for itself
	out []byte     // encrypted, and not written yet
	err error      // of a write
}

// nothing is the error of a read that would wait. Package tls can be asked again after an error that is temporary.
type nothing struct{}

func (nothing) Error() string   { return "nothing has come" }
func (nothing) Timeout() bool   { return true }
func (nothing) Temporary() bool { return true }

var (
	errNothing net.Error = nothing{}
	errHeaped            = codes.WithText(codes.ErrProtocol, "the peer has TLS answer and does not read the answers")
)

// Read implements io.Reader.
func (s *fdSocket) Read(b []byte) (int, error) {
	if s.dry {
		return 0, errNothing
	}
	n, err := unix.Read(s.fd, b)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		s.short = true
		return 0, errNothing
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	s.dry = n < len(b)
	s.short = s.dry
	return n, nil
}

// Write implements io.Writer. It takes everything, or fails for good: package tls cannot write half a record.
func (s *fdSocket) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	n := 0
	if len(s.out) == 0 {
		n = s.send(b)
	}
	if len(s.out)+len(b)-n > maxEncrypted {
		s.err = errHeaped
	}
	if s.err == nil && n < len(b) {
		s.out = append(s.out, b[n:]...)
	}
	return len(b), s.err
}

// send writes what the socket takes.
func (s *fdSocket) send(b []byte) int {
	n, err := unix.Write(s.fd, b)
	if err != nil && err != unix.EAGAIN && err != unix.EINTR {
		s.err = err
	}
	return max(n, 0)
}

// pending reports whether something encrypted waits to be written.
func (s *fdSocket) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.out) > 0 && s.err == nil
}

// drain writes what waits, and reports whether nothing is left.
func (s *fdSocket) drain() (done bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.out) > 0 && s.err == nil {
		s.out = s.out[s.send(s.out):]
	}
	if len(s.out) == 0 {
		s.out = nil // an idle connection has no buffer
	}
	return len(s.out) == 0, s.err
}

// failed returns why nothing can be written any more, if only the writer would hear of it.
func (s *fdSocket) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.Is(s.err, errHeaped) {
		return s.err
	}
	return nil
}
