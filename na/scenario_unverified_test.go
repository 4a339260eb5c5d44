package na

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// TestTwoConnectionsUp checks a connection in the name of a peer whose session is up, with its
// incarnation, which is public: only the secret of this session proves that it is the peer.
// Otherwise the session stays, and a PING checks that the peer answers.
func TestTwoConnectionsUp(t *testing.T) {
	admitted := func(s *script, inc byte) *session {
		g := peerGreeting(5)
		g.Incarnation = [16]byte{inc}
		s.e.Lock()
		defer s.e.Unlock()
		l, err := s.e.admitHello(scriptCarrier{s}, "old", &g, true)
		require.NoError(s, err)
		return l
	}
	dialled := func(s *script, inc byte) *session {
		s.send("x")
		l := s.dialed[0]
		s.drain(l)
		g := peerGreeting(5)
		g.Incarnation = [16]byte{inc}
		require.NoError(s, s.hello(l, g))
		s.drain(l)
		s.trigger()
		return l
	}
	for how, begin := range map[string]func(*script, byte) *session{"we dialled": dialled, "it dialled": admitted} {
		for _, inc := range []byte{10, 100} { // smaller and larger than ours
			for shows, proof := range map[string]func(*session) frame.Secret{
				"the secret":         func(l *session) frame.Secret { return l.secret },
				"nothing":            func(*session) (none frame.Secret) { return none },
				"an older secret":    func(*session) frame.Secret { return frame.Secret{1} },
				"what it told us":    func(l *session) frame.Secret { return l.peer.secret },
				"nearly the secret":  func(l *session) frame.Secret { s := l.secret; s[15] ^= 1; return s },
				"its own new secret": func(*session) frame.Secret { return frame.Secret{9} },
			} {
				t.Run(fmt.Sprintf("%s, %d, and it shows %s", how, inc, shows), func(t *testing.T) {
					s := newScript(t, Config{})
					s.dom.inc[0] = 50
					l := begin(s, inc)
					g := peerGreeting(5)
					g.Incarnation, g.Secret, g.Proof = [16]byte{inc}, frame.Secret{9}, proof(l)
					s.e.Lock()
					again, err := s.e.admitHello(scriptCarrier{s}, "new", &g, true)
					s.e.Unlock()
					if shows != "the secret" {
						require.ErrorIs(t, err, ErrDuplicate)
						require.True(t, l.Up())
						require.Same(t, l, s.e.names[s.addr()], "the name leads to the session that is up")
						require.Equal(t, []string{"PING"}, kinds(s.drain(l)))
					} else {
						require.NoError(t, err)
						require.True(t, l.Down())
						require.True(t, again.Up())
						require.Same(t, again, s.e.names[s.addr()])
					}
					s.trigger()
				})
			}
		}
	}
}

// TestSecretIsShownToItsPeer checks that the secret that a peer sent in a session is shown in the
// next HELLO to it: to no other peer, on no other connection, and once there is a new session the
// old secret is discarded.
func TestSecretIsShownToItsPeer(t *testing.T) {
	s := newScript(t, Config{})
	hello := func(l *session, f carrier.Lane) frame.Greeting {
		s.e.Lock()
		defer s.e.Unlock()
		g, err := frame.ParseGreeting(l.Hello(f, nil, nil))
		require.NoError(t, err)
		return g
	}
	var before frame.Secret
	for i := range byte(3) {
		s.send("x")
		l := s.dialed[len(s.dialed)-1]
		g := hello(l, carrier.Messages)
		require.Equal(t, before, g.Proof)
		require.NotZero(t, g.Secret)
		s.drain(l)
		answer := peerGreeting(5)
		answer.Secret = frame.Secret{i + 1}
		require.NoError(t, s.hello(l, answer))
		require.Zero(t, hello(l, carrier.Messages).Proof)
		require.Zero(t, hello(l, carrier.Bulk).Secret, "the connection for bulk data does not begin a session")
		s.e.Lock()
		l.Fail(WithText(ErrPeerLost, "the connection broke"))
		s.e.Unlock()
		s.trigger()
		before = answer.Secret

		s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, s.addr().WithTarget(int(i)+1), 1, nil) })
		require.Zero(t, hello(s.dialed[len(s.dialed)-1], carrier.Messages).Proof, "another context of the peer")
	}
	s.e.Lock()
	defer s.e.Unlock()
	for i := range 3 * maxProofs {
		s.e.rememberSession(MakeAddr(scriptPeer, i+10), lastSession{secret: frame.Secret{1}})
	}
	require.LessOrEqual(t, len(s.e.proofs), maxProofs)
}

// TestUnverifiedPeerIsNotLost checks that a connection whose HELLO may be forged was no peer, and its
// end is no peer loss. One that has sent a frame was, and so is one that an operation waits for.
func TestUnverifiedPeerIsNotLost(t *testing.T) {
	forgeable := func(s *script) *session {
		l := s.admit()
		s.e.Lock()
		l.Unproven()
		s.e.Unlock()
		return l
	}
	for name, c := range map[string]struct {
		shows func(s *script) *session
		lost  bool
	}{
		"says HELLO": {forgeable, false},
		"and a frame": {func(s *script) *session {
			l := forgeable(s)
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Ping}, nil))
			return l
		}, true},
		"is waited for": {func(s *script) *session {
			l := forgeable(s)
			s.expect(1, make([]byte, 8))
			return l
		}, true},
		"is where it says": {(*script).admit, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{})
			faults := 0
			s.nctx.OnFault(func(Addr, error) { faults++ })
			l := c.shows(s)
			s.e.Lock()
			l.Fail(WithText(ErrPeerLost, "the peer does not answer"))
			s.e.Unlock()
			s.trigger()
			require.Equal(t, c.lost, faults == 1, "%d faults", faults)
			require.Equal(t, c.lost, s.nctx.Stats().PeersLost == 1)
		})
	}
}

// admit has the script's peer connect.
func (s *script) admit() *session {
	s.e.Lock()
	defer s.e.Unlock()
	l, err := s.e.admitHello(scriptCarrier{s}, "conn", new(peerGreeting(5)), true)
	require.NoError(s, err)
	return l
}
