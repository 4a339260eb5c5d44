package na

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

func TestHandshake(t *testing.T) {
	s := newScript(t, Config{Envelopes: 9, Eager: 1024, Name: "me"})
	a, b := s.send("first"), s.op(func(op *Op) error { return s.nctx.SendExpected(op, s.addr(), 3, []byte("second")) })
	require.Len(t, s.dialed, 1, "one session for all operations")
	l := s.dialed[0]
	require.Empty(t, s.drain(l), "before the peer has answered")
	hello := l.Hello(carrier.Messages, []byte("dst"), []byte("label"))
	require.Equal(t, "dst", string(hello[:3]))
	require.Equal(t, hello[3:], l.Hello(carrier.Messages, nil, []byte("label")), "as often as the carrier likes")
	g, err := frame.ParseGreeting(hello[3:])
	require.NoError(t, err)
	require.Equal(t, frame.Greeting{
		Versions: frame.Versions(), Incarnation: s.dom.inc, Listen: "script://me", Host: "here", Envelopes: 9, Eager: 1024,
		Label: []byte("label"), Features: frame.FeatureWithdraw, Secret: l.secret, Process: "me",
	}, g)
	require.Equal(t, 2, s.nctx.Stats().Outstanding)
	require.NoError(t, s.hello(l, peerGreeting(5)))
	require.ElementsMatch(t, []string{"UNEXPECTED", "EXPECTED"}, kinds(s.drain(l)))
	require.Equal(t, 2, s.trigger())
	require.NoError(t, a.Err)
	require.NoError(t, b.Err)
	require.Equal(t, 1, s.nctx.Stats().Peers)
	require.Zero(t, s.nctx.Stats().Outstanding)
}

// TestAnyContext checks that a caller that requests context 0 takes the one that the peer chooses;
// one that requests another context takes no other.
func TestAnyContext(t *testing.T) {
	for wanted, fine := range map[int]bool{0: true, 1: true, 2: false} {
		s := newScript(t, Config{})
		s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, s.addr().WithTarget(wanted), 7, nil) })
		l := s.dialed[0]
		s.drain(l)
		g := peerGreeting(5)
		g.Context = 1
		if err := s.hello(l, g); fine {
			require.NoError(t, err)
			require.EqualValues(t, 1, s.drain(l)[0].Context, "frames name the context that has answered")
		} else {
			require.ErrorContains(t, err, "frame for another context")
		}
	}
}

func TestHandshakeRefuses(t *testing.T) {
	for text, change := range map[string]func(g *frame.Greeting){
		"no common version of frames: the dialing side speaks 7, the listening side 9; upgrade the dialing side": func(g *frame.Greeting) {
			g.Versions = frame.Range{Oldest: 9, Newest: 9}
		},
		"the listening side 5 to 6; upgrade the listening side": func(g *frame.Greeting) { g.Versions = frame.Range{Oldest: 5, Newest: 6} },
		"offers 0 envelopes":              func(g *frame.Greeting) { g.Envelopes = 0 },
		"offers 4097 envelopes":           func(g *frame.Greeting) { g.Envelopes = 4097 },
		"of 255 bytes":                    func(g *frame.Greeting) { g.Eager = 255 },
		"of 49153 bytes":                  func(g *frame.Greeting) { g.Eager = 48<<10 + 1 },
		"for another context":             func(g *frame.Greeting) { g.Target = 1 },
		"connects to this process itself": func(g *frame.Greeting) { g.Incarnation = [16]byte{} },
	} {
		s := newScript(t, Config{})
		r := s.send("x")
		l := s.dialed[0]
		s.drain(l)
		g := peerGreeting(5)
		change(&g)
		if strings.Contains(text, "connects to this process") {
			g.Incarnation = s.dom.inc
		}
		require.ErrorContains(t, s.hello(l, g), text)
		require.True(t, l.Down())
		require.Equal(t, 1, s.trigger())
		require.ErrorIs(t, r.Err, ErrUnreachable)
		require.ErrorContains(t, r.Err, text)
		require.Equal(t, NotRun, r.Fate)
	}
	s := newScript(t, Config{})
	r := s.send("x")
	require.ErrorContains(t, s.deliver(s.dialed[0], frame.Header{Kind: frame.Ping}, nil), "session begins with PING, want HELLO")
	s.trigger()
	require.ErrorIs(t, r.Err, ErrUnreachable)
	require.Zero(t, s.nctx.Stats().PeersLost)
	require.NoError(t, s.deliver(s.dialed[0], frame.Header{Kind: frame.Ping}, nil), "a session that is down receives nothing")
}

// TestOneCode checks that whatever reason a peer gives, and whatever a carrier reports, before a
// session and in one, an operation fails with an error that matches one code; so does the next to
// the same name, which is not dialed yet.
func TestOneCode(t *testing.T) {
	for code := Code(0); code < 64; code++ {
		for _, up := range []bool{false, true} {
			for name, end := range map[string]func(s *script, l *session){
				"refused": func(s *script, l *session) { s.refuse(l, frame.Bye{Code: code, Text: "it says"}) },
				"failed":  func(s *script, l *session) { s.fail(l, WithText(code, "it says")) },
			} {
				if code == OK && name == "failed" {
					continue
				}
				s := newScript(t, Config{})
				r := s.send("x")
				if up {
					require.NoError(t, s.hello(s.dialed[0], peerGreeting(5)))
				}
				end(s, s.dialed[0])
				s.trigger()
				if r.ended == 0 { // it is dialled again
					continue
				}
				require.Equal(t, up, CodeOf(r.Err) == ErrPeerLost || r.Err == nil, "%v", r.Err)
				requireOneCode(t, s.nctx.SendUnexpected(s.nctx.NewOp(func(*Op, Result) {}), s.addr(), 7, nil))
			}
		}
	}
}

