package na

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A fakeShelf counts the memory that a carrier.Shelf has.
type fakeShelf struct {
	room     []byte
	reserved int // bodies that are there
	filling  int
	full     bool
	update   func() // takes in the memory that the peer has read; nil: nothing
}

func (s *fakeShelf) Reserve(n int) ([]byte, int64) {
	if s.update != nil {
		s.update()
	}
	if s.full {
		return nil, 0
	}
	s.reserved++
	return s.room[:n], 4096
}
func (s *fakeShelf) Fill()           { s.filling++ }
func (s *fakeShelf) Filled()         { s.filling-- }
func (s *fakeShelf) Drop(int64, int) { s.reserved-- }

func (c scriptCarrier) Shelf(carrier.Session) carrier.Shelf {
	if c.s.shelf == nil {
		return nil
	}
	return c.s.shelf
}

// TestShelf checks that a body that is copied is put on the shelf if there is room, and then only
// BODY carries its place. Whatever the outcome of its call, it is there until BODY is sent or the
// call ends, and not longer.
func TestShelf(t *testing.T) {
	const n = 100_000
	s := newScript(t, Config{})
	s.shelf = &fakeShelf{room: make([]byte, n)}
	l := s.connect(1) // one envelope
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: 1, Tag: 10 * uint64(bodyBytes(n))}, nil))
	tag := Tag(0)
	call := func() (*result, []byte) {
		tag++
		body := bytes.Repeat([]byte("0123456789"), n/10)
		bound, ok := s.nctx.Upper().ClaimRoom(l.addr(), n)
		require.True(t, ok)
		r := s.op(func(op *Op) error {
			return s.nctx.Upper().Call(op, CallSpec{To: bound, Tag: tag, Msg: []byte("front"), Body: body, Copy: true, Buf: make([]byte, 10), Bodies: true})
		})
		return r, body
	}
	_, body := call()
	require.Equal(t, body, s.shelf.room)
	require.Equal(t, 1, s.shelf.reserved)
	require.Zero(t, s.shelf.filling)
	sent := s.drain(l)
	require.Len(t, sent, 2)
	require.Equal(t, frame.Body, sent[0].Kind)
	require.Equal(t, frame.Tail{Offset: 4096, Length: n}, sent[0].Tail)
	require.Equal(t, frame.Unexpected, sent[1].Kind)
	require.Equal(t, sent[0].Op, sent[1].Op)
	s.shelf.reserved-- // the peer has read it

	waits, _ := call() // for an envelope
	require.Equal(t, 1, s.shelf.reserved)
	waits.Cancel()
	require.Zero(t, s.shelf.reserved, "it has not left and never will")

	s.shelf.full = true
	_, _ = call()
	require.Zero(t, s.shelf.reserved)
	s.shelf.full = false
	_, _ = call()
	require.Equal(t, 1, s.shelf.reserved)
	s.e.Lock()
	l.Fail(ErrPeerLost)
	s.e.Unlock()
	require.Zero(t, s.shelf.reserved)
}

// TestShelfOfStream checks that bulk data of a stream is written where the peer can read it, and
// stays there until it has. Data that waits for a reader that has not begun, or is short, takes
// nothing of that, nor do streams beyond their share. What the program writes is there until the
// peer has read it, also when the session has ended.
func TestShelfOfStream(t *testing.T) {
	const n = 64 << 10
	s := newScript(t, Config{})
	s.shelf = &fakeShelf{room: make([]byte, bulkChunk)}
	l := s.connect(5)
	up := s.newStream(true, true)
	s.call(l, up)
	s.drain(l)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Tag: 1 << 20}, nil))
	require.NoError(t, up.window(firstWindow, StreamReserve))
	write := func(n int) {
		k, err := up.Write(make([]byte, n))
		require.NoError(t, err)
		require.Equal(t, n, k)
	}
	write(n)
	require.Zero(t, s.shelf.reserved, "it is not read")
	require.NoError(t, up.window(1<<20, StreamReserve))
	s.drain(l)
	write(minPiece - 1)
	require.Zero(t, s.shelf.reserved, "it is little")
	s.drain(l)
	l.shelved = maxShelved
	write(n)
	require.Zero(t, s.shelf.reserved, "streams have their part of it")
	s.drain(l)
	l.shelved = 0

	b, err := up.Reserve(n)
	require.NoError(t, err)
	require.Len(t, b, n)
	require.Equal(t, []int{1, 1}, []int{s.shelf.reserved, s.shelf.filling})
	want := bytes.Repeat([]byte("12345678"), n/8)
	copy(b, want)
	up.Commit(n)
	require.Zero(t, s.shelf.filling)
	p, ok := s.pull(l)
	require.True(t, ok)
	require.Equal(t, frame.Data, p.Kind)
	at, ok := p.view.Shelved()
	require.True(t, ok)
	require.Equal(t, want, s.shelf.room[at-4096:][:n])
	require.Equal(t, 1, s.shelf.reserved, "the peer has not read it")
	s.sent(l, &p)
	require.Equal(t, want, p.payload)
	require.Zero(t, s.shelf.reserved)

	for _, none := range []int{0, -1} {
		_, err = up.Reserve(none)
		require.ErrorIs(t, err, ErrInvalid)
		up.Commit(0)
	}
	_, err = up.Reserve(n)
	require.NoError(t, err)
	up.Commit(0)
	require.Equal(t, []int{0, 0}, []int{s.shelf.reserved, s.shelf.filling}, "nothing was written")

	b, err = up.Reserve(n)
	require.NoError(t, err)
	s.e.Lock()
	l.Fail(ErrPeerLost)
	s.e.Unlock()
	require.Equal(t, []int{1, 1}, []int{s.shelf.reserved, s.shelf.filling}, "the program writes there")
	copy(b, want)
	up.Commit(n)
	require.Equal(t, []int{0, 0}, []int{s.shelf.reserved, s.shelf.filling})
	require.Zero(t, l.shelved)
}

