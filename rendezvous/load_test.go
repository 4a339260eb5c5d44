package rendezvous_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/rendezvous"
)

// A node is a member and its network.
type node struct {
	class   *hg.Class
	hctx    *hg.Context
	rpc     hg.ID
	ran     int // requests of others
	handles []*hg.Handle
}

// requestCounts count what became of the requests of all.
type requestCounts struct{ calls, ok, withdrawn, tooLate int }

// TestStartedTogether (X-T1) checks a start, an agreement on envelopes, calls to each other,
// withdrawals by the hundred, and the end: each request runs or was withdrawn, and nothing is left.
func TestStartedTogether(t *testing.T) {
	const size, rounds = 3, 20
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		nodes := make([]*node, size)
		for i := range nodes {
			m := &node{}
			m.class, m.hctx = n.Target(hg.Config{NA: na.Config{Envelopes: 8 * (i + 1)}})
			var err error
			m.rpc, err = m.class.Register("node/work", func(h hg.Request) error {
				m.ran++
				return h.Respond(nil, nil)
			})
			require.NoError(t, err)
			nodes[i] = m
		}

		h := startServer(t, rendezvous.ServerConfig{Size: size, Auth: secret})
		worlds := make([]*rendezvous.World, size)
		for rank, err := range eachRank(size, func(rank int) error {
			m, err := rendezvous.Join(testContext(t), rendezvous.Config{Addr: h.addr, Rank: rank, Auth: secret})
			if err != nil {
				return err
			}
			defer m.Close()
			worlds[rank], err = m.Exchange(testContext(t), rendezvous.Info{
				Addr: nodes[rank].hctx.Self().String(), GER: uint32(8 * (rank + 1)),
			})
			return errors.Join(err, m.Leave())
		}) {
			require.NoError(t, err, "rank %d", rank)
			require.Equal(t, uint32(8), worlds[rank].GER)
		}

		var o requestCounts
		for rank, m := range nodes {
			for _, peer := range worlds[rank].Members {
				addr, err := na.ParseAddr(peer.Addr)
				require.NoError(t, err)
				for range worlds[rank].GER { // ourselves among them
					handle, err := m.hctx.Create(addr, m.rpc)
					require.NoError(t, err)
					m.handles = append(m.handles, handle)
				}
			}
		}
		for round := range rounds {
			o.callAll(t, n, nodes, round%2 == 1)
		}
		ran := 0
		for _, m := range nodes {
			ran += m.ran
			for _, handle := range m.handles {
				handle.Close()
			}
		}
		require.Equal(t, size*size*8*rounds, o.calls)
		require.Equal(t, o.calls, o.ok+o.withdrawn)
		require.Equal(t, o.ok, ran)
		require.Positive(t, o.withdrawn)
		for _, m := range nodes {
			n.Until(func() bool { return m.hctx.Stats().NA.Envelopes == 0 })
			require.Zero(t, m.hctx.Stats().NA.Violations)
		}
	})
}

// callAll has every node call all, and take every second request back if withdraw is set.
func (o *requestCounts) callAll(t *testing.T, n *transports.Net, nodes []*node, withdraw bool) {
	t.Helper()
	pending := 0
	for _, m := range nodes {
		for i, handle := range m.handles {
			pending++
			o.calls++
			require.NoError(t, handle.Forward(nil, func(_ *hg.Handle, err error) {
				pending--
				switch {
				case err == nil:
					o.ok++
				default:
					require.ErrorIs(t, err, hg.ErrCanceled)
				}
			}))
			if !withdraw || i%2 == 0 {
				continue
			}
			pending++
			require.NoError(t, handle.Withdraw(0, func(_ *hg.Handle, r hg.WithdrawResult) {
				pending--
				switch r {
				case hg.Withdrawn:
					o.withdrawn++
				case hg.TooLate:
					o.tooLate++
				default:
					t.Errorf("a request was neither taken back nor too late: %v", r)
				}
			}))
		}
	}
	n.Until(func() bool { return pending == 0 })
}
