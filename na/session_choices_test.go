package na

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

const (
	scriptHost = "script://six|four|other"
	six        = "script://six"
	four       = "script://four"
	other      = "script://other"
)

// newHostScript opens a class with a peer that is a host with three addresses.
func newHostScript(t *testing.T, cfg Config) *script {
	s := &script{T: t, hosts: map[string][]string{scriptHost: {six, four, other}}, unreachable: map[string]error{}}
	return s.open(cfg)
}

func (s *script) host() Addr { return MakeAddr(scriptHost, 0) }

func (s *script) sendTo(to Addr) *result {
	s.Helper()
	return s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, to, 7, []byte("x")) })
}

// dialedAddrs returns the addresses that have been dialed.
func (s *script) dialedAddrs() (all []string) {
	for _, a := range s.attempts {
		all = append(all, a.Name())
	}
	return all
}

// answerDial has the peer of an attempt answer.
func (s *script) answerDial(a *dialAttempt, inc byte) error {
	s.e.Lock()
	defer s.e.Unlock()
	g := peerGreeting(5)
	g.Incarnation = [16]byte{inc}
	err := a.Greet(&g)
	if err != nil {
		a.Fail(err)
	}
	return err
}

func (s *script) failAttempt(i int, err error) {
	s.e.Lock()
	s.attempts[i].Fail(err)
	s.e.Unlock()
}

// TestHostStaggered checks that the addresses of a host are dialed 250 ms apart, the first that
// answers has the session, and the others are cut.
func TestHostStaggered(t *testing.T) {
	s := newHostScript(t, Config{})
	r := s.sendTo(s.host())
	require.Equal(t, []string{six}, s.dialedAddrs())
	s.advance(249 * time.Millisecond)
	require.Equal(t, []string{six}, s.dialedAddrs())
	s.advance(time.Millisecond)
	require.Equal(t, []string{six, four}, s.dialedAddrs())
	s.advance(250 * time.Millisecond)
	require.Equal(t, []string{six, four, other}, s.dialedAddrs())

	first, won := s.attempts[0], s.attempts[1]
	require.NotEqual(t, first.secret, won.secret, "each of the peers gets another secret")
	require.False(t, won.Up())
	require.NoError(t, s.answerDial(won, 1))
	require.Equal(t, []string{six, other}, s.endedAttempts)
	require.True(t, won.Up())
	require.True(t, first.Down())
	require.Equal(t, "connection to "+four, won.Conn())

	l := s.e.names[s.host()]
	require.Same(t, l, s.e.names[MakeAddr(four, 0)], "the session has the address that has answered")
	require.Nil(t, s.e.names[MakeAddr(six, 0)])
	require.Equal(t, four, l.addr().Named().String())
	require.Equal(t, won.secret, l.secret)
	require.Equal(t, "connection to "+four, l.conn)
	require.Equal(t, []string{"UNEXPECTED"}, kinds(s.drain(l)))
	s.trigger()
	require.NoError(t, r.Err)
	s.failAttempt(0, WithText(ErrUnreachable, "late"))
	require.True(t, l.Up(), "an attempt that was cut has no effect any more")

	again := s.sendTo(s.host())
	direct := s.sendTo(MakeAddr(four, 0))
	require.Len(t, s.drain(l), 2)
	s.trigger()
	require.NoError(t, again.Err)
	require.NoError(t, direct.Err)
	require.Len(t, s.attempts, 3)

	s.e.Lock()
	won.Fail(WithText(ErrPeerLost, "the connection has ended"))
	s.e.Unlock()
	require.True(t, l.Down(), "the attempt stands for the session")
	require.Empty(t, s.e.names)
	require.Empty(t, s.e.choosing)
}

