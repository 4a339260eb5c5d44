package bulk_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/bulk"
	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestErrorFields checks for every way in which a transfer can end with an error that the error has
// operation, peer, elapsed time, moved bytes, and cause.
func TestErrorFields(t *testing.T) {
	for _, c := range []struct {
		name string
		then func(s *transferTest, op *bulk.Op) // when it has begun
		peer func(s *transferTest) na.Addr      // another than the owner
		why  na.Code
	}{
		{"canceled", func(_ *transferTest, op *bulk.Op) { op.Cancel() }, nil, hg.ErrCanceled},
		{"closed", func(s *transferTest, _ *bulk.Op) { s.mctx.Close() }, nil, hg.ErrClosed},
		{"peer lost", func(s *transferTest, _ *bulk.Op) { s.octx.Close() }, nil, hg.ErrPeerLost},
		{"revoked", nil, func(s *transferTest) na.Addr { other, _ := s.Target(hg.Config{}); return other.Addr() }, na.ErrRevoked},
		{"unreachable", nil, func(s *transferTest) na.Addr { return s.peer.WithTarget(5) }, hg.ErrUnreachable},
	} {
		t.Run(c.name, func(t *testing.T) {
			eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
				if c.why == hg.ErrClosed || c.why == hg.ErrPeerLost {
					p = newPair(t, p.Net) // which it ends
				}
				p.withT(t).requireWorks() // connects
				s := newTransferTest(t, p, dir, 512<<10)
				s.spec.Peer = s.peer
				if c.peer != nil {
					s.spec.Peer = c.peer(s)
				}
				op, err := bulk.Transfer(s.mctx, s.spec, s.done)
				require.NoError(t, err)
				if c.then != nil {
					c.then(s, op)
				}
				s.Until(func() bool { return s.calls > 0 })
				var e *bulk.Error
				require.ErrorAs(t, s.err, &e)
				require.ErrorIs(t, s.err, c.why)
				require.Equal(t, bulk.Error{Dir: dir, Peer: s.spec.Peer, Took: e.Took, Moved: op.Moved(), Size: int64(s.size), Err: e.Err}, *e)
				require.Positive(t, e.Took)
				for _, part := range []string{"bulk: " + dir.String(), " " + s.spec.Peer.String() + ": ",
					fmt.Sprintf(" (moved %d of %d bytes in ", op.Moved(), s.size)} {
					require.Contains(t, s.err.Error(), part)
				}
			})
		})
	}
}

// TestRefusedTransferNamesPeer checks that the error of a transfer that does not begin names the
// peer.
func TestRefusedTransferNamesPeer(t *testing.T) {
	eachDir(t, func(t *testing.T, p *pair, dir bulk.Dir) {
		s := newTransferTest(t, p, dir, 1000)
		s.spec.Peer = s.peer
		closed := false
		require.NoError(t, s.localHandle.CloseFunc(func(error) { closed = true }))
		p.Until(func() bool { return closed })
		_, err := bulk.Transfer(s.mctx, s.spec, s.done)
		var e *bulk.Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, hg.ErrClosed)
		require.Equal(t, bulk.Error{Dir: dir, Peer: s.peer, Size: 1000, Err: e.Err}, *e)
		require.Zero(t, s.calls)
	})
}
