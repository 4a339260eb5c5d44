package hg_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quicksilver-rpc/quicksilver/hg"
	"github.com/quicksilver-rpc/quicksilver/internal/test/transports"
)

// TestDispatchedAnswersLeaveTogether checks that the answers of dispatched handlers that one
// Trigger, or one pass of a Wait, has given away are sent together, at its end at the latest. On a
// busy machine a handler is slow at times, and its answer leaves by itself: the test continues
// until it has seen enough that do not.
func TestDispatchedAnswersLeaveTogether(t *testing.T) {
	for _, how := range []string{"Trigger", "Wait"} {
		t.Run(how, func(t *testing.T) {
			transports.TCP(t, func(t *testing.T, n *transports.Net) {
				const enough = 20
				given, done := make(chan hg.Request, 2), make(chan struct{}, 2)
				defer close(given)
				go func() { // one after the other, so that no other goroutine drives the origin meanwhile
					for r := range given {
						_ = r.Run()
						done <- struct{}{}
					}
				}()
				p := &pair{Net: n, t: t}
				p.target, p.tctx = n.Target(hg.Config{Dispatch: func(r hg.Request) { given <- r }})
				p.origin, p.octx = n.Origin(hg.Config{})
				// outstanding counts the calls whose answers have not arrived.
				outstanding := func() int {
					_ = p.octx.NA().Progress(0)
					return p.octx.Stats().NA.Outstanding
				}
				held, left, round := 0, 0, 0 // left: of those that were held back, when Trigger had returned
				first := false
				id := p.rpc("x", func(r hg.Request) error {
					err := r.RespondRaw(nil, nil)
					if first && outstanding() == 2 {
						held++
					}
					first = false
					return err
				})
				for ; held < enough && round < 5_000; round++ {
					var o outcome
					a, b := p.handle(id), p.handle(id)
					require.NoError(t, a.ForwardRaw(nil, o.cb))
					require.NoError(t, b.ForwardRaw(nil, o.cb))
					for p.tctx.Stats().NA.Envelopes < 2 {
						_ = p.octx.Progress(0)
						_ = p.tctx.Progress(0)
					}
					first = true
					was := held
					if how == "Trigger" {
						p.tctx.Trigger(0)
						<-done
						<-done
						if held > was && outstanding() == 0 {
							left++
						}
					} else { // this may leave one that has not been given away
						require.NoError(t, p.tctx.WaitFor(t.Context(), time.Minute, func() bool { return p.tctx.Stats().Handles == 0 }))
					}
					n.Until(func() bool { return o.calls == 2 })
					if how == "Wait" {
						<-done
						<-done
					}
					require.NoError(t, o.err)
					a.Close()
					b.Close()
				}
				require.Equal(t, enough, held, "answers that were held back, of %d", round)
				if how == "Trigger" {
					require.Greater(t, 2*left, held, "answers have left: %d of %d", left, held)
				}
				p.requireClean(0)
			})
		})
	}
}

// TestDispatchedHandlerBlocks checks that a dispatched handler that takes long delays no other
// answer, and does not block the goroutine that drives.
func TestDispatchedHandlerBlocks(t *testing.T) {
	transports.TCP(t, func(t *testing.T, n *transports.Net) {
		var workers sync.WaitGroup
		answered := make(chan struct{})
		p := &pair{Net: n, t: t}
		p.target, p.tctx = n.Target(hg.Config{Dispatch: func(r hg.Request) { workers.Go(func() { _ = r.Run() }) }})
		p.origin, p.octx = n.Origin(hg.Config{})
		id := p.rpc("x", func(r hg.Request) error {
			if in, err := r.InputRaw(); err != nil || len(in) > 0 {
				select {
				case <-answered:
				case <-r.Context().Done():
					return context.Cause(r.Context())
				}
			}
			return r.RespondRaw(nil, nil)
		})
		for range 100 { // without effect, so that some end without a wait
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
			for b.calls == 0 { // no goroutine drives the target
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
		p.requireClean(0)
	})
}
