package hg_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/long"
	"github.com/quicksilver-rpc/quicksilver/internal/test/relay"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
	"github.com/quicksilver-rpc/quicksilver/na"
	"github.com/quicksilver-rpc/quicksilver/plugins/sim"
)

// unconfirmedCount returns the number of messages that a Shutdown reports as not confirmed by peers,
// and requires that it reports nothing else.
func unconfirmedCount(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	e := shutdownError(t, err)
	require.Equal(t, &hg.ShutdownError{Unconfirmed: e.Unconfirmed, Open: e.Open, Err: e.Err}, e)
	require.NotEmpty(t, e.Open)
	return e.Unconfirmed
}

// TestShutdownOverASlowPath checks that over a slow path that loses and reorders datagrams answers
// and one-way calls arrive before Shutdown returns, or it reports how many may not have.
func TestShutdownOverASlowPath(t *testing.T) {
	t.Parallel()
	for seed := range long.Or(1, 10) {
		for _, latency := range long.Or([]time.Duration{20 * time.Millisecond}, []time.Duration{50 * time.Millisecond, 100 * time.Millisecond}) {
			for _, who := range []string{"target", "origin"} {
				t.Run(fmt.Sprintf("%s/%v/%d", who, latency, seed), func(t *testing.T) {
					t.Parallel()
					transports.UDP(t, func(t *testing.T, n *transports.Net) {
						p := newPair(t, n, hg.Config{})
						between, err := relay.New(netip.MustParseAddrPort(strings.TrimPrefix(p.target.Addr().Name(), "udp://")),
							relay.Rules{Lose: 0.05, Delay: 0.1, Latency: latency, Seed: uint64(seed)})
						require.NoError(t, err)
						t.Cleanup(between.Close)
						if who == "target" {
							shutdownAfterAnswers(t, p, na.MakeAddr("udp://"+between.Addr().String(), 0))
						} else {
							shutdownAfterOneWays(t, p, na.MakeAddr("udp://"+between.Addr().String(), 0))
						}
					})
				})
			}
		}
	}
}

// shutdownAfterAnswers has the target shut down when it has answered thirty calls.
func shutdownAfterAnswers(t *testing.T, p *pair, to na.Addr) {
	const calls = 30
	var k holdingTarget
	id := p.rpc("keep", k.handler)
	ends, handles := make(chan error, calls), []*hg.Handle{}
	for range calls {
		h, err := p.octx.Create(to, id)
		require.NoError(t, err)
		handles = append(handles, h)
		require.NoError(t, h.ForwardRaw(nil, func(_ *hg.Handle, err error) { ends <- err }))
	}
	p.Until(func() bool { return len(k.kept) == calls })
	p.Serve(p.octx, 1)
	p.tctx.Post(func() { // inside Shutdown
		for _, r := range k.kept {
			assert.NoError(t, r.RespondRaw(make([]byte, 1000), nil))
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	missing := unconfirmedCount(t, p.target.Shutdown(ctx))
	for range calls {
		if err := <-ends; err != nil {
			missing--
		}
	}
	t.Logf("answers that have arrived although they were not confirmed: %d", missing)
	require.GreaterOrEqual(t, missing, 0, "calls whose answers are lost, and that Shutdown has not counted")
	for _, h := range handles {
		h.Close()
	}
}

// shutdownAfterOneWays has the origin shut down when it has sent twenty one-way calls.
func shutdownAfterOneWays(t *testing.T, p *pair, to na.Addr) {
	const calls = 20
	arrived := make(chan struct{}, calls)
	id := p.oneWay("note", func(hg.Request) error { arrived <- struct{}{}; return nil })
	ends := 0
	for range calls {
		h, err := p.octx.Create(to, id)
		require.NoError(t, err)
		require.NoError(t, h.ForwardRaw(make([]byte, 1000), func(_ *hg.Handle, err error) { assert.NoError(t, err); ends++ }))
		h.Close()
	}
	p.Until(func() bool { return ends == calls })
	p.Serve(p.tctx, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	missing := unconfirmedCount(t, p.origin.Shutdown(ctx))
	for range calls - missing {
		<-arrived
	}
}

// TestShutdownOverASlowerPath runs the same in virtual time, over a path of seconds that loses and
// reorders.
func TestShutdownOverASlowerPath(t *testing.T) {
	t.Parallel()
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, lingerConfig(time.Minute))
		var k holdingTarget
		id := p.rpc("keep", k.handler)
		outs := make([]outcome, 30)
		for i := range outs {
			h := p.handle(id)
			defer h.Close()
			require.NoError(t, h.ForwardRaw(nil, outs[i].cb))
		}
		n.Until(func() bool { return len(k.kept) == len(outs) })
		n.World.SetFaults(sim.Faults{Jitter: 300 * time.Millisecond, Loss: 0.05, Reorder: 0.2, ReorderFor: 100 * time.Millisecond})
		p.tctx.Post(func() { // inside Shutdown
			for range outs {
				k.answer()
			}
		})
		begun := p.tctx.Now()
		require.NoError(t, p.target.Shutdown(context.Background()))
		require.Greater(t, p.tctx.Now()-begun, 400*time.Millisecond, "this path is not slow")
		p.octx.Trigger(0)
		for i := range outs {
			require.Equal(t, outcome{calls: 1}, outs[i], "call %d, when the target has ended", i)
		}
	})
}

// TestShutdownUnconfirmedAnswers checks that answers to a peer that confirms nothing are waited for
// until ctx or na.Config.Linger ends, or the peer is given up, and named with the peer's label.
func TestShutdownUnconfirmedAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		linger time.Duration
		most   time.Duration
		err    error
	}{
		"Linger":      {time.Second, 1500 * time.Millisecond, hg.ErrTimeout},
		"PeerTimeout": {time.Minute, 6 * time.Second, hg.ErrPeerLost},
	} {
		t.Run(name, func(t *testing.T) {
			transports.Virtual(t, func(t *testing.T, n *transports.Net) {
				p := newPair(t, n, hg.Config{NA: na.Config{Linger: c.linger, Name: "frozen"}})
				var k holdingTarget
				id := p.rpc("keep", k.handler)
				outs := make([]outcome, 30)
				for i := range outs {
					h := p.handle(id)
					defer h.Close()
					require.NoError(t, h.ForwardRaw(nil, outs[i].cb))
				}
				n.Until(func() bool { return len(k.kept) == len(outs) })
				n.World.Partition("origin", strings.TrimPrefix(p.target.Addr().Name(), "sim://"), true)
				p.tctx.Post(func() { // inside Shutdown
					for range outs {
						k.answer()
					}
				})
				begun := p.tctx.Now()
				err := p.target.Shutdown(context.Background())
				require.LessOrEqual(t, p.tctx.Now()-begun, c.most)
				require.Equal(t, len(outs), unconfirmedCount(t, err))
				require.ErrorIs(t, err, c.err)
				require.ErrorContains(t, err, "30 unconfirmed messages left (30 not confirmed by frozen (sim://origin))")
			})
		})
	}
}

