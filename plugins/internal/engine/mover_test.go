package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/internal/frame"
)

// moverCarrier is a Mover that takes every transfer and leaves it to the test.
type moverCarrier struct {
	scriptCarrier
	taken *[]*Transfer
}

func (c moverCarrier) Move(t *Transfer) bool {
	*c.taken = append(*c.taken, t)
	return true
}

// A transfer of a Mover ends when all of it was moved; what it cannot do goes by frames from where it stands; what comes for one that
// has ended is ignored, also when another has its place.
func TestMover(t *testing.T) {
	s := newScript(t, na.Config{})
	l := s.meet(5)
	var taken []*Transfer
	l.route = &route{Transport: l.route.Transport, carrier: moverCarrier{scriptCarrier{s}, &taken}}
	moved := func(tr *Transfer, n int64, code na.Code) {
		s.e.Lock()
		l.Moved(tr, n, code)
		s.e.Unlock()
		s.trigger()
	}

	get := s.get(s.mem(10))
	require.Empty(t, s.drain(l), "no frame says so")
	require.Len(t, taken, 1)
	first := taken[0]
	moved(first, 4, na.OK)
	require.Zero(t, get.ended)
	v := first.View(4, 6)
	require.True(t, v.Borrow())
	v.Return()
	moved(first, 6, na.OK)
	require.NoError(t, get.Err)
	require.EqualValues(t, 10, get.N)

	canceled := s.get(s.mem(10))
	s.drain(l)
	canceled.Cancel()
	s.trigger()
	require.ErrorIs(t, canceled.Err, na.ErrCanceled)
	require.Empty(t, s.drain(l), "the peer knows nothing of it")
	v = taken[1].View(0, 10)
	require.False(t, v.Borrow())

	m := s.mem(10)
	rest := s.get(m)
	s.drain(l)
	moved(first, 10, na.OK)
	moved(taken[1], 10, na.OK)
	require.Zero(t, rest.ended, "the place of one that has ended")
	moved(taken[2], 4, na.ErrUnsupported)
	require.Zero(t, rest.ended)
	h := s.drain(l)[0]
	require.Equal(t, frame.Get, h.Kind)
	require.Equal(t, frame.Tail{Token: h.Tail.Token, Offset: 4, Length: 6}, h.Tail)
	require.NoError(t, s.place(l, frame.Header{Kind: frame.Data, Flags: frame.FlagAnswer, Op: h.Op}, []byte("abcdef")))
	require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Done, Op: h.Op}, nil))
	s.trigger()
	require.NoError(t, rest.Err)
	require.EqualValues(t, 10, rest.N)
	require.Equal(t, "\x00\x00\x00\x00abcdef", string(m.Segments()[0]))
	moved(taken[2], 6, na.OK)

	refused := s.put(s.mem(10))
	s.drain(l)
	moved(taken[3], 0, na.ErrRevoked)
	require.ErrorIs(t, refused.Err, na.ErrRevoked)
}