func TestGoaway(t *testing.T) {
	s := newScript(t, Config{})
	early := s.send("x")
	require.NoError(t, s.deliver(s.dialed[0], frame.Header{Kind: frame.Goaway, Tag: uint64(ErrNoMemory)}, []byte("full")))
	s.trigger()
	require.ErrorIs(t, early.Err, ErrUnreachable)
	require.ErrorContains(t, early.Err, "full")
	require.Equal(t, NotRun, early.Fate)

	s.advance(time.Second) // over the pause after the failure
	l := s.connect(5)
	late := s.expect(3, nil)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Goaway, Tag: uint64(ErrClosed)}, []byte(strings.Repeat("bye ", 1000))))
	s.trigger()
	require.ErrorIs(t, late.Err, ErrPeerLost)
	require.ErrorContains(t, late.Err, "bye")
	require.Less(t, len(late.Err.Error()), 1000, "the text of a peer is cut")
	require.EqualValues(t, 1, s.nctx.Stats().PeersLeft)
	require.Zero(t, s.nctx.Stats().PeersLost, "a peer that closes is not lost")

	l = s.connect(5)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Goaway, Tag: uint64(ErrPeerLost)}, []byte("you were silent")))
	s.trigger()
	require.EqualValues(t, 1, s.nctx.Stats().PeersLeft)
	require.EqualValues(t, 1, s.nctx.Stats().PeersLost, "one that gives this side up is")
}

// TestGoawayCounts checks that the side that ends a session reports which messages it has not
// taken, so that the other side has the fate of its own: the last one may have run up to there, and
// has not beyond it.
func TestGoawayCounts(t *testing.T) {
	for accepted := range 5 {
		s := newScript(t, Config{})
		l := s.connect(5)
		for range 4 {
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, []byte("x")))
		}
		var all []*Envelope
		for range 3 { // the last one waits for a receive
			r := s.op(s.nctx.RecvUnexpected)
			s.trigger()
			all = append(all, r.Envelope)
		}
		if accepted == 4 { // the session ends, and the context stays open
			s.e.Lock()
			l.Fail(ErrClosed)
			s.e.Unlock()
			require.EqualValues(t, 5, s.byes[l].Next, "they may be accepted yet")
		} else {
			for _, env := range all[max(0, accepted-1):accepted] { // the one before it may be accepted or not: it was first
				require.True(t, env.Accept())
			}
			s.e.shutDown()
			require.EqualValues(t, accepted+1, s.byes[l].Next)
		}
		for i, env := range all {
			require.Equal(t, i < accepted, env.Accept(), "%d of %d", i, accepted)
			env.Free()
		}
	}

	const sent = 4 // of which the last used the last envelope
	last := uint64(math.MaxUint64)
	for next, untaken := range map[uint64]int{0: 0, 1: 4, 2: 3, sent: 1, sent + 1: 0, 1000: 0, last: 0} {
		s := newScript(t, Config{Reserve: LiteralReserve, OnNoCredit: Fail})
		l := s.meetWithdrawing(sent)
		ms := s.sentMessages(l, sent-1)
		kept := s.op(func(op *Op) error { op.SetPatient(true); return s.nctx.SendUnexpected(op, s.addr(), 1, []byte("x")) })
		s.drain(l)
		ms = append(ms, kept)
		recv := s.expect(3, nil)
		var asked []*result
		for _, m := range ms[:sent-1] {
			asked = append(asked, s.withdraw(m))
		}
		s.drain(l)
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Goaway, Op: next, Tag: uint64(ErrClosed)}, nil))
		s.trigger()
		require.ErrorIs(t, recv.Err, ErrPeerLost)
		require.Equal(t, next, recv.ID)
		require.Equal(t, next != 0, recv.Addr == ms[0].Addr)
		require.Equal(t, untaken > 0, kept.Fate == NotRun, "%d", next)
		for i, w := range asked {
			require.Equal(t, i >= sent-untaken, w.Err == nil, "withdraw of message %d when %d is the first that was not taken", i+1, next)
		}
	}
}

