package tcp

import (
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/fault"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/engine"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

const (
	// sealSize is what is encrypted for one write: four records.
	sealSize = 64 << 10
	// maxSealed bounds what is encrypted and not written: what is encrypted at a time, and short answers of TLS itself that
	// a peer which does not read could have us heap up.
	maxSealed = sealSize + 32<<10
)

// A sealed is the TLS of a connection that the leader reads:
//
//	handshake: a goroutine of its own, over a duplicate of the descriptor that Go's netpoller watches
//	after it:  user memory ─ copy ─► seal ─► TLS ─► tap ─► fdSocket ─► socket, or out until the poller says there is room
//	           In.Space ◄─────────── open ◄─ TLS ◄─ tap ◄─ fdSocket ◄─ socket, or errNothing, which TLS can be asked after again
//
// Nothing is encrypted while something encrypted waits.
type sealed struct {
	*secured
	sock *fdSocket
}

// fdSocket reads and writes a descriptor without waiting.
type fdSocket struct {
	fd  int
	dry bool // the last read left nothing; of the reader

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
	errHeaped            = na.WithText(na.ErrProtocol, "the peer has TLS answer and does not read the answers")
)

// Read implements io.Reader.
func (s *fdSocket) Read(b []byte) (int, error) {
	if s.dry {
		return 0, errNothing
	}
	n, err := unix.Read(s.fd, b)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return 0, errNothing
	case err != nil:
		return 0, err
	case n == 0:
		return 0, io.EOF
	}
	s.dry = n < len(b)
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
	if len(s.out)+len(b)-n > maxSealed {
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

// pending tells whether something encrypted waits to be written.
func (s *fdSocket) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.out) > 0 && s.err == nil
}

// drain writes what waits, and tells whether nothing is left.
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

// pending tells whether something encrypted waits. c may be nil.
func (c *sealed) pending() bool { return c != nil && c.sock.pending() }

// end says close_notify, if that can be done at once. c may be nil.
func (c *sealed) end() {
	if c != nil && !c.pending() {
		_ = c.CloseWrite()
	}
}

// duplicate returns a file that waits in Go's netpoller, on the socket of fd, which has O_NONBLOCK.
func duplicate(fd int) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(dup), "tcp"), nil
}

// sealed returns the connection from now on: without waiting, over the descriptor that f is a duplicate of.
func (c *secured) sealed(fd int) *sealed {
	s := &fdSocket{fd: fd}
	c.tap.rw = s
	return &sealed{c, s}
}

// secure begins TLS on a connection that was just made. The socket is out of the poller until the handshake has ended.
// Locked.
func (c *conn) secure() {
	c.ca.poller.Remove(c.fd, c.id)
	c.added, c.watched = false, false
	f, err := duplicate(c.fd)
	if err != nil {
		c.fail(unreachable("connect", err))
		return
	}
	go c.shake(f, c.link.Name())
}

// shake does the handshake of a connection that was dialled. An end of c shuts the socket down, which ends it.
func (c *conn) shake(f *os.File, name string) {
	defer func() { _ = f.Close() }()
	t, err := c.ca.d.sec.dial(f, name)
	c.ca.e.Lock()
	if !c.dead {
		if err == nil {
			c.connecting = false
			c.tls = t.sealed(c.fd)
			err = c.watchFirst()
		}
		if err != nil {
			c.fail(insecure(err))
		} else {
			c.again()
			c.flush()
		}
	}
	c.ca.e.Unlock()
	c.ca.e.Flush()
}

// again has the leader read c although the poller will not say so: TLS may hold bytes that came earlier. Locked.
func (c *conn) again() {
	if c.dead || c.unread {
		return
	}
	c.unread = true
	c.ca.bell.unread = append(c.ca.bell.unread, c)
	c.ca.ring()
}

// readSealed is readOnce for a connection with TLS. It reads into the buffer: what TLS copies from inside cannot be
// allowed to meet memory that is gone.
func (c *conn) readSealed() (n, want int, err error) {
	space := c.in.Space()
	if c.lane {
		space = space[:min(len(space), max(int(c.turn.Load()), laneTurn))]
	}
	c.tls.sock.dry = false
	for n < len(space) && err == nil {
		var k int
		k, err = c.tls.Read(space[n:])
		n += k
	}
	c.in.Got(n)
	if failed := c.tls.sock.failed(); failed != nil {
		return n, n, failed
	}
	c.left = err == nil || n > 0 && err != errNothing // the error comes again
	switch {
	case err == errNothing && n == 0:
		return 0, len(space), unix.EAGAIN
	case err == errNothing:
		return n, n + 1, nil
	case n > 0:
		return n, n, nil
	case err == io.EOF:
		return 0, 0, nil
	}
	return 0, 0, err
}

