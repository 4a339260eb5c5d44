package rendezvous

import (
	"errors"
	"io"
	"net"
	"os"
	"time"

	"github.com/quicksilver-rpc/quicksilver/rendezvous/protocol"
)

const (
	// readSize is how much is read at a time.
	readSize = 8 << 10
	// writeSize is how much has to leave within ServerConfig.Write.
	writeSize = 256 << 10
	// linger is how long a member may take to close its side, so that our last words reach it.
	linger = time.Second
)

var errSlow = errors.New("takes nothing of what there is for it")

// A conn is a connection at the server. It has two goroutines, so that a member that does not read is read from.
type conn struct {
	net.Conn
	server *server
	id     int
	wake   chan struct{} // has room for one: the queue has changed
	read   chan struct{} // closed when receive has ended

	// Guarded by server.mu.
	queue   [][]byte // its bytes belong to all; bounded by protocol.Limits.Total
	closing bool
	joined  bool
}

func (c *conn) enqueueLocked(o protocol.Output) {
	if len(o.Send) > 0 {
		c.queue = append(c.queue, o.Send)
	}
	if o.Close {
		c.closing = true
		delete(c.server.conns, c.id)
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// receive hands bytes to the machine until there are no more. What comes after the machine is through with this connection
// is dropped.
func (c *conn) receive() {
	defer close(c.read)
	s := c.server
	_ = c.SetReadDeadline(time.Now().Add(s.cfg.Handshake))
	buf := make([]byte, readSize)
	for {
		n, err := c.Read(buf)
		s.do(func() {
			if f := failpoint.Load(); f != nil {
				(*f)(buf[:n])
			}
			if n > 0 {
				s.machine.Receive(c.id, buf[:n])
			}
			if !c.joined && s.machine.HasJoined(c.id) {
				c.joined = true
				_ = c.SetReadDeadline(time.Time{})
			}
			switch {
			case err == nil:
			case errors.Is(err, io.EOF):
				s.machine.Lost(c.id, nil)
			case errors.Is(err, os.ErrDeadlineExceeded):
				s.machine.Lost(c.id, protocol.ErrLate)
			default:
				s.machine.Lost(c.id, err)
			}
		})
		if err != nil {
			return
		}
	}
}

// send writes what the machine has for this connection, and closes it in the end.
func (c *conn) send() {
	defer func() { _ = c.Close() }()
	s := c.server
	for {
		s.mu.Lock()
		queue, closing, joined := c.queue, c.closing, c.joined
		c.queue = nil
		s.mu.Unlock()
		for _, b := range queue {
			if err := c.write(b); err != nil {
				s.do(func() { s.machine.Lost(c.id, err) })
				return
			}
		}
		switch {
		case closing:
			if joined && len(queue) > 0 {
				c.linger()
			}
			return
		case len(queue) == 0:
			<-c.wake
		}
	}
}

// linger lets last words arrive: closing a connection whose bytes nobody has read would take them back.
func (c *conn) linger() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(linger))
		<-c.read
	}
}

func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(c.server.cfg.Write))
		n, err := c.Write(b[:min(len(b), writeSize)])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errSlow
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
