package na

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// A scriptStream is the endpoint's end of a stream, whose other end the script plays.
type scriptStream struct {
	*Stream
	s     *script
	l     *session
	ready int // how often step was called
}

func (s *script) newStream(up, bulk bool) *scriptStream {
	s.Helper()
	st := &scriptStream{s: s}
	var err error
	st.Stream, err = s.nctx.Upper().NewStream(up, bulk, func(any) int { st.ready++; return 1 }, nil)
	require.NoError(s, err)
	s.Cleanup(st.Close)
	return st
}

// call has the endpoint begin a call with streams, which leaves.
func (s *script) call(l *session, streams ...*scriptStream) *result {
	s.Helper()
	spec := CallSpec{To: s.addr(), Tag: 9, Msg: make([]byte, streamIDSize), Buf: make([]byte, 16)}
	for _, st := range streams {
		st.l = l
		spec.Streams = append(spec.Streams, st.Stream)
	}
	r := s.op(func(op *Op) error { return s.nctx.Upper().Call(op, spec) })
	s.T.Cleanup(func() { r.Cancel() })
	return r
}

// take returns the oldest request.
func (s *script) take() *Envelope {
	s.Helper()
	r := s.op(func(op *Op) error { return s.nctx.RecvUnexpected(op) })
	s.trigger()
	require.NoError(s, r.Err)
	require.NotNil(s, r.Envelope)
	return r.Envelope
}

// openStream has the endpoint open a stream that a request of the script names.
func (s *script) openStream(l *session, id uint64, up, bulk bool) *scriptStream {
	s.Helper()
	s.request(l)
	env := s.take()
	st := &scriptStream{s: s, l: l}
	var err error
	st.Stream, err = s.nctx.Upper().OpenStream(env, id, up, bulk, func(any) int { st.ready++; return 1 }, nil)
	require.NoError(s, err)
	st.Expect(0)
	env.Free()
	s.Cleanup(st.Close)
	return st
}

// request hands l a request.
func (s *script) request(l *session) {
	s.Helper()
	require.NoError(s, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: l.received + 1, Tag: 1}, make([]byte, 16)))
}

// window notifies the endpoint how far its stream may send.
func (st *scriptStream) window(limit, granted uint64) error {
	return st.s.deliver(st.l, frame.Header{Kind: frame.Window, Op: st.id, Tag: limit, Flags: st.flag()}, binary.LittleEndian.AppendUint64(nil, granted))
}

// flag is on frames of a stream that the endpoint has numbered.
func (st *scriptStream) flag() uint8 {
	if st.own {
		return frame.FlagAnswer
	}
	return 0
}

// bytes hands the endpoint a STREAM frame.
func (st *scriptStream) bytes(off int64, b []byte, flags uint8) error {
	return st.s.deliver(st.l, frame.Header{Kind: frame.Stream, Op: st.id, Tag: uint64(off), Flags: st.flag() | flags}, b)
}

// piece hands the endpoint a piece of bulk data.
func (st *scriptStream) piece(off int64, b []byte) error {
	return st.s.deliverPiece(st.l, frame.Header{
		Kind: frame.Data, Op: st.id, Tag: uint64(off), Flags: st.flag() | frame.FlagStream | frame.FlagRoom,
	}, b)
}

// TestStreamWindowCrossesEnd checks that a WINDOW that crosses the end of its stream ends nothing:
// pieces may be in flight on the other lane.
func TestStreamWindowCrossesEnd(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	up := s.newStream(true, true)
	s.call(l, up)
	s.drain(l)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Tag: 1 << 20}, nil))
	require.NoError(t, up.window(firstWindow, StreamReserve))
	n, err := up.Write(make([]byte, 20_000))
	require.NoError(t, err)
	require.Equal(t, 20_000, n)
	s.drain(l)
	require.NoError(t, up.window(2*firstWindow, StreamReserve))
	up.CloseWrite()
	s.drain(l)
	require.Zero(t, s.nctx.Stats().Streams)
	require.NoError(t, up.window(2*firstWindow+100, StreamReserve))
	require.Empty(t, kinds(s.drain(l)))
	up.Close()
}

// TestStreamRoomGrowsBehindBatches checks that the room of a session grows while its readers keep
// up, also where all that is allowed arrives at once, before any of it can be read.
func TestStreamRoomGrowsBehindBatches(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	up := s.openStream(l, 1, true, true)
	s.drain(l)
	for range 40 {
		for {
			off := up.in.most
			n := min(up.in.limit-off, int64(l.room.announced-l.room.taken), bulkChunk-off%bulkChunk)
			if n <= 0 {
				break
			}
			require.NoError(t, up.piece(off, make([]byte, n)))
		}
		for b, err := up.Next(); err == nil; b, err = up.Next() {
			up.Release(len(b))
		}
		s.drain(l)
	}
	require.GreaterOrEqual(t, l.room.reserved, int64(1<<20), "its window is no larger than a piece")
	require.Equal(t, int64(1<<20), up.in.window)
}

