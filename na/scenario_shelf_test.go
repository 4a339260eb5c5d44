package na

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A shelfOf counts what a carrier.Shelf has.
type shelfOf struct {
	room     []byte
	reserved int // bodies that are there
	filling  int
	full     bool
}

func (s *shelfOf) Reserve(n int) ([]byte, int64) {
	if s.full {
		return nil, 0
	}
	s.reserved++
	s.filling++
	return s.room[:n], 4096
}
func (s *shelfOf) Filled()         { s.filling-- }
func (s *shelfOf) Drop(int64, int) { s.reserved-- }

func (c scriptCarrier) Shelf(carrier.Session) carrier.Shelf {
	if c.s.shelf == nil {
		return nil
	}
	return c.s.shelf
}

// A body that is copied goes to the shelf if there is room, and then only BODY says where it is. Whatever comes of its call, it is there
// until BODY leaves or the call ends, and not longer.
func TestShelf(t *testing.T) {
	const n = 100_000
	s := newScript(t, Config{})
	s.shelf = &shelfOf{room: make([]byte, n)}
	l := s.meet(1) // one envelope
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: 1, Tag: 10 * uint64(bodyBytes(n))}, nil))
	tag := Tag(0)
	call := func() (*result, []byte) {
		tag++
		body := bytes.Repeat([]byte("0123456789"), n/10)
		bound, ok := s.nctx.ClaimRoom(l.addr(), n)
		require.True(t, ok)
		r := s.op(func(op *Op) error {
			return s.nctx.Call(op, CallSpec{To: bound, Tag: tag, Msg: []byte("front"), Body: body, Copy: true, Buf: make([]byte, 10), Bodies: true})
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

// A call whose BODY frame is one more than may wait for a peer that does not read ends with the session, as the others do.
func TestShelfOfPeerThatDoesNotRead(t *testing.T) {
	const n = 100_000
	s := newScript(t, Config{})
	s.shelf = &shelfOf{room: make([]byte, n)}
	l := s.meet(5)
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Credit, Credit: 5, Tag: 10 * uint64(bodyBytes(n))}, nil))
	for range maxControl {
		s.nctx.GiveBack(l.addr(), Key{})
	}
	require.True(t, l.Up())
	bound, ok := s.nctx.ClaimRoom(l.addr(), n)
	require.True(t, ok)
	r := s.op(func(op *Op) error {
		return s.nctx.Call(op, CallSpec{To: bound, Tag: 1, Msg: []byte("front"), Body: make([]byte, n), Copy: true, Buf: make([]byte, 10), Bodies: true})
	})
	require.False(t, l.Up())
	s.trigger()
	require.Equal(t, 1, r.ended)
	require.ErrorIs(t, r.Err, ErrPeerLost)
}