// TestShutdownCountsLostOneWays checks that one-way calls that left for a peer which was lost
// before it confirmed them are counted long after, with the peer's label; calls are not, since their errors report it, nor
// are messages for which the peer has returned envelopes.
func TestShutdownCountsLostOneWays(t *testing.T) {
	t.Parallel()
	transports.Virtual(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, hg.Config{NA: na.Config{Name: "lost"}})
		arrived, ends := 0, 0
		note := p.oneWay("note", func(hg.Request) error { arrived++; return nil })
		id := p.rpc("echo", echo)
		send := func(n int) {
			for range n {
				h := p.handle(note)
				require.NoError(t, h.ForwardRaw(nil, func(_ *hg.Handle, err error) { assert.NoError(t, err); ends++ }))
				h.Close()
			}
		}
		send(7)
		h := p.handle(id)
		n.Until(func() bool { return arrived == 7 })
		require.NoError(t, p.call(h, "x"))
		n.World.Partition("origin", strings.TrimPrefix(p.target.Addr().Name(), "sim://"), true)
		send(5)
		var o outcome
		require.NoError(t, h.Forward("y", o.cb))
		n.Until(func() bool { return o.calls == 1 && ends == 12 })
		require.ErrorIs(t, o.err, hg.ErrPeerLost)
		h.Close()
		err := p.origin.Shutdown(context.Background())
		require.Equal(t, 5, unconfirmedCount(t, err))
		require.ErrorIs(t, err, hg.ErrPeerLost)
		require.ErrorContains(t, err, "5 not confirmed by lost ("+p.target.Addr().String()+")")
	})
}

// TestShutdownConfirmsBesideAHandler checks that a handler that does not return does not delay the
// confirmation of earlier answers; and it is named first.
func TestShutdownConfirmsBesideAHandler(t *testing.T) {
	t.Parallel()
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		p := newPair(t, n, lingerConfig(-1))
		begun, release := make(chan struct{}), make(chan struct{})
		defer close(release)
		stuck := p.rpc("stuck", func(h hg.Request) error { close(begun); <-release; return nil })
		id := p.rpc("echo", echo)
		h := p.handle(id)
		for range 50 {
			require.NoError(t, p.call(h, "x"))
		}
		h.Close()
		n.Serve(p.octx, 1)
		n.Serve(p.tctx, 1)
		h = p.handle(stuck)
		defer h.Close()
		require.NoError(t, h.Forward(nil, func(*hg.Handle, error) {}))
		<-begun
		e := shutdownError(t, p.target.Shutdown(context.Background()))
		require.Equal(t, 1, e.Handlers)
		require.Zero(t, e.Unconfirmed)
		require.Equal(t, "handler of stuck has not answered", e.Open[0])
	})
}