// TestStreamEmptyUp checks that the end of an empty stream waits until the target has opened it,
// which would not know the stream otherwise; and is sent when the program has closed the stream
// behind its end, before the request has left or after.
func TestStreamEmptyUp(t *testing.T) {
	for name, c := range map[string]struct{ before, closed bool }{
		"before the request": {true, false}, "before the request, closed": {true, true}, "behind it": {false, false}, "behind it, closed": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{})
			l := s.connect(5)
			up := s.newStream(true, false)
			end := func() {
				up.CloseWrite()
				if c.closed {
					up.Close()
				}
			}
			if c.before {
				end()
			}
			s.call(l, up)
			require.Equal(t, []string{"UNEXPECTED"}, kinds(s.drain(l)))
			if !c.before {
				end()
			}
			require.Empty(t, kinds(s.drain(l)))
			require.NoError(t, up.window(firstWindow, StreamReserve))
			all := s.drain(l)
			require.Equal(t, []string{"STREAM"}, kinds(all))
			require.Equal(t, frame.FlagEnd, all[0].Flags&frame.FlagEnd)
			require.Zero(t, s.nctx.Stats().Streams)
		})
	}
}

// TestStreamLentStays checks that the bytes that Next has returned do not change until Release,
// whatever arrives meanwhile, of this stream or of others.
func TestStreamLentStays(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	one, two := s.openStream(l, 1, true, false), s.openStream(l, 2, true, false)
	s.drain(l)
	require.NoError(t, one.bytes(0, bytes.Repeat([]byte{1}, 900), 0))
	b, err := one.Next()
	require.NoError(t, err)
	for _, n := range []int{2000, 5000} { // the chunk grows, and another stream may have the old one
		require.NoError(t, one.bytes(one.Moved(), bytes.Repeat([]byte{2}, n), frame.FlagRoom))
	}
	for range 8 {
		require.NoError(t, two.bytes(two.Moved(), bytes.Repeat([]byte{3}, 100), 0))
	}
	for range 100 {
		c := newChunk(0, 900)
		copy(c.buf, bytes.Repeat([]byte{4}, 1024))
		defer c.drop()
	}
	require.True(t, bytes.Equal(bytes.Repeat([]byte{1}, 900), b), "the bytes have changed")
	one.Release(len(b))
}

// TestStreamReleaseBehindReset checks that Release behind a Reset frees nothing: Reset has.
func TestStreamReleaseBehindReset(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	up := s.openStream(l, 1, true, false)
	s.drain(l)
	require.NoError(t, up.bytes(0, make([]byte, 700), frame.FlagRoom))
	b, err := up.Next()
	require.NoError(t, err)
	up.Reset(ErrCanceled, "")
	up.Release(len(b))
	require.Zero(t, s.nctx.Peers()[0].RoomHeld)
	require.Equal(t, uint64(700), l.room.freed)
}

// TestStreamStepBehindClose checks that step is not called behind Close, though it was due.
func TestStreamStepBehindClose(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	up := s.openStream(l, 1, true, false)
	s.drain(l)
	_, err := up.Next()
	require.ErrorIs(t, err, ErrAgain)
	require.NoError(t, up.bytes(0, make([]byte, 7), 0))
	up.Close()
	s.trigger()
	require.Zero(t, up.ready)
}

// TestStreamWithoutReserve checks that no stream is opened when there is no reserve left for it.
func TestStreamWithoutReserve(t *testing.T) {
	s := newScript(t, Config{Envelopes: 4, Budget: GuaranteedBytes(1, 4, 4096) + StreamReserve})
	l := s.connect(5)
	reserved := s.nctx.Stats().Reserved
	down := s.newStream(false, false)
	st, err := s.nctx.Upper().NewStream(false, false, nil, nil)
	require.ErrorIs(t, err, ErrNoMemory)
	require.Nil(t, st)
	s.request(l)
	env := s.take()
	st, err = s.nctx.Upper().OpenStream(env, 1, true, false, nil, nil)
	require.ErrorIs(t, err, ErrNoMemory)
	require.Nil(t, st)
	env.Free()
	require.Equal(t, reserved+StreamReserve, s.nctx.Stats().Reserved)
	down.Close()
	require.Equal(t, reserved, s.nctx.Stats().Reserved)
}

