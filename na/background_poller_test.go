package na_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/na/carrier"
)

// A latePlugin has a carrier that gets work once, while it is being polled.
type latePlugin struct {
	core  carrier.Core
	polls atomic.Int64
	late  atomic.Bool
}

func (p *latePlugin) Scheme() string { return "late" }
func (p *latePlugin) Open(carrier.Class, string) (*carrier.Network, error) {
	return &carrier.Network{Listen: "late://me", Names: struct{ carrier.Names }{}, NewCarrier: func(core carrier.Core) (carrier.Carrier, error) {
		p.core = core
		return lateCarrier{p: p}, nil
	}}, nil
}

type lateCarrier struct {
	carrier.Carrier
	p *latePlugin
}

func (c lateCarrier) Poll(time.Duration) time.Duration {
	if c.p.late.Swap(false) {
		c.p.core.PollSoon() // as another goroutine would that leaves work when this one has looked
	}
	c.p.polls.Add(1)
	return 0
}
func (lateCarrier) Shut()                        {}
func (lateCarrier) Lingering(time.Duration) bool { return false }
func (lateCarrier) Release()                     {}

// TestPollSoonWhileAssistPolls checks that a carrier with work that arrives just after the assist
// has polled it is polled again, though no goroutine calls Progress.
func TestPollSoonWhileAssistPolls(t *testing.T) {
	p := &latePlugin{}
	class, err := na.Open("late://me", na.Config{Plugins: []na.Plugin{p}})
	require.NoError(t, err)
	nctx, err := class.NewContext()
	require.NoError(t, err)
	for range 20 {
		before := p.polls.Load()
		p.late.Store(true)
		p.core.PollSoon()
		require.Eventually(t, func() bool { return !p.late.Load() && p.polls.Load() >= before+2 }, 30*time.Second, time.Millisecond)
	}
	require.NoError(t, class.Close())
	for !class.Closed() {
		_ = nctx.Progress(0)
		nctx.Trigger(0)
	}
}