// TestHostFails checks that a failed attempt starts the next at once. When all have failed the
// operation ends, and the error names every address with its reason.
func TestHostFails(t *testing.T) {
	s := newHostScript(t, Config{})
	r := s.sendTo(s.host())
	s.failAttempt(0, WithText(ErrUnreachable, "no route"))
	s.advance(0)
	require.Equal(t, []string{six, four}, s.dialedAddrs(), "without a pause")
	s.unreachable[other] = WithText(ErrPermission, "TLS: refused")
	s.failAttempt(1, WithText(ErrUnreachable, "connection refused"))
	s.advance(0)
	require.Equal(t, []string{six, four, other}, s.dialedAddrs())
	s.advance(0)
	s.trigger()
	require.ErrorIs(t, r.Err, ErrUnreachable)
	require.Equal(t, NotRun, r.Fate)
	for _, text := range []string{six + ": no route", four + ": connection refused", other + ": TLS: refused"} {
		require.ErrorContains(t, r.Err, text)
	}
	require.Empty(t, s.e.names)
	require.Empty(t, s.e.choosing)
	require.Equal(t, []string{six, four, other}, s.endedAttempts)
	r = s.sendTo(s.host())
	s.trigger()
	require.ErrorContains(t, r.Err, "next dial in ", "as any address that has failed")
}

// TestHostAtOnce checks that addresses that the carrier refuses while they are dialed take no time.
func TestHostAtOnce(t *testing.T) {
	s := newHostScript(t, Config{})
	s.unreachable = map[string]error{six: WithText(ErrUnreachable, "no route"), four: WithText(ErrUnreachable, "no route, either")}
	s.sendTo(s.host())
	require.Equal(t, []string{six, four, other}, s.dialedAddrs())
	s.unreachable[other] = WithText(ErrUnreachable, "no route")
	s = newHostScript(t, Config{})
	s.unreachable = map[string]error{six: ErrUnreachable, four: ErrUnreachable, other: ErrUnreachable}
	r := s.sendTo(s.host())
	s.trigger()
	require.ErrorIs(t, r.Err, ErrUnreachable)
}

// TestHostTooLate checks that the error of a host that does not answer names every address.
func TestHostTooLate(t *testing.T) {
	s := newHostScript(t, Config{ConnectTimeout: time.Second})
	r := s.sendTo(s.host())
	for range 3 {
		s.advance(s.e.Next() - s.clock)
	}
	s.failAttempt(1, WithText(ErrUnreachable, "connection refused"))
	for i := 0; i < 20 && r.ended == 0; i++ {
		s.advance(100 * time.Millisecond)
		s.trigger()
	}
	require.ErrorContains(t, r.Err, "no connection within 1s")
	for _, text := range []string{six + ": no answer", four + ": connection refused", other + ": no answer"} {
		require.ErrorContains(t, r.Err, text)
	}
}

// TestHostCanceled checks that a cancel ends the operation at once; the end of the context cuts
// every attempt.
func TestHostCanceled(t *testing.T) {
	s := newHostScript(t, Config{})
	r := s.sendTo(s.host())
	s.advance(250 * time.Millisecond)
	r.Cancel()
	s.trigger()
	require.Equal(t, 1, r.ended)
	require.ErrorIs(t, r.Err, ErrCanceled)
	require.Equal(t, NotRun, r.Fate)
	s.nctx.Close()
	require.Equal(t, []string{six, four}, s.endedAttempts)
}

// TestHostNotAccepted checks that a peer whose HELLO is refused does not end the other attempts.
func TestHostNotAccepted(t *testing.T) {
	s := newHostScript(t, Config{})
	s.sendTo(s.host())
	s.e.Lock()
	g := peerGreeting(5)
	g.Versions = frame.Range{Oldest: frame.Version + 1, Newest: frame.Version + 1}
	err := s.attempts[0].Greet(&g)
	require.ErrorIs(t, err, ErrVersion)
	s.attempts[0].Fail(err)
	s.e.Unlock()
	require.Equal(t, scriptHost, s.e.names[s.host()].named.Name())
	s.advance(0)
	require.NoError(t, s.answerDial(s.attempts[1], 1))
	require.True(t, s.e.names[s.host()].Up())
}

