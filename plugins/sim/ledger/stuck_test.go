package ledger

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/hg/codec"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// A stuckPair is an origin and a target that the test drives by hand.
type stuckPair struct {
	t              *testing.T
	w              *sim.World
	origin, target *hg.Class
	octx, tctx     *hg.Context
	id             hg.ID
	ran            []int // by the number of the request
}

func newStuckPair(t *testing.T, cfg sim.Config, naCfg na.Config) *stuckPair {
	p := &stuckPair{t: t, w: sim.NewWorld(cfg)}
	naCfg.Plugins = []na.Plugin{p.w.Plugin()}
	open := func(addr string) (*hg.Class, *hg.Context) {
		cls, err := hg.Open(addr, hg.Config{Codec: codec.Raw, NA: naCfg})
		require.NoError(t, err)
		p.id, err = cls.Register("count", func(h hg.Request) error {
			in, err := h.InputRaw()
			require.NoError(t, err)
			p.ran[binary.LittleEndian.Uint32(in)]++
			return h.RespondRaw(nil, nil)
		})
		require.NoError(t, err)
		hctx, err := cls.NewContext()
		require.NoError(t, err)
		return cls, hctx
	}
	p.origin, p.octx = open("sim://origin")
	p.target, p.tctx = open("sim://target")
	return p
}

// A stuckCall is one request and the results of its callbacks.
type stuckCall struct {
	h         *hg.Handle
	callbacks int
	err       error
	reported  int
	result    hg.WithdrawResult
}

// forward sends a request of at least size bytes.
func (p *stuckPair) forward(size int) *stuckCall {
	h, err := p.octx.Create(p.tctx.Self(), p.id)
	require.NoError(p.t, err)
	c := &stuckCall{h: h}
	in := binary.LittleEndian.AppendUint32(nil, uint32(len(p.ran)))
	p.ran = append(p.ran, 0)
	require.NoError(p.t, h.ForwardRaw(append(in, make([]byte, size)...), func(_ *hg.Handle, err error) { c.callbacks++; c.err = err }))
	return c
}

func (p *stuckPair) withdraw(c *stuckCall) {
	require.NoError(p.t, c.h.Withdraw(0, func(_ *hg.Handle, r hg.WithdrawResult) { c.reported++; c.result = r }))
}

// drive drives both sides a little; the target runs handlers or not.
func (p *stuckPair) drive(handlers bool) {
	_ = p.octx.Progress(time.Microsecond)
	p.octx.Trigger(0)
	_ = p.tctx.Progress(time.Microsecond)
	if handlers {
		p.tctx.Trigger(0)
	}
}

func (p *stuckPair) until(what string, done func() bool) {
	p.t.Helper()
	for end := p.w.Now() + time.Second; !done(); p.drive(true) {
		require.Less(p.t, p.w.Now(), end, "%s takes too long: %+v %+v", what, p.octx.Stats(), p.tctx.Stats())
	}
}

// end closes everything, and checks that nothing is left.
func (p *stuckPair) end(calls []*stuckCall) {
	p.t.Helper()
	for _, c := range calls {
		c.h.Close()
	}
	require.NoError(p.t, p.origin.Close())
	require.NoError(p.t, p.target.Close())
	p.until("closing", func() bool {
		return p.origin.NA().Closed() && p.target.NA().Closed() && p.octx.NA().Closed() && p.tctx.NA().Closed()
	})
	for _, hctx := range []*hg.Context{p.octx, p.tctx} {
		st := hctx.Stats()
		require.Zero(p.t, st.NA.Reserved)
		require.Zero(p.t, st.NA.Envelopes)
		require.Zero(p.t, st.NA.Violations)
		require.Zero(p.t, st.Handles)
		require.Zero(p.t, st.Lent)
	}
	p.w.Close()
}