// TestViolations checks that a frame that is not allowed inside a session cuts the peer, and is
// counted.
func TestViolations(t *testing.T) {
	for name, broken := range map[string]func(s *script, l *session) error{
		"another context": func(s *script, l *session) error {
			return s.deliver(l, frame.Header{Kind: frame.Ping, Context: 1}, nil)
		},
		"a second HELLO": func(s *script, l *session) error { return s.hello(l, peerGreeting(5)) },
		"credit out of bounds": func(s *script, l *session) error {
			return s.deliver(l, frame.Header{Kind: frame.Credit, Credit: 5000}, nil)
		},
		"credit of half the range": func(s *script, l *session) error { // its difference to what was used is negative
			return s.deliver(l, frame.Header{Kind: frame.Credit, Credit: 1 << 31}, nil)
		},
		"a message too long": func(s *script, l *session) error {
			return s.deliver(l, frame.Header{Kind: frame.Unexpected}, make([]byte, 4097))
		},
		"more messages than guaranteed": func(s *script, l *session) error {
			for range 3 + ExpeditedEnvelopes {
				if err := s.deliver(l, frame.Header{Kind: frame.Unexpected}, nil); err != nil {
					return err
				}
			}
			return nil
		},
		"data beyond the get": func(s *script, l *session) error {
			s.get(s.mem(10))
			id := s.drain(l)[0].Op
			return s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: id, Tag: 5}, make([]byte, 6))
		},
		"data at an offset out of this world": func(s *script, l *session) error {
			s.get(s.mem(10))
			id := s.drain(l)[0].Op
			return s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: id, Tag: 1<<64 - 5}, make([]byte, 5))
		},
		"more data than asked for": func(s *script, l *session) error {
			s.get(s.mem(10))
			id := s.drain(l)[0].Op
			require.NoError(s, s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: id}, make([]byte, 8)))
			return s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: id, Tag: 8}, make([]byte, 8))
		},
		"a get that ends too early": func(s *script, l *session) error {
			s.get(s.mem(10))
			id := s.drain(l)[0].Op
			require.NoError(s, s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: id}, make([]byte, 9)))
			return s.deliver(l, frame.Header{Kind: frame.Done, Op: id}, nil)
		},
		"a get with the identity of another": func(s *script, l *session) error {
			m, err := s.dom.cls.Register(ReadOnly, make([]byte, 10))
			require.NoError(s, err)
			h := frame.Header{Kind: frame.Get, Op: 5, Tail: frame.Tail{Token: m.Key().Token, Length: 10}}
			require.NoError(s, s.deliver(l, h, nil))
			return s.deliver(l, h, nil)
		},
		"a put twice": func(s *script, l *session) error {
			m, err := s.dom.cls.Register(WriteOnly, make([]byte, 10))
			require.NoError(s, err)
			h := frame.Header{Kind: frame.Put, Op: 5, Tail: frame.Tail{Token: m.Key().Token, Length: 10}}
			require.NoError(s, s.deliver(l, h, nil))
			return s.deliver(l, h, nil)
		},
		"a piece of a get twice": func(s *script, l *session) error {
			s.get(s.mem(20))
			h := frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: s.drain(l)[0].Op}
			require.NoError(s, s.deliverPiece(l, h, make([]byte, 10)))
			return s.deliverPiece(l, h, make([]byte, 10))
		},
		"a gap in a get": func(s *script, l *session) error {
			s.get(s.mem(20))
			h := frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: s.drain(l)[0].Op}
			require.NoError(s, s.deliverPiece(l, h, make([]byte, 5)))
			h.Tag = 6
			return s.deliverPiece(l, h, make([]byte, 5))
		},
		"a piece of a put twice": func(s *script, l *session) error {
			m, err := s.dom.cls.Register(WriteOnly, make([]byte, 10))
			require.NoError(s, err)
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Put, Op: 5, Tail: frame.Tail{Token: m.Key().Token, Length: 10}}, nil))
			h := frame.Header{Kind: frame.Data, Op: 5}
			require.NoError(s, s.deliverPiece(l, h, make([]byte, 5)))
			return s.deliverPiece(l, h, make([]byte, 5))
		},
		"more put than announced": func(s *script, l *session) error {
			m, err := s.dom.cls.Register(WriteOnly, make([]byte, 10))
			require.NoError(s, err)
			h := frame.Header{Kind: frame.Put, Op: 5, Tail: frame.Tail{Token: m.Key().Token, Length: 5}}
			require.NoError(s, s.deliver(l, h, nil))
			require.NoError(s, s.deliverPiece(l, frame.Header{Kind: frame.Data, Op: 5}, make([]byte, 4)))
			return s.deliverPiece(l, frame.Header{Kind: frame.Data, Op: 5, Tag: 4}, make([]byte, 4))
		},
		"keys tried out": func(s *script, l *session) error {
			h := frame.Header{Kind: frame.Get, Tail: frame.Tail{Length: 10}}
			for range maxDenials + 1 {
				m, err := s.dom.cls.Register(WriteOnly, make([]byte, 10))
				require.NoError(s, err)
				h.Op++
				h.Tail.Token = m.Key().Token
				if err := s.deliver(l, h, nil); err != nil {
					return err
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{Envelopes: 2})
			l := s.connect(5)
			r := s.expect(3, nil)
			err := broken(s, l)
			require.ErrorIs(t, err, ErrProtocol)
			require.True(t, l.Down())
			s.trigger()
			require.ErrorIs(t, r.Err, ErrPeerLost)
			require.EqualValues(t, 1, s.nctx.Stats().Violations)
			require.EqualValues(t, 1, s.nctx.Stats().PeersLost)
			require.Len(t, s.cuts[l], 1)
			require.Contains(t, s.cuts[l][0], ErrProtocol.Error(), "the peer gets the reason")
			for s.nctx.Stats().Envelopes > 0 {
				r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
				s.trigger()
				r.Envelope.Free()
			}
		})
	}
}

// TestHarmless checks frames of a peer that are allowed although they are late or without effect.
func TestHarmless(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	before := s.nctx.Stats().LateDropped
	for _, h := range []frame.Header{
		{Kind: frame.Done, Op: 77}, {Kind: frame.Done, Op: 1 << 32}, {Kind: frame.Expected, Tag: 5},
	} {
		before++
		require.NoError(t, s.deliver(l, h, nil))
		require.Equal(t, before, s.nctx.Stats().LateDropped, "%v", &h)
	}
	require.NoError(t, s.deliverPiece(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: 77, Tag: 1 << 63}, make([]byte, 100)))
	require.NoError(t, s.deliverPiece(l, frame.Header{Kind: frame.Data, Op: 78, Tag: 100}, make([]byte, 100)))
	require.Equal(t, before+2, s.nctx.Stats().LateDropped)
	for _, k := range []frame.Kind{frame.Cancel, frame.Pong, frame.Credit, frame.Dropped, frame.GiveBack} {
		require.NoError(t, s.deliver(l, frame.Header{Kind: k, Op: 99, Tag: 98}, nil))
	}
	require.True(t, l.Up())
	require.Empty(t, s.drain(l))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Ping, Tag: 5}, nil))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Ping, Tag: 6}, nil))
	all := s.drain(l)
	require.Equal(t, []string{"PONG"}, kinds(all), "one answer to several")
	require.EqualValues(t, 6, all[0].Tag)
}

