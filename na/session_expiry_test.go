package na

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// provenConn is a connection that has proven the peer's identity.
type provenConn struct{ proof carrier.Proof }

func (c *provenConn) Proof() carrier.Proof { return c.proof }

// expiryStart is the wall clock of these tests at first.
var expiryStart = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// newCertifiedConn returns a connection with a peer whose certificate is valid for a time from expiryStart
// on.
func newCertifiedConn(lives time.Duration) *provenConn {
	end := expiryStart.Add(lives)
	c := &x509.Certificate{Subject: pkix.Name{CommonName: "peer"}, SerialNumber: big.NewInt(7), NotAfter: end}
	return &provenConn{carrier.Proof{Secure: true, Certificates: []*x509.Certificate{c}, Name: "peer", Expires: end}}
}

// newExpiryScript returns a script whose wall clock advances with its clock, and is set by the
// returned function.
func newExpiryScript(t *testing.T, cfg Config) (s *script, set func(ahead time.Duration)) {
	s = &script{T: t, secure: true}
	var ahead time.Duration
	s.wall = func() time.Time { return expiryStart.Add(s.clock + ahead) }
	return s.open(cfg), func(d time.Duration) { ahead = d }
}

// meetCertified is meet with a peer whose certificate is valid for a time from expiryStart on.
func (s *script) meetCertified(lives time.Duration) *session {
	s.Helper()
	r := s.expect(1<<40, nil)
	l := s.dialed[len(s.dialed)-1]
	l.SetConn(newCertifiedConn(lives))
	require.NoError(s, s.hello(l, peerGreeting(5)))
	r.Cancel()
	s.trigger()
	s.drain(l)
	return l
}

// advanceUntil lets time pass in steps until something is so, a minute at the most.
func (s *script) advanceUntil(step time.Duration, is func() bool) {
	s.Helper()
	for i := 0; !is(); i++ {
		require.Less(s, i, 1000)
		s.advance(step)
	}
}

// TestSessionRetires lets the certificate of the peer expire: calls in flight continue, a call that
// begins dials anew and reports that the session retires, and the session ends when nothing is in
// flight.
func TestSessionRetires(t *testing.T) {
	s, _ := newExpiryScript(t, Config{IdleTimeout: 10 * time.Hour})
	l := s.meetCertified(time.Hour)
	under := s.expect(9, make([]byte, 3))
	s.advance(time.Hour - time.Second - s.clock)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Ping}, nil)) // it is valid
	s.drain(l)
	require.Nil(t, l.retiring, "not before its end")
	s.advanceUntil(100*time.Millisecond, func() bool { return l.retiring != nil })
	require.GreaterOrEqual(t, s.clock, time.Hour)
	require.Less(t, s.clock, time.Hour+time.Second)
	require.Contains(t, kinds(s.drain(l)), "RETIRE")
	require.EqualValues(t, 1, s.nctx.Stats().PeersRetired)
	require.Len(t, s.dialed, 1, "nothing requests another session")

	begins := s.send("next")
	require.Len(t, s.dialed, 2)
	n := s.dialed[1]
	g, err := frame.ParseGreeting(n.Hello(carrier.Messages, nil, nil))
	require.NoError(t, err)
	require.Equal(t, l.peer.secret, g.Proof)
	require.NotZero(t, g.Features&frame.FeatureRetires)
	n.SetConn(newCertifiedConn(2 * time.Hour))
	require.NoError(t, s.hello(n, peerGreeting(5)))
	require.Contains(t, kinds(s.drain(n)), "UNEXPECTED")
	bound := l.addr()
	require.Equal(t, n.addr(), s.nctx.Upper().Current(bound), "a request that begins goes in the next session")
	require.Equal(t, n.addr(), s.nctx.Upper().Current(s.addr()))

	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Expected, Tag: 9}, []byte("yes")))
	s.trigger()
	require.NoError(t, under.Err)
	require.NoError(t, begins.Err)
	s.advanceUntil(100*time.Millisecond, func() bool { return l.state == stateLeaving })
	require.Contains(t, kinds(s.drain(l)), "LEAVE")
	require.NoError(t, s.deliver(l, goodbye, nil))
	require.True(t, l.Down())
	require.True(t, n.Up())
	late := s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, bound, 7, nil) })
	require.Contains(t, kinds(s.drain(n)), "UNEXPECTED", "an address that was bound to it leads to the next one")
	s.trigger()
	require.NoError(t, late.Err)
	st := s.nctx.Stats()
	require.Zero(t, st.PeersLost+st.PeersIdle)
}

