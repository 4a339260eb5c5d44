package na

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// secondCarrier is the carrier of a script's second transport. It records the names that it dials.
type secondCarrier struct {
	scriptCarrier
	dialed *[]string
}

func (c secondCarrier) Dial(l carrier.Session) { *c.dialed = append(*c.dialed, l.Name()) }

// newSecondTransportScript opens a script with a second transport, near://, that reaches place 7.
func newSecondTransportScript(t *testing.T, cfg Config, secure bool) (s *script, c secondCarrier) {
	s = &script{T: t, secure: secure}
	c = secondCarrier{scriptCarrier{s}, new([]string)}
	s.place2 = "near"
	s.second = &carrier.Network{Listen: "near://me", Exact: true, Names: c, Place: [16]byte{7},
		NewCarrier: func(carrier.Core) (carrier.Carrier, error) { return c, nil }}
	return s.open(cfg), c
}

// helloAt is the HELLO of the peer at a place.
func helloAt(place byte) frame.Greeting {
	g := peerGreeting(5)
	g.Place[0] = place
	return g
}

func (s *script) refuse(l *session, bye frame.Bye) {
	s.e.Lock()
	l.Refused(bye)
	s.e.Unlock()
}

func (s *script) fail(l *session, err error) {
	s.e.Lock()
	l.Fail(err)
	s.e.Unlock()
}

func (s *script) admitted(c carrier.Carrier, g frame.Greeting) (*session, error) {
	s.e.Lock()
	defer s.e.Unlock()
	return s.e.admitHello(c, "conn", &g, true)
}

var theOffer = frame.Bye{Code: ErrAgain, Offer: &frame.Offer{Name: "near://there", Secret: frame.Secret{9}}}

// currentHello returns the fields of the current HELLO of l.
func (s *script) currentHello(l *session) frame.Greeting {
	s.e.Lock()
	defer s.e.Unlock()
	g, err := frame.ParseGreeting(l.Hello(carrier.Messages, nil, nil))
	require.NoError(s.T, err)
	return g
}

// TestOfferFollowed has a dialer go where the peer offers, show the secret there, and keep the name
// that it has dialed.
func TestOfferFollowed(t *testing.T) {
	s, c := newSecondTransportScript(t, Config{}, false)
	r := s.send("x")
	l := s.e.names[s.addr()]
	require.Equal(t, []*session{l}, s.dialed)
	require.Equal(t, [16]byte{7}, s.currentHello(l).Place)
	s.refuse(l, theOffer)
	require.Equal(t, []string{"near://there"}, *c.dialed)
	require.Equal(t, frame.Secret{9}, s.currentHello(l).Offer)
	require.Zero(t, s.currentHello(l).Place)
	require.NoError(t, s.hello(l, peerGreeting(5)))
	s.drain(l)
	s.trigger()
	require.NoError(t, r.Err)
	require.Same(t, l, s.e.names[s.addr()])
	id, _ := s.e.identityOf(l.addr())
	require.Equal(t, []string{"near", "the peer is on this machine"}, []string{id.Transport, id.Why})
}

// TestOfferFails has the second transport fail in each way: the peer is dialed by the first again,
// with no place.
func TestOfferFails(t *testing.T) {
	for name, end := range map[string]func(s *script, l *session){
		"no memory":   func(s *script, l *session) { s.fail(l, WithText(ErrNoMemory, "no shared memory")) },
		"broken":      func(s *script, l *session) { s.fail(l, WithText(ErrProtocol, "HELLO frame damaged")) },
		"refused":     func(s *script, l *session) { s.refuse(l, frame.Bye{Code: ErrPermission, Text: "no"}) },
		"offer again": func(s *script, l *session) { s.refuse(l, theOffer) },
		"silent":      func(s *script, _ *session) { s.advance(offerTime + time.Millisecond) },
	} {
		t.Run(name, func(t *testing.T) {
			s, c := newSecondTransportScript(t, Config{}, false)
			r := s.send("x")
			l := s.e.names[s.addr()]
			s.refuse(l, theOffer)
			require.Len(t, *c.dialed, 1)
			end(s, l)
			require.Equal(t, []*session{l}, s.dialed, "what the second held is not given back before Poll")
			s.advance(backoffFirst + time.Millisecond)
			require.Equal(t, []*session{l, l}, s.dialed)
			require.Equal(t, scriptPeer, l.Name())
			require.Zero(t, s.currentHello(l).Place)
			require.Zero(t, s.currentHello(l).Offer)
			require.NoError(t, s.hello(l, helloAt(7)))
			s.drain(l)
			s.trigger()
			require.NoError(t, r.Err)
			id, _ := s.e.identityOf(l.addr())
			require.Equal(t, "script", id.Transport)
			require.Contains(t, id.Why, "near failed: ")
		})
	}
}