// TestCreditOracle compares credits with a model: messages sent never exceed the guarantee, nothing
// is lost by cancels, the order stays.
func TestCreditOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	s := newScript(t, Config{})
	l := s.connect(3)
	granted, left := uint32(3), 0
	var waiting []*result // in the order of their starts
	check := func() {
		for _, p := range s.drain(l) {
			require.Equal(t, frame.Unexpected, p.Kind)
			require.NotEmpty(t, waiting)
			left++
			waiting = waiting[1:]
		}
		s.trigger()
		require.LessOrEqual(t, left, int(granted), "envelopes in use")
		require.True(t, len(waiting) == 0 || left == int(granted), "%d wait although %d of %d envelopes are used", len(waiting), left, granted)
		require.Equal(t, len(waiting), s.nctx.Stats().Queued)
		for _, w := range waiting {
			require.Zero(t, w.ended)
		}
	}
	for range 3000 {
		switch r.IntN(4) {
		case 0, 1:
			waiting = append(waiting, s.send("x"))
		case 2:
			granted += uint32(r.IntN(3))
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: granted}, nil))
		case 3: // cancel one, before anything was pulled
			if len(waiting) > 0 {
				i := r.IntN(len(waiting))
				c := waiting[i]
				c.Cancel()
				s.trigger()
				require.ErrorIs(t, c.Err, ErrCanceled)
				require.Equal(t, NotRun, c.Fate)
				waiting = append(append([]*result{}, waiting[:i]...), waiting[i+1:]...)
			}
		}
		if r.IntN(3) > 0 {
			check()
		}
	}
	check()
}

// TestTooLongReturnsEnvelope checks that a message that was queued before the peer announced a
// smaller limit gives its envelope to the next.
func TestTooLongReturnsEnvelope(t *testing.T) {
	s := newScript(t, Config{})
	long, short := s.send(strings.Repeat("x", 300)), s.send("y")
	l := s.dialed[0]
	s.drain(l)
	g := peerGreeting(1)
	g.Eager = 256
	require.NoError(t, s.hello(l, g))
	all := s.drain(l)
	require.Equal(t, []string{"UNEXPECTED"}, kinds(all))
	require.Equal(t, "y", string(all[0].payload))
	s.trigger()
	require.ErrorIs(t, long.Err, ErrMsgSize)
	require.Equal(t, NotRun, long.Fate)
	require.NoError(t, short.Err)
}

// TestCreditIsAnnounced checks that envelopes that are free again are announced at the latest when
// the peer has used all its credit.
func TestCreditIsAnnounced(t *testing.T) {
	s := newScript(t, Config{Envelopes: 8})
	l := s.connect(5)
	var held []*Envelope
	arrive := func() {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected}, nil))
		r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
		s.trigger()
		require.NoError(t, r.Err)
		held = append(held, r.Envelope)
	}
	for range 7 {
		arrive()
	}
	held[0].Accept()
	require.Empty(t, s.drain(l), "less than a quarter is free, and the peer has one more")
	arrive() // the last that it has credit for
	all := s.drain(l)
	require.Equal(t, []string{"CREDIT"}, kinds(all))
	require.EqualValues(t, 9, all[0].Credit)
	held[1].Accept()
	require.Empty(t, s.drain(l))
	held[2].Accept()
	all = s.drain(l)
	require.Equal(t, []string{"CREDIT"}, kinds(all), "a quarter is free")
	require.EqualValues(t, 11, all[0].Credit)
	held[3].Accept()
	held[3].Accept()
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Ping}, nil))
	all = s.drain(l)
	require.Equal(t, []string{"PONG"}, kinds(all))
	require.EqualValues(t, 12, all[0].Credit, "every frame carries it")
	for _, e := range held {
		e.Free()
	}
	s.drain(l)
}

func TestPeerTimeout(t *testing.T) {
	s := newScript(t, Config{PeerTimeout: time.Second})
	l := s.connect(5)
	var lost []error
	s.nctx.OnFault(func(peer Addr, err error) {
		require.Equal(t, s.addr(), peer.Named())
		lost = append(lost, err)
	})
	s.advance(time.Hour) // no operation waits for the peer
	require.True(t, l.Up())
	require.Empty(t, s.drain(l), "an idle session is silent")
	r := s.expect(3, nil)
	pings := 0
	for range 9 {
		s.advance(100 * time.Millisecond)
		pings += len(s.drain(l))
	}
	require.GreaterOrEqual(t, pings, 7)
	require.True(t, l.Up())
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Pong}, nil))
	for range 9 { // a sign of life counts
		s.advance(100 * time.Millisecond)
	}
	require.True(t, l.Up())
	require.Len(t, s.drain(l), 1, "a peer that does not read gets one question")
	for range 3 {
		s.advance(100 * time.Millisecond)
	}
	require.True(t, l.Down())
	s.trigger()
	require.ErrorIs(t, r.Err, ErrPeerLost)
	require.ErrorContains(t, r.Err, "silent for 1s")
	require.Equal(t, MaybeRan, r.Fate)
	require.Len(t, lost, 1)
	require.EqualValues(t, 1, s.nctx.Stats().PeersLost)
	at := s.e.Next()
	ok := at != 0
	require.False(t, ok, "a timer at %v with nothing to wait for", at)
}

// TestPeerTimeoutOfWhatIsServed checks that a peer that owes no answer is probed, too, and given
// up, while something of its own is open here: a message that is not freed, a get, a put. After
// that it is not probed.
func TestPeerTimeoutOfWhatIsServed(t *testing.T) {
	for _, row := range []struct {
		name string
		open func(s *script, l *session, key [16]byte) (end func())
	}{
		{"message", func(s *script, l *session, _ [16]byte) func() {
			r := s.op(s.nctx.RecvUnexpected)
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: 1, Tag: 7}, []byte("x")))
			s.trigger()
			r.Envelope.Accept()
			return r.Envelope.Free
		}},
		{"get", func(s *script, l *session, key [16]byte) func() {
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Get, Op: 1, Tail: frame.Tail{Token: key, Length: 100}}, nil))
			return func() { require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Cancel, Op: 1}, nil)) }
		}},
		{"put", func(s *script, l *session, key [16]byte) func() {
			require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Put, Op: 1, Tail: frame.Tail{Token: key, Length: 100}}, nil))
			return func() { require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Cancel, Op: 1}, nil)) }
		}},
	} {
		for _, over := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s over %v", row.name, over), func(t *testing.T) {
				s := newScript(t, Config{PeerTimeout: time.Second})
				l := s.connect(5)
				s.advance(time.Hour)
				s.advance(time.Hour)
				require.Zero(t, s.e.Next(), "a timer with nothing to wait for")
				m, err := s.dom.cls.Register(ReadWrite, make([]byte, 100))
				require.NoError(t, err)
				end := row.open(s, l, m.Key().Token)
				if over {
					end()
				}
				pings := 0
				for range 15 {
					s.advance(100 * time.Millisecond)
					if !l.Down() {
						for {
							p, ok := s.pullFrom(l, carrier.Messages)
							if !ok || p.Kind == frame.Data {
								break
							}
							if p.Kind == frame.Ping {
								pings++
							}
						}
					}
				}
				require.Equal(t, over, l.Up())
				if over {
					require.Zero(t, pings)
					require.Zero(t, s.e.Next(), "a timer with nothing to wait for")
				} else {
					require.Positive(t, pings)
				}
				if !over && row.name == "message" {
					end()
				}
				done := s.op(func(op *Op) error { return s.nctx.Deregister(op, m) })
				s.trigger()
				require.NoError(t, done.Err)
			})
		}
	}
}

