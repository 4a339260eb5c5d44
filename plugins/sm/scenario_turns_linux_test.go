package sm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/internal/frame"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sm/internal/ring"
)

// TestBulkDataInTurns checks that a context that sends bulk data reads what has arrived after every
// maxPieces pieces, to whichever peers and in whichever ring, although there is room for more.
func TestBulkDataInTurns(t *testing.T) {
	for name, c := range map[string]struct{ peers, puts, size int }{
		"one put":             {1, 1, 60 * pieceSize},
		"a ring for messages": {1, 30, pieceSize / 2},
		"three peers":         {3, 1, 60 * pieceSize},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRawHost(t, Options{Unassisted: true})
			m, err := h.cls.Register(na.ReadOnly, make([]byte, c.size))
			require.NoError(t, err)
			var peers []*rawPeer
			var addrs []na.Addr
			for range c.peers {
				s := h.newRawPeer()
				peers, addrs = append(peers, s), append(addrs, s.join())
			}
			reserved := 0 // descriptors
			ring.Step = func(p ring.Point) {
				if p == ring.Reserve {
					reserved++
				}
			}
			defer func() { ring.Step = nil }()
			h.nctx.Batch(func() { // whose end flushes
				for _, to := range addrs {
					for range c.puts {
						require.NoError(t, h.nctx.Put(h.nctx.NewOp(func(*na.Op, na.Result) {}), m, 0, to, na.Key{Len: m.Len(), Access: na.WriteOnly}, 0, m.Len()))
					}
				}
			})
			require.Equal(t, c.peers*(c.puts+maxPieces), reserved, "the descriptors of the puts, and the first turns")
			for op := uint64(2); op < 6; op++ {
				arrived := false
				require.NoError(t, h.nctx.RecvUnexpected(h.nctx.NewOp(func(_ *na.Op, r na.Result) {
					require.NoError(t, r.Err)
					r.Envelope.Free()
					arrived = true
				})))
				peers[0].send(frame.Header{Kind: frame.Unexpected, Op: op}, nil)
				before := reserved
				require.NoError(t, h.nctx.Progress(0))
				h.nctx.Trigger(0)
				require.True(t, arrived)
				require.Equal(t, maxPieces, reserved-before)
			}
		})
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