// TestOfferOfEndingProcess has the process that made an offer end before the second transport is up,
// as when another process takes over its listening socket: that one is asked for an offer, too. If
// the second transport fails again, the peer is dialed by the first with no place.
func TestOfferOfEndingProcess(t *testing.T) {
	for name, end := range map[string]func(s *script, l *session){
		"unreachable": func(s *script, l *session) { s.fail(l, WithText(ErrUnreachable, "no process listens")) },
		"ended":       func(s *script, l *session) { s.fail(l, WithText(ErrPeerLost, "connection closed by peer")) },
		"draining":    func(s *script, l *session) { s.refuse(l, frame.Bye{Code: ErrClosed, Text: "shutting down"}) },
		"shut down":   func(s *script, l *session) { s.refuse(l, frame.Bye{Code: ErrNoEntry, Text: "no such context"}) },
	} {
		for _, again := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,%v", name, again), func(t *testing.T) {
				s, c := newSecondTransportScript(t, Config{}, false)
				r := s.send("x")
				l := s.e.names[s.addr()]
				s.refuse(l, theOffer)
				end(s, l)
				s.advance(backoffFirst + time.Millisecond)
				require.Equal(t, []*session{l, l}, s.dialed)
				require.Equal(t, [16]byte{7}, s.currentHello(l).Place)
				require.Zero(t, s.currentHello(l).Offer)
				s.refuse(l, frame.Bye{Code: ErrAgain, Offer: &frame.Offer{Name: "near://successor", Secret: frame.Secret{8}}})
				require.Equal(t, []string{"near://there", "near://successor"}, *c.dialed)
				require.Equal(t, frame.Secret{8}, s.currentHello(l).Offer)
				want := "near"
				if again {
					want = "script"
					end(s, l)
					s.advance(backoffFirst + time.Millisecond)
					require.Equal(t, []*session{l, l, l}, s.dialed)
					require.Zero(t, s.currentHello(l).Place)
				}
				require.NoError(t, s.hello(l, peerGreeting(5)))
				s.drain(l)
				s.trigger()
				require.NoError(t, r.Err)
				id, _ := s.e.identityOf(l.addr())
				require.Equal(t, want, id.Transport)
			})
		}
	}
}

// TestOfferShort leaves the first transport half of a ConnectTimeout that is as short as an offer stands.
func TestOfferShort(t *testing.T) {
	s, _ := newSecondTransportScript(t, Config{ConnectTimeout: offerTime}, false)
	r := s.send("x")
	l := s.e.names[s.addr()]
	s.refuse(l, theOffer)
	s.advance(offerTime/2 + time.Millisecond)
	s.advance(backoffFirst + time.Millisecond)
	require.Equal(t, []*session{l, l}, s.dialed)
	require.NoError(t, s.hello(l, helloAt(7)))
	s.drain(l)
	s.trigger()
	require.NoError(t, r.Err)
}

// TestOfferUnverified has an offer arrive from a peer that has proven nothing, where TLS is required.
func TestOfferUnverified(t *testing.T) {
	s, c := newSecondTransportScript(t, Config{Local: LocalAlways}, true)
	r := s.send("x")
	s.refuse(s.e.names[s.addr()], theOffer)
	s.trigger()
	require.ErrorIs(t, r.Err, ErrUnreachable)
	require.Empty(t, *c.dialed)
}

// TestOfferRace has the peer, which connected by the second transport, report that it dials, too:
// the dial that follows begins from the first.
func TestOfferRace(t *testing.T) {
	s, _ := newSecondTransportScript(t, Config{}, false)
	s.send("x")
	l := s.e.names[s.addr()]
	s.refuse(l, theOffer)
	s.refuse(l, frame.Bye{Code: ErrDuplicate, Text: "we dial"})
	require.Equal(t, scriptPeer, l.Name())
	s.advance(backoffFirst*5 + time.Millisecond)
	require.Equal(t, []*session{l, l}, s.dialed)
	require.Equal(t, [16]byte{7}, s.currentHello(l).Place)
}