// TestOwnFreezeLosesNoPeer checks that a freeze of this process counts for two ticks at most.
func TestOwnFreezeLosesNoPeer(t *testing.T) {
	s := newScript(t, Config{PeerTimeout: time.Second})
	l := s.connect(5)
	r := s.expect(3, nil)
	for range 4 {
		s.advance(time.Hour)
		require.True(t, l.Up(), "the session after a freeze")
	}
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Pong}, nil))
	s.advance(time.Hour)
	require.Zero(t, r.ended)
}

// TestPeerNotLostUnread checks that a peer that answers is not given up because its frames have
// not been read: they are taken in before a tick judges. The same holds while it is dialed.
func TestPeerNotLostUnread(t *testing.T) {
	var answer func() // of the peer, once
	s := &script{T: t, unread: func() bool {
		f := answer
		answer = nil
		if f != nil {
			f()
		}
		return f != nil
	}}
	s.open(Config{PeerTimeout: time.Second, ConnectTimeout: time.Second})
	r := s.expect(3, nil)
	l := s.dialed[0]
	for range 9 {
		s.advance(s.e.tickEvery())
	}
	answer = func() { require.NoError(t, s.hello(l, peerGreeting(5))) }
	s.advance(s.e.tickEvery())
	require.True(t, l.Up(), "its HELLO has arrived in time")
	for range 30 {
		answer = func() { require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Pong}, nil)) }
		s.advance(s.e.tickEvery())
		require.True(t, l.Up(), "it answers each time")
	}
	require.Zero(t, r.ended)
	for range 12 {
		s.advance(s.e.tickEvery())
	}
	require.False(t, l.Up(), "it is silent now")
	s.trigger()
	require.ErrorIs(t, r.Err, ErrPeerLost)
}

// TestTimersEndInTurn checks that timers that end all at once do not delay the leader's other work:
// a limited number ends in one Poll, the others in the next.
func TestTimersEndInTurn(t *testing.T) {
	const n = 3*maxExpire + 1
	s := newScript(t, Config{})
	for i := range n {
		s.op(func(op *Op) error { return s.nctx.Timer(op, time.Duration(i)) })
	}
	for left := n; left > 0; {
		s.advance(time.Second)
		ended := s.trigger()
		require.Equal(t, min(left, maxExpire), ended)
		if left -= ended; left > 0 {
			require.LessOrEqual(t, s.e.Next(), s.clock, "the rest is due")
		}
	}
	require.Zero(t, s.e.Next())
}

// TestOwnFreezeFailsNoDial freezes this process while it dials: frames that have arrived meanwhile
// are read before a peer is given up, and the time that was left is left.
func TestOwnFreezeFailsNoDial(t *testing.T) {
	for _, before := range []time.Duration{0, 4500 * time.Millisecond, 4990 * time.Millisecond} {
		s := newScript(t, Config{ConnectTimeout: 5 * time.Second, PeerTimeout: 5 * time.Second})
		r := s.send("x")
		l := s.dialed[0]
		for range 10 {
			s.advance(before / 10)
		}
		s.advance(6 * time.Second)
		require.False(t, l.Down(), "a dial that is %v old after a freeze", before)
		require.NoError(t, s.hello(l, peerGreeting(5)))
		s.drain(l)
		s.trigger()
		require.NoError(t, r.Err)
	}
	s := newScript(t, Config{ConnectTimeout: 5 * time.Second, PeerTimeout: 5 * time.Second})
	s.send("x")
	s.advance(6 * time.Second)
	for range 8 {
		s.advance(500 * time.Millisecond)
	}
	require.False(t, s.dialed[0].Down())
	s.advance(time.Second)
	require.True(t, s.dialed[0].Down(), "one that does not succeed ends")
	s.trigger()
	s.advance(time.Minute)
	s.send("x")
	for range 12 { // a process that drives seldom gives up too
		s.advance(time.Minute)
	}
	require.True(t, s.dialed[1].Down())
	s.trigger()
}

func TestConnectTimeout(t *testing.T) {
	s := newScript(t, Config{ConnectTimeout: time.Second})
	s.clock += time.Hour // nothing was driven for long
	r := s.send("x")
	s.advance(0)
	require.False(t, s.dialed[0].Down())
	s.advance(999 * time.Millisecond)
	require.False(t, s.dialed[0].Down())
	at := s.e.Next()
	ok := at != 0
	require.True(t, ok)
	require.LessOrEqual(t, at-s.clock, time.Millisecond, "the timer is in time")
	s.advance(time.Millisecond)
	require.True(t, s.dialed[0].Down())
	s.trigger()
	require.ErrorIs(t, r.Err, ErrUnreachable)
	require.ErrorContains(t, r.Err, "no connection within 1s")
	require.Equal(t, NotRun, r.Fate)
}