// TestCloseWhileWithdrawing (X-T4, X-T5): one side closes at any time after requests, some of which
// wait for an envelope, and perhaps withdraws of them, were sent. Every callback runs once, soon,
// with a correct result; requests that waited for an envelope have not run.
func TestCloseWhileWithdrawing(t *testing.T) {
	results := map[string]int{}
	for _, side := range []string{"origin", "target"} {
		for _, withdraws := range []bool{true, false} {
			for at := range 40 {
				t.Run(fmt.Sprintf("%s/withdraws=%v/%d", side, withdraws, at), func(t *testing.T) {
					p := newStuckPair(t, sim.Config{Seed: uint64(at), Latency: 3 * time.Microsecond}, na.Config{Envelopes: 2, Eager: 256})
					warm := p.forward(0)
					p.until("the first call", func() bool { return warm.callbacks > 0 })
					require.NoError(t, warm.err)
					calls := []*stuckCall{warm}
					for i := range 6 {
						calls = append(calls, p.forward(i%2*1000))
					}
					for range at / 4 {
						p.drive(at%3 == 0)
					}
					if withdraws {
						for _, c := range calls[1:] {
							p.withdraw(c)
						}
					}
					for range at % 4 {
						p.drive(at%3 == 0)
					}
					cls := p.origin
					if side == "target" {
						cls = p.target
					}
					require.NoError(t, cls.Close())
					p.until("the end of all calls", func() bool {
						for _, c := range calls[1:] {
							if c.callbacks == 0 || withdraws && c.reported == 0 {
								return false
							}
						}
						return true
					})
					for i, c := range calls[1:] {
						what := fmt.Sprintf("call %d: %v, withdraw %v, ran %d", i, c.err, c.result, p.ran[i+1])
						require.Equal(t, 1, c.callbacks, what)
						require.LessOrEqual(t, c.reported, 1, what)
						ran := p.ran[i+1]
						require.LessOrEqual(t, ran, 1, what)
						if c.err == nil {
							require.Equal(t, 1, ran, what)
							results["ok"]++
						} else {
							if hg.FateOf(c.err) == na.NotRun {
								require.Zero(t, ran, what)
							}
							results[outcomeOf(c.err)]++
						}
						if withdraws {
							results[c.result.String()]++
							if c.result == hg.Withdrawn {
								require.Zero(t, ran, what)
								require.ErrorIs(t, c.err, hg.ErrCanceled, what)
							}
						} else if at == 0 && i >= 2 { // nothing was driven: it waited for an envelope
							require.Zero(t, ran, what)
							require.Equal(t, na.NotRun, hg.FateOf(c.err), what)
						}
					}
					p.end(calls)
				})
			}
		}
	}
	t.Logf("%v", results)
	for _, kind := range []string{"ok", "canceled", "lost", "withdrawn", "too late", "indeterminate", "closed"} {
		require.Positive(t, results[kind], "nothing ended with %q", kind)
	}
}

// TestNoProgress (X-T12): a target whose program does not drive it for 5 s keeps as many requests
// as it has guaranteed and no more; the others wait at their source, nothing grows, and the session
// stays up. Then all calls complete.
func TestNoProgress(t *testing.T) {
	for _, noAssist := range []bool{false, true} {
		t.Run(fmt.Sprintf("no assist %v", noAssist), func(t *testing.T) {
			const ger, n = 4, 200
			timeout := time.Second // heartbeats are still answered
			if noAssist {
				timeout = 10 * time.Second // nothing is answered
			}
			p := newStuckPair(t, sim.Config{Seed: 1, NoAssist: noAssist}, na.Config{Envelopes: ger, PeerTimeout: timeout})
			warm := p.forward(0)
			p.until("the first call", func() bool { return warm.callbacks > 0 })
			calls := []*stuckCall{warm}
			for i := range n {
				calls = append(calls, p.forward(i%2*6000))
			}
			drive := func(until time.Duration) {
				for p.w.Now() < until {
					_ = p.octx.Progress(10 * time.Millisecond)
					p.octx.Trigger(0)
				}
			}
			begun := p.w.Now()
			drive(begun + time.Second)
			early := heapInUse()
			st := p.octx.Stats()
			drive(begun + 5*time.Second)
			require.Less(t, heapInUse()-early, int64(256<<10), "bytes more in 4 s")
			now := p.octx.Stats()
			require.Equal(t, n-ger, now.NA.Queued)
			require.Equal(t, st.NA.Queued, now.NA.Queued)
			require.Equal(t, st.Lent, now.Lent)
			require.Zero(t, now.NA.PeersLost)
			if !noAssist {
				require.Equal(t, ger, p.tctx.Stats().NA.Envelopes)
			}
			require.LessOrEqual(t, p.tctx.Stats().NA.Envelopes, ger)
			require.Zero(t, p.tctx.Stats().Handles)
			p.until("going on", func() bool { return calls[n].callbacks > 0 && p.octx.Stats().NA.Outstanding == 0 })
			for i, c := range calls {
				require.Equal(t, 1, c.callbacks)
				require.NoError(t, c.err)
				require.Equal(t, 1, p.ran[i])
			}
			p.end(calls)
		})
	}
}