// TestOfferUnrequested has a peer offer a transport that was not requested: it is refused, and changes
// nothing.
func TestOfferUnrequested(t *testing.T) {
	for name, open := range map[string]func() *script{
		"one transport": func() *script { return newScript(t, Config{}) },
		"never":         func() *script { s, _ := newSecondTransportScript(t, Config{Local: LocalNever}, false); return s },
		"secure":        func() *script { s, _ := newSecondTransportScript(t, Config{}, true); return s },
	} {
		t.Run(name, func(t *testing.T) {
			s := open()
			r := s.send("x")
			l := s.e.names[s.addr()]
			require.Zero(t, s.currentHello(l).Place)
			s.refuse(l, theOffer)
			s.trigger()
			require.ErrorIs(t, r.Err, ErrUnreachable)
			require.ErrorContains(t, r.Err, "offered a transport that was not requested")
		})
	}
}

// TestOfferMade has a peer of the same place be turned away with an offer, and let in at the second
// transport when it shows that: once, within its time, and no other peer.
func TestOfferMade(t *testing.T) {
	s, c := newSecondTransportScript(t, Config{}, false)
	_, err := s.admitted(scriptCarrier{s}, helloAt(7))
	var o *frame.Offer
	require.ErrorAs(t, err, &o)
	require.Equal(t, "near://me", o.Name)
	shown := peerGreeting(5)
	refused := func(g frame.Greeting, why string) {
		t.Helper()
		_, err := s.admitted(c, g)
		require.ErrorIs(t, err, ErrPermission, why)
		require.ErrorContains(t, err, "dial script://me")
	}
	refused(shown, "without an offer")
	shown.Offer = frame.Secret{1}
	refused(shown, "with one that nobody has made")
	shown.Offer = o.Secret
	l, err := s.admitted(c, shown)
	require.NoError(t, err)
	require.Same(t, l, s.e.names[s.addr()], "it is reached by the name that it listens at")
	require.True(t, l.route.Exact)
	id, _ := s.e.identityOf(l.addr())
	require.Equal(t, "near", id.Transport)
	s.fail(l, ErrPeerLost)
	refused(shown, "a second time")

	_, err = s.admitted(scriptCarrier{s}, helloAt(7))
	require.ErrorAs(t, err, &o)
	shown.Offer, shown.Incarnation[0] = o.Secret, 2
	refused(shown, "another instance")

	_, err = s.admitted(scriptCarrier{s}, helloAt(7))
	require.ErrorAs(t, err, &o)
	shown.Offer, shown.Incarnation[0] = o.Secret, 1
	s.clock += offerLife
	refused(shown, "too late")
}

// TestOffersBounded has more peers request an offer than there is room for: these stay on the first
// transport, and none waits longer than the offers stand.
func TestOffersBounded(t *testing.T) {
	s, _ := newSecondTransportScript(t, Config{}, false)
	ask := func(i int) error {
		g := helloAt(7)
		g.Incarnation, g.Listen = [16]byte{1, byte(i), byte(i >> 8)}, ""
		l, err := s.admitted(scriptCarrier{s}, g)
		if err == nil {
			s.fail(l, ErrPeerLost)
		}
		return err
	}
	for i := range maxOffers {
		require.Error(t, ask(i))
	}
	require.NoError(t, ask(maxOffers))
	s.clock += offerLife
	require.Error(t, ask(maxOffers))
	require.Len(t, s.dom.offers, 1)
}

// TestPlaces checks when no offer is made, and the transport by which the peer is then reached.
func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		local  Local
		secure bool
		place  byte
		why    string // empty: an offer
	}{
		{place: 7},
		{place: 8, why: "the peer is on another machine, or in another namespace or directory"},
		{place: 0, why: "the peer does not use near beside script, or cannot reach it yet"},
		{local: LocalNever, place: 7, why: "Config.Local is LocalNever"},
		{secure: true, place: 7, why: "TLS is enabled and Config.Local is not LocalAlways"},
		{secure: true, local: LocalAlways, place: 7},
	} {
		t.Run(fmt.Sprintf("%v,%v,%d", c.local, c.secure, c.place), func(t *testing.T) {
			s, _ := newSecondTransportScript(t, Config{Local: c.local}, c.secure)
			l, err := s.admitted(scriptCarrier{s}, helloAt(c.place))
			if c.why == "" {
				require.ErrorContains(t, err, "near://me")
				return
			}
			require.NoError(t, err)
			id, _ := s.e.identityOf(l.addr())
			require.Equal(t, []string{"script", c.why}, []string{id.Transport, id.Why})
		})
	}
}