// writeSealed is write for a connection with TLS. Bulk data is copied before it is encrypted, as TLS must not meet memory
// that is gone.
func (c *conn) writeSealed() (done bool, err error) {
	if c.tls.pending() {
		if done, err := c.tls.sock.drain(); !done || err != nil {
			return false, err
		}
	}
	var room [maxVectors][]byte
	iov := c.clip(c.out.Gather(room[:0]))
	var b []byte
	if len(iov) == 1 && len(iov[0]) <= c.out.Front() {
		b = iov[0][:min(len(iov[0]), sealSize)] // our own memory
	} else {
		buf := sealBufs.Get().(*[sealSize]byte)
		defer sealBufs.Put(buf)
		n := 0
		for _, from := range iov {
			k, ok := fault.Copy(buf[n:], from)
			if !ok && c.out.Fault() {
				return true, nil // there is room, for the zeroes that follow
			}
			n += k
		}
		b = buf[:n]
	}
	c.out.Wrote(len(b))
	_, err = c.tls.Write(b)
	return err == nil && !c.tls.pending(), err
}

// sealBufs are for the time of one write.
var sealBufs = sync.Pool{New: func() any { return new([sealSize]byte) }}

// A bell tells the goroutine that leads, or the assist, of what the poller cannot see.
type bell struct {
	ca *polled
	fd int // an eventfd in the poller

	// Guarded by the endpoint's lock.
	unread []*conn    // to be read
	shaken []*inbound // whose handshake has ended
}

// hang gives ca its bell, if there is TLS.
func (ca *polled) hang() error {
	if ca.d.sec == nil {
		return nil
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return na.WithText(na.ErrIO, "eventfd: "+err.Error())
	}
	ca.bell = &bell{ca: ca, fd: fd}
	if _, err := ca.poller.Add(fd, ca.bell); err != nil {
		ca.bell.close()
		return na.WithText(na.ErrIO, "watch the eventfd: "+err.Error())
	}
	return nil
}

// close ends the bell, and leaves the poller, which ends too, alone. b may be nil.
func (b *bell) close() {
	if b != nil {
		_ = unix.Close(b.fd)
	}
}

// ring rings the bell. Locked.
func (ca *polled) ring() {
	if !ca.released {
		one := [8]byte{1}
		_, _ = unix.Write(ca.bell.fd, one[:])
	}
}

// Ready implements na.Pollable.
func (b *bell) Ready(_, _ bool) {
	var count [8]byte
	_, _ = unix.Read(b.fd, count[:])
	b.ca.e.Lock()
	unread, shaken := b.unread, b.shaken
	b.unread, b.shaken = nil, nil
	unread = slices.DeleteFunc(unread, func(c *conn) bool {
		c.unread = false
		return c.dead
	})
	b.ca.e.Unlock()
	for _, c := range unread {
		c.read()
	}
	for _, p := range shaken {
		p.shaken()
	}
}

// Proof implements engine.Prover.
func (c *conn) Proof() na.Identity {
	if c.tls == nil {
		return na.Identity{}
	}
	return c.tls.who
}

// shake does the TLS handshake of a connection that came in, and reads its HELLO. The leader goes on.
func (p *inbound) shake(f *os.File) {
	p.err = errStopped
	defer p.shook(f) // also when a function of the user's ends the goroutine
	due := time.Now().Add(p.ca.d.opts.HandshakeTimeout)
	t, err := p.ca.d.sec.serve(f, &net.TCPAddr{IP: p.remote.AsSlice()}, due)
	var g frame.Greeting
	if err == nil {
		g, err = readHello(t)
	}
	if err != nil {
		_ = f.SetDeadline(time.Now().Add(lastGrace))
		turnAway(f, t, err)
	}
	if p.err, p.g = err, g; err == nil {
		p.speaks = t.speaksFor(g.Listen)
		p.tls = t.sealed(p.fd)
	}
}

// shook tells the leader that the handshake has ended.
func (p *inbound) shook(f *os.File) {
	e := p.ca.e
	e.Lock()
	p.ca.bell.shaken = append(p.ca.bell.shaken, p)
	p.ca.ring()
	e.Unlock()
	_ = f.Close()
}

// shaken goes on with a connection whose handshake has ended; the leader does.
func (p *inbound) shaken() {
	switch {
	case p.gone:
	case p.err != nil || p.late:
		p.drop()
	default:
		p.admit(p.g)
	}
}

var _ engine.Prover = (*conn)(nil)
