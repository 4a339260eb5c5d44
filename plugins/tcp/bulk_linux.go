package tcp

import (
	"bytes"
	"crypto/rand"

	"golang.org/x/sys/unix"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/internal/framing"
	"github.com/quicksilver-rpc/quicksilver/internal/netconn"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
	"github.com/quicksilver-rpc/quicksilver/na/codes"
)

// A session has a second connection for its bulk data, so that messages do not wait behind that. The listener names it, the side
// that dialled the session makes it when a large piece of bulk data has passed, either way.
//
//	dialler                                     listener
//	   │ ◄── HELLO of the session, label = token ── │
//	   │ ── HELLO on a new connection, token ─────► │ FlowUp
//	   │ ◄── HELLO, token ───────────────────────── │
//	FlowUp
type token [16]byte

const (
	// bulkTurn bounds the bytes that are read from or written to a connection for bulk data before it is the next connection's
	// turn: a message waits behind no more at each side. A quarter of a piece of bulk data fits, with its header and what is read
	// beyond it. When bulkCalm turns have passed without a message of the context they are longer, for more throughput.
	bulkTurn     = carrier.PieceSize/4 + 8<<10
	bulkCalmTurn = carrier.PieceSize + 8<<10
	bulkCalm     = 4
)

// offer makes the name of the second connection of c, whose peer dialled. Locked.
func (c *conn) offer() {
	_, _ = rand.Read(c.token[:]) // never fails
	c.out.Label = c.token[:]
	c.ca.offered[c.token] = c
}

// greet takes the HELLO of the listener, and remembers what it offers. Locked.
func (c *conn) greet(g *frame.Greeting) error {
	if len(g.Label) == len(c.token) {
		copy(c.token[:], g.Label)
	}
	return c.link.Greet(g)
}

// large dials the second connection of c if a large piece of bulk data has passed. Locked.
func (c *conn) large() {
	if c.bulk != nil || !c.dialled || c.dead || !c.in.Large && !c.out.Large || c.token == (token{}) || !c.link.Up() {
		return
	}
	b := c.ca.newConn(&framing.In{}, c.link, carrier.Bulk)
	c.bulk, b.token, b.out.Label = b, c.token, c.token[:]
	b.in.Greet = func(g *frame.Greeting) error {
		if !bytes.Equal(g.Label, b.token[:]) {
			return codes.WithText(codes.ErrProtocol, "HELLO is for another connection")
		}
		b.link.LaneUp()
		return nil
	}
	c.ca.dial(b)
}

// adoptBulk makes s the second connection of the session that offered it. Locked.
func (ca *polled) adoptBulk(s *socket, in *framing.In, hello *frame.Greeting) (func(), error) {
	var name token
	if len(hello.Label) == len(name) {
		copy(name[:], hello.Label)
	}
	c := ca.offered[name]
	if c == nil || c.bulk != nil || !c.link.Up() || c.link.Incarnation() != hello.Incarnation {
		return nil, netconn.ErrNoBulk
	}
	b, err := ca.holdSocket(s, in, carrier.Bulk)
	if err != nil {
		return nil, err
	}
	if err := b.samePeer(c); err != nil {
		b.letGo()
		return nil, err
	}
	c.bulk, b.out.Label = b, name[:]
	b.bind(c.link)
	b.link.LaneUp()
	b.start(s)
	return func() { _ = s.tcp.Close() }, nil
}

// checkPeer is samePeer of a second connection at the side that has dialled it, before its HELLO: what the listener has taken up ends the
// session when it ends. A peer that has renewed its certificate since has a session without a second connection. Locked.
func (c *conn) checkPeer() error {
	if main, ok := c.link.Conn().(*conn); ok && c.flow == carrier.Bulk {
		return c.samePeer(main)
	}
	return nil
}

// samePeer reports why c cannot be the second connection of the session of main: somebody else is at its other end.
func (c *conn) samePeer(main *conn) error {
	a, b := c.Proof(), main.Proof()
	same := a.Secure == b.Secure && len(a.Certificates) > 0 == (len(b.Certificates) > 0)
	if same && len(a.Certificates) > 0 {
		same = a.Certificates[0].Equal(b.Certificates[0])
	}
	if !same {
		return codes.WithText(codes.ErrPermission, "the connection does not lead to the peer that the session is with: other certificates")
	}
	return nil
}

// holdSocket makes a connection of s that goes on without it. Locked.
func (ca *polled) holdSocket(s *socket, in *framing.In, f carrier.Lane) (*conn, error) {
	c := ca.newConn(in, nil, f)
	err := c.hold(s)
	switch {
	case err != nil: // the peer may try again
		err = lost("keep the connection", err)
	case ended(c.fd):
		err = netconn.ErrEOF
	}
	if err != nil {
		c.letGo()
		return nil, err
	}
	return c, nil
}

// letGo forgets a connection that has not been started. Locked.
func (c *conn) letGo() {
	delete(c.ca.conns, c)
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
}

// pace measures the turns of a connection for bulk data. Locked.
func (c *conn) pace() {
	if c.flow != carrier.Bulk {
		return
	}
	if n := c.ca.e.Messages(); n != c.messages {
		c.messages, c.calm = n, 0
	}
	turn := int32(bulkTurn)
	if c.calm++; c.calm > bulkCalm {
		turn = bulkCalmTurn
	}
	c.turn.Store(turn)
}

// goesOn reports whether the turn of c has not ended, in which n bytes were moved.
func (c *conn) goesOn(n int) bool {
	return c.flow != carrier.Bulk || n < max(int(c.turn.Load()), bulkTurn)-8<<10
}

// clip bounds what one system call moves.
func (c *conn) clip(iov [][]byte) [][]byte {
	if c.flow != carrier.Bulk {
		return iov
	}
	left := max(int(c.turn.Load()), bulkTurn)
	for i, b := range iov {
		if left -= len(b); left <= 0 {
			iov[i] = b[:len(b)+left]
			return iov[:i+1]
		}
	}
	return iov
}

// bulkFD is what the poller knows of a connection for bulk data: it is no carrier.Peeker, messages come first.
type bulkFD conn

// Ready implements carrier.Pollable.
func (b *bulkFD) Ready(readable, writable bool) { (*conn)(b).Ready(readable, writable) }

// Cut implements na.Cutter.
func (b *bulkFD) Cut(err error) { (*conn)(b).Cut(err) }