// TestShelfTakesInGrowingChunk checks that a shelf that looks for room takes in the parts of a stream
// that the peer has read. That may be all of the memory that is to grow for the bytes that are
// being written: it is given back once.
func TestShelfTakesInGrowingChunk(t *testing.T) {
	const n = 20 << 10
	s := newScript(t, Config{})
	s.shelf = &fakeShelf{room: make([]byte, bulkChunk)}
	l := s.connect(5)
	up := s.newStream(true, true)
	s.call(l, up)
	s.drain(l)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Tag: 1 << 20}, nil))
	require.NoError(t, up.window(1<<20, StreamReserve))
	var shown []carrier.View
	for i := range 4 { // the last one extends beyond the chunk of the others
		s.shelf.update = func() {
			for _, v := range shown {
				l.Sent(v)
			}
			shown = nil
		}
		k, err := up.Write(bytes.Repeat([]byte{byte(i)}, n))
		require.NoError(t, err)
		require.Equal(t, n, k)
		p, ok := s.pull(l)
		require.True(t, ok)
		shown = append(shown, p.view)
		require.Equal(t, 1, s.shelf.reserved, "after %d writes", i+1)
	}
	require.EqualValues(t, bulkChunk, l.shelved)
	s.e.Lock()
	s.shelf.update()
	s.e.Unlock()
	require.Zero(t, s.shelf.reserved)
	require.Zero(t, l.shelved)
}

// TestShelfOfPeerThatDoesNotRead checks that a call whose BODY frame is one more than may wait for
// a peer that does not read ends with the session, as the others do.
func TestShelfOfPeerThatDoesNotRead(t *testing.T) {
	const n = 100_000
	s := newScript(t, Config{})
	s.shelf = &fakeShelf{room: make([]byte, n)}
	l := s.connect(5)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: 5, Tag: 10 * uint64(bodyBytes(n))}, nil))
	for range maxControl {
		s.nctx.Upper().GiveBack(l.addr(), Key{})
	}
	require.True(t, l.Up())
	bound, ok := s.nctx.Upper().ClaimRoom(l.addr(), n)
	require.True(t, ok)
	r := s.op(func(op *Op) error {
		return s.nctx.Upper().Call(op, CallSpec{To: bound, Tag: 1, Msg: []byte("front"), Body: make([]byte, n), Copy: true, Buf: make([]byte, 10), Bodies: true})
	})
	require.False(t, l.Up())
	s.trigger()
	require.Equal(t, 1, r.ended)
	require.ErrorIs(t, r.Err, ErrPeerLost)
}

// A failingWriter ends the session when it is given a frame or a piece, as a carrier does whose connection breaks.
type failingWriter struct {
	selfFrame
	l *session
}

func (w *failingWriter) Frame(h *frame.Header, payload []byte) {
	w.selfFrame.Frame(h, payload)
	w.l.Fail(ErrPeerLost)
}

func (w *failingWriter) Piece(h *frame.Header, v carrier.View) {
	w.selfFrame.Piece(h, v)
	w.l.Fail(ErrPeerLost)
}

// TestSessionFailsInStreamFrame checks that bytes that a stream has when its session ends in the
// middle of the send are not counted as unsent any more, and not twice.
func TestSessionFailsInStreamFrame(t *testing.T) {
	for name, bulk := range map[string]bool{"frame": false, "piece": true} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t, Config{})
			l := s.connect(5)
			up := s.newStream(true, bulk)
			s.call(l, up)
			s.drain(l)
			require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Tag: 1 << 20}, nil))
			require.NoError(t, up.window(1<<20, StreamReserve))
			s.drain(l)
			n, err := up.Write(make([]byte, 100_000))
			require.NoError(t, err)
			require.EqualValues(t, n, s.e.dom.unsent.Load())
			s.e.Lock()
			w := &failingWriter{l: l}
			for lane := range l.flows {
				if !w.taken {
					l.Pull(carrier.Lane(lane), w)
				}
			}
			s.e.Unlock()
			require.True(t, w.taken)
			require.Zero(t, s.e.dom.unsent.Load())
			_, err = up.Write([]byte{1})
			require.ErrorIs(t, err, ErrPeerLost)
		})
	}
}
