package hg_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
)

// TestWithdrawOverDatagrams loses, repeats, damages and reorders datagrams, while the peer
// guarantees four envelopes (C-T26, X-T2, X-T3, X-T8). Each of many calls, of which half are
// withdrawn as soon as they have been forwarded, runs or was withdrawn, never both, and once; it
// ends once; and every envelope is returned.
func TestWithdrawOverDatagrams(t *testing.T) {
	t.Parallel()
	transports.UDP(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{NA: na.Config{Envelopes: 4}})
		ran := map[uint32]int{}
		id := p.rpc("count", func(h hg.Request) error {
			in, err := h.InputRaw()
			if err != nil {
				return err
			}
			ran[binary.LittleEndian.Uint32(in)]++
			return h.RespondRaw(in, nil)
		})
		rules := relay.Rules{Lose: 0.1, Repeat: 0.2, Damage: 0.05, Delay: 0.05, Seed: 1}
		r, err := relay.New(netip.MustParseAddrPort(strings.TrimPrefix(p.target.Addr().Name(), "udp://")), rules)
		require.NoError(t, err)
		t.Cleanup(r.Close)
		to := na.MakeAddr(fmt.Sprintf("udp://%v", r.Addr()), 0)

		const wide = 16
		var taken, late, answered int
		calls := uint32(long.Or(300, 5000))
		for first := uint32(0); first < calls; first += wide {
			left := 0
			for k := range uint32(wide) {
				call := first + k
				h, err := p.octx.Create(to, id)
				require.NoError(t, err)
				in := binary.LittleEndian.AppendUint32(nil, call)
				ends, withdraws := 0, 0
				var end error
				var result hg.WithdrawResult
				left++
				over := func() {
					if ends+withdraws < 1+int(call%2) {
						return
					}
					left--
					switch {
					case call%2 == 1 && result == hg.Withdrawn:
						taken++
						require.Error(t, end)
						require.Zero(t, ran[call], "it was taken back")
					default:
						if call%2 == 1 {
							require.Equal(t, hg.TooLate, result)
							late++
						}
						answered++
						require.NoError(t, end)
						require.Equal(t, 1, ran[call])
					}
				}
				require.NoError(t, h.ForwardRaw(in, func(h *hg.Handle, err error) { ends++; end = err; over(); h.Close() }))
				if call%2 == 1 {
					require.NoError(t, h.Withdraw(0, func(_ *hg.Handle, r hg.WithdrawResult) { withdraws++; result = r; over() }))
				}
			}
			n.Until(func() bool { return left == 0 })
		}
		for call, times := range ran {
			require.Equal(t, 1, times, "call %d", call)
		}
		forth, back, hurt := r.Passed()
		t.Logf("%d answered, %d taken back, %d too late; of %d and %d datagrams something happened to %d", answered, taken, late, forth, back, hurt)
		require.Positive(t, hurt)
		n.Until(func() bool { return p.tctx.Stats().NA.Envelopes == 0 && p.octx.Stats().NA.Outstanding == 0 })
	})
}
