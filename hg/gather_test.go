package hg_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/transports"
)

// What dispatched handlers answer that one Trigger, or one pass of a Wait, has given away leaves together, by its end at the
// latest; what they answer later leaves at once.
func TestDispatchedAnswersLeaveTogether(t *testing.T) {
	for _, how := range []string{"Trigger", "Wait"} {
		t.Run(how, func(t *testing.T) {
			transports.TCP(t, func(t *testing.T, n *transports.Net) {
				var workers sync.WaitGroup
				var held atomic.Int32
				p := &pair{Net: n, t: t}
				p.target, p.tctx = n.Target(hg.Config{Dispatch: func(r hg.Incoming) { workers.Go(func() { _ = r.Run() }) }})
				p.origin, p.octx = n.Origin(hg.Config{})
				id := p.rpc("x", func(r hg.Incoming) error {
					err := r.RespondRaw(nil, nil)
					if _ = p.octx.Progress(0); p.octx.Stats().NA.Outstanding == 2 { // it has not left
						held.Add(1)
					}
					return err
				})
				prompt, round := 0, 0
				// A handler that is slow on a busy machine answers later, and the assist may send that.
				leave := func() bool { return how == "Wait" || 2*prompt > round }
				for ; round < 50 || !(held.Load() > 0 && leave()) && round < 5_000; round++ {
					var o outcome
					a, b := p.handle(id), p.handle(id)
					require.NoError(t, a.ForwardRaw(nil, o.cb))
					require.NoError(t, b.ForwardRaw(nil, o.cb))
					for p.tctx.Stats().NA.Envelopes < 2 {
						_ = p.octx.Progress(0)
						_ = p.tctx.Progress(0)
					}
					if how == "Trigger" {
						p.tctx.Trigger(0)
						workers.Wait()
						for range 2 {
							_ = p.octx.NA().Progress(0)
						}
						if p.octx.Stats().NA.Outstanding == 0 {
							prompt++
						}
					} else {
						require.NoError(t, p.tctx.WaitFor(t.Context(), time.Minute, func() bool { return p.tctx.Stats().Handles == 0 }))
						workers.Wait()
					}
					n.Until(func() bool { return o.calls == 2 })
					require.NoError(t, o.err)
					a.Close()
					b.Close()
				}
				require.Positive(t, held.Load(), "answers that were held back")
				require.True(t, leave(), "answers have left after %d of %d", prompt, round)
				p.clean(0)
			})
		})
	}
}

// A dispatched handler that takes long holds nothing back, and whoever drives does not wait for it.
func TestDispatchedHandlerBlocks(t *testing.T) {
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		var workers sync.WaitGroup
		answered := make(chan struct{})
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{Dispatch: func(r hg.Incoming) { workers.Go(func() { _ = r.Run() }) }})
		p.origin, p.octx = n.Origin(hg.Config{})
		id := p.rpc("x", func(r hg.Incoming) error {
			if in, err := r.InputRaw(); err != nil || len(in) > 0 {
				select {
				case <-answered:
				case <-r.Context().Done():
					return context.Cause(r.Context())
				}
			}
			return r.RespondRaw(nil, nil)
		})
		for range 100 { // in vain, so that some go without a wait
			answered = make(chan struct{})
			slow, quick := p.handle(id), p.handle(id)
			var a, b outcome
			require.NoError(t, slow.ForwardRaw([]byte("slow"), a.cb))
			require.NoError(t, quick.ForwardRaw(nil, b.cb))
			for p.tctx.Stats().NA.Envelopes < 2 {
				_ = p.octx.Progress(0)
				_ = p.tctx.Progress(0)
			}
			p.tctx.Trigger(0)
			for b.calls == 0 { // nobody drives the target
				_ = p.octx.Progress(time.Millisecond)
				p.octx.Trigger(0)
			}
			require.Zero(t, a.calls)
			close(answered)
			n.Until(func() bool { return a.calls == 1 })
			require.NoError(t, a.err)
			require.NoError(t, b.err)
			slow.Close()
			quick.Close()
		}
		workers.Wait()
		p.clean(0)
	})
}