// TestStreamPiecesOverlap checks that two overlapping pieces of which the carrier has both are as
// much a violation as one behind the other.
func TestStreamPiecesOverlap(t *testing.T) {
	for _, off := range []int64{0, 1, 9, 50, 99} {
		s := newScript(t, Config{})
		l := s.connect(5)
		up := s.openStream(l, 1, true, true)
		s.drain(l)
		s.e.Lock()
		h := func(off int64, n int) *frame.Header {
			h := &frame.Header{Kind: frame.Data, Op: 1, Tag: uint64(off), Flags: frame.FlagStream | frame.FlagRoom, Credit: l.credits}
			h.SetPayload(n)
			return h
		}
		v, err := l.Place(h(10, 90))
		require.NoError(t, err)
		if off == 0 {
			_, err = l.Place(h(0, 10))
			require.NoError(t, err, "they touch")
			_, err = l.Place(h(100, 10))
			require.NoError(t, err, "they touch")
		}
		_, err = l.Place(h(off, 11))
		require.ErrorIs(t, err, ErrProtocol, "%d", off)
		require.NoError(t, l.Placed(v))
		s.e.Unlock()
		up.Close()
	}
}

// TestStreamFedByReturnedRoom checks that room that no message has used is given to the streams
// that wait for it.
func TestStreamFedByReturnedRoom(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	up := s.newStream(true, false)
	s.call(l, up)
	s.drain(l)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Tag: MaxRoom}, nil))
	bound, ok := s.nctx.Upper().ClaimRoom(s.addr(), MaxRoom)
	require.True(t, ok)
	require.NoError(t, up.window(firstWindow, StreamReserve))
	n, err := up.Write(make([]byte, 5000))
	require.NoError(t, err)
	require.Equal(t, 5000, n)
	require.Equal(t, []string{"STREAM"}, kinds(s.drain(l)))
	require.Equal(t, int64(StreamReserve), up.Moved())
	s.nctx.Upper().ReturnRoom(bound, MaxRoom)
	require.Equal(t, []string{"STREAM"}, kinds(s.drain(l)))
	require.Equal(t, int64(5000), up.Moved())
}

// TestStreamConfirmed checks that a PONG confirms the end of a stream when its last bytes have
// arrived, on the other lane: Shutdown waits for it before it closes.
func TestStreamConfirmed(t *testing.T) {
	for _, by := range []string{"bytes", "RESET", "Close"} {
		t.Run(by, func(t *testing.T) {
			s := newScript(t, Config{})
			l := s.connect(5)
			up := s.openStream(l, 1, true, true)
			s.drain(l)
			require.NoError(t, up.bytes(100, nil, frame.FlagEnd))
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Ping, Op: 1, Tag: 1}, nil))
			all := s.drain(l)
			require.Equal(t, []string{"PONG"}, kinds(all))
			require.Zero(t, all[0].Op)
			switch by {
			case "bytes":
				require.NoError(t, up.piece(0, make([]byte, 100)))
			case "RESET":
				require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Reset, Op: 1}, nil))
			case "Close":
				up.Close()
			}
			all = s.drain(l)
			require.NotEmpty(t, all)
			require.Equal(t, frame.Pong, all[0].Kind)
			require.EqualValues(t, 1, all[0].Op)
		})
	}
}

// TestStreamClosedBeforeItBegins checks a stream that the program has ended before its request has
// left. If the call ends and the target has not opened the stream, it ends with the call; nothing
// else ends it any more.
func TestStreamClosedBeforeItBegins(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	for _, opened := range []bool{false, true} {
		st := s.newStream(true, false)
		st.CloseWrite()
		st.Close()
		r := s.call(l, st)
		s.drain(l)
		require.Len(t, l.streams, 1, "it waits for the target")
		if opened {
			require.NoError(t, st.window(firstWindow, StreamReserve))
			s.drain(l)
		}
		r.Cancel()
		s.trigger()
		require.Empty(t, l.streams)
	}
}

// TestStreamExpectBeforeOpened checks that the bytes that the origin expects of a stream from the
// target are announced when bytes have arrived. The target would drop a WINDOW of a stream that it
// has not opened, and the origin would wait for bytes beyond the first window for ever.
func TestStreamExpectBeforeOpened(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	down := s.newStream(false, true)
	s.call(l, down)
	s.drain(l)
	down.Expect(100_000)
	require.NotContains(t, kinds(s.drain(l)), "WINDOW")
	require.NoError(t, down.bytes(0, make([]byte, 100), 0))
	down.Expect(100_000)
	require.Contains(t, kinds(s.drain(l)), "WINDOW")
	down.Close()
}