// TestHostDialsAgain checks that all addresses are dialed again when an attempt has ended before an
// answer.
func TestHostDialsAgain(t *testing.T) {
	s := newHostScript(t, Config{})
	s.unreachable = map[string]error{four: WithText(ErrUnreachable, "no route"), other: WithText(ErrUnreachable, "no route")}
	s.sendTo(s.host())
	s.failAttempt(0, WithText(ErrPeerLost, "connection closed by peer"))
	s.advance(0)
	require.Equal(t, []string{six, four, other}, s.dialedAddrs())
	s.advance(20 * time.Millisecond)
	require.Equal(t, []string{six, four, other, six}, s.dialedAddrs())
	require.NoError(t, s.answerDial(s.attempts[3], 1))
	require.True(t, s.e.names[s.host()].Up())
}

// TestHostConnects checks that a peer that connects from one of the addresses that are being
// dialed, and may, has the session.
func TestHostConnects(t *testing.T) {
	for _, waits := range []bool{false, true} {
		s := newHostScript(t, Config{})
		r := s.sendTo(s.host())
		s.advance(250 * time.Millisecond)
		if waits {
			for i := range 2 {
				s.failAttempt(i, WithText(ErrDuplicate, "another connection to the peer is being established"))
			}
			s.unreachable[other] = ErrUnreachable
			s.advance(0)
			require.Equal(t, stateWaiting, s.e.names[s.host()].state)
		}
		g := peerGreeting(5)
		g.Incarnation, g.Listen = [16]byte{255}, four
		s.e.Lock()
		l, err := s.e.admitHello(scriptCarrier{s}, "theirs", &g, true)
		s.e.Unlock()
		require.NoError(t, err)
		require.Same(t, l, s.e.names[s.host()])
		require.Same(t, l, s.e.names[MakeAddr(four, 0)])
		require.Equal(t, four, l.addr().Named().String())
		require.Contains(t, s.endedAttempts, six)
		require.Equal(t, []string{"UNEXPECTED"}, kinds(s.drain(l)))
		s.trigger()
		require.NoError(t, r.Err)
	}
}

// TestHostKnown checks that a host is reached by a session that is up with one of its addresses.
func TestHostKnown(t *testing.T) {
	s := newHostScript(t, Config{})
	s.sendTo(MakeAddr(four, 0))
	require.NoError(t, s.hello(s.dialed[0], peerGreeting(5)))
	s.sendTo(s.host())
	require.Len(t, s.drain(s.dialed[0]), 2)
	require.Empty(t, s.attempts)
}

// TestHostMadeMeanwhile checks that the next operation takes a session that was made with one of
// the addresses while the host was dialed.
func TestHostMadeMeanwhile(t *testing.T) {
	s := newHostScript(t, Config{})
	s.unreachable = map[string]error{four: ErrUnreachable, other: ErrUnreachable}
	r := s.sendTo(s.host())
	s.sendTo(MakeAddr(six, 0))
	require.NoError(t, s.hello(s.dialed[0], peerGreeting(5)))
	s.failAttempt(0, WithText(ErrDuplicate, "a session with this address is up"))
	s.advance(0)
	s.advance(100 * time.Millisecond)
	s.trigger()
	require.ErrorIs(t, r.Err, ErrUnreachable)
	require.ErrorContains(t, r.Err, "concurrent session with "+six)
	s.sendTo(s.host())
	require.Equal(t, []string{"PING", "UNEXPECTED", "UNEXPECTED"}, kinds(s.drain(s.dialed[0])))
}

// TestHostOffers checks that a peer that offers another transport wins the attempts.
func TestHostOffers(t *testing.T) {
	s := newHostScript(t, Config{})
	s.sendTo(s.host())
	s.advance(250 * time.Millisecond)
	s.e.Lock()
	s.attempts[1].Refused(frame.Bye{Offer: &frame.Offer{Name: "script://elsewhere"}})
	s.e.Unlock()
	require.Equal(t, []string{six}, s.endedAttempts)
	require.Equal(t, four, s.attempts[1].session.named.Name())
}

var _ carrier.Expander = scriptCarrier{}
