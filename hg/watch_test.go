package hg_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/inspect"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestWatch checks that a program that is watched reports the calls in flight, and counts those
// that end from the first request on, by method and peer. The counts are gauges, too, and a request
// without them gets the gauges only.
func TestWatch(t *testing.T) {
	transports.Each(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{})
		require.NoError(t, p.target.ServeGauges())
		id, err := p.origin.Register(inspect.GaugesRPC, nil)
		require.NoError(t, err)
		work := p.rpc("work", func(r hg.Request) error {
			if in, err := r.InputRaw(); err != nil || len(in) == 0 {
				return hg.Errorf(hg.ErrNotFound, "nothing")
			}
			return r.RespondRaw([]byte("abc"), nil)
		})
		var held hg.Request
		stall := p.rpc("stall", func(r hg.Request) error {
			held = r
			return r.Detach()
		})
		raw := func(id hg.ID, in string) (out []byte, err error) {
			t.Helper()
			h := p.handle(id)
			defer h.Close()
			var o outcome
			require.NoError(t, h.ForwardRaw([]byte(in), o.cb))
			p.Until(func() bool { return o.calls == 1 })
			if o.err == nil {
				out, err = h.OutputRaw()
				require.NoError(t, err)
			}
			return append([]byte(nil), out...), o.err
		}
		ask := func(in []byte) []byte {
			t.Helper()
			out, err := raw(id, string(in))
			require.NoError(t, err)
			return out
		}
		in, err := inspect.EncodeGaugesRequest(inspect.GaugesRequest{Watch: true})
		require.NoError(t, err)
		look := func() inspect.Activity {
			t.Helper()
			all, err := inspect.DecodeActivity(ask(in))
			require.NoError(t, err)
			require.Len(t, all, 1)
			return all[0]
		}
		methods := func(a inspect.Activity) map[string]inspect.MethodCount {
			m := map[string]inspect.MethodCount{}
			for _, c := range a.Methods {
				if c.Kind == inspect.EventTarget {
					m[c.RPC] = c
				}
			}
			return m
		}
		_, err = raw(work, "before") // no watch
		require.NoError(t, err)
		var o outcome
		stalled := p.handle(stall)
		require.NoError(t, stalled.ForwardRaw(nil, o.cb))
		p.Until(func() bool { return held != hg.Request{} })

		first := look()
		require.Empty(t, first.Methods)
		require.Zero(t, first.Watched)
		require.Equal(t, p.tctx.Self().String(), first.Address)
		var stalls int
		for _, c := range first.Calls {
			if c.RPC == "stall" {
				stalls++
				require.Equal(t, "running", c.State)
				require.Positive(t, c.Age)
				require.Equal(t, p.tctx.Calls()[0].Peer.Label(), c.Peer)
			}
		}
		require.Equal(t, 1, stalls)
		for range 5 {
			_, err = raw(work, "12345678")
			require.NoError(t, err)
		}
		_, err = raw(work, "")
		require.ErrorIs(t, err, hg.ErrNotFound)
		require.NoError(t, held.RespondRaw(nil, nil)) // arrived before the watch: it is not counted
		p.Until(func() bool { return o.calls == 1 })
		require.NoError(t, stalled.Close())

		second := look()
		require.Positive(t, second.Watched)
		counted := methods(second)
		require.NotContains(t, counted, "stall")
		m := counted["work"]
		require.Equal(t, []int64{6, 1, 40}, []int64{m.Count, m.Errors, m.Received})
		require.GreaterOrEqual(t, m.Sent, int64(15), "and the text of the error")
		times := int64(0)
		for bucket, n := range m.Times {
			times += n
			require.LessOrEqual(t, inspect.BucketTime(bucket), 2*m.Total)
		}
		require.EqualValues(t, 6, times)
		require.Len(t, second.Traffic, 1)
		require.GreaterOrEqual(t, second.Traffic[0].Count, int64(6))
		require.EqualValues(t, 1, second.Traffic[0].Errors)
		require.Equal(t, second.Peers[0].Address, second.Traffic[0].Address)

		gauges, err := inspect.DecodeGauges(ask(in))
		require.NoError(t, err)
		require.Equal(t, second.Address, gauges[0].Address)
		plain, err := inspect.DecodeActivity(ask(nil))
		require.NoError(t, err)
		require.Empty(t, plain[0].Methods)
		_, err = raw(id, "nonsense")
		require.Equal(t, hg.ErrBadInput, hg.CodeOf(err))
		_, err = inspect.DecodeActivity([]byte("nonsense"))
		require.Error(t, err)
	})
}