// TestLongestDurations checks that an address that fails is dialed again after longer and longer pauses;
// others are not delayed by it. The longest durations mean never, not always.
func TestLongestDurations(t *testing.T) {
	s := newScript(t, Config{ConnectTimeout: math.MaxInt64, Probe: math.MaxInt64, Spin: math.MaxInt64})
	sleeps := func() {
		s.advance(time.Minute)
		s.advance(0)
		at := s.e.Next()
		ok := at != 0
		require.True(t, !ok || at > s.clock, "Progress would poll without end")
	}
	s.send("waits for the session")
	sleeps()
	l := s.dialed[0]
	s.drain(l)
	require.NoError(t, s.hello(l, peerGreeting(1)))
	s.drain(l)
	s.send("waits for an envelope")
	sleeps()
	require.False(t, l.Down())
}

func TestBackoff(t *testing.T) {
	s := newScript(t, Config{})
	fail := func() {
		s.e.Lock()
		s.dialed[len(s.dialed)-1].Fail(WithText(ErrUnreachable, "refused"))
		s.e.Unlock()
		s.trigger()
	}
	s.send("x")
	fail()
	for i := range 9 {
		n, pause := len(s.dialed), min(backoffFirst<<i, backoffLast)
		for _, wait := range []time.Duration{0, pause - time.Millisecond} {
			s.advance(wait)
			r := s.send("x")
			s.trigger()
			require.ErrorIs(t, r.Err, ErrUnreachable, "pause %d: it ends at once", i)
			require.ErrorContains(t, r.Err, "refused")
			require.Equal(t, NotRun, r.Fate)
			require.Len(t, s.dialed, n, "pause %d", i)
		}
		s.advance(time.Millisecond)
		require.Len(t, s.dialed, n, "no dial begins without an operation")
		s.send("x")
		require.Len(t, s.dialed, n+1, "the first after the pause dials at once")
		fail()
	}
	n := len(s.dialed)
	s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, s.addr().WithTarget(1), 1, nil) })
	require.Len(t, s.dialed, n+1, "another context of the peer is dialled at once")
	s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, MakeAddr("script://other", 0), 1, nil) })
	require.Len(t, s.dialed, n+2, "another peer is dialled at once")
	s.advance(2 * time.Second)
	s.connect(5)
	require.Empty(t, s.e.waits, "a session ends the pauses")
}

// TestBackoffIsBounded checks that the number of recorded failed peers has a limit.
func TestBackoffIsBounded(t *testing.T) {
	s := newScript(t, Config{})
	s.e.Lock()
	for i := range 3 * backoffNames {
		s.clock += time.Millisecond
		s.e.lengthenBackoff(MakeAddr(scriptPeer, i), ErrUnreachable)
	}
	require.LessOrEqual(t, len(s.e.waits), backoffNames)
	s.e.Unlock()
}

func TestBadNames(t *testing.T) {
	s := newScript(t, Config{})
	for text, code := range map[string]Code{"other://x": ErrUnsupported, "script://bad": ErrInvalid} {
		r := s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, MakeAddr(text, 0), 1, nil) })
		s.trigger()
		require.ErrorIs(t, r.Err, code)
		require.Equal(t, NotRun, r.Fate)
	}
	require.Empty(t, s.e.sessions)
}

// TestTwoConnections makes two connections of one pair compete.
func TestTwoConnections(t *testing.T) {
	larger, smaller := [16]byte{255}, [16]byte{0, 1}
	for name, c := range map[string]struct {
		begin    func(s *script) *session // the session that exists, or nil
		inc      [16]byte                 // of the peer that connects
		code     Code                     // of its refusal
		adopts   bool                     // the session that exists takes the new connection
		survives bool                     // the session that exists is not changed
	}{
		"nothing there":             {func(*script) *session { return nil }, larger, OK, false, false},
		"we dial, and ours stays":   {func(s *script) *session { s.send("x"); return s.dialed[0] }, smaller, ErrDuplicate, false, true},
		"we dial, and theirs stays": {func(s *script) *session { s.send("x"); return s.dialed[0] }, larger, OK, true, true},
		"we wait before dialling again": {func(s *script) *session {
			s.send("x")
			s.e.Lock()
			s.dialed[0].Fail(WithText(ErrPeerLost, "the connection ended before an answer"))
			s.e.Unlock()
			require.Equal(s, stateWaiting, s.dialed[0].state)
			return s.e.names[s.addr()]
		}, smaller, OK, true, true},
		"ours is up, another instance asks": {func(s *script) *session { return s.connect(5) }, larger, ErrDuplicate, false, true},
		"the same process is this one":      {func(*script) *session { return nil }, [16]byte{}, ErrUnreachable, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{})
			old := c.begin(s)
			g := peerGreeting(5)
			if g.Incarnation = c.inc; c.code == ErrUnreachable {
				g.Incarnation = s.dom.inc
			}
			s.e.Lock()
			l, err := s.e.admitHello(scriptCarrier{s}, "conn", &g, true)
			s.e.Unlock()
			require.Equal(t, c.code, CodeOf(err))
			if c.code != OK {
				require.Nil(t, l)
			} else {
				require.True(t, l.Up())
				require.Equal(t, "conn", l.conn)
			}
			if old != nil {
				require.Equal(t, c.adopts, l == old)
				require.Equal(t, !c.survives, old.Down())
			}
			if l != nil {
				require.Same(t, l, s.e.names[s.addr()], "the name leads to the session")
			}
			s.trigger()
		})
	}
}

