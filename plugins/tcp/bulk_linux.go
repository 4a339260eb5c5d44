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

// A token identifies the second connection of a session.
//
// The second connection carries bulk data, so that messages do not wait behind it. The listener chooses the token. The
// side that dialed the session dials the second connection once a large piece of bulk data has been transferred in
// either direction.
//
//	dialer                                      listener
//	   │ ◄── HELLO of the session, label = token ── │
//	   │ ── HELLO on a new connection, token ─────► │ LaneUp
//	   │ ◄── HELLO, token ───────────────────────── │
//	LaneUp
type token [16]byte

const (
	// bulkQuota is the number of bytes read from or written to a bulk connection before the next connection is served.
	// A message waits behind no more than this on each side. It is a quarter of a piece of bulk data, plus its header
	// and the bytes that are read after it.
	bulkQuota = carrier.PieceSize/4 + 8<<10
	// bulkQuietQuota is the quota after bulkQuietTurns turns in which the context had no message. It gives higher
	// throughput.
	bulkQuietQuota = carrier.PieceSize + 8<<10
	bulkQuietTurns = 4
)

// offerBulk chooses the token for the second connection of c, an accepted connection. The caller must hold the
// context's lock.
func (c *conn) offerBulk() {
	_, _ = rand.Read(c.token[:]) // never fails
	c.out.Label = c.token[:]
	c.ca.offered[c.token] = c
}

// handleHello handles the listener's HELLO and stores the token that it contains. The caller must hold the context's
// lock.
func (c *conn) handleHello(g *frame.Greeting) error {
	if len(g.Label) >= len(c.token) { // a later release may append more
		copy(c.token[:], g.Label)
	}
	return c.session.Greet(g)
}

// dialBulkIfNeeded dials the second connection of c if this side dialed c, the listener offers a second connection, and
// a large piece of bulk data has been transferred. The caller must hold the context's lock.
func (c *conn) dialBulkIfNeeded() {
	if c.bulk != nil || !c.dialled || c.dead {
		return
	}
	if !c.in.Large && !c.out.Large || c.token == (token{}) || !c.session.Up() {
		return
	}
	b := c.ca.newConn(&framing.In{}, c.session, carrier.Bulk)
	c.bulk, b.token, b.out.Label = b, c.token, c.token[:]
	b.in.Greet = func(g *frame.Greeting) error {
		if !bytes.HasPrefix(g.Label, b.token[:]) {
			return codes.WithText(codes.ErrProtocol, "HELLO is for another connection")
		}
		b.session.LaneUp()
		return nil
	}
	c.ca.startDial(b)
}

// adoptBulk makes s the second connection of the session whose token is in hello. The caller must hold the context's
// lock.
func (ca *epollCarrier) adoptBulk(s *socket, in *framing.In, hello *frame.Greeting) (func(), error) {
	var name token
	if len(hello.Label) >= len(name) {
		copy(name[:], hello.Label)
	}
	c := ca.offered[name]
	if c == nil || c.bulk != nil || !c.session.Up() || c.session.Incarnation() != hello.Incarnation {
		return nil, netconn.ErrNoBulk
	}
	b, err := ca.newConnFrom(s, in, carrier.Bulk)
	if err != nil {
		return nil, err
	}
	if err := b.checkSamePeer(c); err != nil {
		b.discard()
		return nil, err
	}
	c.bulk, b.out.Label = b, name[:]
	b.bindSession(c.session)
	b.session.LaneUp()
	b.startPolling(s)
	return func() { _ = s.tcp.Close() }, nil
}

// checkBulkPeer checks, on the dialing side and before the HELLO is sent, that a second connection leads to its
// session's peer. It must be checked this early because, once the listener has adopted the connection, closing it would
// close the session. If the peer has renewed its certificate since the session was established, the session continues
// without a second connection. The caller must hold the context's lock.
func (c *conn) checkBulkPeer() error {
	if main, ok := c.session.Conn().(*conn); ok && c.lane == carrier.Bulk {
		return c.checkSamePeer(main)
	}
	return nil
}

// checkSamePeer returns an error unless the peer of c has the same certificate as the peer of main, the session's first
// connection.
func (c *conn) checkSamePeer(main *conn) error {
	a, b := c.Proof(), main.Proof()
	same := a.Secure == b.Secure && len(a.Certificates) > 0 == (len(b.Certificates) > 0)
	if same && len(a.Certificates) > 0 {
		same = a.Certificates[0].Equal(b.Certificates[0])
	}
	if !same {
		return codes.WithText(codes.ErrPermission, "the bulk connection has another peer certificate than the session")
	}
	return nil
}

// newConnFrom returns a connection with a duplicate of the descriptor of s, which the caller may then close. The caller
// must hold the context's lock.
func (ca *epollCarrier) newConnFrom(s *socket, in *framing.In, f carrier.Lane) (*conn, error) {
	c := ca.newConn(in, nil, f)
	err := c.attach(s)
	switch {
	case err != nil: // the peer may try again
		err = lostError("set TCP keepalive", err)
	case isHungUp(c.fd):
		err = netconn.ErrEOF
	}
	if err != nil {
		c.discard()
		return nil, err
	}
	return c, nil
}

// discard closes and removes a connection that has not been added to the poller. The caller must hold the context's
// lock.
func (c *conn) discard() {
	delete(c.ca.conns, c)
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
	}
}

// updateQuota sets the quota for the next turn of a bulk connection. The caller must hold the context's lock.
func (c *conn) updateQuota() {
	if c.lane != carrier.Bulk {
		return
	}
	if n := c.ca.core.Messages(); n != c.messages {
		c.messages, c.quietTurns = n, 0
	}
	turn := int32(bulkQuota)
	if c.quietTurns++; c.quietTurns > bulkQuietTurns {
		turn = bulkQuietQuota
	}
	c.quota.Store(turn)
}

// hasQuota reports whether the turn of c may continue after n bytes.
func (c *conn) hasQuota(n int) bool {
	return c.lane != carrier.Bulk || n < max(int(c.quota.Load()), bulkQuota)-8<<10
}

// clipToQuota limits the buffers of one system call to the quota.
func (c *conn) clipToQuota(iov [][]byte) [][]byte {
	if c.lane != carrier.Bulk {
		return iov
	}
	left := max(int(c.quota.Load()), bulkQuota)
	for i, b := range iov {
		if left -= len(b); left <= 0 {
			iov[i] = b[:len(b)+left]
			return iov[:i+1]
		}
	}
	return iov
}

// bulkFD is the Pollable of a bulk connection. It does not implement carrier.Peeker, so that messages are read first.
type bulkFD conn

// Ready implements carrier.Pollable.
func (b *bulkFD) Ready(readable, writable bool) { (*conn)(b).Ready(readable, writable) }

// Cut implements na.Cutter.
func (b *bulkFD) Cut(err error) { (*conn)(b).Cut(err) }
