package na

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// TestRandomTokens checks that a million random tokens reach nothing (F60).
func TestRandomTokens(t *testing.T) {
	s := newScript(t, Config{})
	l := s.connect(5)
	for range 100 {
		_, err := s.dom.cls.Register(ReadWrite, make([]byte, 10))
		require.NoError(t, err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1_000_000 {
		var tail frame.Tail
		binary.LittleEndian.PutUint64(tail.Token[:], r.Uint64())
		binary.LittleEndian.PutUint64(tail.Token[8:], r.Uint64())
		if _, code := s.dom.findMem(l, tail, ReadOnly); code != ErrRevoked {
			t.Fatalf("token %x: %v", tail.Token, code)
		}
	}
}

// TestTokenGuesses checks that a peer that tries tokens is cut after 16 of them, by get, by put, or by
// turns. One that uses an old token is not, nor one that uses a token of an earlier life of the
// owner, or of an earlier session, for all the pieces of a transfer.
func TestTokenGuesses(t *testing.T) {
	try := func(s *script, l *session, i int, token [16]byte) error {
		h := frame.Header{Kind: frame.Get, Op: uint64(1000 + i), Tail: frame.Tail{Token: token, Length: 10}}
		if i%2 == 0 {
			return s.deliver(l, h, nil)
		}
		h.Kind = frame.Put
		return s.deliver(l, h, nil)
	}
	guess := func(i int) [16]byte { return [16]byte{0xff, byte(i), byte(i >> 8)} }

	s := newScript(t, Config{})
	l := s.connect(5)
	m, err := s.dom.cls.Register(ReadWrite, make([]byte, 10))
	require.NoError(t, err)
	s.op(func(op *Op) error { return s.nctx.Deregister(op, m) })
	s.trigger()
	earlier, err := s.dom.cls.RegisterFor(l.addr().Bound(l.id+256), ReadWrite, make([]byte, 10))
	require.NoError(t, err)
	short, err := s.dom.cls.Register(ReadWrite, make([]byte, 9))
	require.NoError(t, err)
	for i := range 1000 {
		require.NoError(t, try(s, l, i, m.Key().Token), "memory that was taken back")
		require.NoError(t, try(s, l, i, guess(0)), "one that never was, again and again")
		require.NoError(t, try(s, l, i, earlier.Key().Token), "one that was for another session")
		require.NoError(t, try(s, l, i, short.Key().Token), "beyond its end")
		require.Len(t, s.drain(l), 4, "each is answered")
	}
	for i := range maxDenials - 3 {
		require.NoError(t, try(s, l, i, guess(1+i)))
	}
	require.Len(t, s.drain(l), maxDenials-3, "each is answered")
	require.True(t, l.Up())
	require.ErrorIs(t, try(s, l, 0, guess(100)), ErrProtocol)
	require.True(t, l.Down())
	require.EqualValues(t, 1, s.nctx.Stats().Violations)
}