// TestHalfOpenSessionEnds checks that an unused session that the peer has lost without a frame does
// not refuse the peer's dials until the peer stops dialing, after its ConnectTimeout, which is the
// PeerTimeout of this side. A peer that is alive answers, and its session stays.
func TestHalfOpenSessionEnds(t *testing.T) {
	for _, lives := range []bool{true, false} {
		s := newScript(t, Config{PeerTimeout: time.Second})
		s.dom.inc[0] = 50
		l := s.connect(5)
		s.advance(time.Hour)
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit}, nil)) // frames before the doubt do not count
		s.e.Lock()
		_, err := s.e.admitHello(scriptCarrier{s}, "conn", new(peerGreeting(5)), true)
		s.e.Unlock()
		require.ErrorIs(t, err, ErrDuplicate)
		require.Equal(t, []string{"PING"}, kinds(s.drain(l)))
		for range 4 {
			s.advance(100 * time.Millisecond)
		}
		require.True(t, l.Up())
		if lives {
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Pong}, nil))
			s.drain(l)
		}
		for range 4 {
			s.advance(100 * time.Millisecond)
		}
		require.Equal(t, lives, l.Up())
		s.advance(time.Second)
		s.advance(time.Second)
		ticks := s.e.Next() != 0
		require.False(t, ticks)
		s.e.Lock()
		_, err = s.e.admitHello(scriptCarrier{s}, "conn", new(peerGreeting(5)), true)
		s.e.Unlock()
		require.Equal(t, lives, err != nil)
		s.trigger()
	}
}

// TestCrossedHello checks the case that both sides dial at once, and the peer takes our connection.
// Its own HELLO, which had left by then, arrives late: while the session is up, or when it has
// ended. The secret shows that it is of the session that the peer has, or had, with us.
func TestCrossedHello(t *testing.T) {
	crossing := peerGreeting(5)
	crossing.Secret = frame.Secret{9}
	admit := func(s *script) (*session, error) {
		s.e.Lock()
		defer s.e.Unlock()
		return s.e.admitHello(scriptCarrier{s}, "late", &crossing, true)
	}
	dialled := func(s *script) *session {
		r := s.expect(1, nil)
		l := s.dialed[0]
		require.NoError(s, s.hello(l, crossing))
		r.Cancel()
		s.trigger()
		return l
	}
	admitted := func(s *script) *session {
		l, err := admit(s)
		require.NoError(s, err)
		return l
	}
	for name, c := range map[string]struct {
		begin  func(*script) *session
		ended  bool
		asked  bool // whether it is alive, and given up, since it does not answer
		begins bool // another session
	}{
		"we have dialled":                    {begin: dialled},
		"we had dialled":                     {begin: dialled, ended: true},
		"it has dialled, and dials again":    {begin: admitted, asked: true},
		"it had dialled, and dials for more": {begin: admitted, ended: true, begins: true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{PeerTimeout: time.Second})
			s.nctx.OnFault(func(_ Addr, err error) { require.True(t, c.asked, "a fault: %v", err) })
			l := c.begin(s)
			s.drain(l)
			for range 3 { // it is idle
				s.advance(100 * time.Millisecond)
			}
			if c.ended {
				require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Leave, Op: l.seq, Tag: l.sentExpected}, nil))
				require.True(t, l.Down())
			}
			again, err := admit(s)
			require.Equal(t, c.begins, err == nil, "%v", err)
			require.Equal(t, c.begins, again != nil)
			if err != nil {
				require.ErrorIs(t, err, ErrDuplicate)
			}
			require.Equal(t, c.asked, len(s.drain(l)) > 0)
			for range 20 {
				s.advance(100 * time.Millisecond)
			}
			require.Equal(t, !c.ended && !c.asked, l.Up())

			if crossing := crossing; l.Down() { // an operation that begins from now on is in another session
				crossing.Secret[0]++
				s.e.Lock()
				l, err := s.e.admitHello(scriptCarrier{s}, "new", &crossing, true)
				s.e.Unlock()
				require.Equal(t, c.begins, err != nil)
				require.Equal(t, err == nil, l != nil && l.Up())
			}
			s.trigger()
		})
	}
}

// TestCrossedSecret checks the other side of TestCrossedHello: one secret is in our own HELLO and,
// when the peer's connection stays, in our answer.
func TestCrossedSecret(t *testing.T) {
	said := func(s *script, l carrier.Session) frame.Secret {
		s.e.Lock()
		defer s.e.Unlock()
		g, err := frame.ParseGreeting(l.Hello(carrier.Messages, nil, nil))
		require.NoError(s, err)
		require.NotZero(s, g.Secret)
		return g.Secret
	}
	theirs := peerGreeting(5)
	theirs.Incarnation = [16]byte{255}
	for name, dial := range map[string]func(*script) carrier.Session{
		"an address": func(s *script) carrier.Session { s.send("x"); return s.dialed[0] },
		"a host of several": func(s *script) carrier.Session {
			s.hosts = map[string][]string{"script://host": {"script://other", scriptPeer}}
			s.op(func(op *Op) error { return s.nctx.SendUnexpected(op, MakeAddr("script://host", 0), 7, nil) })
			s.advance(250 * time.Millisecond)
			return s.attempts[1]
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{})
			before := said(s, dial(s))
			s.e.Lock()
			l, err := s.e.admitHello(scriptCarrier{s}, "theirs", &theirs, true)
			s.e.Unlock()
			require.NoError(t, err)
			require.Equal(t, before, said(s, l))
			s.drain(l)
			s.trigger()
		})
	}
}

// TestDuplicateDialedAgain checks a peer that reports that it dials, too. If its connection does
// not arrive we dial again.
func TestDuplicateDialedAgain(t *testing.T) {
	s := newScript(t, Config{})
	r := s.send("x")
	l := s.dialed[0]
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Goaway, Tag: uint64(ErrDuplicate)}, []byte("I dial")))
	require.Zero(t, s.trigger(), "the operation waits")
	require.False(t, l.Down())
	s.advance(10 * time.Millisecond)
	require.Len(t, s.dialed, 1)
	s.advance(50 * time.Millisecond)
	require.Len(t, s.dialed, 2)

	require.NoError(t, s.hello(l, peerGreeting(1)))
	s.trigger()
	require.NoError(t, r.Err)
}

