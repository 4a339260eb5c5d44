package na

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// longMessage is a message of a peer that announces n bytes.
func longMessage(n int) (*frame.Header, []byte) {
	h := &frame.Header{Kind: frame.Unexpected, Credit: 5}
	h.SetPayload(n)
	return h, make([]byte, n)
}

// TestRoomOverstepped checks that a peer that uses more room than it has is cut, with a whole
// message or with parts.
func TestRoomOverstepped(t *testing.T) {
	for name, take := range map[string]func(l *session, h *frame.Header, b []byte) error{
		"whole": func(l *session, h *frame.Header, b []byte) error { return l.Deliver(h, b) },
		"in parts": func(l *session, h *frame.Header, b []byte) error {
			v, err := l.Place(h)
			if err == nil {
				err = l.Placed(v)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{})
			l := s.connect(5)
			feed := func(n int) error {
				s.e.Lock()
				defer s.e.Unlock()
				h, b := longMessage(n)
				return take(l, h, b)
			}
			require.NoError(t, feed(4096))
			s.nctx.Upper().GrantRoom(l.addr(), 40<<10)
			require.Equal(t, []string{"CREDIT"}, kinds(s.drain(l)))
			for range firstGrant - 1 {
				require.NoError(t, feed(MaxRoom))
			}
			require.NoError(t, feed(33<<10+1)) // takes as much as the largest
			require.Equal(t, int64(firstGrant*MaxRoom), s.nctx.Peers()[0].RoomHeld)
			require.ErrorIs(t, feed(4097), ErrProtocol)
			require.ErrorIs(t, feed(MaxRoom+1), ErrProtocol)
		})
	}
}

// TestForgedRoom checks that a smaller grant is an old one, and an absurd one ends the session.
func TestForgedRoom(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	feed := func(total uint64) error {
		s.e.Lock()
		defer s.e.Unlock()
		return l.Deliver(&frame.Header{Kind: frame.Credit, Credit: 5, Tag: total}, nil)
	}
	free := func() int64 { return s.nctx.Peers()[0].RoomFree }
	for _, c := range []struct {
		total uint64
		free  int64
	}{{0, 0}, {100, 100}, {200000, 200000}, {100, 200000}, {0, 200000}, {^uint64(0), 200000}, {1<<63 + 200000, 200000}} {
		require.NoError(t, feed(c.total))
		require.Equal(t, c.free, free(), "after %d", c.total)
	}
	for _, total := range []uint64{1<<30 + 1, 1 << 62} {
		require.ErrorIs(t, feed(total), ErrProtocol, "%d", total)
	}
	require.NoError(t, feed(1<<30))
}

// TestRoomBesideEnvelopes checks that the room of all peers leaves Config.Peers their envelopes.
func TestRoomBesideEnvelopes(t *testing.T) {
	each := GuaranteedBytes(1, 8, 4096)
	s := newScript(t, Config{Envelopes: 8, Peers: 10, Budget: 10*each + 100_000})
	l := s.connect(5)
	for range 10 {
		s.nctx.Upper().GrantRoom(l.addr(), MaxRoom)
	}
	require.Equal(t, int64(75_000), s.nctx.Peers()[0].Room)
}

// TestRoomAnnouncedBehindResponses checks that the room of one call after the other is announced
// behind the next message, never by a frame of its own; that of half of all room is.
func TestRoomAnnouncedBehindResponses(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(8)
	s.nctx.Upper().GrantRoom(l.addr(), 5000)
	require.Equal(t, []string{"CREDIT"}, kinds(s.drain(l)))
	long := func() *result {
		r := s.op(s.nctx.RecvUnexpected)
		h, b := longMessage(5000)
		s.e.Lock()
		err := l.Deliver(h, b)
		s.e.Unlock()
		require.NoError(t, err)
		s.trigger()
		require.Len(t, r.Envelope.Data, 5000)
		r.Envelope.Accept()
		return r
	}
	for range 3 * firstGrant {
		r := long()
		s.credit(l, 1)
		s.send("response")
		require.Contains(t, [][]string{{"UNEXPECTED"}, {"UNEXPECTED", "CREDIT"}}, kinds(s.drain(l)))
		r.Envelope.Free() // as hg does, behind the response
		require.Empty(t, kinds(s.drain(l)), "a frame for a quarter of the room")
	}
	held := []*result{long(), long()}
	require.Empty(t, kinds(s.drain(l)))
	for _, r := range held {
		r.Envelope.Free()
	}
	require.Equal(t, []string{"CREDIT"}, kinds(s.drain(l)), "half of the room is free")
}

// TestRoomIsShared checks that a peer that requests all the room there is leaves a quarter to later
// peers, and the room that it frees goes to those that have found none. Room in addition to the
// budget takes nothing from envelopes.
func TestRoomIsShared(t *testing.T) {
	for _, cfg := range []Config{{Budget: 4 << 20}, {Room: 1 << 20, Budget: 1 << 20}} {
		s := newScript(t, cfg)
		var peers []*session
		ask := func(l *session) int64 {
			s.nctx.Upper().GrantRoom(l.addr(), MaxRoom)
			s.drain(l)
			return l.room.reserved
		}
		for i := range 3 {
			g := peerGreeting(32)
			g.Incarnation[1], g.Listen = byte(i), ""
			l, err := s.admitted(scriptCarrier{s}, g)
			require.NoError(t, err)
			for range 8 {
				ask(l)
			}
			peers = append(peers, l)
		}
		require.EqualValues(t, 768<<10, peers[0].room.reserved)
		require.EqualValues(t, 192<<10, peers[1].room.reserved)
		require.Zero(t, peers[2].room.reserved)
		h, b := longMessage(MaxRoom)
		require.NoError(t, s.deliver(peers[0], *h, b))
		r := s.op(s.nctx.RecvUnexpected)
		s.trigger()
		r.Envelope.Accept()
		r.Envelope.Free()
		require.Positive(t, ask(peers[2]))
		require.Less(t, peers[0].room.reserved, int64(768<<10))
		require.Zero(t, s.dom.missed.Load())
	}
}
