package sm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// TestBulkDataInTurns checks that a context that sends bulk data reads what has arrived after every
// maxPieces pieces, although the ring has room for more.
func TestBulkDataInTurns(t *testing.T) {
	const size = 60 * pieceSize
	h := newRawHost(t, Options{Unassisted: true})
	m, err := h.cls.Register(na.ReadOnly, make([]byte, size))
	require.NoError(t, err)
	s := h.newRawPeer()
	from := s.join()
	reserved := 0 // descriptors, for pieces and for messages
	ring.Step = func(p ring.Point) {
		if p == ring.Reserve {
			reserved++
		}
	}
	defer func() { ring.Step = nil }()
	h.nctx.Batch(func() { // whose end flushes
		require.NoError(t, h.nctx.Put(h.nctx.NewOp(func(*na.Op, na.Result) {}), m, 0, from, na.Key{Len: size, Access: na.WriteOnly}, 0, size))
	})
	require.LessOrEqual(t, reserved, 1+maxPieces, "before Progress; the first is the put")
	for op := uint64(2); reserved < 12; op++ { // the ring has room for 16
		arrived := false
		require.NoError(t, h.nctx.RecvUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) {
			require.NoError(t, r.Err)
			r.Envelope.Free()
			arrived = true
		})))
		before := reserved
		s.send(frame.Header{Kind: frame.Unexpected, Op: op}, nil)
		before++
		require.NoError(t, h.nctx.Progress(0))
		h.nctx.Trigger(0)
		require.True(t, arrived, "after %d pieces", before)
		require.LessOrEqual(t, reserved-before, 2*maxPieces, "in one Progress, after %d", before)
	}
}

// TestBulkDataFillsRing checks that a program that rarely calls Progress sends more than maxPieces
// pieces with each call. As long as nothing arrives, one call fills the ring.
func TestBulkDataFillsRing(t *testing.T) {
	const pieces = 16 // for which the ring has room
	h := newRawHost(t, Options{Unassisted: true})
	m, err := h.cls.Register(na.ReadOnly, make([]byte, 2*pieces*pieceSize))
	require.NoError(t, err)
	from := h.newRawPeer().join()
	reserved := 0 // descriptors
	ring.Step = func(p ring.Point) {
		if p == ring.Reserve {
			reserved++
		}
	}
	defer func() { ring.Step = nil }()
	require.NoError(t, h.nctx.Put(h.nctx.NewOp(func(*na.Op, na.Result) {}), m, 0, from, na.Key{Len: m.Len(), Access: na.WriteOnly}, 0, m.Len()))
	require.ErrorIs(t, h.nctx.Progress(0), na.ErrTimeout)
	require.Equal(t, 1+pieces, reserved, "the first is the put")
}
