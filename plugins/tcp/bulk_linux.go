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
// The second connection carries bulk data, so that messages do not wait behind it. The listener chooses the token and
// sends it as the label of its HELLO on the first connection. The side that dialed the session dials the second
// connection once a large piece of bulk data has been transferred in either direction, and sends a HELLO with the token
// on it. The listener replies with its own HELLO. Each side then uses the second connection for bulk data.
type token [16]byte

const (
	// bulkQuota is the number of bytes read from or written to a bulk connection before the next connection is served.
	// It bounds the number of bytes that a message waits for on each side. It is a quarter of a piece of bulk data,
	// plus the header and the bytes read after it.
	bulkQuota = carrier.PieceSize/4 + 8<<10
	// bulkQuietQuota replaces bulkQuota, for higher throughput, after bulkQuietTurns turns in which the context has had
	// no messages.
	bulkQuietQuota = carrier.PieceSize + 8<<10
	bulkQuietTurns = 4
)

// offerBulk chooses the token for the second connection of c's session. c must have been accepted. The caller must hold
// the context's lock.
func (c *conn) offerBulk() {
	_, _ = rand.Read(c.token[:]) // never fails
	c.out.Label = c.token[:]
	c.ca.offered[c.token] = c
}

// handleHello stores the token in the listener's HELLO. The caller must hold the context's lock.
func (c *conn) handleHello(g *frame.Greeting) error {
	if len(g.Label) >= len(c.token) { // a later release may append more to the label
		copy(c.token[:], g.Label)
	}
	return c.session.Greet(g)
}

// dialBulkIfNeeded dials the second connection of c's session if a large piece of bulk data has been transferred, this
// side dialed c, and the listener offers a second connection. The caller must hold the context's lock.
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

// adoptBulk makes s the second connection of the session that has the token in hello. The caller must hold the
// context's lock.
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

// checkBulkPeer returns an error unless a second connection that this side has dialed leads to its session's peer. It
// must be called before the HELLO is sent: once the listener has adopted the connection, closing it would close the
// session. If the peer has renewed its certificate since the session was established, the session continues without a
// second connection. The caller must hold the context's lock.
func (c *conn) checkBulkPeer() error {
	if main, ok := c.session.Conn().(*conn); ok && c.lane == carrier.Bulk {
		return c.checkSamePeer(main)
	}
	return nil
}

// checkSamePeer returns an error unless the peer of c presented the same certificate as the peer of main, which is the
// session's first connection.
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

// newConnFrom returns a connection that uses a duplicate of the descriptor of s. The caller may then close s. The
// context's lock must be held.
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

// updateQuota sets the quota of a bulk connection for its next turn. The caller must hold the context's lock.
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

// hasQuota reports whether c may read or write more in this turn, after n bytes.
func (c *conn) hasQuota(n int) bool {
	return c.lane != carrier.Bulk || n < max(int(c.quota.Load()), bulkQuota)-8<<10
}

// clipToQuota returns iov, truncated to the quota if c is a bulk connection. It may modify iov.
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

// A bulkFD is the Pollable of a bulk connection. It does not implement carrier.Peeker, so that messages are read first.
type bulkFD conn

// Ready implements carrier.Pollable.
func (b *bulkFD) Ready(readable, writable bool) { (*conn)(b).Ready(readable, writable) }

// Cut implements na.Cutter.
func (b *bulkFD) Cut(err error) { (*conn)(b).Cut(err) }
