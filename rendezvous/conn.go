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
	// readSize is the size in bytes of the read buffer of a connection.
	readSize = 8 << 10
	// writeSize is the number of bytes that a member must accept within ServerConfig.Write.
	writeSize = 256 << 10
	// lingerTime is how long the server waits for a member to close its side of the connection after the last bytes
	// have been sent to it.
	lingerTime = time.Second
)

// errWriteTimeout is returned when a member does not accept any bytes within ServerConfig.Write.
var errWriteTimeout = errors.New("write timeout")

// A conn is a connection from a member to the server. Separate goroutines read and write it, so that the server
// continues to read from a member that does not read.
type conn struct {
	net.Conn
	server   *server
	id       int
	wake     chan struct{} // one slot, filled when the queue has changed
	readDone chan struct{} // closed when readLoop has returned

	// The following fields are guarded by server.mu.
	queue     [][]byte // bytes to write; shared with other connections; bounded by protocol.Limits.Total
	closing   bool     // close the connection once the queue has been written
	hasJoined bool
}

// enqueueLocked queues an output of the server's state machine and wakes writeLoop. server.mu must be held.
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

// readLoop passes received bytes to the server's state machine until the connection is closed. The state machine
// drops bytes for connections that it has closed.
func (c *conn) readLoop() {
	defer close(c.readDone)
	s := c.server
	_ = c.SetReadDeadline(time.Now().Add(s.cfg.Handshake))
	buf := make([]byte, readSize)
	for {
		n, err := c.Read(buf)
		s.runMachine(func() {
			if f := failpoint.Load(); f != nil {
				(*f)(buf[:n])
			}
			if n > 0 {
				s.machine.Receive(c.id, buf[:n])
			}
			if !c.hasJoined && s.machine.HasJoined(c.id) {
				c.hasJoined = true
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

// writeLoop writes the state machine's outputs for this connection. It closes the connection when the state machine
// requests it or a write fails.
func (c *conn) writeLoop() {
	defer func() { _ = c.Close() }()
	s := c.server
	for {
		s.mu.Lock()
		queue, closing, joined := c.queue, c.closing, c.hasJoined
		c.queue = nil
		s.mu.Unlock()
		for _, b := range queue {
			if err := c.writeAll(b); err != nil {
				s.runMachine(func() { s.machine.Lost(c.id, err) })
				return
			}
		}
		switch {
		case closing:
			if joined && len(queue) > 0 {
				c.waitForClose()
			}
			return
		case len(queue) == 0:
			<-c.wake
		}
	}
}

// waitForClose closes the writing side and waits up to lingerTime for the member to close its side. Closing a
// connection with unread input would reset it, and the member could lose the last bytes.
func (c *conn) waitForClose() {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		_ = c.SetReadDeadline(time.Now().Add(lingerTime))
		<-c.readDone
	}
}

// writeAll writes b. It fails if the member does not accept writeSize bytes within ServerConfig.Write.
func (c *conn) writeAll(b []byte) error {
	for len(b) > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(c.server.cfg.Write))
		n, err := c.Write(b[:min(len(b), writeSize)])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return errWriteTimeout
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