// TestPrivatePeers checks that a peer that is not verified, or cannot be dialed, gets a name that
// cannot be dialed.
func TestPrivatePeers(t *testing.T) {
	s := newScript(t, Config{})
	for i, c := range []struct {
		listen   string
		verified bool
		want     string
	}{
		{scriptPeer, true, scriptPeer}, {scriptPeer, false, "script://@07"}, {"", true, "script://@07"},
		{"other://x", true, "script://@07"}, {"script://bad", true, "script://@07"},
		{"script://me", true, "script://@07"}, // our own name: a message to it stays in this process
	} {
		g := peerGreeting(5)
		g.Listen, g.Incarnation = c.listen, [16]byte{7, byte(i)}
		s.e.Lock()
		l, err := s.e.admitHello(scriptCarrier{s}, "conn", &g, c.verified)
		s.e.Unlock()
		require.NoError(t, err)
		require.True(t, strings.HasPrefix(l.addr().Name(), c.want), "%+v: got %v", c, l.addr())
		require.Equal(t, l, s.e.findSessionLocked(l.addr()))
	}
}

// TestPrivateNameIsASession checks that a peer with a private name is reached by it while it has a
// session, unless another one claims the same name.
func TestPrivateNameIsASession(t *testing.T) {
	s := newScript(t, Config{})
	admit := func() *session {
		g := peerGreeting(5)
		g.Listen, g.Incarnation = "", [16]byte{7}
		s.e.Lock()
		defer s.e.Unlock()
		l, err := s.e.admitHello(scriptCarrier{s}, "conn", &g, false)
		require.NoError(t, err)
		return l
	}
	name := MakeAddr("script://@0700000000000000", int(peerGreeting(5).Context))
	send := func() error {
		r := s.op(func(op *Op) error {
			return s.nctx.SendUnexpected(op, name, 1, []byte("x"))
		})
		s.trigger()
		return r.Err
	}
	require.ErrorIs(t, send(), ErrUnreachable)
	one := admit()
	require.NoError(t, send())
	two := admit()
	require.ErrorIs(t, send(), ErrDuplicate)
	for i, l := range []*session{one, two} {
		s.e.Lock()
		l.Fail(ErrPeerLost)
		s.e.Unlock()
		if i == 0 {
			require.NoError(t, send())
		}
	}
	require.ErrorIs(t, send(), ErrUnreachable)
	require.Empty(t, s.dialed)
}

func TestBudget(t *testing.T) {
	each := int64(4096 + EnvelopeOverhead)
	s := newScript(t, Config{Envelopes: 4, Budget: 7*each + 10})
	admit := func(inc byte) (*session, error) {
		g := peerGreeting(5)
		g.Listen, g.Incarnation = "", [16]byte{inc}
		s.e.Lock()
		defer s.e.Unlock()
		return s.e.admitHello(scriptCarrier{s}, "conn", &g, false)
	}
	first, err := admit(1)
	require.NoError(t, err)
	require.EqualValues(t, 4, first.buildGreeting().Envelopes)
	s.keepBusy(first)
	second, err := admit(2)
	require.NoError(t, err)
	require.EqualValues(t, 1, second.buildGreeting().Envelopes, "the budget is short")
	s.keepBusy(second)
	_, err = admit(3)
	require.ErrorIs(t, err, ErrNoMemory)
	require.ErrorContains(t, err, "want 4 of 4160 bytes, at least 1, have 0 with 10 of 29130 bytes left (na.Config.Budget)")
	require.Equal(t, 7*each, s.nctx.Stats().Reserved)

	// The room of a session is free again when its last envelope is accepted.
	require.NoError(t, s.deliver(first, frame.Header{Kind: frame.Unexpected}, []byte("x")))
	s.e.Lock()
	first.Fail(ErrPeerLost)
	s.e.Unlock()
	require.Equal(t, 7*each, s.nctx.Stats().Reserved)
	r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	s.trigger()
	require.Equal(t, "x", string(r.Envelope.Data))
	r.Envelope.Accept()
	require.Equal(t, 2*each, s.nctx.Stats().Reserved)
	third, err := admit(3)
	require.NoError(t, err)
	require.EqualValues(t, 4, third.buildGreeting().Envelopes)
	require.Equal(t, "x", string(r.Envelope.Data))
	r.Envelope.Free()
}

// A brokenWriter takes frames until one of a given kind, for which it fails the session.
type brokenWriter struct {
	l    *session
	kind frame.Kind
}

func (brokenWriter) Room() (int, int) { return carrier.MaxWhole, carrier.PieceSize }
func (w brokenWriter) Frame(h *frame.Header, _ []byte) {
	if h.Kind == w.kind {
		w.l.Fail(WithText(ErrIO, "the device is gone"))
		w.l.Fail(WithText(ErrIO, "the device is gone"))
	}
}
func (w brokenWriter) Piece(h *frame.Header, _ carrier.View) { w.Frame(h, nil) }

// TestWriterFails checks a carrier that finds in a method of its Writer that the connection is
// lost. Every operation ends once.
func TestWriterFails(t *testing.T) {
	for _, kind := range []frame.Kind{frame.Unexpected, frame.Expected, frame.Get, frame.Put, frame.Data, frame.Pong} {
		t.Run(kind.String(), func(t *testing.T) {
			s := newScript(t, Config{})
			l := s.connect(8)
			buf := make([]byte, 10)
			ops := []*result{s.send("one"), s.send("two"), s.get(s.mem(10)), s.put(s.mem(10)), s.expect(3, buf)}
			ops = append(ops, s.op(func(op *Op) error { return s.nctx.SendExpected(op, s.addr(), 9, buf) }))
			ops = append(ops, s.op(func(op *Op) error {
				return s.nctx.Upper().Call(op, CallSpec{To: s.addr(), Tag: 12, Msg: buf, Buf: make([]byte, 10)})
			}))
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Ping}, nil))
			func() {
				s.e.Lock()
				defer s.e.Unlock()
				require.False(t, l.Pull(carrier.Messages, brokenWriter{l, kind}))
				require.True(t, l.Down())
			}()
			require.Len(t, s.cuts[l], 1)
			s.trigger()
			for i, r := range ops {
				require.Equal(t, 1, r.ended, "operation %d", i)
			}
			require.ErrorIs(t, ops[4].Err, ErrPeerLost)
			require.Equal(t, MaybeRan, ops[4].Fate)
		})
	}
}
