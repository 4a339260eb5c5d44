package na

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
)

// TestIdleEnvelopes checks that the buffers of freed messages that a context keeps are bounded in
// bytes: the memory of a burst is not held for ever.
func TestIdleEnvelopes(t *testing.T) {
	s := newScript(t, Config{Envelopes: 512})
	l := s.connect(5)
	var held []*Envelope
	for i := range 512 {
		require.NoError(t, s.deliver(l, frame.Header{Kind: frame.Unexpected, Op: uint64(i + 1)}, make([]byte, 4096)))
		r := s.op(s.nctx.RecvUnexpected)
		s.trigger()
		held = append(held, r.Envelope)
	}
	for _, env := range held {
		env.Free()
	}
	kept := 0
	for _, b := range s.e.buffers {
		kept += cap(b.b)
	}
	require.Equal(t, s.e.idleBytes, kept)
	require.LessOrEqual(t, kept, 1<<20)
	require.Positive(t, kept)
}

// BenchmarkFind looks for the sessions of two peers by turns, as answers do.
func BenchmarkFind(b *testing.B) {
	e := &endpoint{sessions: map[uint64]*session{}, names: map[Addr]*session{}}
	var addrs []Addr
	for i := range uint64(2) {
		named := MakeAddr("script://a-name-of-usual-length:1234", int(i))
		l := &session{e: e, named: named, id: i + 1}
		e.sessions[l.id], e.names[named] = l, l
		addrs = append(addrs, l.addr())
	}
	for i := 0; b.Loop(); i++ {
		if e.findSessionLocked(addrs[i&1]) == nil {
			b.Fatal("a session is not found")
		}
	}
}