// TestRetirementEnds checks that operations that have not ended within CertificateGrace end with
// the session.
func TestRetirementEnds(t *testing.T) {
	s, _ := newExpiryScript(t, Config{CertificateGrace: 3 * time.Second})
	l := s.meetCertified(time.Hour)
	var why error
	s.nctx.OnFault(func(_ Addr, err error) { why = err })
	under := s.expect(9, make([]byte, 3))
	s.advance(time.Hour - s.clock)
	s.advanceUntil(100*time.Millisecond, func() bool { return l.retiring != nil })
	end := s.clock + 3*time.Second
	s.advanceUntil(100*time.Millisecond, func() bool {
		_ = s.deliver(l, frame.Header{Kind: frame.Ping}, nil)
		s.drain(l)
		return l.Down()
	})
	require.GreaterOrEqual(t, s.clock, end)
	require.Less(t, s.clock, end+time.Second)
	s.trigger()
	require.ErrorIs(t, under.Err, ErrPeerLost)
	require.ErrorContains(t, under.Err, "CN=peer")
	require.ErrorContains(t, under.Err, "2030-01-01T01:00:00Z")
	require.ErrorContains(t, why, "expired")
}

// TestExpiryByWallClock sets the wall clock forward meanwhile: it is read each minute. With a
// negative CertificateGrace nothing expires.
func TestExpiryByWallClock(t *testing.T) {
	for _, grace := range []time.Duration{0, -1} {
		s, set := newExpiryScript(t, Config{CertificateGrace: grace})
		l := s.meetCertified(time.Hour)
		s.advance(time.Second)
		set(time.Hour)
		for range 62 {
			s.advance(time.Second)
		}
		require.Equal(t, grace == 0, l.Down() || l.retiring != nil)
	}
}

// TestPeerRetires has the peer announce that the session retires. Then it is the peer that has
// looked at a certificate.
func TestPeerRetires(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Retire}, nil))
	require.NotNil(t, l.retiring)
	require.NotContains(t, kinds(s.drain(l)), "RETIRE", "the peer is notified")
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Retire}, nil))
	s.send("next")
	require.Len(t, s.dialed, 2)
	require.ErrorIs(t, s.deliver(l, frame.Header{Kind: frame.Retire, Op: 1}, nil), ErrProtocol)
}

// TestSuccession checks a peer that makes its next session before its RETIRE has arrived: the
// earlier session retires, and is not taken for lost. Requests to a peer that cannot be dialed use
// its old session until it has made the next one, and no other session of the same name.
func TestSuccession(t *testing.T) {
	s, _ := newExpiryScript(t, Config{})
	admit := func(g frame.Greeting, conn any, verified bool) (*session, error) {
		s.e.Lock()
		defer s.e.Unlock()
		return s.e.admitHello(scriptCarrier{s}, conn, &g, verified)
	}
	renewed := func(g frame.Greeting, of *session) frame.Greeting {
		g.Proof = of.secret
		g.Features |= frame.FeatureRetires
		return g
	}
	l, err := admit(peerGreeting(5), newCertifiedConn(time.Hour), true)
	require.NoError(t, err)
	n, err := admit(renewed(peerGreeting(5), l), newCertifiedConn(2*time.Hour), true)
	require.NoError(t, err)
	require.True(t, l.Up())
	require.NotNil(t, l.retiring)
	require.Same(t, n, s.e.names[s.addr()])

	g := peerGreeting(5)
	g.Listen, g.Incarnation = "", [16]byte{2}
	private, err := admit(g, newCertifiedConn(time.Hour), false)
	require.NoError(t, err)
	bound := private.addr()
	s.drain(private)
	require.NoError(t, s.deliver(private, frame.Header{Kind: frame.Retire}, nil))
	require.Equal(t, bound, s.nctx.Upper().Current(bound))
	liar, err := admit(g, newCertifiedConn(time.Hour), false)
	require.NoError(t, err)
	require.NotEqual(t, liar.addr(), s.nctx.Upper().Current(bound))
	next, err := admit(renewed(g, private), newCertifiedConn(2*time.Hour), false)
	require.NoError(t, err)
	s.e.Lock()
	liar.Fail(ErrPeerLost)
	s.e.Unlock()
	require.Equal(t, next.addr(), s.nctx.Upper().Current(bound))

	_, err = admit(frame.Greeting{Versions: frame.Versions(), Incarnation: [16]byte{3}, Envelopes: 5, Eager: 4096}, newCertifiedConn(-time.Second), false)
	require.ErrorIs(t, err, ErrPermission, "a connection whose certificate has expired makes no session")
	require.ErrorContains(t, err, "CN=peer")
	s.e.Lock()
	next.Fail(ErrPeerLost)
	s.e.Unlock()
	require.Empty(t, s.e.successors[private.secret])
}

// TestRenewal checks that a process that serves and cannot be dialled makes the next session by
// itself: its peers have no other way to it.
func TestRenewal(t *testing.T) {
	s, _ := newExpiryScript(t, Config{CertificateGrace: time.Minute, IdleTimeout: -1})
	l := s.meetCertified(time.Hour)
	s.advance(time.Hour - s.clock)
	s.advanceUntil(100*time.Millisecond, func() bool { return l.retiring != nil })
	require.Len(t, s.dialed, 2)
}
